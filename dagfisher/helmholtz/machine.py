"""HelmholtzMachine: a generative and a recognition network that are each other's inverse."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn

from ..errors import ShapeError
from ..nn import BernoulliLinear, Prior, StochasticLayer

LayerPair = tuple[StochasticLayer, StochasticLayer]
"""(generative layer: upper → lower, recognition layer: lower → upper)."""


class HelmholtzMachine(nn.Module):
    """p(x, h) = p(x|h¹) … p(hᴹ) and q(h|x) = q(h¹|x) … q(hᴹ|hᴹ⁻¹), with a learned prior on the top layer.

    Args:
        sizes: units from the data to the top, for example ``[784, 300, 100, 10]``; or a list of pairs
            (generative layer, recognition layer) from the bottom up.
        states: the two states of every unit, (−1, 1) or (0, 1). Data are always given in {0, 1}, or as grey values
            in [0, 1], and are encoded here.
        prior: the top layer; made for the states if not given.
    """

    def __init__(
        self,
        sizes: Sequence[int] | Sequence[LayerPair],
        states: tuple[float, float] = (-1, 1),
        prior: Prior | None = None,
    ) -> None:
        super().__init__()
        pairs = [item for item in sizes if isinstance(item, tuple)]
        if not pairs:
            widths = [int(s) for s in sizes if not isinstance(s, tuple)]
            if len(widths) < 2 or min(widths) < 1:
                raise ShapeError(f"a machine needs at least two layers of at least one unit, not {widths}.")
            pairs = [
                (BernoulliLinear(above, below, states=states), BernoulliLinear(below, above, states=states))
                for below, above in itertools.pairwise(widths)
            ]
            prior = prior or Prior(widths[-1], states=states)
        if prior is None:
            raise ShapeError("a machine made of layer pairs needs a prior for its top layer.")
        self.generative = nn.ModuleList(pair[0] for pair in pairs)
        self.recognition = nn.ModuleList(pair[1] for pair in pairs)
        self.prior = prior
        self.reset_parameters()

    def reset_parameters(self, *, bihm: bool = False, generator: Generator | None = None) -> None:
        """Glorot-normal weights and biases of −1; for BiHM normal values of deviation 0.001, cut at two deviations."""
        for name, parameter in self.named_parameters():
            with torch.no_grad():
                if bihm:
                    nn.init.trunc_normal_(parameter, std=0.001, a=-0.002, b=0.002, generator=generator)
                elif name.endswith("weight"):
                    nn.init.xavier_normal_(parameter, generator=generator)
                else:
                    parameter.fill_(-1.0)

    @property
    def visible(self) -> int:
        """The number of pixels."""
        return int(self.recognition[0].in_features)  # type: ignore[arg-type]

    @property
    def sizes(self) -> list[int]:
        """Units from the data to the top."""
        return [self.visible, *(int(layer.out_features) for layer in self.recognition)]  # type: ignore[arg-type]

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
        """Data in [0, 1] as states of the visible units, flattened to (n, pixels)."""
        flat = x.reshape(x.shape[0], -1) if x.dim() > 1 else x.reshape(1, -1)
        if flat.shape[1] != self.visible:
            raise ShapeError(
                f"data of shape {tuple(x.shape)} do not fit {self.visible} visible units; give (n, pixels)."
            )
        parameter = self.prior.bias
        low, high = self._states()
        return flat.to(parameter) * (high - low) + low

    def decode(self, visible: Tensor) -> Tensor:
        """States or means of the visible units as values in [0, 1]."""
        low, high = self._states()
        return (visible - low) / (high - low)

    def _states(self) -> tuple[float, float]:
        states: tuple[float, float] = self.generative_layers()[0].family.states  # type: ignore[attr-defined]
        return states

    @torch.no_grad()
    def sample(self, n: int, *, means: bool = False, generator: Generator | None = None) -> Tensor:
        """n dreams in {0, 1}; with `means`, the probabilities of the pixels instead of draws."""
        h = self.prior.sample(n, generator)
        layers = self.generative_layers()
        for layer in reversed(layers[1:]):
            h = layer.sample(h, generator)
        bottom = layers[0].distribution(h)
        return self.decode(bottom.mean if means else bottom.sample(generator))

    @torch.no_grad()
    def infer(self, x: Tensor, *, generator: Generator | None = None) -> list[Tensor]:
        """A draw of every hidden layer from q(h|x), from the bottom up, in the machine's states."""
        h = self.encode(x)
        hidden = []
        for layer in self.recognition_layers():
            h = layer.sample(h, generator)
            hidden.append(h)
        return hidden

    @torch.no_grad()
    def reconstruct(self, x: Tensor, *, depth: int = 1, generator: Generator | None = None) -> Tensor:
        """Pixel probabilities after going up `depth` layers with q and down again with p."""
        hidden = self.infer(x, generator=generator)
        h = hidden[depth - 1]
        layers = self.generative_layers()
        for layer in reversed(layers[1:depth]):
            h = layer.sample(h, generator)
        return self.decode(layers[0].distribution(h).mean)

    def log_likelihood(self, x: Tensor, samples: int = 1000, *, generator: Generator | None = None) -> Tensor:
        """The importance-sampled log p(x) of each example; memory does not grow with `samples`."""
        from .evaluate import estimate

        return estimate(self, x, samples, generator=generator).log_p

    @torch.no_grad()
    def exact_log_likelihood(self, x: Tensor) -> Tensor:
        """log p(x) of each example by summing over every state of every hidden layer; for tiny machines."""
        layers = self.generative_layers()
        if sum(self.sizes[1:]) > 24 or max(self.sizes[1:]) > 16:
            raise ShapeError(
                f"exact_log_likelihood sums over all states of {self.sizes[1:]} hidden units; it takes at most 24 "
                f"hidden units, 16 in a layer. Use log_likelihood instead."
            )
        above = self._all_states(self.sizes[-1])
        log_above = self.prior.log_prob(above)
        for layer, width in zip(reversed(layers[1:]), reversed(self.sizes[1:-1]), strict=True):
            here = self._all_states(width)
            joint = self._conditional(layer, here, above) + log_above
            above, log_above = here, torch.logsumexp(joint, dim=1)
        return torch.logsumexp(self._conditional(layers[0], self.encode(x), above) + log_above, dim=1)

    def _all_states(self, width: int) -> Tensor:
        codes = torch.arange(2**width, device=self.prior.bias.device)
        bits = (codes[:, None] >> torch.arange(width, device=codes.device)) & 1
        low, high = self._states()
        return bits.to(self.prior.bias.dtype) * (high - low) + low

    @staticmethod
    def _conditional(layer: StochasticLayer, child: Tensor, parents: Tensor) -> Tensor:
        """log p(child_i | parents_k), (children × parents)."""
        predictor = layer(parents)
        rows = [layer.family.log_prob(part[:, None, :], predictor).sum(-1) for part in torch.split(child, 64)]
        return torch.cat(rows)

    def extra_repr(self) -> str:
        return "-".join(str(s) for s in self.sizes)


def log_mean_exp(log_values: Tensor, dim: int) -> Tensor:
    """log of the mean of exp along an axis."""
    return torch.logsumexp(log_values, dim) - math.log(log_values.shape[dim])
