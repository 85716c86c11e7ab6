"""What a step must do, written out in numpy: float64, one unit after another, nothing shared with the package."""

import gc
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from exact import exact
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

import dagfisher
from dagfisher import DAGNaturalGradient

Array = NDArray[np.float64]
SOLVERS = ("dense", "woodbury", "conjugate", "diagonal")


def array(values: Tensor | ArrayLike) -> Array:
    """A float64 copy."""
    return np.array(values.detach().double().numpy() if isinstance(values, Tensor) else values, dtype=np.float64)


def logistic(values: ArrayLike) -> Array:
    return 1 / (1 + np.exp(-np.asarray(values)))


def affine(layer: nn.Linear, parents: Tensor | ArrayLike) -> Array:
    """What the layer gives, one row per sample."""
    result = array(parents).reshape(-1, layer.in_features) @ array(layer.weight).T
    return result if layer.bias is None else result + array(layer.bias)


def bernoulli_information(layer: nn.Linear, parents: Tensor | ArrayLike) -> Array:
    """ρ(1−ρ) for every sample and unit."""
    rate = logistic(affine(layer, parents))
    return rate * (1 - rate)


def blocks(rows: ArrayLike, q: ArrayLike, weights: ArrayLike | None = None) -> Array:
    """F_j = Σ_k w_k q_jk u_k u_kᵀ with Σ w = 1, for every unit j."""
    rows, q = np.asarray(rows), np.asarray(q)
    share = np.ones(len(rows)) if weights is None else array(weights).reshape(-1)
    share = share / share.sum()
    found = np.zeros((q.shape[1], rows.shape[1], rows.shape[1]))
    for unit in range(q.shape[1]):
        for sample in range(len(rows)):
            found[unit] += share[sample] * q[sample, unit] * np.outer(rows[sample], rows[sample])
    return found


def solve(fisher: Array, gradient: ArrayLike, damping: float, *, diagonal: bool = False) -> Array:
    """(1+α)(αI + F_j)⁻¹ g_j, or the same with the diagonal of F_j alone."""
    identity = np.eye(fisher.shape[1])
    kept = fisher * identity if diagonal else fisher
    return np.stack(
        [(1 + damping) * np.linalg.solve(damping * identity + f, g) for f, g in zip(kept, gradient, strict=True)]
    )


def trained(layer: nn.Linear, without: Iterable[str] = ()) -> list[str]:
    """Which of weight and bias a step moves."""
    return [name for name, p in layer.named_parameters() if p.requires_grad and name not in without]


def parents_of(layer: nn.Linear, parents: Tensor | ArrayLike, names: list[str]) -> Array:
    """The rows of U that the trained ones of weight and bias see."""
    rows = array(parents).reshape(-1, layer.in_features)
    columns = [rows] * ("weight" in names) + [np.ones((len(rows), 1))] * ("bias" in names)
    return np.concatenate(columns, axis=1)


def natural(
    layer: nn.Linear,
    parents: Tensor | ArrayLike,
    damping: float,
    *,
    q: ArrayLike | None = None,
    weights: Tensor | ArrayLike | None = None,
    without: Iterable[str] = (),
    fisher: Array | None = None,
    diagonal: bool = False,
) -> dict[Tensor, Array]:
    """The natural gradient of a (Bernoulli, unless q is given) layer, from what is in `.grad`."""
    names = trained(layer, without)
    if fisher is None:
        information = bernoulli_information(layer, parents) if q is None else np.asarray(q)
        fisher = blocks(parents_of(layer, parents, names), information, None if weights is None else array(weights))
    gradient = [array(getattr(layer, name).grad).reshape(layer.out_features, -1) for name in names]
    solution = solve(fisher, np.concatenate(gradient, axis=1), damping, diagonal=diagonal)
    result = {}
    if "weight" in names:
        result[layer.weight] = solution[:, : layer.in_features]
    if "bias" in names:
        result[layer.bias] = solution[:, -1]
    return result


