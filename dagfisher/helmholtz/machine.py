"""HelmholtzMachine: a generative network and a recognition network that inverts it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from ..capture import observe
from ..errors import ShapeError
from ..families import Bernoulli, Gaussian
from ..nn import BernoulliLinear, GaussianLinear, Prior, StochasticLayer
from .evaluate import estimate
from .shapes import Shape, in_space, layer_shapes, predict

LayerPair = tuple[StochasticLayer, StochasticLayer]
"""(generative layer: upper → lower, recognition layer: lower → upper)."""


class HelmholtzMachine(nn.Module):
    """p(x, h) = p(x|h¹) … p(hᴹ) and q(h|x) = q(h¹|x) … q(hᴹ|hᴹ⁻¹), with a learned prior on the top layer.

    Data are always given in {0, 1}, or as grey values in [0, 1], and are encoded here: as the two states of Bernoulli
    units, and as 2x − 1 for Gaussian ones. Log-likelihoods are of x as it was given.

    Args:
        sizes: units from the data to the top, for example ``[784, 300, 100, 10]``; or a list of pairs
            (generative layer, recognition layer) from the bottom up, of layers of :mod:`dagfisher.nn`, dense,
            convolutional or transposed in any combination. The machine reshapes between them.
        states: the two states of every Bernoulli unit, (−1, 1) or (0, 1); with `sizes`.
        families: ``"bernoulli"`` or ``"gaussian"``, for all layers or one for each size; with `sizes`.
        min_std: no Gaussian unit has a smaller standard deviation; with `sizes`.
        prior: the top layer; needed with pairs.
        shape: of the data, (channels, rows, columns); needed if the bottom pair has a convolution.
    """

    def __init__(
        self,
        sizes: Sequence[int] | Sequence[LayerPair],
        states: tuple[float, float] = (-1, 1),
        *,
        families: str | Sequence[str] = "bernoulli",
        min_std: float = 0.01,
        prior: Prior | None = None,
        shape: Shape | None = None,
    ) -> None:
        super().__init__()
        pairs = [item for item in sizes if isinstance(item, tuple)]
        if not pairs:
            pairs, top = _dense(sizes, states, families, min_std)
            prior = prior or top
        if prior is None:
            raise ShapeError("a machine made of layer pairs needs a prior for its top layer.")
        self.generative = nn.ModuleList(pair[0] for pair in pairs)
        self.recognition = nn.ModuleList(pair[1] for pair in pairs)
        self.prior = prior
        self.shapes = layer_shapes(pairs, shape, prior.family.split(prior.bias.shape[0])[0])
        """The shape of each layer of units, from the data to the top."""
        self.reset_parameters()

    def reset_parameters(self, *, bihm: bool = False, generator: Generator | None = None) -> None:
        """Start anew: Glorot-normal weights, biases of −1; for Gaussian layers biases of 0, one scale for all parents.

        Args:
            bihm: normal values of deviation 0.001, cut at two deviations, as bidirectional machines need.
            generator: of the draws.
        """
        for layer in [*self.generative_layers(), *self.recognition_layers(), self.prior]:
            for name, parameter in layer.named_parameters():
                with torch.no_grad():
                    if bihm:
                        nn.init.trunc_normal_(parameter, std=0.001, a=-0.002, b=0.002, generator=generator)
                    elif name.endswith("weight"):
                        nn.init.xavier_normal_(parameter, generator=generator)
                    else:
                        parameter.fill_(0.0 if isinstance(layer.family, Gaussian) else -1.0)
            if isinstance(layer.family, Gaussian) and layer.family.std is None and layer is not self.prior:
                with torch.no_grad():
                    weight: Any = layer.weight
                    # Output channels are on the second axis of a transposed convolution's weight.
                    weight.chunk(2, dim=int(getattr(layer, "transposed", False)))[1].zero_()

    @property
    def visible(self) -> int:
        """The number of pixels."""
        return self.sizes[0]

    @property
    def sizes(self) -> list[int]:
        """Units from the data to the top."""
        return [math.prod(shape) for shape in self.shapes]

    def up(self, i: int, parents: Tensor) -> Tensor:
        """The predictor of recognition layer i, counted from the bottom, given the states (n, units) below it."""
        return predict(self.recognition[i], self.shapes[i], parents)  # type: ignore[arg-type]

    def down(self, i: int, parents: Tensor) -> Tensor:
        """The predictor of generative layer i, counted from the bottom, given the states (n, units) above it."""
        return predict(self.generative[i], self.shapes[i + 1], parents)  # type: ignore[arg-type]

    def observe_down(self, i: int, parents: Tensor, predictor: Tensor) -> None:
        """Feed the Fisher of generative layer i with flat parents and the predictor that `down` gave for them."""
        layer: StochasticLayer = self.generative[i]  # type: ignore[assignment]
        observe(layer, in_space(layer, self.shapes[i + 1], parents), in_space(layer, self.shapes[i], predictor))

    def generative_layers(self) -> list[StochasticLayer]:
        """The generative layers from the bottom up, without the prior."""
        return [layer for layer in self.generative if isinstance(layer, StochasticLayer)]

    def recognition_layers(self) -> list[StochasticLayer]:
        """The recognition layers from the bottom up."""
        return [layer for layer in self.recognition if isinstance(layer, StochasticLayer)]

    def generative_parameters(self) -> list[nn.Parameter]:
        """The parameters of p, the prior's among them."""
        return [*self.generative.parameters(), *self.prior.parameters()]

    def recognition_parameters(self) -> list[nn.Parameter]:
        """The parameters of q."""
        return list(self.recognition.parameters())

    def encode(self, x: Tensor) -> Tensor:
        """Data in [0, 1], (n, …), as states of the visible units, (n, pixels)."""
        flat = x.reshape(x.shape[0], -1) if x.dim() > 1 else x.reshape(1, -1)
        if flat.shape[1] != self.visible:
            raise ShapeError(
                f"data of shape {tuple(x.shape)} do not fit {self.visible} visible units; give (n, pixels)."
            )
        low, high = self._range()
        return flat.to(self.prior.bias) * (high - low) + low

    def decode(self, visible: Tensor) -> Tensor:
        """States or means of the visible units, (n, pixels), as values in [0, 1]."""
        low, high = self._range()
        return (visible - low) / (high - low)

    def _range(self) -> tuple[float, float]:
        """The states of the visible units that the data 0 and 1 become."""
        family = self.generative_layers()[0].family
        return family.states if isinstance(family, Bernoulli) else (-1.0, 1.0)

    @property
    def log_volume(self) -> float:
        """The logarithm of how much the encoding stretches x: what turns a density of the states into one of x."""
        low, high = self._range()
        gaussian = isinstance(self.generative_layers()[0].family, Gaussian)
        return self.visible * math.log(high - low) if gaussian else 0.0

    @torch.no_grad()
    def sample(self, n: int, *, means: bool = False, generator: Generator | None = None) -> Tensor:
        """Dreams of p.

        Args:
            n: how many.
            means: give the expectations of the pixels instead of draws.
            generator: of the draws.

        Returns:
            (n, pixels) in [0, 1].
        """
        h = self.prior.sample(n, generator)
        return self._descend(len(self.generative), h, means, generator)

    @torch.no_grad()
    def infer(self, x: Tensor, *, generator: Generator | None = None) -> list[Tensor]:
        """A draw of every hidden layer from q(h|x), from the bottom up, (n, units) in the machine's states."""
        h = self.encode(x)
        hidden = []
        for i, layer in enumerate(self.recognition_layers()):
            h = layer.family.sample(self.up(i, h), generator)
            hidden.append(h)
        return hidden

    @torch.no_grad()
    def reconstruct(self, x: Tensor, *, depth: int = 1, generator: Generator | None = None) -> Tensor:
        """The expectations of the pixels after going up with q and down again with p.

        Args:
            x: data in [0, 1], (n, pixels).
            depth: how many layers to go up.
            generator: of the draws.

        Returns:
            (n, pixels) in [0, 1].
        """
        h = self.infer(x, generator=generator)[depth - 1]
        return self._descend(depth, h, True, generator)

    def _descend(self, depth: int, h: Tensor, means: bool, generator: Generator | None) -> Tensor:
        layers = self.generative_layers()
        for i in reversed(range(1, depth)):
            h = layers[i].family.sample(self.down(i, h), generator)
        family, predictor = layers[0].family, self.down(0, h)
        return self.decode(family.mean(predictor) if means else family.sample(predictor, generator))

    def log_likelihood(self, x: Tensor, samples: int = 1000, *, generator: Generator | None = None) -> Tensor:
        """The importance-sampled log p(x) of each example; memory does not grow with `samples`.

        Args:
            x: data in [0, 1], (n, pixels).
            samples: draws of q(h|x) for each example.
            generator: of the draws.

        Returns:
            (n,), in nats; `estimate` also tells how far to trust it.
        """
        return estimate(self, x, samples, generator=generator).log_p

    @torch.no_grad()
    def exact_log_likelihood(self, x: Tensor) -> Tensor:
        """log p(x) of each example, (n,), by summing over every state of every hidden layer; for tiny machines."""
        children = [*self.generative_layers()[1:], self.prior]
        if not all(isinstance(layer.family, Bernoulli) for layer in children):
            raise ShapeError("exact_log_likelihood sums over all states; units that are not Bernoulli have too many.")
        if sum(self.sizes[1:]) > 24 or max(self.sizes[1:]) > 16:
            raise ShapeError(
                f"exact_log_likelihood sums over all states of {self.sizes[1:]} hidden units; it takes at most 24 "
                f"hidden units, 16 in a layer. Use log_likelihood instead."
            )
        above = self._all_states(self.prior, self.sizes[-1])
        log_above = self.prior.log_prob(above)
        for i in reversed(range(1, len(self.generative))):
            here = self._all_states(children[i - 1], self.sizes[i])
            joint = self._conditional(i, here, above) + log_above
            above, log_above = here, torch.logsumexp(joint, dim=1)
        joint = self._conditional(0, self.encode(x), above) + log_above
        return torch.logsumexp(joint, dim=1) + self.log_volume

    def _all_states(self, layer: StochasticLayer, width: int) -> Tensor:
        codes = torch.arange(2**width, device=self.prior.bias.device)
        bits = (codes[:, None] >> torch.arange(width, device=codes.device)) & 1
        assert isinstance(layer.family, Bernoulli)
        return layer.family.from_bits(bits.to(self.prior.bias.dtype))

    def _conditional(self, i: int, child: Tensor, parents: Tensor) -> Tensor:
        """log p(child_i | parents_k) of generative layer i, (children × parents)."""
        predictor, family = self.down(i, parents), self.generative_layers()[i].family
        rows = [family.log_prob(part[:, None, :], predictor).sum(-1) for part in torch.split(child, 64)]
        return torch.cat(rows)

    def extra_repr(self) -> str:
        return "-".join("×".join(str(s) for s in shape) for shape in self.shapes)


