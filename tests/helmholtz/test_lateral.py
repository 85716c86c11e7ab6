"""Layers whose units see the units before them: exact probabilities, draws, gradients and Fisher blocks."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from exact import exact
from torch import Tensor

from dagfisher import sample_weights
from dagfisher.helmholtz import L1, L2, Entropy, HelmholtzMachine, Trainer, estimate
from dagfisher.helmholtz import train as train_module
from dagfisher.nn import (
    BernoulliConv2d,
    BernoulliConvTranspose2d,
    LateralBernoulliLinear,
    MaskedLinear,
    Prior,
    StochasticLayer,
)

from .enumeration import all_states, gradients, hidden_states, log_bernoulli

F64 = torch.float64
NETWORKS = ["generative", "recognition", "both"]
STATES = [(0.0, 1.0), (-1.0, 1.0)]
X = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]], dtype=F64)


def tiny(lateral: str | None, states: tuple[float, float] = (-1.0, 1.0), sizes: tuple[int, ...] = (3, 2, 2)) -> Any:
    """A machine in float64 with weights far from zero, under the masks too."""
    machine = HelmholtzMachine(list(sizes), states=states, lateral=lateral).double()
    draws = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in machine.parameters():
            p.copy_(torch.randn(p.shape, generator=draws, dtype=F64))
    return machine


def log_layer(layer: StochasticLayer, child: Tensor, parents: Tensor | None) -> Tensor:
    """log p(child | parents), a unit at a time, differentiable."""
    if isinstance(layer, Prior):
        return log_bernoulli(child, layer.bias.expand_as(child))
    assert parents is not None
    total = torch.zeros(len(child), dtype=F64)
    weight, bias, outside = layer.weight, layer.bias, parents.shape[1]
    for j in range(child.shape[1]):
        logit = bias[j] + parents @ weight[j, :outside]
        if isinstance(layer, LateralBernoulliLinear):
            for i in range(j):
                logit = logit + weight[j, outside + i] * child[:, i]
        total = total + log_bernoulli(child[:, j : j + 1], logit[:, None])
    return total


def log_joint(machine: HelmholtzMachine, x: Tensor, hidden: list[Tensor]) -> Tensor:
    """log p(x, h), (n,), of rows of x and h."""
    total = log_layer(machine.prior, hidden[-1], x.new_empty(len(x), 0))
    for layer, child, parents in zip(machine.generative_layers(), [x, *hidden], hidden, strict=False):
        total = total + log_layer(layer, child, parents)
    return total


def log_recognition(machine: HelmholtzMachine, x: Tensor, hidden: list[Tensor]) -> Tensor:
    """log q(h|x), (n,), of rows of x and h."""
    total = torch.zeros(len(x), dtype=F64)
    for layer, child, parents in zip(machine.recognition_layers(), hidden, [x, *hidden], strict=False):
        total = total + log_layer(layer, child, parents)
    return total


def everything(machine: HelmholtzMachine, states: tuple[float, float]) -> tuple[Tensor, list[Tensor]]:
    """Every joint state of the data and the hidden layers, as rows."""
    parts = all_states(sum(machine.sizes), states).split(machine.sizes, dim=1)
    return parts[0], list(parts[1:])


def chi_square(counts: Tensor, probabilities: Tensor) -> None:
    """The counts are of draws with these probabilities: χ² is within six deviations of its mean."""
    expected = counts.sum() * probabilities
    freedom = len(counts) - 1
    assert ((counts - expected).square() / expected).sum() < freedom + 6 * math.sqrt(2 * freedom)


def codes(states: Tensor) -> Tensor:
    """Each row of states as the index that `all_states` gives it."""
    bits = (states > 0).long()
    return (bits * 2 ** torch.arange(bits.shape[1] - 1, -1, -1)).sum(1)


# The layer by itself


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("parents", [0, 2])
def test_a_layer_has_the_probabilities_of_its_units_one_after_the_other(
    states: tuple[float, float], parents: int
) -> None:
    torch.manual_seed(1)
    layer = LateralBernoulliLinear(parents, 4, states=states, dtype=F64)
    torch.nn.init.normal_(layer.weight)
    given, children = torch.randn(parents, dtype=F64), all_states(4, states)
    found = layer.log_prob(children, given)
    torch.testing.assert_close(found, log_layer(layer, children, given.expand(16, -1)), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.logsumexp(0), torch.zeros((), dtype=F64), rtol=0, atol=1e-12)
    drawn = layer.sample(given.expand(3, 7000, -1), torch.Generator().manual_seed(0))
    assert drawn.shape == (3, 7000, 4) and not drawn.requires_grad
    chi_square(torch.bincount(codes(drawn.flatten(0, 1)), minlength=16), found.detach().exp())


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("units", [1, 31, 32, 33, 100])
def test_every_unit_is_drawn_with_the_logit_that_the_units_before_it_give(
    units: int, states: tuple[float, float]
) -> None:
    """With weights so large that nothing is left to chance."""
    torch.manual_seed(units)
    layer = LateralBernoulliLinear(5, units, states=states, dtype=F64)
    torch.nn.init.normal_(layer.weight, std=1e7)
    parents = torch.randn(50, 5, dtype=F64)
    drawn = layer.sample(parents)
    logits = layer(torch.cat([parents, drawn], 1))
    assert logits.abs().min() > 50 and (units == 1 or 0.2 < (drawn > 0).double().mean() < 0.8)
    assert torch.equal(drawn > 0, logits > 0) and set(drawn.unique().tolist()) <= set(states)


def test_expectation_and_entropy_of_a_lateral_layer_are_refused() -> None:
    layer = LateralBernoulliLinear(2, 3)
    with pytest.raises(NotImplementedError, match="expectation of units with lateral connections has no closed form"):
        _ = layer.distribution(torch.zeros(1, 2)).mean
    with pytest.raises(NotImplementedError, match="entropy of units with lateral"):
        layer.entropy(torch.zeros(1, 2))


def test_weights_under_the_mask_of_a_new_layer_are_zero() -> None:
    layer = LateralBernoulliLinear(2, 3)
    assert torch.equal(layer.weight == 0, ~layer.mask)
    assert torch.equal(layer.mask.int(), torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]))


def test_shared_rows_of_parents_or_states_feed_the_same_fisher() -> None:
    """Three samples of each of four rows, computed together or each by itself."""
    torch.manual_seed(0)
    layer = LateralBernoulliLinear(2, 3, dtype=F64)
    parents, states = torch.randn(4, 2, dtype=F64), torch.randint(2, (3, 4, 3)).double()
    found = []
    for shared in (True, False):
        opt = exact(layer.parameters(), lr=0.1, damping=0.2, solver="dense")
        given = parents if shared else parents.expand(3, -1, -1)
        opt.zero_grad()
        layer.predictor(given, states).square().sum().backward()
        found.append((opt.fisher_blocks(layer.weight), layer.weight.grad.clone(), opt.natural_gradient()[layer.weight]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        layer.predictor(parents, states)
    layer.eval().predictor(parents, states)
    assert opt.fisher_blocks(layer.weight).equal(found[1][0])


# A machine: probabilities and samples


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("lateral", NETWORKS)
def test_probabilities_of_a_machine_are_those_of_enumeration(lateral: str, states: tuple[float, float]) -> None:
    machine = tiny(lateral, states)
    x, hidden = everything(machine, states)
    zero = torch.zeros((), dtype=F64)
    torch.testing.assert_close(log_joint(machine, x, hidden).logsumexp(0), zero, rtol=0, atol=1e-12)
    h = hidden_states(machine, states)
    for row in machine.encode(X):
        own = row.expand(len(h[0]), -1)
        torch.testing.assert_close(log_recognition(machine, own, h).logsumexp(0), zero, rtol=0, atol=1e-12)
    wanted = torch.stack([log_joint(machine, r.expand(len(h[0]), -1), h).logsumexp(0) for r in machine.encode(X)])
    torch.testing.assert_close(machine.exact_log_likelihood(X), wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize("lateral", NETWORKS)
def test_wake_samples_are_of_q_and_carry_the_log_probabilities_of_both_networks(lateral: str) -> None:
    from dagfisher.helmholtz.sampling import wake

    machine = tiny(lateral)
    x, samples = machine.encode(X), 12_000
    state = wake(machine, x, samples, torch.Generator().manual_seed(0))
    rows = x.repeat(samples, 1)
    torch.testing.assert_close(state.log_p.flatten(), log_joint(machine, rows, state.hidden), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        state.log_q.flatten(), log_recognition(machine, rows, state.hidden), rtol=1e-10, atol=1e-10
    )
    hidden = hidden_states(machine, (-1.0, 1.0))
    drawn = codes(torch.cat(state.hidden, 1)).reshape(samples, len(x))
    for k, row in enumerate(x):
        exact = log_recognition(machine, row.expand(len(hidden[0]), -1), hidden).detach().exp()
        chi_square(torch.bincount(drawn[:, k], minlength=len(exact)), exact)
    inferred = torch.cat(machine.infer(X[:1].expand(samples, -1), generator=torch.Generator().manual_seed(1)), 1)
    exact = log_recognition(machine, x[:1].expand(len(hidden[0]), -1), hidden).detach().exp()
    chi_square(torch.bincount(codes(inferred), minlength=len(exact)), exact)


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("lateral", NETWORKS)
def test_dreams_are_of_p(lateral: str, states: tuple[float, float]) -> None:
    machine = tiny(lateral, states)
    images = all_states(3, (0.0, 1.0))
    exact = machine.exact_log_likelihood(images).exp()
    drawn = machine.sample(20_000, generator=torch.Generator().manual_seed(0))
    chi_square(torch.bincount(codes(drawn), minlength=8), exact)
    means = machine.sample(20_000, means=True, generator=torch.Generator().manual_seed(1))
    error = means.std(0) / math.sqrt(len(means))
    assert ((means.mean(0) - exact @ images).abs() < 6 * error).all() and ((means > 0) & (means < 1)).all()
    assert machine.reconstruct(X, depth=2).shape == X.shape


@pytest.mark.parametrize("lateral", NETWORKS)
def test_importance_sampling_approaches_the_exact_log_likelihood(lateral: str) -> None:
    machine = tiny(lateral)
    found = estimate(machine, X, 30_000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found.log_p, machine.exact_log_likelihood(X), rtol=0, atol=0.05)


def test_an_untrained_machine_is_the_one_without_lateral_connections() -> None:
    plain, both = HelmholtzMachine([5, 4, 3]), HelmholtzMachine([5, 4, 3], lateral="both")
    for bihm in (True, False):
        for machine in (plain, both):
            machine.reset_parameters(bihm=bihm, generator=torch.Generator().manual_seed(2))
        x = torch.randint(2, (6, 5), generator=torch.Generator().manual_seed(0)).float()
        torch.testing.assert_close(both.exact_log_likelihood(x), plain.exact_log_likelihood(x))
    for one, other in zip(plain.recognition_layers(), both.recognition_layers(), strict=True):
        assert torch.equal(other.weight[:, : one.in_features], one.weight)
        assert not other.weight[:, one.in_features :].any()


def test_pairs_may_hold_lateral_layers_beside_convolutions() -> None:
    filters: dict[str, Any] = {"kernel_size": 2, "states": (-1, 1)}
    bottom = BernoulliConvTranspose2d(1, 1, **filters), BernoulliConv2d(1, 1, **filters)
    above = LateralBernoulliLinear(2, 4, states=(-1, 1)), LateralBernoulliLinear(4, 2, states=(-1, 1))
    top = LateralBernoulliLinear(0, 2, states=(-1, 1))
    machine = HelmholtzMachine([bottom, above], prior=top, shape=(1, 3, 3)).double()
    for p in machine.parameters():
        torch.nn.init.normal_(p)
    assert machine.shapes == [(1, 3, 3), (1, 2, 2), (2,)]
    total = machine.exact_log_likelihood(all_states(9, (0.0, 1.0))).logsumexp(0)
    torch.testing.assert_close(total, torch.zeros((), dtype=F64), rtol=0, atol=1e-12)
    Trainer(machine, "nrws", update_every=2).step(torch.randint(2, (5, 9)).double())


# Learning


class Watched:
    """The samples of a trainer's step, and the coefficients of their log-probabilities."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wake: Any = None
        self.weights = self.coefficients = torch.zeros(0)
        self.dreams: list[Tensor] = []
        self.dream_coefficient = 0.0
        for name in ("generative_terms", "recognition_terms", "sleep_terms"):
            real = getattr(train_module, name)
            monkeypatch.setattr(train_module, name, partial(getattr(self, f"_{name}"), real))

    def _generative_terms(self, real: Any, machine: Any, state: Any, weights: Tensor, terms: Any) -> None:
        self.wake, self.weights = state, weights
        real(machine, state, weights, terms)

    def _recognition_terms(self, real: Any, machine: Any, state: Any, coefficients: Tensor, terms: Any) -> None:
        self.coefficients = coefficients
        real(machine, state, coefficients, terms)

    def _sleep_terms(self, real: Any, machine: Any, count: int, coefficient: float, *more: Any, **settings: Any) -> Any:
        self.dreams, self.dream_coefficient = real(machine, count, coefficient, *more, **settings), coefficient
        return self.dreams


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("lateral", [None, *NETWORKS])
@pytest.mark.parametrize("algorithm", ["nws", "nrws", "nbihm"])
def test_gradients_are_those_of_autograd_for_the_samples_of_the_step(
    algorithm: str, lateral: str | None, states: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = tiny(lateral, states)
    seen = Watched(monkeypatch)
    Trainer(machine, algorithm, lr=0.0, samples=5, seed=4, baseline=False).step(X)
    assert bool(seen.dreams) == (algorithm != "nbihm") and bool(len(seen.coefficients)) == (algorithm != "nws")
    rows, hidden = seen.wake.x.repeat(5, 1), seen.wake.hidden
    loss_p = -(seen.weights.flatten() * log_joint(machine, rows, hidden)).sum()
    loss_q = torch.zeros((), dtype=F64)
    if len(seen.coefficients):
        loss_q = loss_q - (seen.coefficients.flatten() * log_recognition(machine, rows, hidden)).sum()
    if seen.dreams:
        log_q = log_recognition(machine, seen.dreams[0], seen.dreams[1:])
        loss_q = loss_q - seen.dream_coefficient * log_q.mean()
    for parameters, loss in (
        (machine.generative_parameters(), loss_p),
        (machine.recognition_parameters(), loss_q),
    ):
        for p, wanted in zip(parameters, gradients(loss, parameters), strict=True):
            torch.testing.assert_close(p.grad, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("lateral", NETWORKS)
@pytest.mark.parametrize("algorithm", ["ws", "rws", "bihm", "reinforce"])
def test_gradients_approach_the_enumerated_ones(algorithm: str, lateral: str) -> None:
    states = (-1.0, 1.0)
    machine = tiny(lateral, states)
    with torch.no_grad():
        for p in machine.parameters():
            p.mul_(0.6)  # closer to each other, the two networks give weights of less variance
    Trainer(machine, algorithm, lr=0.0, samples=60_000, seed=5).step(X)
    hidden = hidden_states(machine, states)
    loss_p = loss_q = torch.zeros((), dtype=F64)
    for row in machine.encode(X):
        x = row.expand(len(hidden[0]), -1)
        log_p, log_q = log_joint(machine, x, hidden), log_recognition(machine, x, hidden)
        posterior = (log_p - log_p.logsumexp(0)).exp()
        root = torch.softmax((log_p + log_q) / 2, 0)
        exact = {"ws": log_q.exp(), "rws": posterior, "bihm": root, "reinforce": log_q.exp()}[algorithm].detach()
        loss_p = loss_p - (exact * log_p).sum() / len(X)
        if algorithm in ("rws", "bihm"):
            loss_q = loss_q - (0.5 if algorithm == "rws" else 1.0) * (exact * log_q).sum() / len(X)
        if algorithm == "reinforce":
            loss_q = loss_q - (log_q.exp() * (log_p - log_q)).sum() / len(X)
    if algorithm in ("ws", "rws"):
        x, h = everything(machine, states)
        weights = log_joint(machine, x, h).exp().detach()
        loss_q = loss_q - (0.5 if algorithm == "rws" else 1.0) * (weights * log_recognition(machine, x, h)).sum()
    for network, loss in ((machine.generative_parameters(), loss_p), (machine.recognition_parameters(), loss_q)):
        found = torch.cat([p.grad.flatten() for p in network])
        wanted = torch.cat([g.flatten() for g in gradients(loss, network)])
        assert (found - wanted).norm() < 0.03 * wanted.norm() and wanted.norm() > 0.05


def scores(log_probabilities: Tensor, layers: list[Any]) -> tuple[Tensor, list[tuple[int, int, int]]]:
    """The score of every sample about every trained number, (n × numbers), and (layer, unit, place) of each number."""
    rows = []
    places = [
        (k, j, i)
        for k, layer in enumerate(layers)
        for j in range(layer.bias.shape[0])
        for i in [*_allowed(layer, j), -1]
    ]
    tensors = [p for layer in layers for p in layer.parameters()]
    for value in log_probabilities:
        found = dict(zip(map(id, tensors), gradients(value, tensors), strict=True))
        numbers = [found[id(layers[k].bias)][j] if i < 0 else found[id(layers[k].weight)][j, i] for k, j, i in places]
        rows.append(torch.stack(numbers))
    return torch.stack(rows), places


def _allowed(layer: Any, unit: int) -> list[int]:
    if isinstance(layer, Prior):
        return []
    if isinstance(layer, MaskedLinear):
        return [int(i) for i in layer.mask[unit].nonzero().squeeze(1)]
    return list(range(layer.in_features))


@pytest.mark.parametrize("network", ["generative", "recognition"])
@pytest.mark.parametrize("states", STATES)
def test_fisher_blocks_are_those_of_the_enumerated_network(network: str, states: tuple[float, float]) -> None:
    """The whole Fisher matrix, by autograd of log p(x, h) or log q(h|x), is block diagonal, and has these blocks."""
    machine = tiny("both", states, (2, 2, 2))
    if network == "generative":
        x, hidden = everything(machine, states)
        layers: list[Any] = [*machine.generative_layers(), machine.prior]
        log_probabilities = log_joint(machine, x, hidden)
    else:
        hidden = hidden_states(machine, states)
        x = machine.encode(X[:1, :2]).expand(len(hidden[0]), -1)
        layers = machine.recognition_layers()
        log_probabilities = log_recognition(machine, x, hidden)
    weights = log_probabilities.detach().exp()
    found, places = scores(log_probabilities, layers)
    full = found.T @ (weights[:, None] * found)
    blocks = [(k, j) for k, j, _ in places]
    apart = torch.tensor([[one != other for one in blocks] for other in blocks])
    assert full[apart].abs().max() < 1e-14
    opt = exact([p for layer in layers for p in layer.parameters()], damping=0.1, solver="dense")
    with sample_weights(weights):
        if network == "generative":
            predictors = [machine.down(i, h, c) for i, (h, c) in enumerate(zip(hidden, [x, *hidden], strict=False))]
            opt.zero_grad()
            machine.observe_generative(
                [x, *hidden], [p.detach() for p in [*predictors, machine.top(len(x), hidden[-1])]]
            )
        else:
            for i, (below, own) in enumerate(zip([x, *hidden], hidden, strict=False)):
                machine.up(i, below, own)
    for k, layer in enumerate(layers):
        mine = opt.fisher_blocks(layer.bias) * 1.1
        for j in range(layer.bias.shape[0]):
            chosen = torch.tensor([block == (k, j) for block in blocks])
            places_of = [i for (kk, jj, i) in places if (kk, jj) == (k, j)]
            wanted = full[chosen][:, chosen] + 0.1 * torch.eye(len(places_of), dtype=F64)
            torch.testing.assert_close(mine[j][places_of][:, places_of], wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "rws"},
        {"algorithm": "rws", "optimizer": lambda groups: torch.optim.Adam(groups, lr=0.01)},
        {"algorithm": "nrws", "update_every": 2, "momentum": 0.5, "lr": 0.05},
        {"algorithm": "nws", "update_every": 2, "sleep_steps": 2},
        {"algorithm": "nbihm", "solver": "conjugate"},
        {"algorithm": "nrws", "solver": "woodbury", "fisher": "dream"},
        {"algorithm": "dnrws", "regularisers": [L1(0.01), L2(0.01), Entropy(0.1)]},
        {"algorithm": "reinforce"},
    ],
    ids=lambda settings: ", ".join(settings),
)
def test_weights_under_the_masks_never_move_and_the_others_do(settings: dict[str, Any]) -> None:
    machine = HelmholtzMachine([5, 4, 3], lateral="both").double()
    masked = [layer for layer in machine.modules() if isinstance(layer, MaskedLinear)]
    assert len(masked) == 5
    trainer = Trainer(machine, samples=4, seed=1, **settings)
    for step in range(6):
        trainer.step(torch.randint(2, (6, 5), generator=torch.Generator().manual_seed(step)).double())
    for layer in masked:
        assert torch.equal(layer.weight == 0, ~layer.mask)


@pytest.mark.parametrize("algorithm", ["rws", "nrws", "nbihm"])
def test_a_lateral_machine_learns_what_independent_pixels_cannot(algorithm: str) -> None:
    """Pixels that are all equal, below one hidden unit that is of no use to the recognition network."""
    x = torch.tensor([[0.0] * 4, [1.0] * 4], dtype=F64).repeat(20, 1)
    machine = HelmholtzMachine([4, 1], lateral="generative").double()
    trainer = Trainer(machine, algorithm, seed=0)
    before = machine.exact_log_likelihood(x).mean()
    for _ in range(150):
        trainer.step(x)
    assert before < -2.5 and machine.exact_log_likelihood(x).mean() > -1.2
