"""A refresh reads an accelerator a few times for all layers together, and finds what it finds on a CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from waiting import waits

import dagfisher
from dagfisher import DAGNaturalGradient, _reading
from dagfisher._reading import Asking, answered, joint, told
from dagfisher.errors import DagFisherError, DeclarationError, SampleWeightError
from dagfisher.helmholtz import HelmholtzMachine, Trainer
from dagfisher.solvers import Conjugate, RowProblem
from dagfisher.solvers.spd import factored

MOST = 5
"""Readings of a refresh of all layers."""
pytestmark = pytest.mark.usefixtures("accelerator")


def test_tasks_are_answered_together_and_in_their_order() -> None:
    def counting(*questions: int) -> Asking[list[float]]:
        found: list[float] = []
        for question in questions:
            found += yield torch.full((question,), float(question), dtype=torch.float32 if question < 3 else None)
        return found

    asked = [[], [2, 1], [3, 0, 1, 1], [1]]
    with waits() as found:
        answers = answered(joint([counting(*questions) for questions in asked]))
    assert answers == [[float(q) for q in questions for _ in range(q)] for questions in asked]
    assert len(found) == max(map(len, asked))


def test_tasks_of_tasks_ask_with_the_others() -> None:
    inner = joint([told(torch.tensor([1, 2])), told(torch.tensor(True))])
    with waits() as found:
        answers = answered(joint([inner, told(torch.tensor(0.1, dtype=torch.float64))]))
    assert answers == [[[1, 2], [1]], [0.1]]
    assert len(found) == 1


def test_an_error_of_one_task_ends_all() -> None:
    def failing() -> Asking[None]:
        yield torch.zeros(1)
        raise DagFisherError("this one")

    with pytest.raises(DagFisherError, match="this one"):
        answered(joint([told(torch.zeros(1)), failing()]))


Trained = tuple[DAGNaturalGradient, Callable[[], Any]]
"""An optimizer, and a training step with it."""


def machine(**settings: Any) -> Trained:
    """Twelve hidden layers: 25 with a Fisher."""
    sizes = [64, 60, 55, 50, 40, 35, 30, 25, 20, 15, 12, 10, 8]
    trainer = Trainer(HelmholtzMachine(sizes), "nrws", samples=4, seed=0, **settings)
    assert isinstance(trainer.optimizer, DAGNaturalGradient) and len(trainer.optimizer._layers) == 25
    x = torch.bernoulli(torch.full((20, 64), 0.3)).repeat(2, 1)  # every example twice: equal rows
    return trainer.optimizer, lambda: trainer.step(x)


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(70, 60), nn.Linear(5, 60)
        self.mean, self.log_var, self.out = nn.Linear(60, 5), nn.Linear(60, 5), nn.Linear(60, 70)
        dagfisher.declare(self.encoder, "deterministic")
        dagfisher.declare(self.decoder, "deterministic")
        dagfisher.declare_gaussian(mean=self.mean, log_var=self.log_var)
        dagfisher.declare(self.out, "bernoulli")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.encoder(x))
        mean, log_var = self.mean(h), self.log_var(h)
        logits = self.out(torch.tanh(self.decoder(mean + (log_var / 2).exp() * torch.randn(mean.shape))))
        return logits, 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1)


def vae(**settings: Any) -> Trained:
    model = VAE()
    opt = DAGNaturalGradient(model.named_parameters(), **settings)
    x = torch.bernoulli(torch.full((90, 70), 0.3))

    def step() -> None:
        opt.zero_grad()
        logits, divergence = model(x)
        opt.sample_fisher()
        (binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1) + divergence).mean().backward()
        opt.step()

    return opt, step


def convolutional(**settings: Any) -> Trained:
    """A convolution that sums Gram matrices, a grouped one, a transposed one, and a Gaussian layer in halves."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2),
        nn.Tanh(),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.Tanh(),
        nn.ConvTranspose2d(8, 2, 3),
        nn.Flatten(),
        nn.Linear(2 * 5 * 5, 6),
    )
    for i in (0, 2, 4):
        dagfisher.declare(model[i], "deterministic")
    dagfisher.declare(model[6], "gaussian", scale="log_var")
    opt = DAGNaturalGradient(model.named_parameters(), **settings)
    x, y = torch.rand(30, 1, 12, 12), torch.randn(30, 3)

    def step() -> None:
        opt.zero_grad()
        mean, log_var = model(x).chunk(2, dim=1)
        opt.sample_fisher()
        (0.5 * ((y - mean).square() / log_var.exp() + log_var).sum(1)).mean().backward()
        opt.step()

    return opt, step


