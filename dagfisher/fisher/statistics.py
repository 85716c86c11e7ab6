"""Captured passes as statistics: `Rows` of parents with their weights, or `Grams` where rows would be too many.

Both say the same of a layer, F_j = Σ_k w_k q_jk u_k u_kᵀ / Σ w. Either can be scaled, joined with its like, saved, and
cut into segments, each of which is a problem for a solver.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from typing_extensions import Self

from .._reading import Asking
from ..capture import Pass, Pending
from ..capture.pending import HeadWeights
from ..declaration import Declaration
from ..errors import ShapeError
from .rows import joined_tensors, merge_rows, require_sound
from .segments import CoupledSegment, GramSegment, Segment, row_segments

ACCUMULATE = 2**22
"""Numbers in the rows of one pass above which its Gram matrices are summed in chunks of this size."""

ENOUGH, ENOUGH_ROWS = 2**19, 2**17
"""Numbers in the rows of one pass, and rows, above which some drawn at random are used in place of all, unless
`max_rows` says otherwise."""
SPREAD = 4
"""Rows are drawn from so many times more, those of whole samples that are drawn first."""

WORTH_MERGING = 48
"""Parents up to which equal rows are left as they are."""


class Columns(NamedTuple):
    """Which columns of the rows, and which entries of each unit, are trained."""

    weight: bool
    bias: bool
    mask: Tensor | None = None
    """(units × d), the constant 1 included if the bias is trained; true where a parent is allowed; None: all are."""


class Statistics(Protocol):
    """What `Rows` and `Grams` have in common."""

    total: Tensor
    """The sum of the sample weights."""

    def scaled(self, factor: float | Tensor) -> Self:
        """The same statistics with every sample weight times `factor`."""

    def tensors(self) -> list[Tensor]:
        """The tensors that are kept."""

    def state(self) -> dict[str, Any]:
        """Plain tensors and numbers, for `restored`."""

    def require_sound(self, mismatch: Tensor | None = None) -> Asking[None]:
        """Raise on weights or numbers that no Fisher can be made of, or on a `mismatch` above 1; asks once."""

    def segments(self, sizes: tuple[int, ...], columns: Columns) -> Asking[Sequence[Segment]]:
        """The runs of units that share their parents, sample weights normalised to sum 1.

        Args:
            sizes: how many units each group with Fisher weights of its own has.
            columns: what is trained.
        """


@dataclass
class Rows:
    """One row of parents for each predictor, with its Fisher weights and its sample weight."""

    parents: Tensor
    """(n × parents), without the constant 1; (n × groups × parents) for a grouped convolution."""
    fisher_weights: tuple[Tensor, ...]
    """q of each group of units, (n × units), or (n × 1) where one block serves the whole group."""
    sample_weights: Tensor
    """(n), each row with the weight of its sample."""
    total: Tensor
    """The sum of the weights of the samples."""
    positions: bool = False
    """Whether a sample has several rows, one per position."""
    classes: int = 1
    """Units of one variable, if they are coupled: the Fisher weights are then the probabilities π."""

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of all parts."""
        fisher = zip(*(part.fisher_weights for part in parts), strict=True)
        return cls(
            joined_tensors([part.parents for part in parts]),
            tuple(joined_tensors(list(q)) for q in fisher),
            joined_tensors([part.sample_weights for part in parts]),
            sum((part.total for part in parts[1:]), parts[0].total),
            any(part.positions for part in parts),
            parts[0].classes,
        )

    def scaled(self, factor: float | Tensor) -> Rows:
        weights, total = self.sample_weights * factor, self.total * factor
        return replace(self, sample_weights=weights, total=total)

    def tensors(self) -> list[Tensor]:
        return [self.parents, self.sample_weights, *self.fisher_weights]

    def state(self) -> dict[str, Any]:
        return {
            "rows": self.parents,
            "fisher_weights": list(self.fisher_weights),
            "sample_weights": self.sample_weights,
            "total": self.total if self.positions else None,
            "grams": None,
            "classes": self.classes,
        }

    def require_sound(self, mismatch: Tensor | None = None) -> Asking[None]:
        return require_sound(self.total, self.sample_weights, [self.parents, *self.fisher_weights], mismatch)

    def segments(self, sizes: tuple[int, ...], columns: Columns) -> Asking[Sequence[Segment]]:
        share = (self.sample_weights / self.total).unsqueeze(1)
        rows = self.parents if columns.weight else self.parents[..., :0]
        if columns.bias:
            rows = torch.cat([rows, rows.new_ones(*rows.shape[:-1], 1)], dim=-1)
        if self.classes > 1:
            return [CoupledSegment(rows, self.fisher_weights[0], share.squeeze(1), self.classes)]
        weights = [q * share for q in self.fisher_weights]
        # Finding equal rows costs more than they do where parents are few, or rows as many as those of a convolution.
        if rows.shape[-1] > WORTH_MERGING and not self.positions:
            rows, weights = yield from merge_rows(rows, weights)
        return row_segments(rows, weights, sizes, columns.mask)

    def sampled(self, chosen: Tensor) -> Rows:
        """Some of the rows in place of all; if they are drawn at random, the expectation of the blocks stays."""
        fisher = tuple(q[chosen] for q in self.fisher_weights)
        weights = self.sample_weights[chosen] * (len(self.parents) / len(chosen))
        return replace(self, parents=self.parents[chosen], fisher_weights=fisher, sample_weights=weights)

    def to_grams(self, sizes: tuple[int, ...]) -> Grams:
        """The same statistics as Gram matrices."""
        rows = torch.cat([self.parents, self.parents.new_ones(*self.parents.shape[:-1], 1)], dim=-1)
        weights = [q * self.sample_weights.unsqueeze(1) for q in self.fisher_weights]
        segments = [segment.to_gram() for segment in row_segments(rows, weights, sizes)]
        return Grams(tuple(segments), self.sample_weights, self.total)


