"""The optimizer: a `torch.optim.Optimizer` that steps along damped natural gradients of declared layers.

`optimizer` has the class; `layer` is one declared layer as it trains it; `settings` says every setting once; `groups`
reads param groups. A step goes through `guards` (nothing that is not finite moves a parameter), `trust` (how far it may
go) and `updates` (momentum, Adam, decay). `damping` finds the damping, `examples` the norms of examples,
`checkpoint` checks what is loaded, and `distributed` joins the statistics of several processes.
"""

from .optimizer import DAGNaturalGradient
from .settings import BY_ITSELF, OptimizerSettings

__all__ = ["BY_ITSELF", "DAGNaturalGradient", "OptimizerSettings"]
