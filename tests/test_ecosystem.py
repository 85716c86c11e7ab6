"""The optimizer among the rest of torch: what surrounds a training step changes no number of it."""

import copy
import io
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import (
    Net,
    array,
    assert_close,
    assert_step,
    backward,
    data,
    declared,
    loss,
    natural,
    optimizer,
    same,
    scaled,
)
from exact import exact
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint

import dagfisher
from dagfisher import DAGNaturalGradient, observe, sample_weights
from dagfisher.errors import DeclarationError, MissingStatisticsError, NonFiniteError

X = data(6, 4)
W = torch.tensor([1.0, 0.5, 0.0, 2.0, 3.0, 0.25], dtype=torch.float64)
LR = 0.01


def pair(**settings: Any) -> tuple[tuple[Net, DAGNaturalGradient], tuple[Net, DAGNaturalGradient]]:
    """Two equal models with optimizers of their own."""
    first, second = ((net := Net(), optimizer(net.parameters(), **{"lr": LR, **settings})) for _ in range(2))
    return first, second


def vectors(opt: DAGNaturalGradient) -> dict[Tensor, Any]:
    return {p: array(v) for p, v in opt.natural_gradient().items()}


def bytes_kept(opt: DAGNaturalGradient) -> int:
    return sum(opt.memory_usage().values())


# Precision


def test_a_forward_pass_under_autocast_gives_nearly_the_same_natural_gradient() -> None:
    net, precise = Net().float(), Net()
    opt, other = optimizer(net.parameters()), optimizer(precise.parameters())
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = net(X.float())
        assert output.dtype == torch.bfloat16
    loss(output.float()).backward()
    backward(precise, other, X)
    found = dict(zip(precise.parameters(), vectors(opt).values(), strict=True))
    assert {v.dtype for v in opt.natural_gradient().values()} == {torch.float32}
    assert_close(found, precise.natural(X, 0.1), 0.03)


@pytest.mark.parametrize("solver", ["dense", "woodbury", "conjugate", "diagonal"])
def test_a_step_inside_autocast_is_a_step_outside_it(solver: str) -> None:
    nets = [Net().float(), Net().float()]
    opts = [optimizer(net.parameters(), lr=LR, solver=solver, update_every=2) for net in nets]
    for step in range(3):
        for i, (net, opt) in enumerate(zip(nets, opts, strict=True)):
            backward(net, opt, data(6, 4, seed=step).float())
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=i == 0):
                seen = opt.natural_gradient()[net.head.weight]
                blocks = opt.fisher_blocks(net.head.weight)
                opt.step()
            assert seen.dtype == blocks.dtype == torch.float32
        assert same(*nets)


def test_a_bfloat16_model_takes_the_step_of_its_float64_twin_up_to_rounding() -> None:
    rounded = Net().bfloat16()
    precise = copy.deepcopy(rounded).double()
    x = X.bfloat16()
    opt, other = optimizer(rounded.parameters()), optimizer(precise.parameters())
    backward(rounded, opt, x)
    backward(precise, other, x.double())
    found = opt.natural_gradient()
    assert {v.dtype for v in found.values()} == {torch.bfloat16}
    expected = precise.natural(x.double(), 0.1)
    assert_close(dict(zip(precise.parameters(), map(array, found.values()), strict=True)), expected, 0.05)
    assert_step(other, expected)


def test_a_natural_gradient_too_large_for_float16_moves_nothing() -> None:
    layer = declared(3, 2).half()
    opt = optimizer([(f"fc.{n}", p) for n, p in layer.named_parameters()], damping=1e-4)
    x = torch.full((4, 3), 0.01).half()
    kept = [p.clone() for p in layer.parameters()]
    layer(x).sum().mul(900).backward()
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters())
    layer.weight.grad.fill_(100)
    layer.weight.grad[:, 0] = -100
    with pytest.raises(NonFiniteError, match=r"layer 'fc': its natural gradient .*raise the damping"):
        opt.step()
    assert all(torch.equal(p, old) for p, old in zip(layer.parameters(), kept, strict=True))


# Schedules, groups, clipping


@pytest.mark.parametrize(
    "schedule, rates",
    [
        (lambda opt: lr_scheduler.CosineAnnealingLR(opt, 4), [1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2]),
        (lambda opt: lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0), [1, 1, 0.5, 0.25]),
        (lambda opt: lr_scheduler.LinearLR(opt, 0.25, 1.0, 3), [0.25, 0.5, 0.75, 1]),
    ],
    ids=["cosine", "plateau", "warm up"],
)
def test_a_scheduler_sets_the_length_of_the_natural_step(schedule: Callable[..., Any], rates: list[float]) -> None:
    (net, opt), _ = pair()
    scheduler = schedule(opt)
    for step, rate in enumerate(rates):
        x = data(6, 4, seed=step)
        backward(net, opt, x)
        expected, before = net.natural(x, 0.1), {p: array(p) for p in net.parameters()}
        opt.step()
        for p, v in expected.items():
            np.testing.assert_allclose(before[p] - array(p), LR * rate * v, rtol=0, atol=1e-4 * LR * np.abs(v).max())
        scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))