NETS = {"machine": machine, "VAE": vae, "convolutions": convolutional}
SETTINGS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "K = 1": {"update_every": 1},
    "by formula": {"damping": 0.1, "tolerance": 0.1},
    "window": {"window": 2, "update_every": 1},
    "conjugate": {"solver": "conjugate", "update_every": 1},
    "woodbury": {"solver": "woodbury", "update_every": 1},
    "dense": {"solver": "dense", "update_every": 1},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("net", NETS.values(), ids=NETS.keys())
def test_a_refresh_reads_at_most_five_times(net: Callable[..., Trained], settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    opt, step = net(**settings)
    take, readings = opt.step, []

    def counted(closure: None = None) -> None:
        with waits() as found:
            take()
        readings.append(found)

    opt.step = counted  # type: ignore[method-assign, assignment]
    for _ in range(4):
        step()
    assert max(map(len, readings)) <= MOST, readings
    assert max(map(len, readings)) > 1


def stack(layers: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(dagfisher.nn.BernoulliLinear(4, 4) for _ in range(layers))).double()


def backward(net: nn.Module, opt: DAGNaturalGradient, seed: int) -> None:
    opt.zero_grad()
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    torch.nn.functional.softplus(net(x)).sum(1).mean().backward()


@pytest.mark.parametrize("solver", ["auto", "dense", "woodbury", "conjugate"])
def test_readings_do_not_grow_with_the_layers(solver: str) -> None:
    counts = set()
    for layers in (2, 9):
        net = stack(layers)
        opt = DAGNaturalGradient(net.named_parameters(), solver=solver, update_every=1)
        for seed in range(3):
            backward(net, opt, seed)
            with waits() as found:
                opt.step()
        counts.add(len(found))
    assert len(counts) == 1


@pytest.mark.parametrize("update_every", [1, 3])
@pytest.mark.parametrize("damping", [0.1, "auto"])
@pytest.mark.parametrize("solver", ["auto", "dense", "woodbury", "conjugate"])
def test_the_steps_are_those_of_a_device_that_is_read_freely(
    solver: str, damping: Any, update_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for freely in (frozenset(), frozenset({"cpu"})):
        monkeypatch.setattr(_reading, "READ_FREELY", freely)
        net = stack(3)
        settings = {"solver": solver, "damping": damping, "tolerance": 1e-13, "update_every": update_every}
        opt = DAGNaturalGradient(net.named_parameters(), **settings)
        for seed in range(6):
            backward(net, opt, seed)
            opt.step()
        found.append(torch.cat([p.detach().reshape(-1) for p in net.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bad", ["weight", "parents", "map", "singular"])
def test_an_error_names_its_layer_and_nothing_moves(bad: str) -> None:
    net = stack(4)
    opt = DAGNaturalGradient(net.named_parameters(), solver="dense")
    backward(net, opt, 0)
    opt.step()
    words, kind = r"layer '2'", ArithmeticError
    before = [p.detach().clone() for p in net.parameters()]
    backward(net, opt, 1)
    layer = opt._layers[2]
    (each,) = layer.recorder.passes
    if bad == "weight":
        each.sample_weights[0], kind = -1, SampleWeightError
    elif bad == "parents":
        each.parents[0, 0] = torch.nan
    elif bad == "map":
        each.mismatch, kind = torch.tensor(2.0), DeclarationError
    else:
        opt.param_groups[0]["damping"] = 0.0
        each.parents.zero_()
        layer.fisher = None
    with pytest.raises(kind, match=words):
        opt.step()
    assert all(torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True))
    assert [layer.refreshed for layer in opt._layers] == [0] * 4


@pytest.mark.parametrize("update_every", [1, 50])
def test_corners_that_float32_cannot_invert_are_made_again(update_every: int) -> None:
    """Nearly equal columns and hardly any damping: the conjugate solver lifts its blocks and still solves them."""
    generator = torch.Generator().manual_seed(0)
    parents = torch.randn(30, 1, generator=generator) + 1e-4 * torch.randn(30, 8, generator=generator)
    weights = torch.rand(30, 3, generator=generator)
    gradient = (weights.T @ parents) @ torch.ones(8, 8)
    problem = RowProblem(parents, weights, 1e-7, gradient, 0.1, update_every)
    _, failed = factored(problem.damped_blocks(), jitter=True)
    assert failed.any()
    solver, found = Conjugate.begin(problem)
    assert solver.leading is not None and solver.leading.isfinite().all()
    assert (gradient - solver.product(found)).norm() <= 0.2 * gradient.norm()
