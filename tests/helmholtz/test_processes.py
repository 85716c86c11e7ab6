"""Several processes train one machine: as one process would, to rounding, and any number of them can go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import Pool

from dagfisher.datasets import Dataset
from dagfisher.errors import ProcessError, SettingError
from dagfisher.helmholtz import HelmholtzMachine, Run, Settings, Trainer, evaluate
from dagfisher.helmholtz.metrics import read_rows
from dagfisher.helmholtz.sampling import wake

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch was built without torch.distributed")
Pools = Callable[[int], Pool]

CASES: dict[str, dict[str, Any]] = {
    "nrws": {},
    "nws, dreams": {"algorithm": "nws", "fisher": "dream", "window": 2},
    "sleep steps": {"algorithm": "nrws", "sleep_steps": 2, "damping": 0.1, "update_every": 3},
    "penalties": {"algorithm": "nbihm", "entropy": 0.1, "l1": 1e-3, "l2": 1e-3},
    "rws": {"algorithm": "rws", "adam": True},
    "reinforce": {"algorithm": "reinforce", "momentum": 0.5},
    "lateral": {"lateral": "both"},
    "grey": {"binarisation": "G", "algorithm": "nrws"},
}
"""Settings that say how a machine learns."""


def images() -> Dataset:
    """Thirteen images, so that no number of processes divides the minibatches of 5, 5 and 3."""
    pixels = torch.rand(29, 9, generator=torch.Generator().manual_seed(3)).mul(255).to(torch.uint8)
    return Dataset("noise", "C", (3, 3), pixels[:13], pixels[13:21], pixels[21:])


def trained(rank: int, case: str, steps: int, state: dict[str, Any] | None) -> dict[str, Any]:
    """The trainer's state after so many steps, from the start or from a state, and what the steps gave."""
    settings = Settings.resolve(
        **{"data": "three-by-three", "layers": (6, 4), "batch_size": 5, "samples": 3, "threads": 1, **CASES[case]}
    )
    data = images()
    trainer = settings.build(data)
    trainer.machine.double()
    if state is not None:
        trainer.load_state_dict(state)
    values: list[float] = []
    seen = 0
    for epoch in range(9):
        for x in data.batches(5, seed=0, epoch=epoch):
            if seen >= trainer.steps and trainer.steps < steps:
                values.append(float(trainer.step(x)))
            seen += 1
    return {**trainer.state_dict(), "values": torch.tensor(values), "regularisers": trainer.regulariser_values()}


def flat(state: Any, name: str = "") -> dict[str, Any]:
    if isinstance(state, dict):
        return {k: v for key, value in state.items() for k, v in flat(value, f"{name}/{key}").items()}
    if isinstance(state, (list, tuple)):
        return {k: v for i, value in enumerate(state) for k, v in flat(value, f"{name}/{i}").items()}
    return {name: state}


