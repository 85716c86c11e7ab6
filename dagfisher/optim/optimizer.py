"""DAGNaturalGradient: a torch.optim.Optimizer that steps along damped natural gradients of declared layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..capture import sample
from ..declaration import Declaration, find_layers
from ..errors import CheckpointError, DagFisherError, DeclarationError, SettingError
from .checkpoint import read, require_fitting
from .damping import LEAST, TARGET, Losses, adapted, curvature_ratios, targets
from .groups import plain_groups
from .guards import FiniteGuard, blame, blaming, require_dense
from .layer import TrainedLayer
from .settings import DEFAULTS, NAMES, SHARED, Schedule, described, validate
from .trust import Natural, limit
from .updates import apply_update


class DAGNaturalGradient(torch.optim.Optimizer):
    """Natural gradients for the declared layers among the parameters, plain ones for the rest.

    One step moves unit j of a declared layer by ``−lr · (1+α)(αI + F_j)⁻¹ g_j``: g is what is in ``.grad``, α is
    the damping, and F_j is the Fisher block of the unit, from the forward passes captured since the last step. A
    forward pass is captured if the module is in training mode, gradients are enabled, :func:`dagfisher.no_capture`
    is not active, and the next step refreshes. Step 0 refreshes; then every `update_every`-th step does, and the
    steps between reuse what was prepared, without host synchronisation.

    Args:
        params: ``model.parameters()``, ``model.named_parameters()``, or param groups with any of the settings below.
            A layer's weight and bias may be in different groups with different rates and decays, but the settings of
            its Fisher (damping, update_every, solver, tolerance, trust_region, window) must agree.
        {settings}
        process_group: join the statistics of the processes of this ``torch.distributed`` group at each refresh.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = DEFAULTS.lr,
        *,
        damping: Schedule = DEFAULTS.damping,
        update_every: Schedule = DEFAULTS.update_every,
        solver: str = DEFAULTS.solver,
        momentum: float = DEFAULTS.momentum,
        nesterov: bool = DEFAULTS.nesterov,
        betas: tuple[float, float] | None = DEFAULTS.betas,
        weight_decay: float = DEFAULTS.weight_decay,
        l1: float = DEFAULTS.l1,
        tolerance: float = DEFAULTS.tolerance,
        trust_region: float | None = DEFAULTS.trust_region,
        window: int = DEFAULTS.window,
        window_decay: float = DEFAULTS.window_decay,
        undeclared: str = DEFAULTS.undeclared,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        # Schedulers that cycle momentum look for "betas" among the defaults to see which of the two there is.
        given = {name: value for name, value in locals().items() if name in NAMES and (name, value) != ("betas", None)}
        self._process_group = process_group
        self._names: dict[int, str] = {}
        self._layers: list[TrainedLayer] = []
        self._step = 0
        self._finite = FiniteGuard()
        self._ready = False
        super().__init__(plain_groups(params, self._names), given)
        self._ready = True
        self._bind()

    # Parameters and layers

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with settings of their own; layers among them are found as at construction."""
        plain = plain_groups([param_group], self._names)[0]
        super().add_param_group({"betas": self.defaults.get("betas"), **plain})
        try:
            validate(self.param_groups[-1])
            if self._ready:
                self._bind()
        except Exception:  # whatever it was, it is raised again, and the optimizer stands as before the call
            self.param_groups.pop()
            if self._ready:
                self._bind()
            raise

    def _bind(self) -> None:
        """Find the declared layers of the parameters, keep those already known, and listen to them."""
        group_of = {id(p): group for group in self.param_groups for p in group["params"]}
        parameters = [p for group in self.param_groups for p in group["params"]]
        known = {id(layer.declaration): layer for layer in self._layers}
        layers = []
        for declaration in find_layers(parameters):
            layer = known.get(id(declaration)) or TrainedLayer(declaration)
            layer.bind(group_of, self._names)
            if any(group[key] != layer.group[key] for group in layer.groups for key in SHARED):
                raise SettingError(
                    f"layer {layer.name}: its weight and bias are in groups that differ in one of "
                    f"{', '.join(SHARED)}; give both the same."
                )
            layers.append(layer)
        declared = {id(p) for layer in layers for p in layer.parameters}
        for group in self.param_groups:
            for index, p in enumerate(group["params"]):
                if group["undeclared"] == "error" and id(p) not in declared:
                    name = self._names.get(id(p), f"number {index} of its group, shape {tuple(p.shape)}")
                    raise DeclarationError(
                        f"parameter {name} belongs to no declared layer; declare its module, or choose "
                        f"undeclared='sgd' or 'adam'."
                    )
        for layer in layers:
            layer.listen()
        self._layers = layers
        self._declared = declared
        self._arm()

    def _arm(self) -> None:
        """Let each layer capture exactly if the coming step will refresh it."""
        follows = any(layer.deterministic for layer in self._layers)
        for layer in self._layers:
            try:
                wanted = layer.due(self._step)
            except SettingError:  # the coming step says so, before it moves anything
                wanted = True
            layer.arm(wanted, self._step, self._process_group, follows)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, forget the captured passes that they came from, and notice what was frozen or converted.

        A pass from before this call counts for the coming step if its ``backward()`` comes after this call. So a step
        that was skipped, by ``torch.amp.GradScaler`` or by a ``continue``, leaves nothing behind, and gradients may be
        accumulated over any number of passes. Calling ``zero_grad`` of the model instead clears gradients alone.
        """
        super().zero_grad(set_to_none)
        for layer in self._layers:
            layer.recorder.clear_gradients()
        self._arm()

    def sample_fisher(self, generator: torch.Generator | None = None) -> None:
        """For models with ``"deterministic"`` layers: call it after the forward pass and before ``backward()``.

        Draws outputs from the distributions that the captured passes gave, and back-propagates their scores to the
        deterministic layers, whose Fisher weights are the squares of what arrives. The gradients of the loss are not
        touched. On a step that reuses its Fisher nothing is done.
        """
        sample([(layer.declaration, layer.recorder) for layer in self._layers], generator)

    def adapt_damping(self, losses: Losses, *, target: float | Sequence[float] = TARGET, least: float = LEAST) -> None:
        """Adapt the damping to the curvature along the natural gradient; call it between ``backward()`` and ``step()``.

        `losses` is called without gradients, at the parameters and a short way to either side, and gives the mean loss
        of a minibatch other than the one of the gradients, with the same random numbers each time; or one such loss
        for each param group, if each depends on that group alone. If the loss curves by more than `target` (one, or
        one for each group) times what αI + F predicts, the damping α grows, if by less it shrinks, at most by a factor
        of two and not below `least`. The next refresh takes it. Reads numbers from the device: call it once for each
        refresh, just before it (``if optimizer.refreshes_within(1)``), not at every step. With a `process_group` each
        process gives the loss of samples of its own, and their mean decides for all.
        """
        if any(callable(group["damping"]) for group in self.param_groups):
            raise SettingError("adapt_damping needs a damping that is a number, not a schedule.")
        aims = targets(target, len(self.param_groups))
        with self._full_precision():
            found = self._naturals()[0]
            ratios = curvature_ratios(found, losses, self.param_groups, self._process_group)
        for group, ratio, aim in zip(self.param_groups, ratios, aims, strict=True):
            # The ratio belongs to the damping that was solved with, however often the damping was adapted since.
            solved = max((n.damping for n in found if n.layer.group is group), default=group["damping"])
            group["damping"] = adapted(solved, ratio, aim, least)

    def refreshes_within(self, steps: int) -> bool:
        """Whether one of so many steps after the coming one refreshes the Fisher of a layer."""
        return any(layer.refreshes_within(steps, self._step) for layer in self._layers)

    # Steps

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; if anything is wrong, raise before any parameter moves."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self._full_precision():
            try:
                for group in self.param_groups:
                    validate(group)
                vectors, whole, fresh = self._vectors()
                blamed = partial(blame, vectors, self.param_groups, self._layers, self._names)
                gates = self._finite.require(vectors, whole, refreshing=bool(fresh), blamed=blamed)
            except Exception:  # raised again; nothing has moved, and what was captured must not reach the next step
                self._forget()
                raise
            for layer, fisher in fresh.items():
                layer.keep(fisher, self._step)
            for group in self.param_groups:
                self._update(group, vectors, gates)
        self._step += 1
        self._forget()
        return loss

    @contextmanager
    def _full_precision(self) -> Iterator[None]:
        """No gradients are recorded, and no operation is cast to half precision, whatever autocast is active."""
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            for kind in {p.device.type for layer in self._layers for p in layer.parameters}:
                if kind != "meta" and torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            yield

    def _forget(self) -> None:
        for layer in self._layers:
            layer.recorder.clear()
        self._arm()

    def _vectors(self) -> tuple[dict[Tensor, Tensor], list[Tensor], dict[TrainedLayer, Any]]:
        """The vector of every parameter with a gradient, what they are views of, and fresh inverse Fishers."""
        require_dense(self.param_groups, self._names)
        vectors: dict[Tensor, Tensor] = {}
        whole: list[Tensor] = []
        found, fresh = self._naturals()
        limit(found)
        for layer, _, natural, _ in found:
            parts = {p: v.to(p.dtype) for p, v in layer.split(natural).items()}
            vectors.update(parts)
            # Half precision may overflow where the natural gradient did not.
            whole.extend([natural] if natural.dtype == next(iter(parts)).dtype else parts.values())
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and id(p) not in self._declared:
                    vectors[p] = p.grad
                    whole.append(p.grad)
        return vectors, whole, fresh

    def _naturals(self) -> tuple[list[Natural], dict[TrainedLayer, Any]]:
        """The natural gradients of the layers that have a gradient, and fresh inverse Fishers."""
        fresh: dict[TrainedLayer, Any] = {}
        found: list[Natural] = []
        for layer in self._layers:
            gradient = layer.gradient()
            if gradient is None:
                continue
            if layer.due(self._step):
                with blaming(self.param_groups, self._layers, self._names):
                    fresh[layer], natural = layer.refresh(gradient, self._step, self._process_group)
                found.append(Natural(layer, gradient, natural, fresh[layer].damping))
            else:
                found.append(Natural(layer, gradient, *layer.reuse(gradient)))
        return found, fresh

    def _update(self, group: dict[str, Any], vectors: dict[Tensor, Tensor], gates: dict[torch.device, Tensor]) -> None:
        moved = [p for p in group["params"] if p in vectors]
        plain_adam = group["undeclared"] == "adam" and group["betas"] is None
        adam = [p for p in moved if plain_adam and id(p) not in self._declared]
        rest = [p for p in moved if not (plain_adam and id(p) not in self._declared)]
        for parameters, settings in ((rest, group), (adam, {**group, "betas": (0.9, 0.999)})):
            if parameters:
                states = [self.state[p] for p in parameters]
                moves = [vectors[p] for p in parameters]
                apply_update(parameters, moves, states, settings, [gates.get(p.device) for p in parameters])

    # Inspection

    def natural_gradient(self) -> dict[Tensor, Tensor]:
        """The vector of every parameter that has a gradient, as the next step would use it; nothing moves."""
        with self._full_precision():
            vectors, _, _ = self._vectors()
            return {p: v.clone() for p, v in vectors.items()}

    def fisher_blocks(self, parameter: Tensor) -> Tensor:
        """The damped blocks (αI + F_j)/(1+α) of the layer that owns the parameter, (units, d, d).

        From the passes captured since the last step if the next one refreshes, otherwise as they are being reused.
        The bias, if trained, is the last parent.
        """
        for layer in self._layers:
            if any(p is parameter for p in layer.parameters):
                with self._full_precision():
                    return layer.blocks(self._step, self._process_group)
        raise DeclarationError("this parameter belongs to no declared layer of this optimizer.")

    def memory_usage(self) -> dict[str, int]:
        """Bytes that each layer keeps: its prepared solver and what is staged for the coming step."""
        usage: dict[str, int] = {}
        for layer in self._layers:
            name, copies = layer.name.strip("'"), 1
            while (label := name if copies == 1 else f"{name} ({copies})") in usage:
                copies += 1
            usage[label] = layer.nbytes()
        return usage

    def __repr__(self) -> str:
        lines = [f"DAGNaturalGradient (step {self._step})"]
        for layer in self._layers:
            lines.append(f"  {layer!r}")
        plain = sum(len(group["params"]) for group in self.param_groups) - len(self._declared)
        if plain:
            rules = "/".join(sorted({str(group["undeclared"]) for group in self.param_groups}))
            lines.append(f"  {plain} undeclared parameters: {rules}")
        for i, group in enumerate(self.param_groups):
            settings = ", ".join(f"{k}={group[k]}" for k in group if k != "params")
            lines.append(f"  group {i}: {settings}")
        return "\n".join(lines)

    def layer_of(self, declaration: Declaration) -> TrainedLayer | None:
        """The declared layer as this optimizer trains it, if it does; for tables."""
        return next((layer for layer in self._layers if layer.declaration is declaration), None)

    # Copies and checkpoints

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {**state, "dagfisher": self.state_dict()["dagfisher"]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = state.pop("dagfisher", None)
        super().__setstate__(state)
        if own is None:
            return
        self._process_group, self._names, self._layers, self._ready = None, {}, [], True
        self._finite = FiniteGuard()
        self._step = own["step"]
        self._bind()
        if len(own["layers"]) != len(self._layers):
            raise DeclarationError("copy or pickle the model and its optimizer together, as one tuple.")
        for layer, saved in zip(self._layers, own["layers"], strict=True):
            layer.restore(layer.restored(saved, self._step))
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers; schedules that are callables are not saved."""
        state = super().state_dict()
        for group in state["param_groups"]:
            for key in [k for k, v in group.items() if callable(v)]:
                del group[key]
        state["dagfisher"] = {"step": self._step, "layers": [layer.state() for layer in self._layers]}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where the saved optimizer stood; the factors keep their dtype and move to their layer's device."""
        step, saved, groups = read(state_dict)
        if len(saved) != len(self._layers):
            raise CheckpointError(
                f"the checkpoint has {len(saved)} declared layers and this optimizer {len(self._layers)}; declare "
                f"the same layers before loading."
            )
        restored = [layer.restored(state, step) for layer, state in zip(self._layers, saved, strict=True)]
        filled, before = [], (self.state, self.param_groups)
        for i, group in enumerate(groups):
            current = self.param_groups[i] if i < len(self.param_groups) else {}
            filled.append({**current, **group})
        try:
            require_fitting(
                state_dict["state"], filled, [p for group in self.param_groups for p in group["params"]], self._names
            )
            super().load_state_dict({"state": copy.deepcopy(state_dict["state"]), "param_groups": filled})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"the checkpoint does not fit this optimizer: {error}") from None
        try:
            self._bind()
        except DagFisherError as error:
            self.state, self.param_groups = before
            self._bind()
            raise CheckpointError(f"the checkpoint does not fit this optimizer: {error}") from None
        self._step = step
        for layer, state in zip(self._layers, restored, strict=True):
            layer.restore(state)
        self._forget()


if DAGNaturalGradient.__doc__:
    DAGNaturalGradient.__doc__ = DAGNaturalGradient.__doc__.replace("{settings}", described())
