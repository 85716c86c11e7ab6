"""Where nothing is captured, a declared model is one graph for torch.compile; once undeclared it can be scripted."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from by_hand import Net, data, optimizer
from torch import nn

import dagfisher
from dagfisher.capture.hooks import forward_hook

X = data(6, 4)


def distance(net: nn.Module, backend: str, gradients: bool) -> float:
    """Between what a declared model and its whole graph give; a graph break is an error."""
    torch._dynamo.reset()
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    with torch.set_grad_enabled(gradients):
        return float((compiled(X) - net(X)).detach().abs().max())


def whole_graphs(backend: str) -> dict[str, float]:
    net, found = Net(), {}
    opt = optimizer(net.parameters(), lr=0.01)
    net(X).sum().backward()
    opt.step()
    found["training, no_grad"] = distance(net, backend, False)
    net.eval()
    found["eval"] = distance(net, backend, True)
    found["eval, no_grad"] = distance(net, backend, False)
    return found


def refused_at_once() -> str:
    """What the very first pass of a model says if it is to be captured inside a whole graph."""
    net = Net()
    opt = optimizer(net.parameters())
    with pytest.raises(torch._dynamo.exc.Unsupported) as refused:
        torch.compile(net, backend="eager", fullgraph=True)(X)
    assert not sum(opt.memory_usage().values())
    return str(refused.value)


def with_a_late_optimizer() -> float:
    """How far a model that was compiled, and ran, before there was any optimizer strays from its twin."""
    net, twin = Net(), Net()
    assert distance(net, "eager", True) == 0  # one graph, in training mode
    compiled = torch.compile(net, backend="eager")
    compiled(X)
    opt, other = (optimizer(n.parameters(), lr=0.01, update_every=2) for n in (net, twin))
    for step in range(4):
        for model, o in ((compiled, opt), (twin, other)):
            o.zero_grad()
            model(data(6, 4, seed=step)).square().sum().backward()
            o.step()
    return max(float((p - q).detach().abs().max()) for p, q in zip(net.parameters(), twin.parameters(), strict=True))


def test_a_model_is_one_graph_wherever_nothing_is_captured() -> None:
    # In a process of its own: what a compiler keeps alive would disturb those who count tensors.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(with_a_late_optimizer).result() < 1e-13
        for found in pool.map(whole_graphs, ["eager", "aot_eager"]):
            assert found == dict.fromkeys(found, 0.0)


def test_a_whole_graph_that_would_be_captured_is_refused_with_the_remedy() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert "call torch.compile without fullgraph=True" in pool.submit(refused_at_once).result()


SCRIPTED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: dagfisher.declare(nn.Linear(4, 2), "bernoulli"), (6, 4)),
    "convolution": (lambda: dagfisher.declare(nn.Conv1d(1, 2, 2), "bernoulli"), (6, 1, 4)),
    "ready-made": (lambda: dagfisher.nn.GaussianLinear(4, 2), (6, 4)),
    "ready-made convolution": (lambda: dagfisher.nn.BernoulliConv2d(1, 2, 2), (6, 1, 4, 4)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make, shape", SCRIPTED.values(), ids=SCRIPTED.keys())
def test_an_undeclared_layer_can_be_scripted(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    layer = dagfisher.undeclare(make()).double()
    assert forward_hook not in layer._forward_hooks.values() and not layer._forward_hooks_with_kwargs
    assert torch.equal(torch.jit.script(layer)(data(*shape)), layer(data(*shape)))


def test_a_ready_made_layer_that_is_undeclared_keeps_its_distribution() -> None:
    layer = dagfisher.nn.BernoulliLinear(4, 2, states=(-1, 1))
    family = layer.family
    assert dagfisher.undeclare(layer).family == family
    dagfisher.declare(layer, "poisson")
    assert layer.family == dagfisher.families.Poisson()


def test_a_pass_that_no_step_wants_leaves_before_anything_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    opt = optimizer(net.parameters(), lr=0.01, update_every=3)
    net(X).sum().backward()
    opt.step()

    def looked_at(*args: object) -> None:
        raise AssertionError("this pass was not wanted")

    monkeypatch.setattr("dagfisher.capture.hooks._stage", looked_at)
    net(X).sum().backward()
    opt.step()
