"""A bare parameter as the predictor of units without parents: its natural gradient is that of the ready-made prior."""

import copy
import io
import itertools
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import Net, array, assert_step, data, logistic, optimizer, scaled
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient, declare_parameter, summary, undeclare
from dagfisher.errors import DagFisherError, DeclarationError, MissingStatisticsError, NonFiniteError
from dagfisher.families import Conditional, Family, make_family

LR, ALPHA = 0.05, 0.1


class Latent(nn.Module):
    """A layer on latent variables whose prior is a parameter: of its own, or of a ready-made prior."""

    def __init__(self, family: str, bare: bool, units: int = 3, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.out = dagfisher.nn.BernoulliLinear(units, 2, dtype=torch.float64)
        ready = dagfisher.nn.Prior(units, family, dtype=torch.float64, **settings)
        nn.init.normal_(ready.bias)
        self.family: Family = ready.family
        if bare:
            self.prior = declare_parameter(nn.Parameter(ready.bias.detach().clone()), family, **settings)
        else:
            self.ready = ready

    def predictor(self, n: int) -> Tensor:
        return self.prior.expand(n, -1) if hasattr(self, "prior") else self.ready(n)

    def loss(self, z: Tensor) -> Tensor:
        prior = Conditional(self.family, self.predictor(len(z)))
        return (self.out(z).square().sum(1) - prior.log_prob(z)).mean()


FAMILIES: dict[str, tuple[str, dict[str, Any], Callable[[Tensor], Tensor]]] = {
    "bernoulli": ("bernoulli", {}, lambda z: (z > 0).double()),
    "signed": ("bernoulli", {"states": (-1, 1)}, torch.sign),
    "gaussian": ("gaussian", {}, lambda z: z),
    "gaussian, log_var and a bound": ("gaussian", {"scale": "log_var", "min_std": 0.1}, lambda z: z),
    "gaussian, fixed": ("gaussian", {"std": 0.5}, lambda z: z),
    "poisson": ("poisson", {}, lambda z: z.abs().round()),
    "categorical": ("categorical", {"coupled": False}, lambda z: nn.functional.one_hot(z.argmax(-1), 3).double()),
}
SETTINGS = {
    "exact": {},
    "reused, with momentum": {"update_every": 2, "momentum": 0.9},
    "conjugate": {"solver": "conjugate", "tolerance": 1e-10},
    "woodbury": {"solver": "woodbury"},
    "diagonal, in a window": {"solver": "diagonal", "window": 3},
    "bounded": {"trust_region": 1e-3},
}


def train(model: Latent, opt: DAGNaturalGradient, values: Callable[[Tensor], Tensor], steps: range) -> None:
    for seed in steps:
        opt.zero_grad()
        model.loss(values(data(7, 3, seed=seed))).backward()
        opt.step()


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("family, told, values", FAMILIES.values(), ids=FAMILIES.keys())
def test_a_bare_parameter_takes_the_steps_of_the_ready_made_prior(
    family: str, told: dict[str, Any], values: Callable[[Tensor], Tensor], settings: dict[str, Any]
) -> None:
    bare, ready = Latent(family, True, **told), Latent(family, False, **told)
    for model in (bare, ready):
        train(model, optimizer(model.parameters(), lr=LR, undeclared="error", **settings), values, range(5))
    torch.testing.assert_close(bare.prior, ready.ready.bias, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(bare.out.weight, ready.out.weight, rtol=1e-12, atol=1e-13)
    assert not torch.allclose(bare.prior, Latent(family, True, **told).prior)


def enumerated(family: Family, predictor: Tensor, draws: int) -> np.ndarray:
    """E[(∂ log p(z₁ … z_draws)/∂a_j)²] for every unit j, over all values of that many binary vectors."""
    found = np.zeros(predictor.numel())
    states = itertools.product(itertools.product((0.0, 1.0), repeat=predictor.numel()), repeat=draws)
    for state in states:
        z, a = torch.tensor(state, dtype=torch.float64), predictor.detach().reshape(-1).requires_grad_()
        log_p = family.log_prob(z, a.expand_as(z)).sum()
        (score,) = torch.autograd.grad(log_p, a)
        found += math.exp(log_p.item()) * array(score) ** 2
    return found


@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 1, 1), (1,), ()])
@pytest.mark.parametrize("draws", [1, 3])
def test_its_step_is_that_of_the_enumerated_fisher(shape: tuple[int, ...], draws: int) -> None:
    prior = declare_parameter(nn.Parameter(data(1, *shape)[0]), "bernoulli", draws=draws)
    opt = optimizer([("prior", prior)], damping=ALPHA)
    rate = logistic(array(prior).reshape(-1))
    fisher = enumerated(make_family("bernoulli"), prior, draws)
    np.testing.assert_allclose(fisher, draws * rate * (1 - rate), rtol=1e-12)
    z = (data(7, draws, *shape, seed=3) > 0).double()
    nn.functional.binary_cross_entropy_with_logits(prior.expand_as(z), z, reduction="sum").div(7).backward()
    blocks = opt.fisher_blocks(prior)
    np.testing.assert_allclose(array(blocks).reshape(-1), (ALPHA + fisher) / (1 + ALPHA), rtol=1e-12)
    assert_step(opt, {prior: (1 + ALPHA) * array(prior.grad) / (ALPHA + fisher.reshape(prior.shape))})