def test_two_groups_are_two_optimizers() -> None:
    net, twin = Net(), Net()
    first, second = (
        {"lr": 0.02, "damping": 0.3, "update_every": 2, "momentum": 0.9},
        {"lr": 0.01, "solver": "woodbury", "betas": (0.9, 0.99), "weight_decay": 0.1},
    )
    one = exact([{"params": net.encoder.parameters(), **first}, {"params": net.head.parameters(), **second}])
    two = [exact(twin.encoder.parameters(), **first), exact(twin.head.parameters(), **second)]
    for step in range(5):
        backward(net, one, data(6, 4, seed=step))
        one.step()
        for opt in two:
            opt.zero_grad()
        loss(twin(data(6, 4, seed=step))).backward()
        for opt in two:
            opt.step()
        assert same(net, twin)


@pytest.mark.parametrize("clip", [lambda ps: clip_grad_norm_(ps, 0.5), lambda ps: clip_grad_value_(ps, 0.2)])
def test_a_clipped_gradient_is_what_becomes_natural(clip: Callable[..., Any]) -> None:
    (net, opt), _ = pair(lr=1.0)
    backward(net, opt, X)
    whole = net.natural(X, 0.1)
    clip(net.parameters())
    clipped = net.natural(X, 0.1)
    assert np.abs(clipped[net.head.weight]).max() < 0.9 * np.abs(whole[net.head.weight]).max()
    assert_step(opt, clipped)


# Models in disguise


def train_compiled(backend: str) -> tuple[float, str]:
    """How far a compiled model strays from its twin, and what it says of whole graphs."""
    (net, opt), (twin, other) = pair(update_every=2)
    compiled = torch.compile(net, backend=backend)
    for step in range(5):
        for model, o in ((compiled, opt), (twin, other)):
            backward(model, o, data(6, 4, seed=step))
            o.step()
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported) as refused:
        torch.compile(net, backend=backend, fullgraph=True)(X)
    pairs = zip(net.parameters(), twin.parameters(), strict=True)
    return max(float((p - q).detach().abs().max()) for p, q in pairs), str(refused.value)


def test_a_compiled_model_feeds_its_optimizer() -> None:
    # In a process of its own: what a compiler keeps alive would disturb those who count tensors.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for distance, refusal in pool.map(train_compiled, ["eager", "aot_eager"]):
            assert distance < 1e-13
            assert "call torch.compile without fullgraph=True" in refusal


