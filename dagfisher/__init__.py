"""dagfisher: exact, block-diagonal natural gradients for networks of stochastic units.

The rooms, in the order of the data: `families` and `maps` say what a layer is; `declare` says it of a module; `capture`
keeps what forward passes leave; `fisher` and `solvers` make and invert the blocks; `optim` takes the step. `nn` has
ready-made layers, `helmholtz` machines made of them, `search` black-box search, `probes` linear probes of
machines, `importance` drawing of examples, `datasets` images to learn from, `app` the program.
"""

from . import errors, families, maps, nn, solvers
from .capture import no_capture, observe, sample_weights
from .declare import declare, declare_gaussian, undeclare
from .families import register_family
from .fisher import choose_solver
from .maps import register_map
from .optim import DAGNaturalGradient
from .parameter import declare_parameter
from .rules import declare_model
from .solvers import register_solver
from .summary import summary

__version__ = "0.2.0"
__all__ = [
    "DAGNaturalGradient",
    "choose_solver",
    "declare",
    "declare_gaussian",
    "declare_model",
    "declare_parameter",
    "errors",
    "families",
    "maps",
    "nn",
    "no_capture",
    "observe",
    "register_family",
    "register_map",
    "register_solver",
    "sample_weights",
    "solvers",
    "summary",
    "undeclare",
]
