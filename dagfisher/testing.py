"""Checks that every family, map and solver must pass; call them on your own in a test.

Each raises an AssertionError whose sentence says what does not hold. The project's own tests use the same checks: a new
member is one line in a table of `tests/conformance`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .families import Family
from .maps import Map, map_of, to_matrix
from .solvers import Cost, CoupledProblem, GramProblem, MaskedProblem, Problem, RowProblem, Solver
from .solvers.problems import Kind

__all__ = ["check_family", "check_map", "check_solver"]

NOT_THE_VARIANCE = "the Fisher weight is not the variance of the score"


def check_family(
    family: Family, predictor: Tensor, *, support: Tensor | None = None, draws: int = 40_000, seed: int = 0
) -> None:
    """Hold a family to its contract at a predictor.

    Args:
        family: what to check.
        predictor: (n × outputs) in float64, values at which the family is regular.
        support: (outcomes × units), all outcomes of one sample's units, or so many that the others have next to no
            probability; expectations are then sums. Without it they are means of draws, compared within six standard
            errors.
        draws: how many of them.
        seed: of the draws.
    """
    _require(
        predictor.dtype == torch.float64 and predictor.dim() == 2, "give the predictor as (n × outputs) in float64"
    )
    outputs = predictor.shape[1]
    sizes = family.split(outputs)
    _require(sum(sizes) == outputs, f"split gives {sizes}, which do not add up to {outputs} outputs")
    weights = family.fisher_weights(predictor)
    _require(
        len(weights) == len(sizes), f"there are Fisher weights for {len(weights)} groups of units, not {len(sizes)}"
    )
    for q, size in zip(weights, sizes, strict=True):
        fits = q.shape in ((len(predictor), size), (len(predictor), 1))
        _require(fits, f"Fisher weights of {size} units have the shape {tuple(q.shape)}")
        _require(bool((q >= 0).all()) and bool(q.isfinite().all()), "a Fisher weight is negative or not finite")
    _check_derivatives(family, predictor, seed)
    if support is None:
        _check_by_draws(family, predictor, weights, sizes, draws, seed)
    else:
        _check_by_sums(family, predictor, weights, sizes, support)


def _check_derivatives(family: Family, predictor: Tensor, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    value = family.sample(predictor, generator)
    again = family.sample(predictor, torch.Generator().manual_seed(seed))
    _require(torch.equal(value, again), "the same generator gives another sample")
    _require(not value.requires_grad, "a sample carries a gradient")
    _require(family.mean(predictor).shape == value.shape, "mean and sample have different shapes")
    _require(family.log_prob(value, predictor).shape == value.shape, "log_prob does not give one number per unit")
    at = predictor.clone().requires_grad_()
    (score,) = torch.autograd.grad(family.log_prob(value, at).sum(), at)
    _close(family.score(value, predictor), score, "score is not the derivative of log_prob")
    try:
        entropy = family.entropy(at)
    except NotImplementedError:
        return
    slope = torch.zeros_like(predictor)
    if entropy.requires_grad:
        (slope,) = torch.autograd.grad(entropy.sum(), at)
    _close(family.entropy_score(predictor), slope, "entropy_score is not the derivative of entropy")


def _information(family: Family, weights: tuple[Tensor, ...], sizes: tuple[int, ...]) -> Tensor:
    """The Fisher information about each predictor, (n × outputs), or about those of each variable, (n × V × C × C)."""
    classes = family.coupling(sum(sizes))
    if classes == 1:
        return torch.cat([q.expand(-1, size) for q, size in zip(weights, sizes, strict=True)], dim=1)
    pi = weights[0].reshape(len(weights[0]), -1, classes)
    return torch.diag_embed(pi) - pi.unsqueeze(-1) * pi.unsqueeze(-2)


def _squares(family: Family, score: Tensor) -> Tensor:
    """What has the Fisher information as its mean: squares, or products of the scores of a variable's units."""
    classes = family.coupling(score.shape[-1])
    if classes == 1:
        return score.square()
    grouped = score.reshape(*score.shape[:-1], -1, classes)
    return grouped.unsqueeze(-1) * grouped.unsqueeze(-2)


def _check_by_draws(
    family: Family, predictor: Tensor, weights: tuple[Tensor, ...], sizes: tuple[int, ...], draws: int, seed: int
) -> None:
    many = predictor.expand(draws, *predictor.shape)
    value = family.sample(many, torch.Generator().manual_seed(seed + 1))
    score = family.score(value, many)
    _same_mean(score, torch.zeros_like(predictor), "the mean of the score is not zero")
    _same_mean(_squares(family, score), _information(family, weights, sizes), NOT_THE_VARIANCE)
    _same_mean(value, family.mean(predictor), "mean is not the mean of the samples")
    try:
        entropy = family.entropy(predictor)
    except NotImplementedError:
        return
    _same_mean(-family.log_prob(value, many).sum(-1), entropy.sum(-1), "entropy is not the mean of −log p")


