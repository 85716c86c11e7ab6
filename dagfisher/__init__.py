"""dagfisher: exact, block-diagonal natural gradients for networks of stochastic units."""

from . import errors, families, nn
from .capture import no_capture, observe, sample_weights
from .declare import declare, declare_gaussian
from .model import declare_model, summary
from .optim import DAGNaturalGradient

__version__ = "0.1.0"
__all__ = [
    "DAGNaturalGradient",
    "declare",
    "declare_gaussian",
    "declare_model",
    "errors",
    "families",
    "nn",
    "no_capture",
    "observe",
    "sample_weights",
    "summary",
]
