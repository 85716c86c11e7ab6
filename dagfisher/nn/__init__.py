"""Ready-made stochastic layers: each is a module, a declared DAG layer and a conditional distribution.

`layers` has dense and convolutional layers of every family and the prior of a top layer; `masked` has layers in which
each unit has parents of its own, among them a normal distribution with a full covariance matrix; `lateral` has binary
layers whose units see the units before them.
"""

from .lateral import LateralBernoulliLinear
from .layers import (
    BernoulliConv1d,
    BernoulliConv2d,
    BernoulliConv3d,
    BernoulliConvTranspose1d,
    BernoulliConvTranspose2d,
    BernoulliConvTranspose3d,
    BernoulliLinear,
    CategoricalLinear,
    GaussianConv1d,
    GaussianConv2d,
    GaussianConv3d,
    GaussianConvTranspose1d,
    GaussianConvTranspose2d,
    GaussianConvTranspose3d,
    GaussianLinear,
    PoissonLinear,
    Prior,
    StochasticConvolution,
    StochasticLayer,
)
from .masked import (
    FullGaussian,
    MaskedBernoulliLinear,
    MaskedCategoricalLinear,
    MaskedGaussianLinear,
    MaskedLinear,
    MaskedPoissonLinear,
)

__all__ = [
    "BernoulliConv1d",
    "BernoulliConv2d",
    "BernoulliConv3d",
    "BernoulliConvTranspose1d",
    "BernoulliConvTranspose2d",
    "BernoulliConvTranspose3d",
    "BernoulliLinear",
    "CategoricalLinear",
    "FullGaussian",
    "GaussianConv1d",
    "GaussianConv2d",
    "GaussianConv3d",
    "GaussianConvTranspose1d",
    "GaussianConvTranspose2d",
    "GaussianConvTranspose3d",
    "GaussianLinear",
    "LateralBernoulliLinear",
    "MaskedBernoulliLinear",
    "MaskedCategoricalLinear",
    "MaskedGaussianLinear",
    "MaskedLinear",
    "MaskedPoissonLinear",
    "PoissonLinear",
    "Prior",
    "StochasticConvolution",
    "StochasticLayer",
]
