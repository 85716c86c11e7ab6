"""The program `dagfisher`: what a person at a terminal sees of the library.

`cli` reads the arguments; `training` has the command that trains, `looking` those that look at runs, `demo` the
demonstration. `console` trains a run while someone watches it (a live bar, a line for each evaluation, Ctrl-C),
`progress` prints, `exits` has the exit codes. This room knows runs and pictures from `dagfisher.helmholtz` and
`dagfisher.plots`, and nothing knows this room: whoever works without a terminal can do without it.
"""

from .._text import table
from .cli import main
from .console import watch
from .progress import Bar

__all__ = ["Bar", "main", "table", "watch"]
