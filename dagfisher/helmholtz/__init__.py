"""Helmholtz machines and the whole family of wake-sleep algorithms.

A `HelmholtzMachine` has a generative network p and a recognition network q. A `Trainer` teaches both by an `Algorithm`:
samples of q are drawn and weighed, samples of p are dreamt, and the optimizer (`DAGNaturalGradient` for natural
algorithms) follows the gradients. A `Run` is training in a folder, described by `Settings`, that can be left and
continued.

The modules in the order of their imports: `shapes` (units of convolutions), `layers` (predictors and draws of any
layer), `sampling` (wake and dreams), `evaluate` (log-likelihoods), `completion` (unknown pixels), `machine`,
`objectives` (gradients), `regularisers`, `schedules`, `baselines` (of
REINFORCE), `algorithms`, `train`, `settings`, `metrics` (rows of a run),
`pictures`, `runs`. To add an algorithm, write an `Algorithm` and `register_algorithm` it.
"""

from .algorithms import ALGORITHMS, Algorithm, Figure, Step, register_algorithm
from .completion import Completion
from .evaluate import Estimate, estimate
from .machine import HelmholtzMachine
from .metrics import Row
from .presets import PRESETS, Preset, preset_named
from .regularisers import L1, L2, Entropy
from .runs import Run
from .sampling import Wake
from .schedules import Schedule
from .settings import Settings
from .train import Trainer

__all__ = [
    "ALGORITHMS",
    "L1",
    "L2",
    "PRESETS",
    "Algorithm",
    "Completion",
    "Entropy",
    "Estimate",
    "Figure",
    "HelmholtzMachine",
    "Preset",
    "Row",
    "Run",
    "Schedule",
    "Settings",
    "Step",
    "Trainer",
    "Wake",
    "estimate",
    "preset_named",
    "register_algorithm",
]
