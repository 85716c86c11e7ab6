"""A refresh whose blocks cannot be inverted: the Fisher before is kept for a while, said and counted."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from by_hand import Net, array, assert_step, backward, blocks, data, natural, optimizer, same, scaled, shown, solve
from torch import Tensor

from dagfisher import DAGNaturalGradient
from dagfisher.errors import DagFisherWarning, SettingError, SingularBlockError
from dagfisher.fisher import LayerFisher
from dagfisher.optim.damping import FALL, RISE
from dagfisher.optim.layer import MOST_KEPT
from dagfisher.optim.refresh import RETRIES

X = data(6, 4)
LR = 0.01


def built(net: Net, **settings: Any) -> DAGNaturalGradient:
    return optimizer(net.named_parameters(), **{"lr": LR, **settings})


@contextmanager
def failing(attempts: int = 10**6) -> Iterator[dict[int, list[float]]]:
    """So many first attempts to invert the blocks of a layer fail; gives the dampings tried, by the layer's units."""
    tried: dict[int, list[float]] = {3: [], 2: []}
    preparing = LayerFisher.preparing

    def refuse(segments: Any, gradient: Tensor, **given: Any) -> Any:
        mine = tried[len(gradient)]
        mine.append(given["damping"])
        if len(mine) <= attempts:
            raise SingularBlockError("its blocks cannot be inverted.")
        return preparing(segments, gradient, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LayerFisher, "preparing", refuse)
        yield tried


def step(net: Net, opt: DAGNaturalGradient, seed: int) -> None:
    backward(net, opt, data(6, 4, seed=seed))
    opt.step()


SINGULAR = {"damping": 0.0}, SingularBlockError, "condition number.*raise the damping"
UNDAMPED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    solver: ({"damping": 0.0, "solver": solver}, SettingError, f"the {solver} solver needs damping.*solver='dense'")
    for solver in ("woodbury", "conjugate")
}
"""Settings that no solver can work with, the error, and what it says."""


@pytest.mark.parametrize("trained", [0, 2])
@pytest.mark.parametrize(("bad", "error", "words"), UNDAMPED.values(), ids=UNDAMPED.keys())
def test_a_damping_that_the_solver_cannot_do_without_is_no_failed_refresh(
    bad: dict[str, Any], error: type[Exception], words: str, trained: int
) -> None:
    net, twin = Net(), Net()
    for each in (net, twin):
        opt = built(each)
        for seed in range(trained):
            step(each, opt, seed)
    opt.param_groups[0].update(bad)
    backward(twin, opt, data(6, 4))
    with pytest.raises(error, match=rf"layer 'encoder\.0': {words}"):
        opt.step()
    assert same(net, twin)
    assert shown(opt, "failures") == [0, 0]


@pytest.mark.parametrize(("bad", "error", "words"), [SINGULAR, *UNDAMPED.values()], ids=["singular", *UNDAMPED])
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"betas": (0.9, 0.99)}], ids=["", "momentum", "adam"])
def test_the_first_failure_of_all_raises_moves_nothing_and_leaves_no_trace(
    bad: dict[str, Any], error: type[Exception], words: str, settings: dict[str, Any]
) -> None:
    net, twin = Net(), Net()
    opt, other = built(net, **settings), built(twin, **settings)
    before = {name: opt.param_groups[0][name] for name in bad}
    opt.param_groups[0].update(bad)
    backward(net, opt, data(2, 4))  # fewer samples than parents
    with pytest.raises(error, match=rf"layer 'encoder\.0': .*{words}"):
        opt.step()
    assert same(net, twin)
    assert shown(opt, "failures") == [0, 0]
    opt.param_groups[0].update(before)
    for seed in range(3):
        step(net, opt, seed)
        step(twin, other, seed)
        assert same(net, twin)


@pytest.mark.parametrize("solver", ["dense", "woodbury", "conjugate"])
def test_the_step_uses_the_fisher_of_the_last_refresh_that_worked(solver: str) -> None:
    net = Net()
    opt = built(net, solver=solver, tolerance=1e-13)
    fisher: dict[Any, Any] = {}

    def reuse(layer: Any) -> dict[Tensor, Any]:
        gradient = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)
        found = solve(fisher[layer], array(gradient), 0.1)
        return {layer.weight: found[:, :-1], layer.bias: found[:, -1]}

    for seed in range(2):
        x = data(6, 4, seed=seed)
        backward(net, opt, x)
        hidden = net.encoder(x).detach()
        for layer, parents in ((net.encoder[0], x), (net.head, hidden)):
            rate = torch.sigmoid(layer(parents)).detach()
            ones = torch.ones(6, 1, dtype=torch.float64)
            fisher[layer] = blocks(array(torch.cat([parents, ones], 1)), array(rate * (1 - rate)))
        opt.zero_grad()
        backward(net, opt, x)
        opt.step()
    for seed in range(2, 4):
        backward(net, opt, data(6, 4, seed=seed))
        expected = scaled(LR, {**reuse(net.encoder[0]), **reuse(net.head)})
        with failing(), pytest.warns(DagFisherWarning, match="Its Fisher from step 1 is kept"):
            assert_step(opt, expected)
    assert shown(opt, "refreshed") == [1, 1]


