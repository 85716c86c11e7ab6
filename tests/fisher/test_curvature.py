"""Curvature and trace of the statistics, against the blocks built one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from by_hand import (
    Array,
)

from dagfisher._reading import answered
from dagfisher.fisher import Columns, Rows
from dagfisher.fisher.segments import CoupledSegment, GramSegment, RowSegment, Segment

F64 = torch.float64


def random_segments() -> dict[str, tuple[Segment, Array]]:
    """Statistics of each kind, and their blocks, one for each unit or variable, by sums over samples."""
    draws = torch.Generator().manual_seed(0)
    u = torch.randn(7, 4, generator=draws, dtype=F64)
    q = torch.rand(7, 3, generator=draws, dtype=F64) / 7
    mask = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1]], dtype=torch.bool)
    squares = [np.outer(row, row) for row in u.numpy()]
    own = np.stack([sum(q[k, j].item() * squares[k] for k in range(7)) for j in range(3)])
    shared = np.stack([sum(q[k, 0].item() * squares[k] for k in range(7))] * 3)
    outer = np.stack([np.outer(m, m) for m in mask.double().numpy()])
    pi = torch.softmax(torch.randn(7, 2, 3, generator=draws, dtype=F64), 2)
    share = torch.rand(7, generator=draws, dtype=F64)
    share /= share.sum()
    coupled = []
    for v in range(2):
        p = pi[:, v].numpy()
        parts = [share[k].item() * np.kron(np.diag(p[k]) - np.outer(p[k], p[k]), squares[k]) for k in range(7)]
        coupled.append(sum(parts))
    return {
        "rows": (RowSegment(u, q, 3), own),
        "rows, one block": (RowSegment(u, q[:, :1], 3), shared),
        "rows, masked": (RowSegment(u, q, 3, mask), own * outer),
        "rows, masked, one block": (RowSegment(u, q[:, :1], 3, mask), shared * outer),
        "grams": (GramSegment(torch.from_numpy(own), 3), own),
        "grams, one block": (GramSegment(torch.from_numpy(shared[:1]), 3), shared),
        "grams, masked": (GramSegment(torch.from_numpy(own), 3, mask), own * outer),
        "grams, masked, one block": (GramSegment(torch.from_numpy(shared[:1]), 3, mask), shared * outer),
        "coupled": (CoupledSegment(u, pi.reshape(7, 6), share, 3), np.stack(coupled)),
    }


SEGMENTS = random_segments()
UNMASKED = [name for name in SEGMENTS if "masked" not in name]


@pytest.mark.parametrize("name", SEGMENTS)
def test_the_curvature_along_vectors_is_that_of_the_blocks(name: str) -> None:
    """Vectors are zero where a mask allows nothing, as solutions are."""
    found, dense = SEGMENTS[name]
    vectors = torch.randn(found.units, 4, generator=torch.Generator().manual_seed(1), dtype=F64)
    mask = getattr(found, "mask", None)
    if mask is not None:
        vectors = vectors * mask
    kept = vectors.clone()
    rows = vectors.reshape(len(dense), -1).numpy()
    wanted = sum(float(v @ f @ v) for v, f in zip(rows, dense, strict=True))
    assert float(found.curvature(vectors)) == pytest.approx(wanted, rel=1e-12)
    assert torch.equal(vectors, kept)


@pytest.mark.parametrize("name", UNMASKED)
def test_the_trace_is_that_of_the_blocks(name: str) -> None:
    found, dense = SEGMENTS[name]
    assert float(found.trace()) == pytest.approx(sum(np.trace(f) for f in dense), rel=1e-12)


@pytest.mark.parametrize("name", [name for name in SEGMENTS if name not in UNMASKED])
def test_the_trace_of_masked_blocks_is_that_of_what_the_mask_allows(name: str) -> None:
    found, dense = SEGMENTS[name]
    assert float(found.trace()) == pytest.approx(sum(np.trace(f) for f in dense), rel=1e-12)


@pytest.mark.parametrize("columns", [Columns(True, True), Columns(True, False), Columns(False, True)], ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_rows_and_their_gram_matrices_say_the_same(columns: Columns, shared: bool) -> None:
    draws = torch.Generator().manual_seed(0)
    q = torch.rand(8, 1 if shared else 3, generator=draws, dtype=F64)
    share = torch.rand(8, generator=draws, dtype=F64)
    rows = Rows(torch.randn(8, 4, generator=draws, dtype=F64), (q,), share, share.sum())
    one, two = (answered(part.segments((3,), columns))[0] for part in (rows, rows.to_grams((3,))))
    assert isinstance(one, RowSegment) and isinstance(two, GramSegment)
    vectors = torch.randn(3, one.parents_count, generator=draws, dtype=F64)
    torch.testing.assert_close(one.curvature(vectors), two.curvature(vectors), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(one.trace(), two.trace(), rtol=1e-12, atol=0.0)
