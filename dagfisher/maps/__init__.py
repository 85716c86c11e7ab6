"""Linear maps from parents to predictors.

A map says, for one type of module, which rows of U a forward pass gives and how the gradients of its parameters are a
matrix with one row per unit. It knows no distributions. One file each: `linear`, `constant` (no parents but the 1),
`convolution` (ordinary and transposed). `base` has the class that a new map subclasses and `register_map`.
"""

from .base import Map, from_matrix, map_of, mapped_type, register_map, to_matrix
from .constant import ConstantMap
from .convolution import ConvolutionMap, TransposedMap
from .linear import LinearMap

__all__ = [
    "ConstantMap",
    "ConvolutionMap",
    "LinearMap",
    "Map",
    "TransposedMap",
    "from_matrix",
    "map_of",
    "mapped_type",
    "register_map",
    "to_matrix",
]
