"""A damping that is found, with groups, schedules, checkpoints, and looked at without a step."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import (
    Net,
    array,
    backward,
    data,
    fisher_of,
    same,
    shown,
)
from by_hand import optimizer as by_hand_optimizer

from dagfisher import DAGNaturalGradient
from dagfisher.optim.damping import FALL, LARGEST, LEAST, RISE, START

F64 = torch.float64
LR = 0.01


def built(parameters: Any, **settings: Any) -> DAGNaturalGradient:
    """An exact solver, and no other default than that of the damping."""
    return by_hand_optimizer(parameters, **{"lr": LR, "damping": "auto", **settings})


# Groups, schedules, checkpoints


def test_a_number_that_is_given_stays() -> None:
    net = Net()
    opt = built(net.named_parameters(), damping=0.37)
    for seed in range(5):
        backward(net, opt, data(6, 4, seed=seed))
        opt.step()
        assert shown(opt, "damping") == [0.37, 0.37]
    assert shown(opt, "ratio") == [None, None]
    assert opt.param_groups[0]["damping"] == 0.37


def test_groups_may_differ_in_who_finds_the_damping() -> None:
    net, twin = Net(), Net()
    groups = [
        {"params": list(net.encoder.named_parameters())},
        {"params": list(net.head.named_parameters()), "damping": lambda step: 0.5 + step},
    ]
    opt = built(groups)
    alone = built(twin.encoder.named_parameters())
    for seed in range(5):
        x = data(6, 4, seed=seed)
        backward(net, opt, x)
        twin.load_state_dict(net.state_dict())
        backward(twin, alone, x)
        opt.step()
        alone.step()
        assert shown(opt, "damping") == [shown(alone, "damping")[0], 0.5 + seed]
    assert opt.param_groups[0]["damping"] == "auto"


def test_a_damping_given_later_is_taken_and_one_left_again_goes_on_from_it() -> None:
    net = Net()
    opt = built(net.named_parameters())
    for seed in range(3):
        backward(net, opt, data(6, 4, seed=seed))
        opt.step()
    opt.param_groups[0]["damping"] = 5.0
    backward(net, opt, data(6, 4, seed=3))
    opt.step()
    assert shown(opt, "damping") == [5.0, 5.0]
    opt.param_groups[0]["damping"] = "auto"
    backward(net, opt, data(6, 4, seed=4))
    opt.step()
    assert all(5.0 / FALL <= damping <= 5.0 * RISE and damping != 5.0 for damping in shown(opt, "damping"))


def test_a_given_damping_that_is_out_of_bounds_is_brought_within_them_by_the_first_refresh_that_finds_it() -> None:
    for given, bound in ((0.0, LEAST), (LEAST / 10, LEAST), (LARGEST * 10, LARGEST)):
        net = Net()
        opt = built(net.named_parameters(), damping=given)
        backward(net, opt, data(60, 4, seed=0))
        opt.step()
        opt.param_groups[0]["damping"] = "auto"
        backward(net, opt, data(60, 4, seed=1))
        opt.step()
        assert shown(opt, "damping") == pytest.approx([bound, bound], rel=1e-12)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("every", [1, 2, "auto"])
@pytest.mark.parametrize("stop", [1, 4, 5])
def test_a_resumed_training_continues_bit_for_bit(stop: int, every: int | str, window: int) -> None:
    settings = {"update_every": every, "window": window, "trust_region": 1.0, "momentum": 0.5}
    net, twin = Net(), Net()
    opt, other = built(net.named_parameters(), **settings), built(twin.named_parameters(), **settings)
    for seed in range(12):
        if seed == stop:
            file = io.BytesIO()
            torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
            twin.load_state_dict(saved["net"])
            other.load_state_dict(saved["opt"])
        for model, each in ((net, opt), (twin, other)):
            if each is opt or seed >= stop:
                backward(model, each, data(6, 4, seed=seed))
                each.step()
        if seed >= stop:
            assert same(net, twin)
            assert shown(opt, "damping") == shown(other, "damping")
    assert shown(opt, "damping") != [START, START]


# Looking


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("every", [1, 3])
def test_what_is_shown_is_what_the_next_step_uses_and_looking_changes_nothing(every: int, window: int) -> None:
    settings = {"update_every": every, "window": window, "trust_region": 1e-2}
    net, twin = Net(), Net()
    opt, other = built(net.named_parameters(), **settings), built(twin.named_parameters(), **settings)
    for seed in range(7):
        x = data(6, 4, seed=seed)
        backward(net, opt, x)
        backward(twin, other, x)
        for _ in range(3):
            vectors = opt.natural_gradient()
            found = [opt.fisher_blocks(p) for p in (net.encoder[0].weight, net.head.bias)]
        before = {p: array(p) for p in net.parameters()}
        opt.step()
        other.step()
        assert same(net, twin)
        assert opt.diagnostics() == other.diagnostics()
        for p, vector in vectors.items():
            np.testing.assert_allclose(before[p] - array(p), LR * array(vector), rtol=1e-9, atol=1e-13)
        used = [layer.fisher.blocks() for layer in opt._layers]
        torch.testing.assert_close(found, used, rtol=1e-9, atol=1e-12)


def test_looking_does_not_change_the_diagnostics_of_the_last_step() -> None:
    net = Net()
    opt = built(net.named_parameters())
    for seed in range(3):
        backward(net, opt, data(6, 4, seed=seed))
        opt.step()
    backward(net, opt, data(6, 4, seed=3))
    before = opt.diagnostics()
    opt.natural_gradient(), opt.fisher_blocks(net.head.weight)
    assert opt.diagnostics() == before


def test_blocks_without_a_gradient_are_shown_with_the_damping_of_before() -> None:
    net = Net()
    opt = built(net.named_parameters())
    for seed in range(3):
        backward(net, opt, data(6, 4, seed=seed))
        opt.step()
    alpha = shown(opt, "damping")[1]
    opt.zero_grad()
    x = data(6, 4, seed=9)
    net(x)
    wanted = (torch.from_numpy(fisher_of(net, x)[net.head]) + alpha * torch.eye(4, dtype=F64)) / (1 + alpha)
    torch.testing.assert_close(opt.fisher_blocks(net.head.weight), wanted, rtol=1e-10, atol=1e-12)