def _check_by_sums(
    family: Family, predictor: Tensor, weights: tuple[Tensor, ...], sizes: tuple[int, ...], support: Tensor
) -> None:
    value = support.to(predictor).unsqueeze(1).expand(-1, len(predictor), -1)
    at = predictor.expand(len(support), *predictor.shape)
    log_p = family.log_prob(value, at).sum(-1)
    p = torch.exp(log_p).unsqueeze(-1)
    _close(p.sum(0), torch.ones(len(predictor), 1).to(predictor), "the probabilities do not add up to 1")
    score = family.score(value, at)
    _close((p * score).sum(0), torch.zeros_like(predictor), "the mean of the score is not zero")
    p_each = p if family.coupling(score.shape[-1]) == 1 else p.unsqueeze(-1).unsqueeze(-1)
    _close((p_each * _squares(family, score)).sum(0), _information(family, weights, sizes), NOT_THE_VARIANCE)
    _close((p * value).sum(0), family.mean(predictor), "mean is not the expectation")
    try:
        entropy = family.entropy(predictor)
    except NotImplementedError:
        return
    _close(-(p.squeeze(-1) * log_p).sum(0), entropy.sum(-1), "entropy is not the expectation of −log p")


def check_map(how: Map | None, module: nn.Module, parents: Any) -> None:
    """Hold a map to its contract on one forward pass of a module.

    Args:
        how: what to check; None: the map that is registered for the module's type.
        module: with parameters in float64.
        parents: what its forward pass is given, a batch of at least two samples.
    """
    how = map_of(module) if how is None else how
    output = module(parents)
    rows, predictors = how.rows(module, parents, output.shape), how.predictors(module, output)
    weight, bias = how.parameters(module)
    units, samples = how.units(module), how.samples(module, parents, output.shape).numel()
    _require(not rows.requires_grad, "rows carry a gradient")
    _require(predictors.shape == (len(rows), units), f"predictors are {tuple(predictors.shape)} for {len(rows)} rows")
    _require(len(rows) % samples == 0, f"{len(rows)} rows cannot belong to {samples} samples")
    _require(rows.numel() == len(rows) * how.row_size(module), "row_size is not the size of a row")
    if weight is not None:
        major = how.unit_major(module, weight)
        _require(major.shape[0] == units, "unit_major does not put the units first")
        _require(torch.equal(how.weight_major(module, major), weight), "weight_major does not undo unit_major")
    offset = how.offset(module, parents, output.shape)
    predicted = _predicted(how, module, rows)
    predicted = predicted if offset is None else predicted + offset
    _close(predicted, predictors, "rows times weights, plus bias, are not the predictors")
    target = torch.randn(predictors.shape, generator=torch.Generator().manual_seed(0), dtype=predictors.dtype)
    given = [p for p in (weight, bias) if p is not None]
    found = dict(zip(given, torch.autograd.grad((predictors * target).sum(), given), strict=True))
    about_weight = None if weight is None else how.unit_major(module, found[weight])
    expected = _gradient(rows, target, bias is not None, weight is not None)
    _close(
        to_matrix(about_weight, None if bias is None else found[bias]),
        expected,
        "the gradient as a matrix is not the sum of its rows",
    )
    if isinstance(parents, Tensor) and samples > 1 and parents.shape[0] == samples and weight is not None:
        other = parents.clone()
        other[0] += 1
        changed = how.rows(module, other, output.shape) != rows
        _require(not bool(changed[len(rows) // samples :].any()), "the rows of a sample are not next to each other")


def _predicted(how: Map, module: nn.Module, rows: Tensor) -> Tensor:
    weight, bias = how.parameters(module)
    units = how.units(module)
    total = torch.zeros(len(rows), units, dtype=rows.dtype)
    if weight is not None:
        major = how.unit_major(module, weight).reshape(units, -1)
        grouped = rows.unsqueeze(1) if rows.dim() == 2 else rows
        parts = [u @ w.T for u, w in zip(grouped.unbind(1), major.chunk(grouped.shape[1]), strict=True)]
        total = torch.cat(parts, dim=1)
    return total if bias is None else total + bias


def _gradient(rows: Tensor, target: Tensor, bias: bool, weight: bool) -> Tensor:
    grouped = rows.unsqueeze(1) if rows.dim() == 2 else rows
    found = []
    for u, t in zip(grouped.unbind(1), target.chunk(grouped.shape[1], dim=1), strict=True):
        with_one = torch.cat([u if weight else u[:, :0], u.new_ones(len(u), int(bias))], dim=1)
        found.append(t.T @ with_one)
    return torch.cat(found)


def check_solver(solver: type[Solver], *, seed: int = 0) -> None:
    """Hold a solver to its contract on small random problems in float64.

    An exact solver must solve the blocks; an approximation must solve the blocks that it says it has.

    Args:
        solver: the class to check; it need not be registered.
        seed: of the problems.
    """
    generator = torch.Generator().manual_seed(seed)
    for n, d, units, shared in ((7, 4, 3, False), (3, 6, 6, False), (9, 5, 4, True), (1, 1, 2, False)):
        for kind in solver.kinds:
            for problem in _problems(kind, n, d, units, shared and kind == "plain", generator):
                if isinstance(problem, RowProblem) or not solver.needs_rows:
                    _check_problem(solver, problem, generator)


def _problems(kind: Kind, n: int, d: int, units: int, shared: bool, generator: torch.Generator) -> list[Problem]:
    """The same random problem from rows and, where that can be, from Gram matrices."""
    parents = torch.randn(n, d, generator=generator, dtype=torch.float64)
    weights = torch.rand(n, 1 if shared else units, generator=generator, dtype=torch.float64) / n
    gradient = torch.randn(units, d, generator=generator, dtype=torch.float64)
    if kind == "coupled":
        logits = torch.randn(n, units, generator=generator, dtype=torch.float64)
        classes = units if units % 2 else 2
        probability = torch.softmax(logits.reshape(n, -1, classes), -1).reshape(n, units)
        return [CoupledProblem(parents, probability, weights[:, 0], classes, 0.2, gradient, 1e-12, 3)]
    grams = RowProblem(parents, weights, 0.0, gradient).damped_blocks()
    if kind == "plain":
        return [
            RowProblem(parents, weights, 0.2, gradient, 1e-12, 3),
            GramProblem(grams, 0.2, gradient, 1e-12, 3),
        ]
    mask = torch.rand(units, d, generator=generator) < 0.6
    gradient = gradient * mask
    return [
        MaskedProblem(parents, weights, mask, 0.2, gradient, 1e-12, 3),
        GramProblem(grams, 0.2, gradient, 1e-12, 3, mask),
    ]


def _check_problem(solver: type[Solver], problem: Problem, generator: torch.Generator) -> None:
    first = problem.gradient.clone()
    second = torch.randn(first.shape, generator=generator, dtype=torch.float64)
    mask = getattr(problem, "mask", None)
    second = second if mask is None else second * mask
    made, solution = solver.begin(problem)
    _require(torch.equal(problem.gradient, first), "begin changes the problem's gradient")
    blocks = problem.damped_blocks() if solver.exact else made.blocks()
    what = "exact solver" if solver.exact else "solver"
    size = blocks.shape[1]
    for gradient, found in ((first, solution), (second, made.solve(second)), (first, made.solve(first))):
        rows = found.reshape(-1, size)
        image = torch.bmm(blocks.expand(len(rows), -1, -1), rows.unsqueeze(2)).reshape(gradient.shape)
        _close(image, gradient, f"the {what} does not solve the blocks", 1e-8)
        _require(mask is None or not bool(found[~mask].any()), "a solution is not zero under the mask")
    _close(made.blocks(), blocks, "blocks are not those that are solved", 1e-8)
    again = type(made)(**made.state()).to(torch.device("cpu"))
    _close(again.solve(second), made.solve(second), "a solver made of its own state solves differently", 0.0)
    kept = [v for v in made.state().values() if v is not None and not isinstance(v, (Tensor, int, float))]
    _require(not kept, f"a checkpoint cannot hold {kept}")
    cost = solver.cost(problem.shape, torch.device("cpu"))
    known = cost is None or (isinstance(cost, Cost) and min(each for each in cost if each is not None) > 0)
    _require(known, f"its cost is {cost}")


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise AssertionError(f"{sentence}.")


def _close(found: Tensor, expected: Tensor, sentence: str, tolerance: float = 1e-9) -> None:
    shapes = f" ({tuple(found.shape)} against {tuple(expected.shape)})" if found.shape != expected.shape else ""
    _require(not shapes, sentence + shapes)
    found, expected = found.detach(), expected.detach()
    most = float((found - expected).abs().max()) if found.numel() else 0.0
    size = float(expected.abs().max()) if expected.numel() else 0.0
    _require(most <= tolerance * max(size, 1.0), f"{sentence}: they differ by {most:.2e}")


def _same_mean(draws: Tensor, expected: Tensor, sentence: str) -> None:
    error = draws.std(0) / len(draws) ** 0.5
    off = float(((draws.mean(0) - expected).abs() - 6 * error - 1e-9).max())
    _require(off <= 0, f"{sentence}: off by {off:.2e} more than six standard errors")
