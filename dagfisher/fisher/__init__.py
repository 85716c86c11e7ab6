"""From captured passes to an inverse Fisher.

`statistics` turns passes into `Rows` or `Grams` and joins them; `segments` cuts them into runs of units that share
their parents; `choose` finds the solver for each; `layer` holds the prepared solvers of one layer and applies them;
`window` keeps the statistics of past refreshes.
"""

from .choose import MEMORY_LIMIT, Choice, choose, choose_solver
from .layer import LayerFisher, damped_blocks
from .statistics import Columns, Grams, Rows, Statistics, compact, joined, statistics_of
from .window import Window, normalised

__all__ = [
    "MEMORY_LIMIT",
    "Choice",
    "Columns",
    "Grams",
    "LayerFisher",
    "Rows",
    "Statistics",
    "Window",
    "choose",
    "choose_solver",
    "compact",
    "damped_blocks",
    "joined",
    "normalised",
    "statistics_of",
]
