"""Distributions of a unit given its linear predictor.

A family says what the outputs of a declared layer are: it knows the Fisher weight q of each unit, log-probabilities,
samples, means and entropies, and it knows no modules. One file each; `base` has the class that a new family subclasses
and `register_family`. A Gaussian layer may have two heads (`GaussianMean`, `GaussianScale`), and hidden units without a
distribution are `Deterministic`: these are `Units` whose Fisher weights are known later than the forward pass.
"""

from .base import Family, Units, family_names, family_settings, make_family, register_family
from .bernoulli import Bernoulli
from .categorical import Categorical
from .conditional import Conditional
from .deterministic import Deterministic
from .gaussian import Gaussian, GaussianConstant, GaussianLogStd, GaussianMean, GaussianScale
from .laplace import Laplace
from .lateral import LateralConditional
from .poisson import Poisson

__all__ = [
    "Bernoulli",
    "Categorical",
    "Conditional",
    "Deterministic",
    "Family",
    "Gaussian",
    "GaussianConstant",
    "GaussianLogStd",
    "GaussianMean",
    "GaussianScale",
    "Laplace",
    "LateralConditional",
    "Poisson",
    "Units",
    "family_names",
    "family_settings",
    "make_family",
    "register_family",
]
