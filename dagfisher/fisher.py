"""From captured passes to natural gradients: statistics, the choice of a solver, and the solve of one layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .errors import MissingStatisticsError, NonFiniteError, SampleWeightError, ShapeError, SingularBlockError
from .records import Gram, Record
from .segments import grams, segments
from .solvers import SOLVERS, Dense, Diagonal, Problem, Solver
from .solvers.base import gram_blocks
from .solvers.conjugate import SMALL_INVERSE, STORED, expected_cost

_START = {"dense": (2e7, 5e5), "woodbury": (2e7, 1.5e6), "conjugate": (2.5e7, 5e6)}
"""What starting the operations of one preparation and of one solve costs, in multiply-adds of a matrix product."""

WORTH_MERGING = 48
"""Parents up to which equal rows are left as they are."""

MEMORY_LIMIT = 2**28
"""Numbers that a solver chosen by "auto" may keep per layer (1 GiB in float32)."""


@dataclass
class Statistics:
    """All that a layer's Fisher blocks depend on: F_j = Uᵀ diag(weights_j) U."""

    parents: Tensor
    """U, (n × d), the constant 1 last if the bias is trained, equal rows merged where that is cheap; for grouped
    convolutions one such matrix per group of channels, (n × groups × d)."""
    weights: tuple[Tensor, ...]
    """For each group of units, w_k q_jk as (n × units), or (n × 1) where one block serves the whole group."""


def gather(records: list[Record], precisions: list[Tensor], *, weight: bool, bias: bool) -> Statistics:
    """The statistics of all passes together, for the trained ones of weight and bias; sample weights sum to 1."""
    require_pairs(records, precisions)
    rows = _cat([r.rows for r in records])
    sample = _cat([r.sample_weights for r in records])
    groups = [r.fisher_weights or (precisions[i],) for i, r in enumerate(records)]
    fisher = [_cat(list(parts)) for parts in zip(*groups, strict=True)]
    total = sum(map(_total, records[1:]), _total(records[0]))
    _require_sound(total, sample, [rows, *fisher])
    share = (sample / total).unsqueeze(1)
    weights = [q * share for q in fisher]
    if not weight:
        rows = rows[..., :0]
    if bias:
        rows = torch.cat([rows, rows.new_ones(*rows.shape[:-1], 1)], dim=-1)
    # Finding equal rows costs more than they do where parents are few, or rows as many as those of a convolution.
    if rows.shape[-1] <= WORTH_MERGING or any(r.total is not None for r in records):
        return Statistics(rows, tuple(weights))
    return merge_rows(rows, weights)


def gather_grams(records: list[Record], sizes: tuple[int, ...], *, weight: bool, bias: bool) -> list[Gram]:
    """The blocks of all passes together, where some pass left Gram matrices instead of rows; weights sum to 1."""
    found = [r.grams or grams(r.rows, r.fisher_weights or (), r.sample_weights, sizes) for r in records]
    total = sum(map(_total, records[1:]), _total(records[0]))
    sample = _cat([r.sample_weights for r in records])
    _require_sound(total, sample, [part.blocks for parts in found for part in parts])
    kept = slice(None if weight else -1, None if bias else -1)
    joined = []
    for parts in zip(*found, strict=True):
        blocks = sum((part.blocks for part in parts[1:]), parts[0].blocks) / total
        joined.append(Gram(blocks[:, kept, kept], parts[0].units))
    return joined


def _require_sound(total: Tensor, sample: Tensor, captured: list[Tensor]) -> None:
    """Raise on weights or captured numbers that no Fisher can be made of; one reading for all checks."""
    # A sum is infinite or NaN if a term is.
    found = torch.stack([total, sample.amin(), *(part.sum() for part in captured)]).tolist()
    if not (0 < found[0] < math.inf and found[1] >= 0):
        raise SampleWeightError("its sample weights must be finite, not negative, and not all zero.")
    if not all(map(math.isfinite, found[2:])):
        raise NonFiniteError(
            "its captured parents or predictors hold an infinity or a NaN; no parameter has moved. Look at the data, "
            "at the learning rate, and at predictors too large for an exponential."
        )


def require_pairs(records: list[Record], precisions: list[Tensor]) -> None:
    """Raise unless each pass of a Gaussian mean head has a pass of its scale head, with as many samples."""
    if all(r.fisher_weights is not None for r in records):
        return
    if len(records) != len(precisions):
        raise MissingStatisticsError(
            f"its mean head ran {len(records)} times and its scale head {len(precisions)} times since the last step; "
            f"run both heads equally often, or use no_capture() for the extra passes."
        )
    for record, precision in zip(records, precisions, strict=True):
        if len(record.rows) != len(precision):
            raise ShapeError(
                f"its mean head ran on {len(record.rows)} samples and its scale head on {len(precision)}; "
                f"run both heads on the same samples."
            )


def _total(record: Record) -> Tensor:
    return record.sample_weights.sum() if record.total is None else record.total


