"""The models that defaults are settled on, and that optimizers are compared on, behind one interface.

>>> learner = named("mini-vae").start(lambda groups: torch.optim.Adam(groups, lr=0.003), BatchSetting(100), seed=0)
>>> learner.step()
>>> learner.epochs, learner.value("valid"), learner.optimizer

`Model` has the name, the budget of processor seconds and the batch settings; `start` builds a learner with any
optimizer. `machines`, `vaes` and `regressions` hold the entries. All is float32; callers set the number of threads.
"""

from .common import BatchSetting, Learner, MakeOptimizer, Model
from .machines import MACHINES
from .regressions import REGRESSIONS
from .vaes import VAES

MODELS = (*MACHINES, *VAES, *REGRESSIONS)


def named(name: str) -> Model:
    """The model of that name."""
    for model in MODELS:
        if model.name == name:
            return model
    raise SystemExit(f"there is no model {name!r}; choose from {', '.join(model.name for model in MODELS)}.")


__all__ = ["MODELS", "BatchSetting", "Learner", "MakeOptimizer", "Model", "named"]
