"""What is shown of a Fisher matrix is what a slow and independent computation finds."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient, inspect
from dagfisher.errors import MissingStatisticsError, SettingError, ShapeError
from dagfisher.helmholtz import HelmholtzMachine
from tests.helmholtz.enumeration import all_states, log_bernoulli, tiny_machine
from tests.reference import blocks_of, natural, score_covariance


class Net(nn.Module):
    """Two Bernoulli layers in float64, and a layer that nobody declared."""

    def __init__(self, undeclared: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.below = nn.Linear(6, 5).double()
        self.above = nn.Linear(5, 4).double()
        self.rest = nn.Linear(4, 1).double() if undeclared else nn.Identity()
        dagfisher.declare(self.below, "bernoulli")
        dagfisher.declare(self.above, "bernoulli")

    def forward(self, x: Tensor) -> Tensor:
        return F.logsigmoid(self.rest(self.above(torch.sigmoid(self.below(x))))).sum(1).mean() + self.below(x).mean()


def batch(seed: int, n: int = 40) -> Tensor:
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def trained(solver: str = "dense", damping: Any = 0.1, **settings: Any) -> tuple[Net, DAGNaturalGradient, Tensor]:
    net, x = Net(), batch(1)
    opt = DAGNaturalGradient(net.parameters(), lr=0.0, damping=damping, solver=solver, **settings)
    net(x).backward()
    opt.step()
    return net, opt, x


def expected_blocks(layer: nn.Linear, parents: Tensor) -> np.ndarray:
    p = torch.sigmoid(layer(parents)).detach()
    rows = torch.cat([parents, torch.ones(len(parents), 1, dtype=torch.float64)], 1).detach()
    return blocks_of(rows, p * (1 - p) / len(parents), 0.0)


# Spectra


@pytest.mark.parametrize("solver", ["dense", "woodbury", "conjugate"])
def test_a_spectrum_has_the_eigenvalues_of_the_blocks_without_damping(solver: str) -> None:
    net, opt, _ = trained(solver)
    x = torch.cat([batch(1)])
    # `below` ran twice in the pass, with the same rows each time: the mean over both is that of one
    found = {layer.name: layer for layer in inspect.spectrum(opt).layers}
    for name, parents in (("below", x), ("above", torch.sigmoid(net.below(x)))):
        eigenvalues = np.linalg.eigvalsh(expected_blocks(getattr(net, name), parents))[:, ::-1]
        assert np.allclose(found[name].eigenvalues.numpy(), eigenvalues, atol=1e-12)
        effective = (eigenvalues / (eigenvalues + 0.1)).sum()
        assert found[name].effective == pytest.approx(effective, rel=1e-9)
        assert found[name].parameters == sum(p.numel() for p in getattr(net, name).parameters())


def test_effective_parameters_are_the_trace_of_blocks_times_inverse_damped_blocks() -> None:
    net, opt, x = trained()
    block = expected_blocks(net.below, x)
    trace = sum(np.trace(b @ np.linalg.inv(b + 0.1 * np.eye(len(b)))) for b in block)
    assert inspect.spectrum(opt).layers[0].effective == pytest.approx(trace, rel=1e-9)
    both = [layer.effective for layer in inspect.spectrum(opt).layers]
    assert inspect.spectrum(opt).effective == pytest.approx(sum(both))


def test_some_units_stand_for_all_of_a_layer() -> None:
    _, opt, _ = trained()
    few = inspect.spectrum(opt, units=2).layers[0]
    whole = inspect.spectrum(opt).layers[0]
    assert torch.allclose(few.eigenvalues, whole.eigenvalues[[0, 4]])
    assert few.parameters == whole.parameters
    assert few.effective == pytest.approx(2.5 * float((few.eigenvalues / (few.eigenvalues + 0.1)).sum()))


def test_without_damping_every_direction_that_was_seen_counts() -> None:
    net, x = nn.Linear(3, 2).double(), torch.randn(20, 3, dtype=torch.float64)
    dagfisher.declare(net, "gaussian", std=1.0)
    opt = DAGNaturalGradient(net.parameters(), lr=0.0, damping=0.0, solver="dense")
    net(x).square().mean().backward()
    opt.step()
    assert inspect.spectrum(opt).effective == 8


def test_there_is_no_spectrum_before_the_first_step() -> None:
    with pytest.raises(MissingStatisticsError, match="take a step"):
        inspect.spectrum(DAGNaturalGradient(Net().parameters(), lr=0.1))


def test_layers_whose_blocks_are_too_large_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _, opt, _ = trained()
    monkeypatch.setattr(importlib.import_module("dagfisher.inspect.spectrum"), "LARGEST", 5 * 7 * 7 - 1)
    found = inspect.spectrum(opt)
    assert found.omitted == ("below",)
    assert [layer.name for layer in found.layers] == ["above"]


# Cosines


def test_cosines_are_those_of_natural_gradients_by_hand() -> None:
    net, opt, _ = trained(update_every=1)
    opt.zero_grad()
    x = batch(2)
    net(x).backward()
    found = inspect.cosines(opt)
    naturals, plains = [], []
    for name, parents in (("below", x), ("above", torch.sigmoid(net.below(x)))):
        layer = getattr(net, name)
        g = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)
        p = torch.sigmoid(layer(parents)).detach()
        rows = torch.cat([parents, torch.ones(len(parents), 1, dtype=torch.float64)], 1).detach()
        v = natural(rows, p * (1 - p) / len(parents), g, 0.1)
        assert found.layers[name] == pytest.approx(float((v * g).sum() / v.norm() / g.norm()), rel=1e-9)
        naturals.append(v.flatten())
        plains.append(g.flatten())
    assert found.whole == pytest.approx(float(torch.cosine_similarity(torch.cat(naturals), torch.cat(plains), 0)))


# Examples


def test_what_examples_could_save_is_the_mean_square_of_weighted_steps_by_hand() -> None:
    """One layer, whose gradients of examples are outer products, and whose blocks are those of the formula."""
    torch.manual_seed(0)
    layer = dagfisher.nn.BernoulliLinear(6, 5, dtype=torch.float64)
    opt = DAGNaturalGradient(layer.parameters(), lr=0.0, damping=0.1, solver="dense")
    x, y = batch(1), torch.randint(2, (40, 5)).double()
    opt.zero_grad()
    with opt.example_norms() as norms:
        F.binary_cross_entropy_with_logits(layer(x), y, reduction="sum").div(40).backward()
    opt.step()
    old = torch.rand(40, dtype=torch.float64) + 0.1
    found = inspect.examples(norms, old)
    rows = torch.cat([x, torch.ones(40, 1, dtype=torch.float64)], 1)
    gradients = torch.einsum("nj,nd->njd", torch.sigmoid(layer(x)).detach() - y, rows)
    damped = torch.as_tensor(expected_blocks(layer, x)) + 0.1 * torch.eye(7, dtype=torch.float64)
    solved = torch.linalg.solve(damped, 1.1 * gradients.transpose(0, 1).transpose(1, 2)).permute(2, 0, 1)
    lengths = {
        "gradient": gradients.square().sum((1, 2)).sqrt(),
        "natural": solved.square().sum((1, 2)).sqrt(),
        "fisher": (gradients * solved).sum((1, 2)).sqrt(),
    }
    for metric, each in lengths.items():
        torch.testing.assert_close(found.norms[metric], each, rtol=1e-8, atol=0)
        uniform = each.square().mean()
        assert found.ideal[metric] == pytest.approx(float(each.mean() ** 2 / uniform))
        pi = old / old.sum()
        assert found.stale[metric] == pytest.approx(float((pi * (each / (40 * pi)).square()).sum() / uniform))
        assert found.ideal[metric] < min(found.stale[metric], 1)
    assert inspect.examples(norms).stale == {}
    shown = found.figure().axes[0].lines
    assert len(shown) == 4 and shown[0].get_ydata()[-1] == pytest.approx(1)


def test_cosines_need_a_gradient() -> None:
    _, opt, _ = trained()
    opt.zero_grad()
    with pytest.raises(MissingStatisticsError, match="backward"):
        inspect.cosines(opt)


# Staleness


def closure_over(net: Net, seeds: Any) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        loss: Tensor = net(batch(next(seeds)))
        loss.backward()
        return loss

    return closure


def natural_by_hand(net: Net, blocks: dict[str, np.ndarray]) -> dict[str, Tensor]:
    found = {}
    for name, own in blocks.items():
        layer = getattr(net, name)
        g = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)
        damped = own + 0.1 * np.eye(own.shape[1])
        found[name] = 1.1 * torch.from_numpy(np.stack([np.linalg.solve(b, r) for b, r in zip(damped, g, strict=True)]))
    return found


def blocks_by_hand(net: Net, x: Tensor) -> dict[str, np.ndarray]:
    return {
        "below": expected_blocks(net.below, x),
        "above": expected_blocks(net.above, torch.sigmoid(net.below(x))),
    }


def test_staleness_is_the_angle_to_a_fresh_natural_gradient_while_the_old_fisher_trains_on() -> None:
    net = Net()
    opt = DAGNaturalGradient(net.parameters(), lr=0.3, damping=0.1, solver="dense", trust_region=None, update_every=7)
    before = [p.detach().clone() for p in net.parameters()]
    found = inspect.staleness(opt, closure_over(net, iter(range(10, 20))), ages=(0, 2, 3))
    assert all(torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True))
    assert opt.param_groups[0]["update_every"] == 7 and opt.param_groups[0]["lr"] == 0.3

    other = Net()
    kept = blocks_by_hand(other, batch(10))
    expected: dict[str, list[float]] = {"below": [], "above": []}
    for age, seed in enumerate(range(11, 15)):
        other.zero_grad()
        x = batch(seed)
        other(x).backward()
        reused, fresh = natural_by_hand(other, kept), natural_by_hand(other, blocks_by_hand(other, x))
        for name in expected:
            if age in (0, 2, 3):
                cosine = torch.cosine_similarity(reused[name].flatten(), fresh[name].flatten(), 0)
                expected[name].append(math.degrees(math.acos(float(cosine))))
        with torch.no_grad():
            for name, vector in reused.items():
                getattr(other, name).weight -= 0.3 * vector[:, :-1]
                getattr(other, name).bias -= 0.3 * vector[:, -1]
    for name in expected:
        assert found.layers[name] == pytest.approx(expected[name], rel=1e-6)
        assert min(expected[name]) > 0.1


def test_after_staleness_training_goes_on_as_if_nobody_had_looked() -> None:
    def run(look: bool) -> list[Tensor]:
        net = Net(undeclared=True)
        opt = DAGNaturalGradient(net.parameters(), lr=0.1, update_every=2, momentum=0.9, undeclared="adam")
        for step in range(6):
            if look and step == 3:
                inspect.staleness(opt, closure_over(net, iter(range(100, 110))), ages=(0, 3))
            opt.zero_grad()
            net(batch(step)).backward()
            opt.step()
        return [p.detach() for p in net.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(run(True), run(False), strict=True))


@pytest.mark.parametrize("ages", [(), (2, 1), (-1,), (0.5,), (1, 1)])
def test_ages_are_rising_whole_numbers(ages: tuple[Any, ...]) -> None:
    _, opt, _ = trained()
    with pytest.raises(SettingError, match="rising whole numbers"):
        inspect.staleness(opt, lambda: None, ages=ages)


# Structure


@pytest.mark.parametrize("states", [(0.0, 1.0), (-1.0, 1.0)])
def test_the_structure_of_a_machine_is_its_fisher_matrix_by_enumeration(states: tuple[float, float]) -> None:
    machine = tiny_machine(states)
    found = inspect.structure(machine)
    joint = all_states(7, states)
    x, h1, h2 = joint.split([3, 2, 2], dim=1)

    def log_p(theta: Tensor) -> Tensor:
        """Its parameters unit by unit: two layers of rows [weights, bias], then the biases of the prior."""
        first, second, prior = theta[:9].reshape(3, 3), theta[9:15].reshape(2, 3), theta[15:]
        below = log_bernoulli(x, h1 @ first[:, :2].T + first[:, 2])
        above = log_bernoulli(h1, h2 @ second[:, :2].T + second[:, 2])
        return below + above + log_bernoulli(h2, prior.expand_as(h2))

    rows = [torch.cat([m.weight, m.bias[:, None]], 1).flatten() for m in machine.generative]
    fisher = score_covariance(log_p, torch.cat([*rows, machine.prior.bias]).detach())
    order = torch.cat([torch.arange(p.start, p.start + p.blocks * p.width) for p in _in_order(found)])
    assert torch.allclose(found.fisher[order][:, order], fisher, atol=1e-12)
    assert found.exact and found.outside < 1e-14
    assert torch.allclose(found.block_diagonal, found.fisher, atol=1e-14)
    assert found.fisher.abs().max() > 0.01


def _in_order(found: inspect.Structure) -> list[inspect.LayerPlace]:
    """Generative layers from the data up, and the prior."""
    return sorted(found.layers, key=lambda place: (place.name == "prior", place.name))


def test_coupled_logits_fill_their_block_and_undeclared_parameters_are_one() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 4)).double()
    dagfisher.declare(net[2], "categorical", classes=4)
    x = torch.randn(5, 2, dtype=torch.float64).repeat_interleave(4, 0)
    y = torch.arange(4).repeat(5)
    log_p = torch.log_softmax(net(x), 1).gather(1, y[:, None])[:, 0].detach()
    found = inspect.structure(net, lambda m: -F.cross_entropy(m(x), y, reduction="none"), weights=log_p.exp() / 5)
    assert [(place.name, place.blocks, place.width) for place in found.layers] == [
        ("2", 1, 16),
        ("0.weight", 1, 6),
        ("0.bias", 1, 3),
    ]
    features = torch.cat([torch.tanh(net[0](x[::4])), torch.ones(5, 1, dtype=torch.float64)], 1).detach()
    p = torch.softmax(net(x[::4]), 1).detach()
    coupled = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    expected = torch.einsum("nab,ni,nj->aibj", coupled, features, features).reshape(16, 16) / 5
    assert torch.allclose(found.fisher[:16, :16], expected, atol=1e-12)
    assert found.outside > 0.01


def test_draws_of_a_larger_machine_come_near_its_blocks() -> None:
    torch.manual_seed(0)
    machine = HelmholtzMachine([12, 4, 3])
    found = inspect.structure(machine, samples=2000)
    assert not found.exact
    assert 0 < found.outside < 0.2
    assert len(found.fisher) == sum(p.numel() for p in machine.generative_parameters())


def test_structure_says_what_it_needs() -> None:
    with pytest.raises(SettingError, match="give log_prob"):
        inspect.structure(Net())
    with pytest.raises(ShapeError, match="one number for each draw"):
        inspect.structure(Net(), lambda net: net(batch(0)))
    with pytest.raises(SettingError, match="4,000"):
        inspect.structure(HelmholtzMachine([100, 100]), samples=2)
    with pytest.raises(MissingStatisticsError, match="no parameter"):
        inspect.structure(Net(), lambda net: torch.zeros(3, requires_grad=True) * 1)


# Saturation


def test_saturation_is_the_mean_of_four_times_the_variance_of_each_unit() -> None:
    net, x = Net(), batch(3)
    with torch.no_grad():
        net.above.bias[1] = 30.0
    found = inspect.saturation(net, lambda: net(x))
    p = torch.sigmoid(net.above(torch.sigmoid(net.below(x))))
    above = next(layer for layer in found.layers if layer.name == "above")
    assert torch.allclose(above.weights, (4 * p * (1 - p)).mean(0).detach())
    assert above.share() == 0.25
    assert above.share(below=1.1) == 1.0


def test_saturation_needs_bernoulli_layers_and_leaves_no_hook() -> None:
    net = Net()
    with pytest.raises(MissingStatisticsError, match="no Bernoulli layer"):
        inspect.saturation(net, lambda: None)
    before = len(net.below._forward_hooks)
    inspect.saturation(net, lambda: net(batch(0)))
    assert len(net.below._forward_hooks) == before


# Following


def test_following_sends_what_diagnostics_say_after_every_second_step() -> None:
    net = Net()
    opt = DAGNaturalGradient(net.parameters(), lr=0.1, damping=0.2, trust_region=0.01)
    sent: list[dict[str, float]] = []
    follower = inspect.follow(opt, sent.append, every=2)
    with pytest.raises(MissingStatisticsError, match="no step"):
        follower.trace()
    seen = []
    for step in range(5):
        opt.zero_grad()
        net(batch(step)).backward()
        opt.step()
        seen.append(opt.diagnostics())
    follower.close()
    net(batch(9)).backward()
    opt.step()
    assert [row["step"] for row in sent] == [2, 4]
    for row, told in zip(sent, seen[1::2], strict=True):
        assert row["lr/group 0"] == 0.1
        assert row["damping/below"] == 0.2
        assert row["divergence/group 0"] == told["groups"][0]["divergence"] > 0
        assert row["factor/group 0"] == told["groups"][0]["factor"] <= 1
        assert "solver/below" not in row and "ratio/below" not in row
    assert list(follower.trace().rows) == sent


def test_every_is_a_whole_number() -> None:
    _, opt, _ = trained()
    with pytest.raises(SettingError, match="at least 1"):
        inspect.follow(opt, every=0)


# Figures


def test_every_result_has_a_figure_with_a_line_for_each_layer() -> None:
    net = Net()
    opt = DAGNaturalGradient(net.parameters(), lr=0.1, damping=0.2, trust_region=0.01)
    follower = inspect.follow(opt)
    staleness = inspect.staleness(opt, closure_over(net, iter(range(9))), ages=(0, 1))
    for _ in range(2):
        opt.zero_grad()
        net(batch(1)).backward()
        opt.step()
    net(batch(2)).backward()
    spectrum, trace = inspect.spectrum(opt), follower.trace()
    assert len(spectrum.figure().axes) == 2
    assert all(axes.get_lines()[-1].get_ydata()[0] == 0.2 for axes in spectrum.figure().axes)
    assert len(staleness.figure().axes[0].lines) == 3
    assert [len(axes.lines) for axes in trace.figure().axes] == [
        1,
        3,
        1,
        1,
    ]  # damping: the group, and each layer
    assert len(inspect.cosines(opt).figure().axes[0].patches) == 3
    assert len(inspect.saturation(net, lambda: net(batch(0))).figure().axes[0].lines) == 3
    assert len(inspect.structure(tiny_machine((0.0, 1.0))).figure().axes) == 2