def _cat(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


@lru_cache(maxsize=256)
def _direction(d: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator(device=device).manual_seed(1)
    return torch.rand(d, generator=generator, device=device, dtype=dtype)


def merge_rows(rows: Tensor, weights: list[Tensor]) -> Statistics:
    """Equal rows become one, their Fisher weights added: the blocks do not change."""
    n, d = rows.shape
    if n == 1:
        return Statistics(rows, tuple(weights))
    keys, order = (rows @ _direction(d, rows.dtype, rows.device)).sort()
    # Equal rows have equal keys up to rounding; most batches have none, and that is seen here.
    gap, low, high = torch.stack([keys.diff().amin(), keys[0], keys[-1]]).tolist()
    if gap > 8 * torch.finfo(keys.dtype).eps * max(-low, high):
        return Statistics(rows, tuple(weights))
    ordered = rows[order]
    new = torch.ones(n, dtype=torch.bool, device=rows.device)
    new[1:] = (ordered[1:] != ordered[:-1]).any(1)
    distinct = int(new.sum())
    if distinct == n:
        return Statistics(rows, tuple(weights))
    target = torch.empty_like(order).index_copy_(0, order, new.cumsum(0) - 1)
    merged = [q.new_zeros(distinct, q.shape[1]).index_add_(0, target, q) for q in weights]
    return Statistics(ordered[new], tuple(merged))


def choose(n: int, d: int, units: int, blocks: int, damping: float, update_every: int) -> str:
    """The exact or iterative solver with the least expected cost per step that fits in memory.

    Costs count multiply-adds of a large matrix product. dense: blocks·(n d² + 30 d³)/K + 10·units·d². woodbury:
    blocks·(n² + 30 n³)/K + units·(10n² + 2nd). conjugate: see `dagfisher.solvers.conjugate`. Each also pays for
    starting its operations, which decides for small layers.
    """
    if damping == 0:
        return "dense"
    costs = {
        "dense": (
            blocks * (n * d**2 + SMALL_INVERSE * d**3) / update_every + STORED * units * d**2,
            blocks * d**2 + n * d,
        ),
        "woodbury": (
            blocks * (n**2 + SMALL_INVERSE * n**3) / update_every + units * (STORED * n**2 + 2 * n * d),
            blocks * n**2 + n * (d + blocks),
        ),
        "conjugate": expected_cost(n, d, units, blocks, update_every),
    }
    fitting = {
        name: cost + _START[name][0] / update_every + _START[name][1]
        for name, (cost, kept) in costs.items()
        if kept <= MEMORY_LIMIT
    }
    return min(fitting, key=fitting.__getitem__) if fitting else "conjugate"


@dataclass
class LayerFisher:
    """The inverse Fisher of one layer, ready to be applied until the next refresh."""

    damping: float
    sizes: tuple[int, ...]
    """How many units each group has."""
    solvers: list[Solver]

    @classmethod
    def begin(
        cls,
        statistics: Statistics | list[Gram],
        sizes: tuple[int, ...],
        gradient: Tensor,
        *,
        damping: float,
        solver: str,
        tolerance: float,
        update_every: int,
    ) -> tuple[LayerFisher, Tensor]:
        """Prepare from fresh statistics, and give the natural gradient of this gradient."""
        if damping == 0 and solver in ("woodbury", "conjugate"):
            raise SingularBlockError(f"the {solver} solver needs damping > 0; set damping, or use solver='dense'.")
        if isinstance(statistics, list):
            made: type[Dense | Diagonal] = Diagonal if solver == "diagonal" else Dense
            fisher = cls(damping, tuple(g.units for g in statistics), [])
            fisher.solvers.extend(made.from_blocks(_damped(gram.blocks, damping), damping) for gram in statistics)
            return fisher, fisher.natural(gradient)
        solvers: list[Solver] = []
        parts = []
        found = segments(statistics.parents, statistics.weights, sizes)
        units = tuple(segment[2] for segment in found)
        for (parents, q, _), g in zip(found, torch.split(gradient, list(units)), strict=True):
            n, d = parents.shape
            name = choose(n, d, len(g), q.shape[1], damping, update_every) if solver == "auto" else solver
            prepared, part = SOLVERS[name].begin(Problem(parents, q, damping, g, tolerance, update_every))
            solvers.append(prepared)
            parts.append(part)
        return cls(damping, units, solvers), _cat(parts).mul_(1 + damping)

    def natural(self, gradient: Tensor) -> Tensor:
        """(1 + α)(αI + F_j)⁻¹ g_j for every unit j; never synchronises with the host."""
        groups = zip(self.solvers, torch.split(gradient, list(self.sizes)), strict=True)
        return _cat([solver.solve(part) for solver, part in groups]).mul_(1 + self.damping)

    def require_fitting(self, gradient: Tensor) -> None:
        """Raise some error unless gradients like this one, which is zero, can be solved for."""
        tensors = [v for solver in self.solvers for v in solver.state().values() if isinstance(v, Tensor)]
        if self.natural(gradient).shape != gradient.shape:
            raise ValueError("factors of another shape")
        if not all(v.is_meta or bool(v.isfinite().all()) for v in tensors):
            raise ValueError("factors that are not finite")

    def blocks(self) -> Tensor:
        """The damped blocks (αI + F_j)/(1 + α), (units, d, d)."""
        expanded = [solver.blocks().expand(size, -1, -1) for solver, size in zip(self.solvers, self.sizes, strict=True)]
        return _cat(expanded) / (1 + self.damping)

    def nbytes(self) -> int:
        """Bytes kept; a tensor that two solvers share counts once."""
        tensors = {v.data_ptr(): v for s in self.solvers for v in s.state().values() if isinstance(v, Tensor)}
        return sum(v.numel() * v.element_size() for v in tensors.values())


def damped_blocks(statistics: Statistics | list[Gram], sizes: tuple[int, ...], damping: float) -> Tensor:
    """The damped blocks (αI + F_j)/(1 + α) that these statistics give, (units, d, d)."""
    if isinstance(statistics, list):
        parts = [_damped(gram.blocks, damping).expand(gram.units, -1, -1) for gram in statistics]
    else:
        found = segments(statistics.parents, statistics.weights, sizes)
        parts = [gram_blocks(parents, q, damping).expand(units, -1, -1) for parents, q, units in found]
    return torch.cat(parts) / (1 + damping)


def _damped(blocks: Tensor, damping: float) -> Tensor:
    return blocks + damping * torch.eye(blocks.shape[1], dtype=blocks.dtype, device=blocks.device)
