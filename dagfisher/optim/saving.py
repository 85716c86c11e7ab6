"""An optimizer with declared layers that can be saved, loaded, copied and pickled as torch's own."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from .._processes import Processes, Traffic
from .._torch import holding_hooks, inside_distributed_checkpoint, optimizer_hooks
from ..declaration import changes, find_layers
from ..errors import CheckpointError, DagFisherError, DeclarationError
from .checkpoint import OWN, add_own_part, read, require_fitting, states_of_layers
from .guards import FiniteGuard
from .layer import TrainedLayer
from .settings import DEFAULTS, NAMES
from .trust import TrustRegions


class SavedOptimizer(torch.optim.Optimizer):
    """What an optimizer knows beyond torch's: the steps taken, and its layers with their Fishers.

    A copy finds its layers among the copied modules. If they are not there, since it was copied without its model, it
    keeps what it knows about them, and `_require_layers` says so.
    """

    def _begin(self, process_group: Any) -> None:
        """Before the first param group."""
        self._processes = Processes(process_group)
        self._compared: Any = None
        self._traffic = {"refresh": Traffic(), "reuse": Traffic()}
        self._names: dict[int, str] = {}
        self._layers: list[TrainedLayer] = []
        self._declared: set[int] = set()
        self._masked: dict[int, TrainedLayer] = {}
        self._seen = changes()
        self._absent: dict[str, Any] | None = None
        self._step = 0
        self._finite = FiniteGuard()
        self._regions = TrustRegions()
        self._ready = False

    @abstractmethod
    def _bind(self) -> None:
        """Find the declared layers of the parameters, keep those already known, and listen to them."""

    @abstractmethod
    def _forget(self) -> None:
        """Drop what was captured for the coming step."""

    @abstractmethod
    def _begin_moments(self) -> None:
        """Moments of zero for every trained parameter that keeps some and has none yet."""

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    # Copies

    def _own_state(self) -> dict[str, Any]:
        """The steps taken, the state of each layer, and which parameter, by its place among all, carries it."""
        if self._absent is not None:
            return self._absent
        place = {id(p): i for i, p in enumerate(self._parameters())}
        trained = [[p for p in layer.parameters if p.requires_grad] or layer.parameters for layer in self._layers]
        return {
            "step": self._step,
            "layers": [layer.state() for layer in self._layers],
            "carriers": [place[id(parameters[0])] for parameters in trained],
        }

    def _copied(self) -> dict[str, Any]:
        names = [self._names.get(id(p)) for p in self._parameters()]
        given = None if self._processes.given is None else False
        return {**super().__getstate__(), OWN: {**self._own_state(), "names": names, "process_group": given}}

    def __getstate__(self) -> dict[str, Any]:
        if self._processes.given:
            raise CheckpointError(
                "an optimizer with a process_group cannot be pickled, since a group belongs to its process; save its "
                "state_dict(), and load it into an optimizer that was built with the group of the other process."
            )
        return self._copied()

    def __deepcopy__(self, memo: dict[int, Any]) -> SavedOptimizer:
        twin = self.__class__.__new__(self.__class__)
        memo[id(self)] = twin
        state = copy.deepcopy(self._copied(), memo)
        state[OWN]["process_group"] = self._processes.given
        twin.__setstate__(state)
        return twin

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = state.get(OWN)
        super().__setstate__({key: value for key, value in state.items() if key != OWN})
        for group in self.param_groups:
            for name in NAMES:
                group.setdefault(name, getattr(DEFAULTS, name))
        if own is None:
            return
        self._begin(own.pop("process_group", None))
        self._ready = True
        self._step = own["step"]
        names = own.pop("names", [])
        self._names.update({id(p): n for p, n in zip(self._parameters(), names, strict=False) if n is not None})
        self._absent = own
        self._adopt()

    def _adopt(self) -> bool:
        """Whether this optimizer has its layers; those of a copy are there once their modules were copied, too."""
        if self._absent is None:
            return True
        layers = self._absent["layers"]
        if len(find_layers(self._parameters())) != len(layers):
            return False
        self._absent = None
        self._bind()
        for layer, saved in zip(self._layers, layers, strict=True):
            layer.restore(layer.restored(saved, self._step))
        self._forget()
        return True

    def _require_layers(self) -> None:
        if not self._adopt():
            raise DeclarationError(
                "this optimizer was copied or pickled without its model, so that no module holds its parameters; copy "
                "or pickle the model and its optimizer together, as one tuple."
            )

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers; schedules that are callables are not saved.

        `torch.distributed.checkpoint` gets the state of the layers with their parameters, and all moments there are.
        """
        distributed = inside_distributed_checkpoint()
        if distributed and self._adopt():
            self._begin_moments()
        for prepare in optimizer_hooks(self, "state_dict_pre"):
            prepare(self)
        with holding_hooks(self, "state_dict_pre", "state_dict_post"):
            state = super().state_dict()
        own = self._own_state()
        add_own_part(state, own["step"], own["layers"], own["carriers"], distributed=distributed)
        for hook in optimizer_hooks(self, "state_dict_post"):
            changed = hook(self, state)
            state = state if changed is None else changed
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where the saved optimizer was; the factors keep their dtype and move to their layer's device."""
        self._require_layers()
        if isinstance(state_dict, dict):
            state_dict = state_dict.copy()
            for hook in optimizer_hooks(self, "load_state_dict_pre"):
                changed = hook(self, state_dict)
                state_dict = state_dict if changed is None else changed
        saved, parameters = read(state_dict), self._parameters()
        states = states_of_layers(saved, self._layers, parameters)
        restored = [layer.restored(state, saved.step) for layer, state in zip(self._layers, states, strict=True)]
        filled, before = [], (self.state, self.param_groups)
        for i, group in enumerate(saved.groups):
            current = self.param_groups[i] if i < len(self.param_groups) else {}
            filled.append({**current, **group})
        moments = {index: copy.deepcopy(kept) for index, kept in saved.moments.items() if kept}
        try:
            require_fitting(moments, filled, parameters, self._names)
            with holding_hooks(self, "load_state_dict_pre", "load_state_dict_post"):
                super().load_state_dict({"state": moments, "param_groups": filled})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"the checkpoint does not fit this optimizer: {error}") from None
        try:
            self._bind()
        except DagFisherError as error:
            self.state, self.param_groups = before
            self._bind()
            raise CheckpointError(f"the checkpoint does not fit this optimizer: {error}") from None
        self._step = saved.step
        for layer, state in zip(self._layers, restored, strict=True):
            layer.restore(state)
        self._forget()
        for hook in optimizer_hooks(self, "load_state_dict_post"):
            hook(self)
