"""The programs that change two lines of a plain version: in their quick form, what they claim is true."""

from __future__ import annotations

import itertools
import re
import runpy
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exact import exact
from torch.nn.functional import binary_cross_entropy_with_logits

import dagfisher
from dagfisher import datasets

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NAMES = ("logistic_regression", "poisson_regression", "softmax_regression", "wrap_sbn", "sequence")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> dict[str, Any]:
    """Run the program with --quick; the names it leaves behind."""
    out = tmp_path / "pictures" / f"{name}.png"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, "--quick", "--out", str(out)])
    left = runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert out.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [out.parent]
    return left


@pytest.mark.parametrize("name", NAMES)
def test_a_program_is_short_and_marks_its_two_lines(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 165
    assert text.count("# <- the two lines") == 2
    assert "helmholtz" not in text
    assert not re.search(r"\._[a-z]", text)  # public names only


@pytest.mark.parametrize("name", ["logistic_regression", "poisson_regression"])
def test_natural_regression_takes_few_steps(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = run(monkeypatch, tmp_path, name)
    (slow,) = (excess for label, excess in left["runs"].items() if label.startswith("plain"))
    (adam,) = (excess for label, excess in left["runs"].items() if label.startswith("Adam"))
    itself = left["runs"]["natural, as it comes"]
    assert itself[-1] < left["CLOSE"] and len(itself) < 0.7 * len(adam)
    fast = left["runs"]["natural, lr 1"]
    assert -1e-12 < fast[-1] < left["CLOSE"] and len(fast) - 1 < 10
    assert len(slow) - 1 == 300 and left["CLOSE"] < slow[-1] < slow[0]  # it descends, but does not arrive
    rows = capsys.readouterr().out.splitlines()
    assert rows[3].split()[:4] == ["natural,", "lr", "1", str(len(fast) - 1)]


def test_a_step_of_natural_logistic_regression_is_newtons() -> None:
    left = runpy.run_path(str(EXAMPLES / "logistic_regression.py"))
    x, y = left["make_data"](0)
    model = left["make_model"]()
    dagfisher.declare(model, "bernoulli")
    opt = exact(model.parameters(), lr=1.0, damping=0, solver="dense")

    def loss(w: torch.Tensor) -> torch.Tensor:
        return binary_cross_entropy_with_logits(x @ w[:-1] + w[-1], y[:, 0])

    w = torch.zeros(9, dtype=torch.float64)
    for _ in range(3):
        w = w - torch.linalg.solve(
            torch.autograd.functional.hessian(loss, w), torch.autograd.functional.jacobian(loss, w)
        )
        opt.zero_grad()
        binary_cross_entropy_with_logits(model(x), y).backward()
        opt.step()
        torch.testing.assert_close(torch.cat([model.weight[0], model.bias]).detach(), w, rtol=1e-8, atol=1e-10)


def test_coupled_softmax_regression_is_newtons_method_and_its_diagonal_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = run(monkeypatch, tmp_path, "softmax_regression")
    runs, close = left["runs"], left["CLOSE"]
    coupled, diagonal = runs["natural, coupled, lr 1"], runs["natural, diagonal, lr 0.8"]
    assert -1e-12 < coupled[-1] < close and len(coupled) - 1 <= 6
    assert -1e-12 < diagonal[-1] < close and len(diagonal) > 5 * len(coupled)
    assert runs["natural, diagonal, lr 1"][-1] > 1e3
    assert len(runs["Adam, lr 0.3"]) > 3 * len(diagonal)
    itself = runs["natural, as it comes"]
    assert itself[-1] < close and len(coupled) < len(itself) < 0.7 * len(runs["Adam, lr 0.3"])
    rows = capsys.readouterr().out.splitlines()
    assert rows[2].split()[:5] == ["natural,", "coupled,", "lr", "1", str(len(coupled) - 1)]
    assert rows[3].split()[4:6] == ["runs", "away"]


def test_natural_steps_of_fully_visible_nets_are_ahead_of_many_more_of_adams(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = (EXAMPLES / "fully_visible.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 160 and "helmholtz" not in text
    left = run(monkeypatch, tmp_path, "fully_visible")
    assert [len(runs) for runs in left["results"].values()] == [2, 2]
    monkeypatch.setattr("time.process_time", itertools.count(0, 0.5).__next__)  # half of a second for half of a step
    data = datasets.load("mini-mnist")
    for (model, _, settings, rates), steps, least in zip(left["CONTESTS"].values(), (60, 40), (-35, -38), strict=True):
        ends = []
        for optimizer, seconds in (
            (partial(dagfisher.DAGNaturalGradient, **settings), steps),
            (partial(torch.optim.Adam, lr=rates[0]), 4 * steps),
        ):
            torch.manual_seed(0)
            net = model()
            found = left["train"]("", net, optimizer(net.parameters()), seconds / 2, data)
            assert found.steps[-1] == seconds
            ends.append(found.values[-1])
        assert ends[0] > ends[1] and ends[0] > least


def test_a_pixel_of_the_fully_visible_nets_is_not_moved_by_those_after_it() -> None:
    left = runpy.run_path(str(EXAMPLES / "fully_visible.py"))
    torch.manual_seed(0)
    x = torch.bernoulli(torch.full((1, left["PIXELS"]), 0.3))
    for model in (left["BeliefNet"], left["Made"]):
        net = model()
        for parameter in net.parameters():
            torch.nn.init.normal_(parameter)
        jacobian = torch.autograd.functional.jacobian(lambda image, net=net: net(image)[0], x)[:, 0]
        assert jacobian.triu().abs().max() == 0
        assert (jacobian != 0).sum() > 0.9 * jacobian.numel() / 2


def test_natural_flow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    left = run(monkeypatch, tmp_path, "natural_flow")
    assert left["off"] < 1e-10
    basins = [round(alone) for _, alone, _ in left["ends"]]
    assert basins == [-4, -2]  # two basins for independent variables
    assert all(with_arrow == pytest.approx(-4, abs=1e-3) for _, _, with_arrow in left["ends"])
    assert all(plain - natural > 0.05 for plain, natural, _ in left["ends"])  # plateaux
    assert left["slope"](torch.tensor([1 / 6, 1 / 3])).abs().max() < 1e-6  # the saddle


def test_the_natural_flow_of_the_network_with_an_arrow_is_the_exponential_of_f() -> None:
    left = runpy.run_path(str(EXAMPLES / "natural_flow.py"))
    net, start, step, steps = left["chain"](2, (-1, 1)), (0.3, 0.6), 1e-3, 300
    opt = dagfisher.DAGNaturalGradient(net.parameters(), lr=step, damping=1e-9, solver="dense")
    path = left["descend"](net, opt, start, steps)
    expected = torch.softmax(path[0].log() - step * steps * left["F"], 0)
    torch.testing.assert_close(path[-1], expected, atol=1e-3, rtol=0)


def test_the_fields_of_natural_flow() -> None:
    left = runpy.run_path(str(EXAMPLES / "natural_flow.py"))
    theta = torch.tensor([0.3, -1.2], dtype=torch.float64, requires_grad=True)
    mu = torch.sigmoid(theta.detach()).requires_grad_()
    probabilities = torch.stack([torch.sigmoid(theta), torch.sigmoid(-theta)])  # of +1 and of −1
    f = {(1, 1): 6, (1, -1): -4, (-1, 1): -2, (-1, -1): 0}
    terms = [value * probabilities[int(a < 0), 0] * probabilities[int(b < 0), 1] for (a, b), value in f.items()]
    (by_theta,) = torch.autograd.grad(torch.stack(terms).sum(), theta)
    (by_mu,) = torch.autograd.grad(-4 * mu[0] - 2 * mu[1] + 12 * mu[0] * mu[1], mu)
    fields, fisher = left["FIELDS"], (mu * (1 - mu)).detach()
    at = {left["MU"]: mu.detach(), left["THETA"]: theta.detach()}
    expected = {
        (left["MU"], "plain"): -by_mu,
        (left["THETA"], "plain"): -by_theta,
        (left["MU"], "natural"): -fisher * by_mu,  # the Fisher information about μ is 1/μ(1−μ)
        (left["THETA"], "natural"): -by_theta / fisher,
    }
    for key, vector in expected.items():
        torch.testing.assert_close(fields[key](at[key[0]]), vector)


def test_the_plain_flow_in_probabilities_leaves_their_square_and_the_natural_one_does_not() -> None:
    left = runpy.run_path(str(EXAMPLES / "natural_flow.py"))
    low, high = torch.full((2,), -0.5, dtype=torch.float64), torch.full((2,), 1.5, dtype=torch.float64)
    for start in left["STARTS"]:
        first = torch.tensor(start, dtype=torch.float64)
        plain = left["flow_line"](left["FIELDS"][left["MU"], "plain"], first, low, high)
        natural = left["flow_line"](left["FIELDS"][left["MU"], "natural"], first, low, high)
        assert float(plain.min()) < 0 or float(plain.max()) > 1
        assert float(natural.min()) > -0.01 and float(natural.max()) < 1.01


def test_complete_digits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    left = run(monkeypatch, tmp_path, "complete_digits")
    assert left["exact"].exact and not left["plain"].exact
    known, images = left["known"], left["images"]
    assert torch.equal(left["exact"].mean[:, known], images[:, known])
    assert left["score"](images, images, known) > -1 > left["score"](1 - images, images, known)


def test_which_examples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    left = run(monkeypatch, tmp_path, "which_examples")
    (row,) = left["rows"]
    assert all(0 < share < 0.5 for share in row[:3])  # much could be saved
    assert row[0] < row[3] < 1.5
    assert left["found"].norms["natural"].shape == (500,)


def test_probe_layers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = run(monkeypatch, tmp_path, "probe_layers")["rows"]
    assert [row.units for row in rows] == [196, 100, 50, 20, 10, 10]
    assert rows[-1].untrained_error > 2 * rows[0].untrained_error  # untrained depth destroys what the pixels have
    assert rows[1].test_error < rows[1].untrained_error


def test_black_box(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = run(monkeypatch, tmp_path, "black_box")
    valley, formula = left["panels"].values()
    assert all(result.history[0].best > 100 * result.value for result in valley.values())
    assert all(result.value <= 4 for result in formula.values())
    assert "evaluations" in capsys.readouterr().out


def test_wrapped_belief_network_learns_faster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    left = run(monkeypatch, tmp_path, "wrap_sbn")
    untrained = left["start"].log_likelihood(left["data"].evaluation("test")[:100], 20)
    natural, plain, adam = left["curves"]
    assert untrained < -120
    assert min(plain.values[-1], adam.values[-1]) > -50
    # After as many steps: which of them is ahead after a second and a half depends on the machine.
    images, steps = len(left["data"].train), [(natural.epochs, 100), (plain.epochs, 32)]
    mine, theirs = ([epochs * images / size for epochs in given] for given, size in steps)
    assert natural.values[-1] > np.interp(mine[-1], theirs, plain.values) + 1
    assert all(1.5 <= curve.seconds[-1] < 2 for curve in left["curves"])


def test_the_contexts_of_wrap_sbn_choose_the_samples_of_the_fisher_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    left = runpy.run_path(str(EXAMPLES / "wrap_sbn.py"))
    torch.manual_seed(0)
    net = left["BeliefNetwork"]()
    opt, infer, wakes = left["natural"](net), net.infer, []

    def remember(x: torch.Tensor) -> list[torch.Tensor]:
        wakes.append(infer(x))
        return wakes[-1]

    monkeypatch.setattr(net, "infer", remember)
    monkeypatch.setattr(opt, "step", lambda: None)  # what a step would use stays where it is
    for group in opt.param_groups:
        group["damping"] = 0.2
    left["step"](net, opt, torch.bernoulli(torch.full((4, 196), 0.3)), 10)
    (wake,) = wakes
    with torch.no_grad(), dagfisher.no_capture():
        ratios = (net.log_p(wake) - net.log_q(wake)).view(10, 4)
        weights = torch.softmax(ratios, 0).view(-1) / 4
        for layer, parents, weight in (
            (net.down[0], wake[1], weights),
            (net.up[0], wake[0], torch.full_like(weights, 1 / len(weights))),
        ):
            q = torch.sigmoid(layer(parents)) * torch.sigmoid(-layer(parents))
            u = torch.cat([parents, torch.ones(len(parents), 1)], 1)
            fisher = torch.einsum("n,nj,na,nb->jab", weight, q, u, u)
            expected = (0.2 * torch.eye(u.shape[1]) + fisher) / 1.2
            torch.testing.assert_close(opt.fisher_blocks(layer.weight), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "worst"), [("wrap_vae", -45), ("wrap_conv_vae", -60)])
def test_the_natural_gradient_of_autoencoders_is_ahead_after_equal_seconds(
    name: str, worst: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An untrained one has a bound of about −140; both ways of training leave that far behind within --quick.

    The first steps of a convolutional one are kept short until its Fisher changes slowly, so that within 1.5 seconds
    Adam may be ahead there.
    """
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150 and text.count("# <- ") == 3
    run(monkeypatch, tmp_path, name)
    figures = [float(figure) for figure in re.findall(r" (-\d+\.\d+)$", capsys.readouterr().out, re.MULTILINE)]
    adam, natural = figures
    assert min(natural, adam) > worst
    assert natural > adam or name == "wrap_conv_vae"


@pytest.mark.parametrize("name", ["factor_analysis", "sparse_coding"])
def test_other_programs_are_short_and_use_public_names(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    assert "helmholtz" not in text and not re.search(r"\._[a-z]", text)


def test_factor_analysis_is_em(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = run(monkeypatch, tmp_path, "factor_analysis")
    assert len(left["gaps"]) == 2 and max(left["gaps"]) < 1e-10
    for found in left["runs"].values():
        em, natural, fast, adam = (found[label] for label in list(left["METHODS"])[:4])
        assert all(-1e-9 < below[-1] < left["CLOSE"] for below in (em, natural, fast))
        assert abs(len(natural) - len(em)) < 0.1 * len(em) and len(fast) < 0.75 * len(natural)
        assert left["CLOSE"] < adam[-1] < adam[0]  # it climbs, but does not arrive
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[-3] for row in rows if "EM  " in row] == [str(len(r["EM"]) - 1) for r in left["runs"].values()]


def test_sequences_are_learned_in_a_few_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    left = run(monkeypatch, tmp_path, "sequence")
    torch.testing.assert_close(left["ratio"], torch.full_like(left["ratio"], left["TIMES"]))
    natural, wrong, adam = left["runs"].values()
    assert len(natural) - 1 < 8 and abs(natural[-1]) < left["CLOSE"]
    assert wrong[-1] > wrong[0]  # steps that are TIMES times too long
    assert left["CLOSE"] < adam[-1] < adam[0]
    above = left["divergences"]["natural, lr 1"]
    assert 0.6 < above / (72 / 2 / left["SEQUENCES"]) < 1.6  # it fluctuates like χ²₇₂/72, with a deviation of 1/6


def test_the_entropy_of_sequences_is_that_of_many_drawn_ones() -> None:
    left = runpy.run_path(str(EXAMPLES / "sequence.py"))
    truth = left["make_truth"]()
    entropy, divergence, rate = left["exact"](truth, truth)
    assert abs(divergence) < 1e-12
    assert abs(float(left["loss"](truth, left["sample"](truth, 20_000, left["TIMES"], 5))) - entropy) < 0.2
    late = left["sample"](truth, 2000, 120, 6)[:, 99:]  # the chain has forgotten its start
    steps = binary_cross_entropy_with_logits(truth(late[:, :-1]), late[:, 1:], reduction="none").sum(-1)
    assert abs(float(steps.mean()) - rate) < 0.05


def test_sparse_coding_learns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A normal distribution of independent pixels has a bound of about −150."""
    left = run(monkeypatch, tmp_path, "sparse_coding")
    assert min(points[-1][1] for points in left["curves"].values()) > -115


def test_the_divergence_in_the_bound_of_sparse_coding_is_that_of_drawn_codes() -> None:
    left = runpy.run_path(str(EXAMPLES / "sparse_coding.py"))
    torch.manual_seed(0)
    model, x = left["SparseCoding"](), left["make_images"](1, torch.Generator().manual_seed(0))
    with torch.no_grad():
        q = torch.distributions.Normal(model.recognise(x), model.recognise.log_std.exp())
        h = q.sample((40_000,)).squeeze(1)
        log_p = model.dictionary.log_prob(x, h) + torch.distributions.Laplace(0.0, 1.0).log_prob(h).sum(1)
        expected = (log_p - q.log_prob(h).sum(1)).mean()
        found = model.bound(x.expand(40_000, -1))
    torch.testing.assert_close(found, expected, rtol=0.01, atol=0)


@pytest.mark.slow
def test_sparse_coding_finds_all_strokes() -> None:
    left = runpy.run_path(str(EXAMPLES / "sparse_coding.py"))
    model, points, _ = left["train"]("natural, lr 0.1", 2500, clock=itertools.count().__next__)  # steps, not seconds
    assert int((model.matches() > 0.9).sum()) == left["CODES"] and points[-1][1] > -102.5
