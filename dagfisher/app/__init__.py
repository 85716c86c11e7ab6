"""The program `dagfisher`: what a person at a terminal sees of the library.

`cli` reads the arguments and has a function for each command; `console` trains a run while someone watches it (a live
bar, a line for each evaluation, Ctrl-C); `demo` is the demonstration; `progress` prints. This room knows runs and
pictures from `dagfisher.helmholtz` and `dagfisher.plots`, and nothing knows this room: whoever works without a terminal
can do without it.
"""

from .._text import table
from .cli import main
from .console import watch
from .progress import Bar

__all__ = ["Bar", "main", "table", "watch"]
