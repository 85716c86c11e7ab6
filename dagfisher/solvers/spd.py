"""Inverses of batches of symmetric positive definite matrices, by Cholesky and never by LU, and eigenvectors."""

from __future__ import annotations

import torch
from torch import Tensor

from .._reading import Asking, answered, reads_freely
from ..errors import SingularBlockError


def spd_inverse(matrices: Tensor, *, jitter: bool) -> Tensor:
    """The inverses of a batch (b × s × s) of symmetric positive definite matrices; it may wait for the device.

    A matrix whose factorisation fails is tried again: with a small multiple of its trace on the diagonal (if
    `jitter`), then in float64; the others are not touched. What still fails raises `SingularBlockError`.
    """
    return answered(inverting(matrices, jitter=jitter))


def inverting(matrices: Tensor, *, jitter: bool) -> Asking[Tensor]:
    """As `spd_inverse`; asks whether a factorisation failed."""
    factor, failed = factored(matrices, jitter=jitter)
    (any_failed,) = yield failed.any()
    return torch.cholesky_inverse(repaired(factor, failed, matrices, jitter=jitter) if any_failed else factor)


def factored(matrices: Tensor, *, jitter: bool) -> tuple[Tensor, Tensor]:
    """The Cholesky factors of a batch of matrices, and which of them failed; never waits for the device."""
    factor, info = torch.linalg.cholesky_ex(matrices)
    return factor, (info != 0) | _degenerate(factor, matrices.dtype, jitter)


def repaired(factor: Tensor, failed: Tensor, matrices: Tensor, *, jitter: bool) -> Tensor:
    """The factors, with those that failed made again more carefully; what cannot be raises `SingularBlockError`."""
    factor[failed] = _retry(matrices[failed], jitter)
    return factor


def eigenvectors(gram: Tensor) -> Tensor:
    """The eigenvectors of a symmetric positive semidefinite matrix as columns, by ascending eigenvalue.

    Where most of the spectrum is rounding, with denormal numbers among the entries, LAPACK may not converge in float32,
    or give NaN with no error; then float64 does. On an accelerator, where eigenproblems are slow and make the host
    wait, two orthogonal iterations give an orthonormal basis that is close.
    """
    if not reads_freely(gram.device):
        basis: Tensor = torch.linalg.qr(gram @ torch.linalg.qr(gram).Q).Q
        return basis.flip(1)
    try:
        vectors: Tensor = torch.linalg.eigh(gram).eigenvectors
        converged = bool(vectors.isfinite().all())
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        converged = False
    return vectors if converged else torch.linalg.eigh(gram.double()).eigenvectors.to(gram.dtype)


def _retry(matrices: Tensor, jitter: bool) -> Tensor:
    eps = torch.finfo(matrices.dtype).eps
    trace = matrices.diagonal(dim1=1, dim2=2).mean(1)
    attempts = [matrices.double()]
    if jitter:
        lifted = matrices.clone()
        lifted.diagonal(dim1=1, dim2=2).add_(10 * eps * matrices.shape[-1] * trace[:, None])
        attempts = [lifted, lifted.double()]
    for attempt in attempts:
        factor, info = torch.linalg.cholesky_ex(attempt)
        if not bool((info != 0).any() | _degenerate(factor, matrices.dtype, jitter).any()):
            result: Tensor = factor.to(matrices.dtype)
            return result
    eigenvalues = torch.linalg.eigvalsh(torch.nan_to_num(matrices.double()))
    worst = float((eigenvalues[:, -1] / eigenvalues[:, 0].clamp_min(1e-300)).abs().max())
    raise SingularBlockError(
        f"{len(matrices)} of its Fisher blocks cannot be inverted (condition number about {worst:.1e}); "
        f"raise the damping, or use float64 parameters."
    )


def _degenerate(factor: Tensor, dtype: torch.dtype, damped: bool) -> Tensor:
    """Whether the smallest pivot is lost in the rounding of the largest one, in the dtype that the matrices came in.

    Without damping a pivot of that size may be all rounding, and the bound is the safe one, with the dimension in it.
    A damped block is regular: it is only given up when not a digit of its smallest pivot can be left.
    """
    pivots = factor.diagonal(dim1=1, dim2=2)
    smallest, largest = pivots.amin(1), pivots.amax(1)
    limit = (torch.finfo(dtype).eps * (1 if damped else factor.shape[-1])) ** 0.5
    lost: Tensor = ~(smallest > limit * largest)
    return lost