@dataclass
class Grams:
    """The blocks of every run of units that share their parents, not yet divided by the sum of the sample weights."""

    blocks: tuple[GramSegment, ...]
    """Σ_k w_k q_jk u_k u_kᵀ with the constant 1 last."""
    sample_weights: Tensor
    """(samples)."""
    total: Tensor
    """Their sum."""

    @classmethod
    def joined(cls, parts: Sequence[Grams]) -> Grams:
        """The sums over all parts."""
        blocks = []
        for runs in zip(*(part.blocks for part in parts), strict=True):
            blocks.append(GramSegment(sum((run.blocks for run in runs[1:]), runs[0].blocks), runs[0].units))
        sample = joined_tensors([part.sample_weights for part in parts])
        return cls(tuple(blocks), sample, sum((part.total for part in parts[1:]), parts[0].total))

    def scaled(self, factor: float | Tensor) -> Grams:
        blocks = tuple(GramSegment(run.blocks * factor, run.units) for run in self.blocks)
        return Grams(blocks, self.sample_weights * factor, self.total * factor)

    def tensors(self) -> list[Tensor]:
        return [self.sample_weights, *(run.blocks for run in self.blocks)]

    def state(self) -> dict[str, Any]:
        return {
            "rows": None,
            "fisher_weights": [],
            "sample_weights": self.sample_weights,
            "total": self.total,
            "grams": [[run.blocks, run.units] for run in self.blocks],
        }

    def require_sound(self, mismatch: Tensor | None = None) -> Asking[None]:
        return require_sound(self.total, self.sample_weights, [run.blocks for run in self.blocks], mismatch)

    def segments(self, sizes: tuple[int, ...], columns: Columns) -> Asking[Sequence[Segment]]:
        yield from ()  # nothing has to be known
        kept = slice(None if columns.weight else -1, None if columns.bias else -1)
        masks: list[Tensor | None] = [None] * len(self.blocks)
        if columns.mask is not None:
            masks = list(torch.split(columns.mask, [run.units for run in self.blocks]))
        pairs = zip(self.blocks, masks, strict=True)
        return [GramSegment((run.blocks / self.total)[:, kept, kept], run.units, mask) for run, mask in pairs]


