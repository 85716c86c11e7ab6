"""Ways to apply (αI + F_j)⁻¹ for every unit j of a layer at once; one file each, one protocol.

A solver says what it is (`exact`, `needs_rows`, `needs_damping`) and what it costs on a problem of a given shape;
`base` has the class that a new solver subclasses and `register_solver`. `rates` has the constants of the cost model by
type of device, `spd` the factorisations that all of them use.
"""

from .base import SOLVERS, Cost, Solver, register_solver, solver_names
from .conjugate import Conjugate
from .coupled import CoupledConjugate, CoupledWoodbury
from .dense import Dense
from .diagonal import Diagonal
from .masked import MaskedConjugate
from .plain import Plain
from .problems import BlockShape, CoupledProblem, GramProblem, MaskedProblem, Problem, RowProblem
from .woodbury import Woodbury

for _solver in (Dense, Woodbury, Conjugate, Plain, MaskedConjugate, CoupledConjugate, CoupledWoodbury, Diagonal):
    register_solver(_solver)

__all__ = [
    "SOLVERS",
    "BlockShape",
    "Conjugate",
    "Cost",
    "CoupledConjugate",
    "CoupledProblem",
    "CoupledWoodbury",
    "Dense",
    "Diagonal",
    "GramProblem",
    "MaskedConjugate",
    "MaskedProblem",
    "Plain",
    "Problem",
    "RowProblem",
    "Solver",
    "Woodbury",
    "register_solver",
    "solver_names",
]