def test_each_failure_is_counted_and_said_and_one_too_many_raises() -> None:
    net = Net()
    opt = built(net)
    step(net, opt, 0)
    for count in range(1, MOST_KEPT + 1):
        with failing(), warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            step(net, opt, count)
        said = [str(w.message) for w in heard if issubclass(w.category, DagFisherWarning)]
        words = rf"its blocks cannot be inverted\. .*from step 0 is kept \(refresh {count} of at most {MOST_KEPT} that"
        assert len(said) == 2
        assert all(w.filename == __file__ for w in heard)
        assert re.match(rf"layer 'encoder\.0': {words}", said[0])
        assert re.match(rf"layer 'head': {words}", said[1])
        assert shown(opt, "failures") == [count, count]
    kept = copy.deepcopy(net.state_dict())
    backward(net, opt, X)
    with failing(), pytest.raises(SingularBlockError, match=r"layer 'encoder\.0': its blocks cannot be inverted"):
        opt.step()
    torch.testing.assert_close(net.state_dict(), kept, rtol=0, atol=0)
    assert opt.diagnostics()["step"] == 1 + MOST_KEPT


def test_a_refresh_that_works_forgets_the_failures_before() -> None:
    net = Net()
    opt = built(net)
    step(net, opt, 0)
    for _ in range(2):
        for count in range(MOST_KEPT):
            with failing(), pytest.warns(DagFisherWarning, match="is kept"):
                step(net, opt, count)
        x = data(6, 4, seed=9)
        backward(net, opt, x)
        assert_step(opt, scaled(LR, net.natural(x, 0.1)))
        assert shown(opt, "failures") == [0, 0]


def test_after_a_failure_the_next_step_tries_again() -> None:
    """Whatever update_every is: the Fisher that is kept is as old as before, so that the next step is due."""
    net = Net()
    opt = built(net, update_every=3)
    for seed in range(3):
        step(net, opt, seed)
    with failing() as tried, pytest.warns(DagFisherWarning, match="Its Fisher from step 0"):
        step(net, opt, 3)
    assert {units: len(dampings) for units, dampings in tried.items()} == {3: 1, 2: 1}
    step(net, opt, 4)
    assert shown(opt, "refreshed") == [4, 4]
    step(net, opt, 5), step(net, opt, 6)
    assert shown(opt, "refreshed") == [4, 4]
    step(net, opt, 7)
    assert shown(opt, "refreshed") == [7, 7]


def test_only_the_layer_that_failed_keeps_its_fisher() -> None:
    net, x = Net(), data(6, 4, seed=1)
    opt = built(net)
    step(net, opt, 0)
    old = opt.fisher_blocks(net.head.weight)
    preparing = LayerFisher.preparing

    def refuse(segments: Any, gradient: Tensor, **given: Any) -> Any:
        if len(gradient) == 2:  # the head
            raise SingularBlockError("its blocks cannot be inverted.")
        return preparing(segments, gradient, **given)

    backward(net, opt, x)
    expected = natural(net.encoder[0], x, 0.1)
    fisher = array(1.1 * old) - 0.1 * array(torch.eye(4))
    expected |= natural(net.head, x[:, :3], 0.1, fisher=fisher)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LayerFisher, "preparing", refuse)
        with pytest.warns(DagFisherWarning, match="layer 'head'"):
            assert_step(opt, scaled(LR, expected))
    assert shown(opt, "refreshed") == [1, 0]
    assert shown(opt, "failures") == [0, 1]


def test_looking_counts_nothing() -> None:
    net = Net()
    opt = built(net)
    step(net, opt, 0)
    backward(net, opt, X)
    with failing():
        for _ in range(2 * MOST_KEPT):
            vectors = opt.natural_gradient()
        assert shown(opt, "failures") == [0, 0]
        before = {p: array(p) for p in net.parameters()}
        with pytest.warns(DagFisherWarning, match=f"refresh 1 of at most {MOST_KEPT}"):
            opt.step()
    for p, vector in vectors.items():
        torch.testing.assert_close(torch.from_numpy(before[p] - array(p)), LR * vector, rtol=1e-10, atol=1e-14)


def test_with_a_window_what_failed_is_not_remembered() -> None:
    """The rows of a failed refresh are no part of later ones."""
    net, twin = Net(), Net()
    opt, other = built(net, window=2, lr=0.0), built(twin, window=2, lr=0.0)
    for seed in (0, 1, 2):
        backward(net, opt, data(6, 4, seed=seed))
        if seed == 1:
            with failing(), pytest.warns(DagFisherWarning):
                opt.step()
        else:
            opt.step()
            step(twin, other, seed)
    torch.testing.assert_close(
        opt.fisher_blocks(net.head.weight), other.fisher_blocks(twin.head.weight), rtol=1e-12, atol=1e-14
    )


