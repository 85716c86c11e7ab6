"""The problems that solvers are given: damped blocks of one run of units, by rows or by Gram matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import SingularBlockError
from .blocks import coupled_block, gram_blocks, masked_blocks
from .spd import spd_inverse

Kind = Literal["plain", "masked", "coupled"]
"""Of a problem: all parents count for every unit; each unit has its own; or units of one variable are coupled."""


class BlockShape(NamedTuple):
    """The sizes that a solver's cost depends on."""

    rows: int
    """n, the distinct rows of parents; 0 if there are none, only blocks."""
    parents: int
    """d, the constant 1 included."""
    units: int
    """l, the rows of the gradient."""
    blocks: int
    """How many different blocks there are: `units`, or 1 if all units share one."""
    update_every: int
    """K, for how many steps what is prepared will be used."""
    kind: Kind = "plain"
    """Of the problem."""
    classes: int = 1
    """Units of one variable, whose blocks are coupled."""
    tolerance: float = 0.0
    """The relative residual that an iterative solver may leave."""


@dataclass
class Peers:
    """What a process that prepares some units of a problem knows of all of them, so that all processes choose alike."""

    units: int
    """Of all processes."""
    own: range
    """Those of this process."""
    weights: Tensor
    """w_k q_jk of all units, (n × blocks)."""
    total: Callable[[Tensor], Tensor]
    """The sum of a tensor over the processes; all of them must ask in the same order."""


@dataclass
class Problem:
    """The damped blocks αI + F_j of one run of units, and the gradient that a solver may calibrate itself on.

    Two kinds: `RowProblem` has the rows that F_j is made of; `GramProblem` has the matrices F_j and nothing else.
    """

    damping: float
    """α."""
    gradient: Tensor
    """(units × d)."""
    tolerance: float
    """The relative residual that an iterative solver may leave."""
    update_every: int
    """For how many steps what is prepared will be used."""

    kind: ClassVar[Kind] = "plain"

    def part(self, own: range, total: Callable[[Tensor], Tensor]) -> Problem | None:
        """The problem of some of the units, for one of several processes; None if it cannot be cut."""
        return None

    @property
    def shape(self) -> BlockShape:
        """The sizes that a solver's cost depends on."""
        raise NotImplementedError

    def damped_blocks(self) -> Tensor:
        """αI + F_j as dense matrices, (units or 1 × d × d)."""
        raise NotImplementedError

    def damped_diagonal(self) -> Tensor:
        """α + diag F_j, (units or 1 × d)."""
        raise NotImplementedError


class RowProblem(Problem):
    """F_j = Uᵀ Q_j U from the rows of U."""

    def __init__(
        self,
        parents: Tensor,
        weights: Tensor,
        damping: float,
        gradient: Tensor,
        tolerance: float = 1e-2,
        update_every: int = 1,
    ) -> None:
        super().__init__(damping, gradient, tolerance, update_every)
        self.parents = parents
        """U, (n × d), distinct rows."""
        self.weights = weights
        """w_k q_jk, (n × units), or (n × 1) where all units share one block."""
        self.peers: Peers | None = None
        """If the units are a part of those that several processes prepare."""

    def part(self, own: range, total: Callable[[Tensor], Tensor]) -> RowProblem | None:
        if self.blocks == 1:
            return None
        return self._own(RowProblem(self.parents, self.weights[:, own.start : own.stop], *self._more(own)), own, total)

    def _more(self, own: range) -> tuple[float, Tensor, float, int]:
        return self.damping, self.gradient[own.start : own.stop], self.tolerance, self.update_every

    def _own(self, found: RowProblem, own: range, total: Callable[[Tensor], Tensor]) -> RowProblem:
        found.peers = Peers(len(self.gradient), own, self.weights, total)
        return found

    @property
    def every_weight(self) -> Tensor:
        """w_k q_jk of all units that are prepared together, (n × blocks)."""
        return self.weights if self.peers is None else self.peers.weights

    @property
    def units(self) -> int:
        """How many units are prepared together."""
        return len(self.gradient) if self.peers is None else self.peers.units

    @property
    def blocks(self) -> int:
        """How many different blocks are prepared together."""
        return int(self.every_weight.shape[1])

    def lengths(self, *vectors: Tensor) -> Tensor:
        """The length of each of some tensors with a row for each unit, over all units that are prepared together."""
        if self.peers is None:
            return torch.stack([vector.norm() for vector in vectors])
        return self.peers.total(torch.stack([vector.square().sum() for vector in vectors])).sqrt()

    def total(self, numbers: Tensor) -> Tensor:
        """Numbers of these units, summed over all units that are prepared together."""
        return numbers if self.peers is None else self.peers.total(numbers)

    def length(self, vector: Tensor) -> Tensor:
        """The length of one such tensor, a scalar."""
        return self.lengths(vector)[0]

    def inverse(self, matrices: Tensor) -> Tensor:
        """The inverses of blocks, (units × s × s); NaN if other processes must be told, and `settled` raises in all."""
        try:
            return spd_inverse(matrices, jitter=True)
        except SingularBlockError:
            if self.peers is None:
                raise
            return torch.full_like(matrices, torch.nan)

    def settled(self, length: float) -> float:
        """A length, unless it says that a block of some process could not be inverted."""
        if self.peers is not None and length != length:
            raise SingularBlockError(
                "some of its Fisher blocks cannot be inverted; raise the damping, or use float64 parameters."
            )
        return length

    def typical(self, rows: Tensor) -> Tensor:
        """Random sums of rows, one for each unit, to calibrate on where the gradient is zero or meets no row."""
        generator = torch.Generator(device=rows.device).manual_seed(0)
        mix = torch.randn(self.units, rows.shape[0], generator=generator, device=rows.device, dtype=rows.dtype)
        return (mix if self.peers is None else mix[self.peers.own.start : self.peers.own.stop]) @ rows

    @property
    def shape(self) -> BlockShape:
        n, d = self.parents.shape
        return BlockShape(n, d, self.units, self.blocks, self.update_every, tolerance=self.tolerance)

    def damped_blocks(self) -> Tensor:
        return gram_blocks(self.parents, self.weights, self.damping)

    def damped_diagonal(self) -> Tensor:
        return (self.weights.T @ self.parents.square()).add_(self.damping)