def joined(parts: Sequence[Rows | Grams], sizes: tuple[int, ...]) -> Rows | Grams:
    """All parts as one: rows if all have rows, otherwise Gram matrices."""
    if any(isinstance(part, Grams) for part in parts):
        return Grams.joined([part.to_grams(sizes) if isinstance(part, Rows) else part for part in parts])
    return Rows.joined(cast("Sequence[Rows]", parts))


def restored(state: dict[str, Any], device: torch.device) -> Rows | Grams:
    """The statistics whose `state` this is, on this device."""
    sample = state["sample_weights"].to(device)
    total = None if state["total"] is None else state["total"].to(device)
    if state["grams"]:
        assert total is not None
        return Grams(tuple(GramSegment(b.to(device), int(units)) for b, units in state["grams"]), sample, total)
    fisher = tuple(q.to(device) for q in state["fisher_weights"])
    weight = sample.sum() if total is None else total
    classes = int(state.get("classes", 1))
    return Rows(state["rows"].to(device), fisher, sample, weight, positions=total is not None, classes=classes)


def statistics_of(
    declaration: Declaration, passes: Sequence[Pass], step: int = 0, processes: int = 1
) -> list[Rows | Grams]:
    """The statistics of each captured pass of a layer.

    Args:
        declaration: of the layer.
        passes: that were captured.
        step: decides which rows are drawn where they are too many.
        processes: whose passes are joined; each of them has its share of what is too many.
    """
    found: list[Rows | Grams] = [
        each.statistics if each.statistics is not None else _rows(declaration, each, step, -1 - i, processes)
        for i, each in enumerate(passes)
    ]
    return _of_same_samples(found, passes) if declaration.reading.calls == "positions" else found


def _of_same_samples(found: list[Rows | Grams], passes: Sequence[Pass]) -> list[Rows | Grams]:
    """The same statistics, with the samples of all calls that one backward pass went through counted once."""
    groups: dict[int, list[int]] = {}
    for i, each in enumerate(passes):
        groups.setdefault(-1 if each.backward is None else each.backward.task, []).append(i)
    for members in groups.values():
        most = torch.stack([found[i].total for i in members]).amax()
        for i in members:
            total = most if i == members[0] else torch.zeros_like(most)
            part = replace(found[i], total=total)
            found[i] = replace(part, positions=True) if isinstance(part, Rows) else part
    return found


def compact(declaration: Declaration, step: int, needs_rows: bool, processes: int, each: Pass, number: int) -> Pass:
    """The pass, or its statistics where it is too large to keep.

    Args:
        declaration: of the layer.
        step: of the optimizer; with torch's seed and `number` it decides which rows `max_rows` keeps.
        needs_rows: whether the solver needs rows, however many there are.
        processes: whose passes are joined.
        each: the pass.
        number: of the pass, counted from the last step or zero_grad().
    """
    if isinstance(each.fisher_weights, Pending):
        return each
    needs_rows = needs_rows or declaration.coupled > 1
    samples, n, size = each.sample_weights.shape[0], _row_count(declaration, each), _row_size(declaration)
    made: Rows | Grams
    chunk = ACCUMULATE // processes * samples // max(n * size, 1)
    if n > _most_rows(declaration, processes):
        made = _rows(declaration, each, step, number, processes)
    elif not needs_rows and n > samples > 1 and chunk < samples:
        made = _accumulated(declaration, each, each.fisher_weights, max(1, chunk))
    else:
        return each
    return replace(each, parents=None, fisher_weights=(), statistics=made)


def _row_size(declaration: Declaration) -> int:
    return max(declaration.map.row_size(declaration.module), 1)


