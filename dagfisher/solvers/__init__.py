"""Ways to apply (αI + F_j)⁻¹ for every unit j of a layer at once; one file each, one protocol.

A solver says what it is (`exact`, `needs_rows`, `needs_damping`) and what it costs on a problem of a given shape;
`base` has the class that a new solver subclasses and `register_solver`. `rates` has the constants of the cost model by
type of device, `spd` the factorisations that all of them use.
"""

from .base import SOLVERS, BlockShape, Cost, GramProblem, Problem, RowProblem, Solver, register_solver
from .conjugate import Conjugate
from .dense import Dense
from .diagonal import Diagonal
from .woodbury import Woodbury

for _solver in (Dense, Woodbury, Conjugate, Diagonal):
    register_solver(_solver)

__all__ = [
    "SOLVERS",
    "BlockShape",
    "Conjugate",
    "Cost",
    "Dense",
    "Diagonal",
    "GramProblem",
    "Problem",
    "RowProblem",
    "Solver",
    "Woodbury",
    "register_solver",
]