def assert_close(found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    one, other = flat(found), flat(expected)
    assert one.keys() == other.keys()
    for name, value in other.items():
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
            torch.testing.assert_close(one[name], value, rtol=tolerance, atol=tolerance)
        elif isinstance(value, torch.Tensor):
            assert torch.equal(one[name], value), name
        elif isinstance(value, float):
            assert one[name] == pytest.approx(value, rel=tolerance, abs=tolerance), name
        else:
            assert one[name] == value, name


def assert_same_bits(found: list[dict[str, Any]]) -> None:
    first, *others = map(flat, found)
    for other in others:
        assert first.keys() == other.keys()
        for name, value in first.items():
            assert torch.equal(other[name], value) if isinstance(value, torch.Tensor) else other[name] == value, name


KEYS = ("machine", "values", "generator", "steps", "regularisers")


@pytest.mark.parametrize("case", CASES)
def test_processes_train_a_machine_as_one_process_does(pool: Pools, case: str) -> None:
    world = 4 if case == "penalties" else 2  # one of four has no example in the last minibatch of an epoch
    found = pool(world).run(trained, case, 8, None)
    assert_same_bits(found)
    alone, start = trained(0, case, 8, None), trained(0, case, 0, None)["machine"]
    assert_close({k: found[0][k] for k in KEYS}, {k: alone[k] for k in KEYS}, 1e-8)
    moved = [(alone["machine"][k] - v).abs().max() for k, v in start.items() if v.is_floating_point()]
    assert max(moved) > 1e-3


@pytest.mark.parametrize("case", ["nrws", "sleep steps"])
def test_a_checkpoint_continues_with_another_number_of_processes(pool: Pools, case: str) -> None:
    saved = trained(0, case, 4, None)
    by_two = pool(2).run(trained, case, 7, saved)[1]
    by_four = pool(4).run(trained, case, 10, by_two)[3]
    found, alone = trained(0, case, 12, by_four), trained(0, case, 12, None)
    assert_close(found["machine"], alone["machine"], 1e-8)
    assert torch.equal(found["generator"], alone["generator"])


def evaluated(rank: int, samples: int) -> list[torch.Tensor]:
    """Estimates of 160 examples in parts of 16, twice, with what the progress said and how many numbers were drawn."""
    settings = Settings.resolve(data="three-by-three", layers=(6, 4), threads=1)
    trainer = settings.build(images())
    generator = torch.Generator().manual_seed(4)
    x, steps, rows = images().evaluation("test").repeat(20, 1), [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "ROWS", 16 * samples)
        patch.setattr(
            evaluate, "wake", lambda machine, x, count, drawing: rows.append(len(x)) or wake(machine, x, count, drawing)
        )
        for _ in range(2):
            found = evaluate.estimate(
                *(trainer.machine, x, samples),
                generator=generator,
                progress=steps.append,
                processes=trainer.processes,
            )
    assert sum(steps) == 2 * len(x)
    drawn = torch.tensor(sum(rows) / 2)
    return [found.log_p, found.log_p_star, found.effective_samples, generator.get_state(), drawn]


@pytest.mark.parametrize("world", [2, 4])
def test_an_estimate_is_spread_and_the_same(pool: Pools, world: int) -> None:
    *alone, all_drawn = evaluated(0, 70)
    found = pool(world).run(evaluated, 70)
    for *each, _ in found:
        for one, other in zip(each, alone, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert all_drawn == 160
    drawn = [float(each[-1]) for each in found]
    assert sum(drawn) == 160  # no process draws for the examples of another
    assert max(drawn) <= 160 / world + 16


def test_parts_of_an_estimate_draw_different_numbers() -> None:
    x = images().evaluation("test")[:1].repeat(32, 1)
    machine = Settings.resolve(data="three-by-three", layers=(6, 4), threads=1).build(images()).machine
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "ROWS", 8)
        found = evaluate.estimate(machine, x, 2, generator=torch.Generator().manual_seed(4)).log_p
    assert len(found.unique()) > 8


TINY: dict[str, Any] = {
    **{"data": "three-by-three", "layers": (6, 1), "batch_size": 60, "samples": 4, "epochs": 2},
    **{"eval_samples": 5, "threads": 1},
}


def ran(rank: int, folder: str, stop_after: int | None, resume: bool) -> int:
    run = Run.resume(folder) if resume else Run.create(folder, Settings.resolve(**TINY))
    # One process is asked to stop; the others stop with it.
    run.train(stop=lambda: rank == 1 and stop_after is not None and run.steps >= stop_after)
    return run.steps


def test_a_run_has_one_folder_and_changes_its_number_of_processes(pool: Pools, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    ran(0, str(alone), None, False)
    folder = tmp_path / "together"
    assert pool(2).run(ran, str(folder), 3, False) == [3, 3]
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.pt", "config.json", "metrics.csv"]
    assert len(set(pool(4).run(ran, str(folder), 7, True))) == 1
    ran(0, str(folder), None, True)
    for one, other in zip(read_rows(folder), read_rows(alone), strict=True):
        assert one.steps == other.steps
        assert one.test_log_likelihood == pytest.approx(other.test_log_likelihood, abs=1e-4)
        assert one.train_log_likelihood == pytest.approx(other.train_log_likelihood, abs=1e-4)


def taken(rank: int, folder: str) -> None:
    """The first process alone looks at the folder; all of them stop."""
    kind, sentence = [(SettingError, "already holds a run"), (ProcessError, "process 0 raised SettingError")][rank]
    with pytest.raises(kind, match=sentence):
        Run.create(folder, Settings.resolve(**TINY))


def test_an_error_of_the_process_that_writes_stops_all(pool: Pools, tmp_path: Path) -> None:
    Run.create(tmp_path / "run", Settings.resolve(**TINY))
    pool(2).run(taken, str(tmp_path / "run"))


def test_a_trainer_may_be_alone_in_its_group(pool: Pools) -> None:
    pool(2).run(by_itself)


def by_itself(rank: int) -> None:
    trainer = Trainer(HelmholtzMachine([9, 4]), "nrws", process_group=False)
    if rank == 0:
        trainer.step(torch.ones(4, 9))
