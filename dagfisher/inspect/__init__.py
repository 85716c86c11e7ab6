"""Looking into the Fisher matrix: plain numbers, and a figure of each.

`spectrum` shows the eigenvalues of each layer beside its damping, `staleness` how fast a Fisher matrix that is reused
goes out of date, `structure` the whole Fisher matrix of a small model with its zeros, `cosines` how far natural and
plain gradients point apart, `saturation` the units that no longer learn, `norms` which examples have long gradients,
and `follow` what each step does, for any logger (`scalars` for TensorBoard). Each gives a frozen dataclass of numbers
whose ``figure()`` draws them with matplotlib. Nothing here changes a model or an optimizer.
"""

from .cosines import Cosines, cosines
from .following import Follower, Trace, follow, numbers, scalars
from .norms import Norms, norms
from .saturation import LayerSaturation, Saturation, saturation
from .spectrum import LayerSpectrum, Spectrum, spectrum
from .staleness import AGES, Staleness, staleness
from .structure import LayerPlace, Structure, structure

__all__ = [
    "AGES",
    "Cosines",
    "Follower",
    "LayerPlace",
    "LayerSaturation",
    "LayerSpectrum",
    "Norms",
    "Saturation",
    "Spectrum",
    "Staleness",
    "Structure",
    "Trace",
    "cosines",
    "follow",
    "norms",
    "numbers",
    "saturation",
    "scalars",
    "spectrum",
    "staleness",
    "structure",
]