class MaskedProblem(RowProblem):
    """F_j = diag(m_j) Uᵀ Q_j U diag(m_j): unit j has only the parents that its mask allows.

    Damped on the allowed entries; elsewhere a block is the identity, and gradients and solutions are zero.
    """

    kind: ClassVar[Kind] = "masked"

    def __init__(self, parents: Tensor, weights: Tensor, mask: Tensor, *more: Any, **settings: Any) -> None:
        super().__init__(parents, weights.expand(-1, len(mask)), *more, **settings)
        self.mask = mask
        """m, (units × d), true where a parent is allowed."""

    def part(self, own: range, total: Callable[[Tensor], Tensor]) -> RowProblem | None:
        units = slice(own.start, own.stop)
        found = MaskedProblem(self.parents, self.weights[:, units], self.mask[units], *self._more(own))
        return self._own(found, own, total)

    @property
    def shape(self) -> BlockShape:
        return super().shape._replace(kind=self.kind)

    def damped_blocks(self) -> Tensor:
        return masked_blocks(gram_blocks(self.parents, self.weights, 0.0), self.mask, self.damping)

    def damped_diagonal(self) -> Tensor:
        return torch.where(self.mask, super().damped_diagonal(), 1.0)


class CoupledProblem(RowProblem):
    """The blocks of variables of C units each, F_v = Σ_k w_k (diag(π_k) − π_k π_kᵀ) ⊗ u_k u_kᵀ, (C·d × C·d)."""

    kind: ClassVar[Kind] = "coupled"

    def __init__(
        self, parents: Tensor, probability: Tensor, shares: Tensor, classes: int, *more: Any, **settings: Any
    ) -> None:
        super().__init__(parents, shares.unsqueeze(1) * probability * (1 - probability), *more, **settings)
        self.probability = probability
        """π, (n × units)."""
        self.shares = shares
        """w, (n), the weights of the samples, which sum to 1."""
        self.classes = classes
        """C, the units of a variable, which are next to each other."""

    def part(self, own: range, total: Callable[[Tensor], Tensor]) -> RowProblem | None:
        return None

    @property
    def shape(self) -> BlockShape:
        return super().shape._replace(kind=self.kind, classes=self.classes)

    def damped_blocks(self) -> Tensor:
        n = len(self.parents)
        pi = self.probability.reshape(n, -1, self.classes).transpose(0, 1)  # (variables × n × classes)
        blocks = torch.stack([coupled_block(self.parents, each, self.shares) for each in pi])
        blocks.diagonal(dim1=1, dim2=2).add_(self.damping)
        return blocks


class GramProblem(Problem):
    """F_j as they are, without the rows that they came from; with a mask if each unit has its own parents."""

    def __init__(
        self,
        grams: Tensor,
        damping: float,
        gradient: Tensor,
        tolerance: float = 1e-2,
        update_every: int = 1,
        mask: Tensor | None = None,
    ) -> None:
        super().__init__(damping, gradient, tolerance, update_every)
        self.grams = grams if mask is None else grams.expand(len(mask), -1, -1)
        """F_j, (units or 1 × d × d)."""
        self.mask = mask
        """(units × d), true where a parent is allowed, or None."""

    def part(self, own: range, total: Callable[[Tensor], Tensor]) -> GramProblem | None:
        if len(self.grams) == 1:
            return None
        units = slice(own.start, own.stop)
        mask, more = None if self.mask is None else self.mask[units], (self.tolerance, self.update_every)
        return GramProblem(self.grams[units], self.damping, self.gradient[units], *more, mask)

    @property
    def shape(self) -> BlockShape:
        kind: Kind = "plain" if self.mask is None else "masked"
        return BlockShape(0, self.grams.shape[1], len(self.gradient), self.grams.shape[0], self.update_every, kind)

    def damped_blocks(self) -> Tensor:
        if self.mask is not None:
            return masked_blocks(self.grams, self.mask, self.damping)
        identity = torch.eye(self.grams.shape[1], dtype=self.grams.dtype, device=self.grams.device)
        return self.grams + self.damping * identity

    def damped_diagonal(self) -> Tensor:
        diagonal = self.grams.diagonal(dim1=1, dim2=2) + self.damping
        return diagonal if self.mask is None else torch.where(self.mask, diagonal, 1.0)
