"""Binary images to learn from, behind one loader.

>>> from dagfisher import datasets
>>> data = datasets.load("mini-mnist")
>>> for x in data.batches(32, seed=0, epoch=0):
...     ...  # x: float32, one image per row, every pixel 0 or 1

`load` (in `registry`) knows every dataset by name and gives a `Dataset`: three splits of images, minibatches that can
be repeated and resumed, and the exact `Distribution` where there is one. `three_by_three`, `mini_mnist` and `mnist`
make the named ones, `images` those from files of the user's (`files`, `idx`, `png` and `amat` read them), `download`
fetches and checks. This room knows neither machines nor optimizers; what is wrong with data is a `DataError`.

``mini-mnist`` is embedded in the package. It is derived from MNIST (Yann LeCun, Corinna Cortes, Christopher
J. C. Burges), which is made available under the Creative Commons Attribution-Share Alike 3.0 licence; so is
the embedded file (see ``data/LICENSE.md``).
"""

from .dataset import BINARISATIONS, Binarisation, Dataset, Description, Split
from .distribution import Distribution
from .errors import DataError
from .registry import NAMES, Listing, available, find, load, read_images

__all__ = [
    "BINARISATIONS",
    "NAMES",
    "Binarisation",
    "DataError",
    "Dataset",
    "Description",
    "Distribution",
    "Listing",
    "Split",
    "available",
    "find",
    "load",
    "read_images",
]