def test_the_fisher_follows_the_value_at_each_refresh_and_its_blocks_need_no_pass() -> None:
    prior = declare_parameter(nn.Parameter(torch.zeros(2, dtype=torch.float64)))
    opt = optimizer([prior], update_every=2)
    for logit, used in ((0.0, 0.0), (1.0, 0.0), (2.0, 2.0)):
        prior.data.fill_(logit)
        prior.grad = torch.ones_like(prior)
        q = logistic(used) * (1 - logistic(used))
        np.testing.assert_allclose(array(opt.fisher_blocks(prior)).reshape(-1), (0.1 + q) / 1.1, rtol=1e-12)
        assert_step(opt, {prior: np.full(2, 1.1 / (0.1 + q))})


class WithPrior(Net):
    """Net with a bare prior."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.prior = declare_parameter(nn.Parameter(data(3)), "gaussian", std=0.5, draws=2)


def through_torch_save(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    return torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)


def with_its_state(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    other = WithPrior(5)
    other.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
    return other


JOURNEYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "nowhere": lambda model: model,
    "deepcopy": copy.deepcopy,
    "deepcopy twice": lambda model: copy.deepcopy(copy.deepcopy(model)),
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "pickle and deepcopy": lambda model: copy.deepcopy(pickle.loads(pickle.dumps(model))),
    "torch.save": through_torch_save,
    "to float32 and back": lambda model: model.to(torch.float32).to(torch.float64),
    "load_state_dict": with_its_state,
}


@pytest.mark.parametrize("journey", JOURNEYS.values(), ids=JOURNEYS.keys())
def test_it_is_found_after_any_journey_of_the_model(journey: Callable[[nn.Module], nn.Module]) -> None:
    start = WithPrior()
    net = journey(start)
    opt = optimizer(net.parameters(), lr=LR, undeclared="error")
    assert list(opt.memory_usage()) == ["prior", "encoder.0", "head"]
    net(data(6, 4)).sum().backward()
    net.prior.grad = torch.ones_like(net.prior)
    expected = scaled(LR, net.natural(data(6, 4), 0.1))
    expected[net.prior] = np.full(3, LR * 1.1 / (0.1 + 2 / 0.5**2))
    assert_step(opt, expected, 1e-6)
    assert (net.prior is start.prior) == (net is start)
    assert torch.equal(start.prior, data(3)) == (net is not start and journey is not JOURNEYS["to float32 and back"])


def test_a_model_and_its_optimizer_are_copied_together_and_resume_from_a_checkpoint() -> None:
    told = {"update_every": 3, "lr": LR}
    model = Latent("bernoulli", True)
    opt = optimizer(model.parameters(), **told)
    bits = FAMILIES["bernoulli"][2]
    train(model, opt, bits, range(2))
    twin, other = copy.deepcopy((model, opt))
    resumed = Latent("bernoulli", True)
    resumed.load_state_dict(model.state_dict())
    third = optimizer(resumed.parameters(), **told)
    third.load_state_dict(opt.state_dict())
    for each, o in ((model, opt), (twin, other), (resumed, third)):
        train(each, o, bits, range(2, 6))
    assert torch.equal(model.prior, twin.prior) and torch.equal(model.prior, resumed.prior)


def test_undeclared_again_it_is_a_plain_parameter() -> None:
    net = WithPrior()
    assert type(net.prior) is not nn.Parameter and isinstance(net.prior, nn.Parameter)
    assert "prior      Parameter  gaussian" in summary(net)
    assert undeclare(net.prior) is net.prior
    assert type(net.prior) is nn.Parameter and not net.prior.__dict__
    opt = optimizer([net.prior], lr=LR)
    net.prior.grad = torch.ones_like(net.prior)
    assert_step(opt, {net.prior: np.full(3, LR)})
    declare_parameter(net.prior, "poisson")


def test_declaring_twice_is_declaring_once() -> None:
    prior = nn.Parameter(torch.zeros(3))
    assert declare_parameter(declare_parameter(prior, draws=2), draws=2) is prior
    assert len(optimizer([prior]).memory_usage()) == 1


KEPT_ALIVE = """
import gc, weakref, torch, dagfisher
prior = torch.nn.Parameter(torch.zeros(3))
dagfisher.declare_parameter(prior)
dagfisher.DAGNaturalGradient([prior])
alive = weakref.ref(prior)
del prior
gc.collect()
assert alive() is None
"""


def test_no_parameter_is_kept_alive() -> None:
    """In a process of its own: what other tests leave in torch may hold on to tensors."""
    subprocess.run([sys.executable, "-c", KEPT_ALIVE], check=True, timeout=120)


def declares(*args: Any, **settings: Any) -> Callable[[WithPrior], Any]:
    return lambda net: declare_parameter(*args, **settings)


def with_value(net: WithPrior) -> None:
    opt = optimizer(net.named_parameters())
    net.prior.data[1] = math.nan
    (net(data(6, 4)).sum() + net.prior.square().sum()).backward()
    opt.step()


def unused(net: WithPrior) -> None:
    opt = optimizer(net.named_parameters())
    net(data(6, 4)).sum().backward()
    opt.step()


def shared(net: WithPrior) -> None:
    declare_parameter(net.head.bias)
    try:
        optimizer(net.parameters())
    finally:
        undeclare(net.head.bias)


P = nn.Parameter(torch.zeros(3))
REFUSED: dict[str, tuple[Callable[[WithPrior], Any], type[DagFisherError], str]] = {
    "a tensor": (declares(torch.zeros(3)), DeclarationError, "needs an nn.Parameter, not a Tensor; declare takes mo"),
    "a module": (declares(nn.Linear(1, 1)), DeclarationError, "needs an nn.Parameter, not a Linear; declare takes mod"),
    "a lazy one": (declares(nn.UninitializedParameter()), DeclarationError, "lazy parameter must have its shape first"),
    "two axes": (declares(nn.Parameter(torch.zeros(2, 3))), DeclarationError, r"shape \(2, 3\).*units on one axis"),
    "an odd number": (declares(P, "gaussian"), DeclarationError, "3 outputs; give it an even number"),
    "deterministic": (declares(P, "deterministic"), DeclarationError, "a parameter cannot be deterministic"),
    "an unknown family": (declares(P, "cauchy"), DeclarationError, "unknown family 'cauchy'"),
    "two parameters": (declares(P, "gaussian", log_var=P), DeclarationError, "log_var must be no tensor; give mean"),
    "no draw": (declares(P, draws=0), DeclarationError, "draws must be a whole number of at least 1, not 0"),
    "another family": (
        lambda net: declare_parameter(net.prior), DeclarationError, "parameter .*is already declared as Gaussian"
    ),
    "declare": (lambda net: dagfisher.declare(P, "bernoulli"), DeclarationError, "a Parameter; .*declare_parameter"),
    "the bias of a declared layer": (shared, DeclarationError, "layers .*'head'.* share a parameter"),
    "a NaN value": (with_value, NonFiniteError, "layer 'prior' itself holds.*no parameter"),
    "no loss": (unused, MissingStatisticsError, "layer 'prior' has been part of no loss since this"),
}  # fmt: skip


@pytest.mark.parametrize("refused, error, words", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_is_refused(
    refused: Callable[[WithPrior], Any], error: type[DagFisherError], words: str
) -> None:
    with pytest.raises(error, match=words):
        refused(WithPrior())
    assert type(P) is nn.Parameter