class Net(nn.Module):
    """Two declared Bernoulli layers, 'encoder.0' (4 → 3) and 'head' (3 → 2)."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.encoder = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid())
        self.head = nn.Linear(3, 2)
        self.double()
        dagfisher.declare(self.encoder[0], "bernoulli")
        dagfisher.declare(self.head, "bernoulli")

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))

    def natural(self, x: Tensor, damping: float, **settings: Any) -> dict[Tensor, Array]:
        """The natural gradients of both layers for a forward pass of x."""
        hidden = logistic(affine(self.encoder[0], x))
        return {
            **natural(self.encoder[0], x, damping, **settings),
            **natural(self.head, hidden, damping, **settings),
        }


def declared(parents: int, units: int, *, bias: bool = True, family: str = "bernoulli", **settings: Any) -> nn.Linear:
    """One declared float64 layer on its own."""
    torch.manual_seed(parents + units)
    layer = nn.Linear(parents, units, bias=bias).double()
    dagfisher.declare(layer, family, **settings)
    return layer


def data(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def loss(output: Tensor) -> Tensor:
    """Some loss whose gradient is different for every unit and sample."""
    slopes = torch.arange(1.0, output.shape[-1] + 1, dtype=output.dtype, device=output.device)
    return (slopes * output + 0.1 * output.square()).sum()


def backward(model: Callable[[Tensor], Tensor], opt: torch.optim.Optimizer, x: Tensor) -> None:
    """A fresh gradient of the loss at x."""
    opt.zero_grad()
    loss(model(x)).backward()


def assert_close(actual: dict[Tensor, Array], expected: dict[Tensor, Array], tolerance: float = 1e-10) -> None:
    """The same parameters, and values that agree relative to the largest."""
    assert len(actual) == len(expected)
    for parameter, value in expected.items():
        scale = np.abs(value).max()
        assert scale > 0
        np.testing.assert_allclose(actual[parameter], value, rtol=0, atol=tolerance * scale)


def assert_step(opt: torch.optim.Optimizer, expected: dict[Tensor, Array], tolerance: float = 1e-10) -> None:
    """One step moves each parameter down by exactly this, up to the rounding of the parameter itself."""
    before = {p: array(p) for p in expected}
    opt.step()
    for p, old in before.items():
        scale, rounding = np.abs(expected[p]).max(), 2 * np.finfo(old.dtype).eps * np.abs(old).max()
        assert scale > 10 * rounding
        np.testing.assert_allclose(old - array(p), expected[p], rtol=0, atol=tolerance * scale + rounding)


def scaled(factor: float, vectors: dict[Tensor, Array]) -> dict[Tensor, Array]:
    return {p: factor * v for p, v in vectors.items()}


def optimizer(parameters: Iterable[Any], **settings: Any) -> DAGNaturalGradient:
    """An optimizer with unit rate and an exact solver, unless told otherwise."""
    return exact(parameters, **{"lr": 1.0, "solver": "dense", **settings})


def live_tensors() -> tuple[int, int]:
    """How many tensors there are, and their bytes."""
    gc.collect()
    found = [o for o in gc.get_objects() if issubclass(type(o), Tensor)]
    return len(found), sum(t.nbytes for t in found)


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether all parameters are equal bit for bit."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(p, q) for p, q in pairs)


def fisher_of(net: Net, x: Tensor) -> dict[nn.Linear, Array]:
    """F_j of both layers by these samples, at the parameters of now."""
    found = {}
    for layer, parents in ((net.encoder[0], array(x)), (net.head, logistic(affine(net.encoder[0], x)))):
        found[layer] = blocks(parents_of(layer, parents, ["weight", "bias"]), bernoulli_information(layer, parents))
    return found


def shown(opt: DAGNaturalGradient, name: str) -> list[Any]:
    """What `diagnostics` says of each layer."""
    return [layer[name] for layer in opt.diagnostics()["layers"].values()]
