"""A batch of inverses: what is regular is inverted as it is, what is not is tried again, and then said."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dagfisher.errors import SingularBlockError
from dagfisher.solvers import Dense, RowProblem
from dagfisher.solvers.spd import spd_inverse


def regular(batch: int, size: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    root = torch.randn(batch, size, size + 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (root @ root.mT / size + 0.1 * torch.eye(size, dtype=torch.float64)).to(dtype)


def singular(size: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    """Of rank one."""
    row = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.outer(row, row).to(dtype)


@given(batch=st.integers(1, 5), size=st.integers(1, 8), seed=st.integers(0, 999))
def test_the_inverse_is_the_inverse(batch: int, size: int, seed: int) -> None:
    matrices = regular(batch, size, torch.float64, seed)
    identity = torch.eye(size, dtype=torch.float64).expand(batch, -1, -1)
    for jitter in (False, True):
        torch.testing.assert_close(spd_inverse(matrices, jitter=jitter) @ matrices, identity, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_singular_matrix_does_not_touch_the_others(dtype: torch.dtype) -> None:
    """Bit for bit: the others are inverted as if they were alone in the batch."""
    good = regular(4, 6, dtype)
    mixed = torch.cat([good[:2], singular(6, dtype).unsqueeze(0), good[2:]])
    inverses = spd_inverse(mixed, jitter=True)
    assert torch.equal(inverses[[0, 1, 3, 4]], spd_inverse(good, jitter=True))
    assert inverses[2].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_jitter_lifts_a_singular_matrix_by_a_rounding_of_its_trace(dtype: torch.dtype) -> None:
    matrix = singular(6, dtype)
    rounding = torch.finfo(dtype).eps * float(matrix.trace())
    largest = float(torch.linalg.eigvalsh(spd_inverse(matrix.unsqueeze(0), jitter=True)[0])[-1])
    assert 3 * rounding < 1 / largest < 30 * rounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(10))
def test_without_jitter_a_singular_matrix_is_an_error_that_says_what_to_do(dtype: torch.dtype, seed: int) -> None:
    mixed = torch.cat([regular(3, 6, dtype), singular(6, dtype, seed).unsqueeze(0)])
    with pytest.raises(SingularBlockError, match=r"1 of its Fisher blocks.*condition number.*raise the damping"):
        spd_inverse(mixed, jitter=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(20))
def test_undamped_blocks_of_fewer_samples_than_parents_are_singular(dtype: torch.dtype, seed: int) -> None:
    """Also where rounding has made every pivot positive."""
    generator = torch.Generator().manual_seed(seed)
    parents = torch.randn(5, 7, generator=generator, dtype=dtype)
    weights = 0.25 * torch.rand(5, 2, generator=generator, dtype=dtype)
    with pytest.raises(SingularBlockError):
        Dense.begin(RowProblem(parents, weights, 0.0, torch.ones(2, 7, dtype=dtype)))


def test_a_damped_block_is_never_lifted_while_float32_can_invert_it() -> None:
    """Pixels from 0 to 255 as parents, damping 0.01: the smallest pivot is 10⁻⁶ of the largest, and still exact."""
    generator = torch.Generator().manual_seed(0)
    parents = torch.randint(256, (400, 50), generator=generator).double()
    parents[:, -1] = 1
    weights = 0.25 * torch.rand(400, 3, generator=generator, dtype=torch.float64) / 400
    gradient = torch.randn(3, 50, generator=generator, dtype=torch.float64)
    _, exact = Dense.begin(RowProblem(parents, weights, 0.01, gradient))
    _, found = Dense.begin(RowProblem(parents.float(), weights.float(), 0.01, gradient.float()))
    assert ((found - exact).norm(dim=1) / exact.norm(dim=1)).max() < 1e-4


def test_nan_is_an_error_too() -> None:
    matrices = regular(2, 3, torch.float64)
    matrices[1, 0, 0] = torch.nan
    with pytest.raises(SingularBlockError):
        spd_inverse(matrices, jitter=True)