def _most_rows(declaration: Declaration, processes: int) -> float:
    """The rows of a pass of one of so many processes above which some are drawn."""
    given = declaration.reading.max_rows
    most = min(ENOUGH_ROWS, max(ENOUGH // _row_size(declaration), 1)) if given is None else given
    return most if processes == 1 else max(most // processes, 1)


def _row_count(declaration: Declaration, each: Pass) -> int:
    return each.shape.numel() // max(declaration.units, 1)


def _rows(declaration: Declaration, each: Pass, step: int, number: int, processes: int) -> Rows:
    """The rows of a pass, or as many of them, drawn at random, as are enough; the expectation of the blocks stays."""
    weights, sample = each.fisher_weights, each.sample_weights
    q = weights.weights(declaration, sample.dtype) if isinstance(weights, Pending) else weights
    n, samples, most = _row_count(declaration, each), sample.shape[0], _most_rows(declaration, processes)
    parents, shape, total = each.parents, each.shape, sample.sum()
    positions = n // max(samples, 1)
    generator = _generator(step, number, sample.device) if n > most else None
    if generator is not None and parents is not None and len(parents) == samples == shape[0]:
        drawn = min(samples, math.ceil(SPREAD * most / positions))
        if drawn < samples and all(len(part) == n for part in q):
            chosen = torch.randperm(samples, device=sample.device, generator=generator)[:drawn]
            parents, shape, sample = (
                parents[chosen],
                torch.Size([drawn, *shape[1:]]),
                sample[chosen] * (samples / drawn),
            )
            q = tuple(part.reshape(samples, positions, -1)[chosen].flatten(0, 1) for part in q)
    rows = declaration.map.rows(declaration.module, parents, shape).to(sample.dtype)
    if any(len(rows) != len(part) for part in q):
        if isinstance(weights, HeadWeights):
            raise ShapeError(
                f"its mean head ran on {len(rows)} samples and its scale head on {len(q[0])}; "
                f"run both heads on the same samples."
            )
        raise ShapeError(f"{len(rows)} rows of parents do not fit {len(q[0])} rows of predictors.")
    if n != samples:
        sample = sample.repeat_interleave(positions)
    found = Rows(rows, q, sample, total, positions=n != samples, classes=declaration.coupled)
    if generator is None:
        return found
    kept = torch.randperm(len(rows), device=rows.device, generator=generator)[: int(most)]
    return replace(found.sampled(kept), positions=True)


def _generator(step: int, number: int, device: torch.device) -> torch.Generator:
    """Random numbers of the pass's own: a model's dropout does not notice, and a resumed run draws the same rows."""
    seed = (torch.initial_seed() * 1_000_003 + step) * 1_000_003 + number
    return torch.Generator(device=device).manual_seed(seed % 2**63)


def _accumulated(declaration: Declaration, each: Pass, q: tuple[Tensor, ...], chunk: int) -> Grams:
    """The Gram matrices of a pass, summed over chunks of so many samples."""
    module, sample, parents = declaration.module, each.sample_weights, each.parents
    assert parents is not None
    positions = q[0].shape[0] // sample.shape[0]
    found: Grams | None = None
    for start in range(0, sample.shape[0], chunk):
        part = slice(start, start + chunk)
        shape = torch.Size([len(parents[part]), *each.shape[1:]])
        rows = declaration.map.rows(module, parents[part], shape).to(sample.dtype)
        fisher = tuple(each_q[start * positions : (start + chunk) * positions] for each_q in q)
        weights = sample[part].repeat_interleave(positions)
        here = Rows(rows, fisher, weights, sample[part].sum(), positions=True).to_grams(declaration.sizes)
        if found is None:
            found = here
        else:
            for run, more in zip(found.blocks, here.blocks, strict=True):
                run.blocks.add_(more.blocks)
    assert found is not None
    return Grams(found.blocks, sample, sample.sum())
