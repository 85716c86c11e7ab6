"""What the forward passes of declared layers leave for the optimizer.

A forward hook copies parents and Fisher weights of each pass into the recorder of its layer (`hooks`, `records`);
`context` says which passes count, and how much. Fisher weights that the forward pass does not know are `pending`: the
other head of a Gaussian layer tells them, or a backward pass, for which `sampling` draws outputs from the model.
Nothing here knows of blocks or solvers.
"""

from .context import no_capture, sample_weights
from .hooks import compute_dtype, forward_hook, layer_dtype, leave_graphs, observe, weigh
from .pending import Pending
from .records import Pass, Recorder
from .sampling import sample

__all__ = [
    "Pass",
    "Pending",
    "Recorder",
    "compute_dtype",
    "forward_hook",
    "layer_dtype",
    "leave_graphs",
    "no_capture",
    "observe",
    "sample",
    "sample_weights",
    "weigh",
]