def test_a_replica_of_a_layer_is_refused_and_leaves_nothing() -> None:
    (net, opt), _ = pair(lr=1.0)
    replica = net.head._replicate_for_data_parallel()
    replica.weight, replica.bias = net.head.weight * 1, net.head.bias * 1
    with pytest.raises(DeclarationError, match=r"layer 'head' ran as a replica.*DistributedDataParallel"):
        replica(data(6, 3))
    backward(net, opt, X)
    assert_step(opt, net.natural(X, 0.1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device with arithmetic of its own")
def test_layers_on_two_devices_are_trained_by_one_optimizer() -> None:
    net, twin = Net(), Net()
    net.head.to("cuda")
    opt, other = optimizer(net.parameters(), lr=LR, update_every=2), optimizer(twin.parameters(), lr=LR, update_every=2)
    for step in range(4):
        x = data(6, 4, seed=step)
        backward(lambda x: net.head(net.encoder(x).to("cuda")), opt, x)
        backward(twin, other, x)
        opt.step()
        other.step()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.cpu(), q, rtol=1e-9, atol=1e-10)


def test_a_weight_that_an_undeclared_module_uses_too_gets_both_gradients_and_its_own_block() -> None:
    layer, table = declared(3, 2), nn.Embedding(2, 3).double()
    table.weight = layer.weight
    opt = optimizer(layer.parameters())
    x = data(6, 3)
    (loss(layer(x)) + table(torch.tensor([0, 1, 1])).square().sum()).backward()
    assert_step(opt, natural(layer, x, 0.1))


# Passes that run again, change in place, or run inside torch.func


class Deep(nn.Module):
    """Two declared layers with dropout in front of each, checkpointed or not."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.reentrant = reentrant
        self.body = nn.Sequential(nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(6, 3)).double()
        dagfisher.declare(self.body[0], "bernoulli", max_rows=5)
        dagfisher.declare(self.body[3], "gaussian", std=0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1).requires_grad_()
        return self.body(x) if self.reentrant is None else checkpoint(self.body, x, use_reentrant=self.reentrant)


def test_activation_checkpointing_changes_no_number_and_keeps_the_sample_weights() -> None:
    nets = [Deep(None), Deep(False)]
    for net in nets:
        torch.manual_seed(7)
        opt = optimizer(net.parameters(), lr=LR, update_every=2)
        for step in range(3):
            opt.zero_grad()
            with sample_weights(W):
                output = net(data(6, 4, seed=step))
            staged = bytes_kept(opt)
            (W * output.square().sum(1)).sum().backward()
            assert bytes_kept(opt) == staged
            opt.step()
    assert same(*nets)


def test_reentrant_checkpointing_loses_the_weights_and_is_refused() -> None:
    net = Deep(True)
    opt = optimizer(net.parameters())
    before = [p.clone() for p in net.parameters()]
    backward(net, opt, X)
    with pytest.raises(MissingStatisticsError, match=r"layer 'body\.0': .*use_reentrant=False"):
        opt.step()
    assert all(torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True))


@pytest.mark.parametrize("shape", [(6, 3), (2, 3, 3)])
@pytest.mark.parametrize("early", [False, True])
def test_an_activation_in_place_hides_no_pass(shape: tuple[int, ...], early: bool) -> None:
    layer, x = declared(3, 2), data(*shape)
    opt = optimizer(layer.parameters())
    value = loss(torch.relu_(layer(x)))
    if early:
        opt.zero_grad()
    value.backward()
    assert_step(opt, natural(layer, x, 0.1))


def test_gradients_of_single_samples_by_torch_func_leave_no_trace() -> None:
    (net, opt), _ = pair(lr=1.0)
    parameters = dict(net.named_parameters())

    def of_one(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return loss(torch.func.functional_call(net, parameters, (x,)))

    opt.zero_grad()
    each = torch.func.vmap(torch.func.grad(of_one), in_dims=(None, 0))(parameters, 5 * X)
    assert bytes_kept(opt) == 0
    loss(net(X)).backward()
    assert each["head.weight"].shape == (6, 2, 3)
    assert_step(opt, net.natural(X, 0.1))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_observed_parents_of_any_type_are_numbers(dtype: torch.dtype) -> None:
    layer = declared(3, 2)
    opt = optimizer(layer.parameters())
    bits = (data(6, 3) > 0).to(dtype)
    with dagfisher.no_capture():
        backward(layer, opt, bits.double())
    observe(layer, bits, layer(bits.double()))
    assert_step(opt, natural(layer, bits, 0.1))


def test_frozen_layers_cost_nothing_and_are_captured_once_they_train() -> None:
    (net, opt), _ = pair()
    net.encoder.requires_grad_(False)
    backward(net, opt, X)
    assert opt.memory_usage() == {"encoder.0": 0, "head": 8 * 6 * (3 + 2 + 1)}
    hidden = net.encoder(X)
    assert_step(opt, scaled(LR, natural(net.head, hidden, 0.1)))
    net.encoder.requires_grad_(True)
    backward(net, opt, X)
    assert_step(opt, scaled(LR, net.natural(X, 0.1)))


# Checkpoints


def through_a_file(state: dict[str, Any], cut: int | None = None) -> Any:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.load(io.BytesIO(buffer.getvalue()[:cut]), weights_only=True)


def test_a_run_with_scaler_and_schedule_resumes_bit_for_bit_and_not_from_half_a_file() -> None:
    def built() -> list[Any]:
        net = Net()
        opt = optimizer(net.encoder.parameters(), lr=LR, update_every=3, momentum=0.9)  # a part of the model
        return [net, opt, lr_scheduler.StepLR(opt, 2), torch.amp.GradScaler("cpu", growth_interval=2)]

    def train(parts: list[Any], steps: range) -> None:
        net, opt, scheduler, scaler = parts
        for step in steps:
            opt.zero_grad()
            scaler.scale(loss(net(data(6, 4, seed=step)))).backward()
            scaler.step(opt)
            scaler.update()
            scheduler.step()

    whole, resumed = built(), built()
    train(whole, range(4))
    state = [part.state_dict() for part in whole]
    with pytest.raises((RuntimeError, ValueError)):
        through_a_file({"parts": state}, cut=-200)
    for part, saved in zip(resumed, through_a_file({"parts": state})["parts"], strict=True):
        part.load_state_dict(saved)
    train(whole, range(4, 9))
    train(resumed, range(4, 9))
    assert same(whole[0], resumed[0])
    assert not torch.equal(whole[0].encoder[0].weight, Net().encoder[0].weight)
