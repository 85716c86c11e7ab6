"""Black-box search: minimise any function of bits or of real numbers by natural gradients of its expectation.

`networks` and `gaussian` have the distributions that a search moves, `utilities` turns values of the function into
weights of samples, `minimise` is the loop: draw, evaluate, step, and start again where a search has come to rest.
`problems` has functions to try it on. Networks of `dagfisher.nn` are trained through the optimizer's public names.
"""

from .gaussian import GaussianNetwork
from .minimise import Generation, SearchResult, minimise
from .networks import BinaryNetwork, SearchNetwork, chain, fully_visible, independent
from .problems import Problem, ellipsoid, max_sat, nk_landscape, rastrigin, rosenbrock
from .utilities import rank_utilities, value_utilities

__all__ = [
    "BinaryNetwork",
    "GaussianNetwork",
    "Generation",
    "Problem",
    "SearchNetwork",
    "SearchResult",
    "chain",
    "ellipsoid",
    "fully_visible",
    "independent",
    "max_sat",
    "minimise",
    "nk_landscape",
    "rank_utilities",
    "rastrigin",
    "rosenbrock",
    "value_utilities",
]
