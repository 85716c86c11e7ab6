"""Looking into the Fisher matrix: plain numbers, and a figure of each.

`spectrum` shows the eigenvalues of each layer beside its damping, `staleness` how fast a Fisher matrix that is reused
goes out of date, `structure` the whole Fisher matrix of a small model with its zeros, `cosines` how far natural and
plain gradients point apart, `saturation` the units that no longer learn, `examples` how unequal the gradients of
examples are, and `follow` what each step does, for any logger (`scalars` for TensorBoard). Each gives a frozen
dataclass of numbers whose ``figure()`` draws them with matplotlib. Nothing here changes a model or an optimizer.
"""

from .cosines import Cosines, cosines
from .examples import Examples, examples
from .following import Follower, Trace, follow, numbers, scalars
from .saturation import LayerSaturation, Saturation, saturation
from .spectrum import LayerSpectrum, Spectrum, spectrum
from .staleness import AGES, Staleness, staleness
from .structure import LayerPlace, Structure, structure

__all__ = [
    "AGES",
    "Cosines",
    "Examples",
    "Follower",
    "LayerPlace",
    "LayerSaturation",
    "LayerSpectrum",
    "Saturation",
    "Spectrum",
    "Staleness",
    "Structure",
    "Trace",
    "cosines",
    "examples",
    "follow",
    "numbers",
    "saturation",
    "scalars",
    "spectrum",
    "staleness",
    "structure",
]
