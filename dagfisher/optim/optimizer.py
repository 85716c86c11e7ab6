"""DAGNaturalGradient: a torch.optim.Optimizer that steps along damped natural gradients of declared layers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .._processes import Traffic
from .._reading import Asking, answered, joint
from .._torch import inside_distributed_checkpoint, inside_sharding_optimizer
from ..capture import sample, weigh
from ..declaration import changes, find_layers
from ..errors import DagFisherWarning, DeclarationError, SettingError
from .distributed import require_alike
from .groups import readable_groups
from .guards import blame, blaming, full_precision, require_dense, require_whole
from .layer import MOST_KEPT, Refreshed, TrainedLayer
from .pace import Pace
from .refresh import blocks, gather, refresh
from .scale import look_at_scale
from .settings import (
    AUTO,
    DEFAULTS,
    NAMES,
    SHARED,
    UNDECLARED_SHARE,
    NumberOrSchedule,
    chosen,
    described,
    refuse,
    validate,
)
from .shown import ShownOptimizer
from .spread import applied
from .trust import Natural, Vectors, bounded, squared_lengths
from .updates import apply_update, begin_moments, keeps_moments

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Refused(TypedDict, total=False):
    """Flags of torch.optim that must not be set; not in the signature, so that nobody finds and sets them there."""

    fused: bool | None
    capturable: bool
    differentiable: bool


class DAGNaturalGradient(ShownOptimizer):
    """Natural gradients for the declared layers among the parameters, plain ones for the rest.

    One step moves unit j of a declared layer by ``−lr · (1+α)(αI + F_j)⁻¹ g_j``: g is what is in ``.grad``, α is
    the damping, and F_j is the Fisher block of the unit, from the forward passes captured since the last step. A
    forward pass is captured if the module is in training mode, gradients are enabled, :func:`dagfisher.no_capture`
    is not active, and the next step refreshes. Step 0 refreshes; then every `update_every`-th step does, and the
    steps between reuse what was prepared, without host synchronisation.

    ``DAGNaturalGradient(model.parameters())`` looks after itself: each layer finds its damping, a trust region bounds
    the length of steps, momentum averages them. Give a damping, and a step is the formula above and nothing else,
    unless other settings say so.

    Args:
        params: ``model.parameters()``, ``model.named_parameters()``, or param groups with any of the settings below.
            A layer's weight and bias may be in different groups with different rates and decays, but the settings of
            its Fisher (damping, update_every, solver, tolerance, trust_region, window) and second_moment must agree.
        {settings}
        process_group: the ``torch.distributed`` group whose processes train together: their samples are joined at each
            refresh, and the work is spread over them. None: the default group, if one with more than one process is
            initialised; False: this process alone.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = DEFAULTS.lr,
        *,
        damping: NumberOrSchedule = DEFAULTS.damping,
        update_every: NumberOrSchedule = DEFAULTS.update_every,
        solver: str = DEFAULTS.solver,
        momentum: float | str = DEFAULTS.momentum,
        nesterov: bool = DEFAULTS.nesterov,
        betas: tuple[float, float] | None = DEFAULTS.betas,
        second_moment: str = DEFAULTS.second_moment,
        weight_decay: float = DEFAULTS.weight_decay,
        l1: float = DEFAULTS.l1,
        tolerance: float | str = DEFAULTS.tolerance,
        trust_region: float | str | None = DEFAULTS.trust_region,
        window: int = DEFAULTS.window,
        window_decay: float = DEFAULTS.window_decay,
        loss_reduction: str = DEFAULTS.loss_reduction,
        undeclared: str = DEFAULTS.undeclared,
        maximize: bool = DEFAULTS.maximize,
        foreach: bool | None = DEFAULTS.foreach,
        process_group: dist.ProcessGroup | Literal[False] | None = None,
        **refused: Unpack[Refused],
    ) -> None:
        for name in refused.keys() - Refused.__annotations__.keys():
            raise TypeError(f"{type(self).__name__}.__init__() got an unexpected keyword argument {name!r}")
        refuse(refused)
        if inside_sharding_optimizer():
            raise SettingError(
                "ZeroRedundancyOptimizer cannot shard DAGNaturalGradient, since it gives the weight and the bias of a "
                "layer, which share Fisher blocks, to different processes; build "
                "DAGNaturalGradient(model.parameters(), process_group=...) in every process instead."
            )
        # Schedulers that cycle momentum look for "betas" among the defaults to see which of the two there is.
        given = {name: value for name, value in locals().items() if name in NAMES and (name, value) != ("betas", None)}
        self._begin(process_group)
        super().__init__(readable_groups(params, self._names), given)
        self._ready = True
        self._bind()
        self._compare()
        if not self._layers:
            rule = chosen(self.param_groups[0], "undeclared")
            warnings.warn(
                f"none of these parameters belongs to a declared layer, so that this optimizer is plain {rule}; "
                f"declare layers with dagfisher.declare or declare_model before you build it.",
                DagFisherWarning,
                stacklevel=2,
            )

    # Parameters and layers

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with settings of their own; layers among them are found as at construction."""
        if self._ready:
            self._require_layers()
        readable = readable_groups([param_group], self._names)[0] if isinstance(param_group, dict) else param_group
        if isinstance(readable, dict):
            readable.setdefault("betas", self.defaults.get("betas"))
        super().add_param_group(readable)
        try:
            validate(self.param_groups[-1])
            if self._ready:
                self._bind()
        except Exception:  # whatever it was, it is raised again, and the optimizer is as before the call
            self.param_groups.pop()
            if self._ready:
                self._bind()
            raise

    def _bind(self) -> None:
        """Find the declared layers of the parameters, keep those already known, and listen to them."""
        require_whole(self.param_groups, self._names)
        group_of = {id(p): group for group in self.param_groups for p in group["params"]}
        known = {id(layer.declaration): layer for layer in self._layers}
        layers = []
        for declaration in find_layers(self._parameters()):
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
        masked = [layer for layer in layers if layer.declaration.mask is not None]
        self._masked = {id(layer.declaration.parameters[0]): layer for layer in masked}
        self._seen = changes()
        self._arm()

    def _compare(self) -> None:
        """Raise unless the processes that train together are alike; once for each group."""
        group = self._processes.group
        if group is not self._compared:
            require_alike(self._processes, self.param_groups, self._names, self._layers)
            self._compared = group

    def _notice_declarations(self) -> set[int]:
        """Find layers that were declared, or undeclared, since the last look; gives the parameters of new ones."""
        if self._seen == changes() or self._absent is not None:
            return set()
        before = set(self._declared)
        self._bind()
        late = [layer for layer in self._layers if not before.intersection(map(id, layer.parameters))]
        if late:
            warnings.warn(
                f"layer {', '.join(layer.name for layer in late)}: declared after the optimizer was built; it follows "
                f"natural gradients from the next forward pass on. Declare layers first.",
                DagFisherWarning,
                stacklevel=3,
            )
        return {id(p) for layer in late for p in layer.parameters}

    def _arm(self) -> None:
        """Let each layer capture exactly if the coming step will refresh it."""
        follows = any(layer.deterministic for layer in self._layers)
        for layer in self._layers:
            try:
                wanted = layer.due(self._step)
            except SettingError:  # the coming step says so, before it moves anything
                wanted = True
            layer.arm(wanted, self._step, self._processes.size, follows)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, forget the captured passes that they came from, and notice what was frozen or converted.

        A pass from before this call counts for the coming step if its ``backward()`` comes after this call. So a step
        that was skipped, by ``torch.amp.GradScaler`` or by a ``continue``, leaves nothing behind, and gradients may be
        accumulated over any number of passes. Calling ``zero_grad`` of the model instead clears gradients alone.
        """
        self._adopt()
        super().zero_grad(set_to_none)
        self._notice_declarations()
        for layer in self._layers:
            layer.recorder.clear_gradients()
        self._arm()

    def sample_fisher(self, generator: torch.Generator | None = None) -> None:
        """Find the Fisher weights of ``"deterministic"`` layers; call it after the forward pass, before ``backward()``.

        Draws outputs from the distributions that the captured passes gave, and back-propagates their scores to the
        deterministic layers, whose Fisher weights are the squares of what arrives. The gradients of the loss are not
        touched. On a step that reuses its Fisher nothing is done.

        Args:
            generator: of the draws; None: torch's own.
        """
        self._require_layers()
        sample([(layer.declaration, layer.recorder) for layer in self._layers], generator)

    def set_sample_weights(self, weights: Tensor, *, modules: Iterable[nn.Module] | None = None) -> None:
        """Give the captured passes weights, one per sample, after they ran; call it before ``backward()``.

        For weights that come out of a pass, as importance weights do. It counts for every pass since the last step or
        ``zero_grad()`` that was given no weights yet; the others keep theirs.

        Args:
            weights: as :func:`dagfisher.sample_weights` takes them.
            modules: only the passes of the declared layers in these modules; by default of all layers. On a step that
                reuses its Fisher there are no passes, and nothing happens.
        """
        wanted = None if modules is None else {id(m) for module in modules for m in module.modules()}
        for layer in self._layers:
            if wanted is None or id(layer.declaration.module) in wanted:
                weigh(layer.declaration, layer.recorder, weights)

    # Steps

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; if anything is wrong, raise before any parameter moves.

        Args:
            closure: a function that clears the gradients, computes the loss, calls ``backward()`` and gives the loss.

        Returns:
            What the closure gave, or None.
        """
        self._require_layers()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with full_precision(self._layers):
            try:
                settings = [validate(group) for group in self.param_groups]
                if not any(values["lr"] for values in settings) and inside_distributed_checkpoint():
                    return loss  # it only asks for a state, which `state_dict` gives; this step must not count
                late = self._notice_declarations()
                self._compare()
                self._processes.traffic = Traffic()
                self._share_gradients()
                vectors, squares, whole, fresh, bounds = self._vectors(late)
                self._traffic["refresh" if fresh else "reuse"] = replace(self._processes.traffic)
                blamed = partial(blame, vectors, self.param_groups, self._layers, self._names)
                # What arrives at an output tells of the loss only where the gradients are this process's own.
                first = [layer for layer in fresh if layer.refreshed is None and self._processes.size == 1]
                checks: list[Asking[Any]] = [
                    self._finite.require(vectors, squares, whole, refreshing=bool(fresh), blamed=blamed),
                    look_at_scale(first),
                ]
                gates, suspicions = answered(joint(checks))
            except Exception:  # raised again; nothing has moved, and what was captured must not reach the next step
                self._forget()
                raise
            for suspicion in suspicions:
                warnings.warn(suspicion, DagFisherWarning, stacklevel=3)
            self._regions.keep(bounds)
            for layer in self._layers:
                bound = bounds.get(id(layer.group))
                if bound is not None and bound.refreshed:
                    layer.reference = bound.divergence
            ratios = [refreshed.ratio for refreshed in fresh.values() if refreshed.ratio is not None]
            pace = min((layer.pace for layer in fresh), default=Pace()).after(max(ratios, default=None))
            for layer, refreshed in fresh.items():
                if refreshed.failure is None:
                    layer.keep(refreshed, self._step, pace)
                else:
                    layer.failures += 1
                    warnings.warn(
                        f"layer {layer.name}: {refreshed.failure} Its Fisher from step {layer.refreshed} is kept "
                        f"(refresh {layer.failures} of at most {MOST_KEPT} that may fail in a row).",
                        DagFisherWarning,
                        stacklevel=3,
                    )
            for group, values in zip(self.param_groups, settings, strict=True):
                for parameters, rule in self._rules([p for p in group["params"] if p in vectors], group, values):
                    states = [self.state[p] for p in parameters] if keeps_moments(rule) else []
                    moves, lengths = [vectors[p] for p in parameters], [squares.get(p) for p in parameters]
                    apply_update(parameters, moves, states, rule, [self._gate(p, gates) for p in parameters], lengths)
        self._step += 1
        self._forget()
        return loss

    def _gate(self, p: Tensor, gates: dict[torch.device, Tensor]) -> Tensor | None:
        """Where the parameter may move: where its device allows it and its layer's mask does; None: everywhere."""
        gate, layer = gates.get(p.device), self._masked.get(id(p))
        mask = None if layer is None else layer.weight_mask()
        return gate if mask is None else mask if gate is None else mask & gate

    def _forget(self) -> None:
        for layer in self._layers:
            layer.recorder.clear()
        self._arm()

    def _vectors(self, late: set[int] | frozenset[int] = frozenset()) -> Vectors:
        """The vector of every parameter with a gradient, and what was found on the way.

        Parameters of layers that were declared too `late` for this step follow plain gradients.
        """
        require_dense(self.param_groups, self._names)
        vectors: dict[Tensor, Tensor] = {}
        whole: list[Tensor] = []
        found, fresh = self._naturals(late)
        products, factors, bounds = bounded(found, fresh)
        whole.extend(products)
        for layer, _, natural, _ in found:
            parts = layer.split(natural)
            if natural.dtype != next(iter(parts)).dtype:
                parts = {p: v.to(p.dtype) for p, v in parts.items()}
                whole.extend(parts.values())  # half precision may overflow where the natural gradient did not
            vectors.update(parts)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and (id(p) not in self._declared or id(p) in late):
                    vectors[p] = p.grad
                    whole.append(p.grad)
        return Vectors(vectors, squared_lengths(found, factors), whole, fresh, bounds)

    def _naturals(
        self, late: set[int] | frozenset[int] = frozenset()
    ) -> tuple[list[Natural], dict[TrainedLayer, Refreshed]]:
        """The solved gradients of the layers that have one, and fresh inverse Fishers."""
        layers = [each for each in self._layers if not late or not late.intersection(map(id, each.parameters))]
        with blaming(self.param_groups, self._layers, self._names):
            gradients, collected = gather(layers, self.param_groups, self._step, self._processes)
            refreshed = refresh(collected, gradients, self._step, self._processes)
        for layer in layers:
            if layer not in gradients:
                layer.require_used()
        fresh = dict(zip(collected, refreshed, strict=True))
        reused = [layer for layer in gradients if layer not in fresh]
        solved = applied([(layer.kept(), gradients[layer]) for layer in reused], self._processes)
        again = dict(zip(reused, solved, strict=True))
        found = []
        for layer, gradient in gradients.items():
            fisher, solution = (layer.kept(), again[layer]) if layer in again else fresh[layer][:2]
            found.append(Natural(layer, gradient, solution, fisher.damping))
        return found, fresh

    def _rules(
        self, moved: list[Tensor], group: dict[str, Any], settings: dict[str, Any]
    ) -> Iterator[tuple[list[Tensor], dict[str, Any]]]:
        """The parameters among those of one group that are updated alike, with the settings of their update."""
        adam = settings["undeclared"] == "adam" and settings["betas"] is None
        apart = {id(p) for p in moved if adam and id(p) not in self._declared}
        alike = [p for p in moved if id(p) not in apart], [p for p in moved if id(p) in apart]
        slow = UNDECLARED_SHARE if group["undeclared"] == AUTO else 1.0
        apart_rule = {**settings, "betas": (0.9, 0.999), "momentum": 0.0, "lr": slow * settings["lr"]}
        for parameters, rule in zip(alike, (settings, apart_rule), strict=True):
            if parameters:
                yield parameters, rule

    def _begin_moments(self) -> None:
        for group in self.param_groups:
            settings = validate(group)
            for parameters, rule in self._rules([p for p in group["params"] if p.requires_grad], group, settings):
                if keeps_moments(rule):
                    begin_moments([p.detach() for p in parameters], [self.state[p] for p in parameters], rule)

    # Inspection

    def natural_gradient(self) -> dict[Tensor, Tensor]:
        """The vector of every parameter that has a gradient, as the next step would use it; nothing moves.

        Processes that train together must all call it.
        """
        self._require_layers()
        with full_precision(self._layers):
            vectors = self._vectors().vectors
            return {p: v.clone() for p, v in vectors.items()}

    def fisher_blocks(self, parameter: Tensor) -> Tensor:
        """The damped blocks (αI + F_j)/(1+α) of a layer, for inspection.

        They come from the passes that this process captured since the last step if the next one refreshes; otherwise
        they are those that are being reused.

        Args:
            parameter: the weight or the bias of the layer.

        Returns:
            (units × d × d); the bias, if it is trained, is the last parent.
        """
        self._require_layers()
        for layer in self._layers:
            if any(p is parameter for p in layer.parameters):
                with full_precision(self._layers):
                    return blocks(layer, self._step)
        raise DeclarationError("this parameter belongs to no declared layer of this optimizer.")


if DAGNaturalGradient.__doc__:
    DAGNaturalGradient.__doc__ = DAGNaturalGradient.__doc__.replace("{settings}", described())
