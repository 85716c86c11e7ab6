"""DataError, the one exception of this room."""


class DataError(Exception):
    """Data that cannot be used; the message is one sentence naming the file or dataset and what to do."""