def test_a_given_damping_is_not_raised() -> None:
    net = Net()
    opt = built(net, damping=0.1)
    step(net, opt, 0)
    with failing() as tried, pytest.warns(DagFisherWarning):
        step(net, opt, 1)
    assert tried == {3: [0.1], 2: [0.1]}


@pytest.mark.parametrize("attempts", range(len(RETRIES)))
def test_a_found_damping_is_raised_first(attempts: int) -> None:
    """The refresh then works with more damping, and the next one goes on from that."""
    net, twin = Net(), Net()
    opt, other = built(net, damping="auto"), built(twin, damping="auto")
    for seed in range(2):
        step(twin, other, seed)
    usual = shown(other, "damping")
    step(net, opt, 0)
    with failing(attempts) as tried, warnings.catch_warnings():
        warnings.simplefilter("error", DagFisherWarning)
        step(net, opt, 1)
    assert list(tried.values()) == [[factor * old for factor in RETRIES[: attempts + 1]] for old in usual]
    raised = [RETRIES[attempts] * old for old in usual]
    assert shown(opt, "damping") == raised
    assert shown(opt, "failures") == [0, 0] and shown(opt, "refreshed") == [1, 1]
    identity = torch.eye(4, dtype=torch.float64)
    for layer, alpha, old in ((net.head, raised[1], usual[1]),):
        found, expected = opt.fisher_blocks(layer.weight) * (1 + alpha), other.fisher_blocks(twin.head.weight)
        torch.testing.assert_close(found - alpha * identity, expected * (1 + old) - old * identity)
    step(net, opt, 2)
    for after, before in zip(shown(opt, "damping"), raised, strict=True):
        assert before / FALL <= after <= before * RISE


def test_a_found_damping_that_is_never_enough_keeps_the_fisher() -> None:
    net = Net()
    opt = built(net, damping="auto")
    step(net, opt, 0)
    old = shown(opt, "damping")
    with failing() as tried, pytest.warns(DagFisherWarning, match="Its Fisher from step 0 is kept"):
        step(net, opt, 1)
    assert shown(opt, "damping") == old
    for before, dampings in zip(old, tried.values(), strict=True):
        assert before / FALL <= dampings[0] <= before * RISE
        assert dampings == [factor * dampings[0] for factor in RETRIES]


def test_the_first_refresh_tries_more_damping_too() -> None:
    net = Net()
    opt = built(net, damping="auto")
    with failing(2) as tried:
        step(net, opt, 0)
    assert shown(opt, "damping") == [dampings[-1] for dampings in tried.values()]
    assert all(dampings == [factor * dampings[0] for factor in RETRIES] for dampings in tried.values())
    other = Net()
    opt = built(other, damping="auto")
    backward(other, opt, X)
    with failing(), pytest.raises(SingularBlockError):
        opt.step()
    assert same(other, Net())


REAL: dict[str, Callable[[Net], Tensor]] = {
    "fewer samples than parents": lambda net: data(2, 4, seed=5),
    "equal samples": lambda net: data(1, 4, seed=5).expand(6, 4),
}


@pytest.mark.parametrize("batch", REAL.values(), ids=REAL.keys())
def test_a_batch_that_makes_blocks_singular_does_not_end_an_undamped_training(batch: Callable[[Net], Tensor]) -> None:
    net = Net()
    opt = built(net, damping=0.0, lr=1e-5)
    step(net, opt, 0)
    old = opt.fisher_blocks(net.encoder[0].weight)
    backward(net, opt, batch(net))
    with pytest.warns(DagFisherWarning, match=r"layer 'encoder\.0': .*condition number"):
        opt.step()
    assert shown(opt, "failures")[0] == 1
    opt.zero_grad()
    torch.testing.assert_close(opt.fisher_blocks(net.encoder[0].weight), old, rtol=0, atol=0)
    step(net, opt, 7)
    assert shown(opt, "failures") == [0, 0]


def test_a_layer_of_another_layout_does_not_keep_what_no_longer_fits() -> None:
    net = Net()
    opt = built(net)
    step(net, opt, 0)
    net.head.bias.requires_grad_(False)
    backward(net, opt, X)
    with failing(), pytest.raises(SingularBlockError, match="layer 'head'"):
        opt.step()


def test_a_checkpoint_between_failures_continues_bit_for_bit() -> None:
    """What is kept is saved; the count of failures begins anew."""
    net, twin = Net(), Net()
    opt, other = built(net), built(twin)
    step(net, opt, 0)
    with failing(), pytest.warns(DagFisherWarning):
        step(net, opt, 1)
    twin.load_state_dict(net.state_dict())
    opt.zero_grad()
    other.load_state_dict(opt.state_dict())
    for seed in (2, 3):
        for model, each in ((net, opt), (twin, other)):
            if seed == 2:
                with failing(), pytest.warns(DagFisherWarning):
                    step(model, each, seed)
            else:
                step(model, each, seed)
        assert same(net, twin)
