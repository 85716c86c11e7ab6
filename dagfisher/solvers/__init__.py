"""Ways to apply (αI + F_j)⁻¹ for every unit j of a layer at once; one file each, one protocol."""

from .base import Problem, Solver
from .conjugate import Conjugate
from .dense import Dense
from .diagonal import Diagonal
from .woodbury import Woodbury

SOLVERS: dict[str, type[Solver]] = {
    "dense": Dense,
    "woodbury": Woodbury,
    "conjugate": Conjugate,
    "diagonal": Diagonal,
}

__all__ = ["SOLVERS", "Conjugate", "Dense", "Diagonal", "Problem", "Solver", "Woodbury"]
