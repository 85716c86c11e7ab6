"""Every private name of torch has a fallback that does the same, or says that nothing is known."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dagfisher import DAGNaturalGradient, _torch
from dagfisher.optim.settings import DEFAULTS, NAMES


def tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(shape, generator=generator) + 0.5 for shape in ((3,), (2, 4), ())]


OPERATIONS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "add": lambda: (tensors(1), tensors(2)),
    "add_": lambda: (tensors(1), tensors(2)),
    "mul_": lambda: (tensors(1), 0.9),
    "lerp_": lambda: (tensors(1), tensors(2), 0.3),
    "addcmul_": lambda: (tensors(1), tensors(2), tensors(3)),
    "neg": lambda: (tensors(1),),
    "norm": lambda: (tensors(1),),
    "sqrt": lambda: (tensors(1),),
    "div": lambda: (tensors(1), tensors(2)),
    "div_": lambda: (tensors(1), [2.0, 3.0, 4.0]),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_one_tensor_after_another_is_all_at_once(name: str) -> None:
    fast, slow = getattr(_torch, f"foreach_{name}"), _torch._looped(name)
    first, second = OPERATIONS[name](), OPERATIONS[name]()
    found, expected = slow(*first), fast(*second)
    if name.endswith("_"):
        found, expected = first[0], second[0]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_every_operation_of_the_file_is_tried() -> None:
    assert set(OPERATIONS) == {name.removeprefix("foreach_") for name in vars(_torch) if name.startswith("foreach_")}


def test_a_factor_goes_along() -> None:
    one, other = tensors(1), tensors(1)
    _torch._looped("add_")(one, tensors(2), alpha=-0.5)
    _torch.foreach_add_(other, tensors(2), alpha=-0.5)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_without_its_private_names_torch_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare:
        """A torch._C of another time."""

    monkeypatch.setattr(torch, "_C", Bare())
    assert _torch.graph_task() == -1
    assert not _torch.inside_backward()
    assert not _torch.inside_transform()
    monkeypatch.undo()
    assert _torch.base_of(torch.ones(3)) is None


def test_the_signature_of_the_optimizer_has_every_setting_with_its_one_default() -> None:
    parameters = inspect.signature(DAGNaturalGradient).parameters
    for name in NAMES:
        assert parameters[name].default == getattr(DEFAULTS, name), name