def _dense(
    sizes: Sequence[Any], states: tuple[float, float], families: str | Sequence[str], min_std: float
) -> tuple[list[LayerPair], Prior]:
    """Pairs of dense layers, and the prior, of these sizes and families from the data up."""
    widths = [int(s) for s in sizes]
    if len(widths) < 2 or min(widths) < 1:
        raise ShapeError(f"a machine needs at least two layers of at least one unit, not {widths}.")
    kinds = [families] * len(widths) if isinstance(families, str) else list(families)
    if len(kinds) != len(widths) or not set(kinds) <= {"bernoulli", "gaussian"}:
        raise ShapeError(f"families must be 'bernoulli' or 'gaussian' for each of {len(widths)} layers, not {kinds}.")
    settings: dict[str, dict[str, Any]] = {"bernoulli": {"states": states}, "gaussian": {"min_std": min_std}}
    layers: dict[str, Any] = {"bernoulli": BernoulliLinear, "gaussian": GaussianLinear}
    pairs = [
        (
            layers[kinds[i]](widths[i + 1], widths[i], **settings[kinds[i]]),
            layers[kinds[i + 1]](widths[i], widths[i + 1], **settings[kinds[i + 1]]),
        )
        for i in range(len(widths) - 1)
    ]
    return pairs, Prior(widths[-1], kinds[-1], **settings[kinds[-1]])
