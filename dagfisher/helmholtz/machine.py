"""HelmholtzMachine: a generative network and a recognition network that inverts it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from ..errors import SettingError, ShapeError
from ..families import Bernoulli, Gaussian
from ..nn import BernoulliLinear, GaussianLinear, LateralBernoulliLinear, Prior, StochasticLayer
from .completion import Completion, complete
from .evaluate import estimate
from .layers import Draw, TopLayer, draw, draw_top, observe_layer, observe_top, predict, predict_top
from .shapes import Shape, layer_shapes

LayerPair = tuple[StochasticLayer, StochasticLayer]
"""(generative layer: upper → lower, recognition layer: lower → upper)."""
LATERAL = ("generative", "recognition", "both")
"""The networks whose units may see the units before them in their own layer."""


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
        lateral: ``"generative"``, ``"recognition"`` or ``"both"``: every unit of that network also sees the units
            before it in its own layer, whose states are among its parents; with `sizes`, and only Bernoulli units.
            Pairs may hold :class:`dagfisher.nn.LateralBernoulliLinear` layers instead.
        prior: the top layer; needed with pairs. With lateral connections, a ``LateralBernoulliLinear(0, units)``.
        shape: of the data, (channels, rows, columns); needed if the bottom pair has a convolution.
    """

    def __init__(
        self,
        sizes: Sequence[int] | Sequence[LayerPair],
        states: tuple[float, float] = (-1, 1),
        *,
        families: str | Sequence[str] = "bernoulli",
        min_std: float = 0.01,
        lateral: str | None = None,
        prior: TopLayer | None = None,
        shape: Shape | None = None,
    ) -> None:
        super().__init__()
        if lateral not in (None, *LATERAL):
            raise SettingError(f"lateral must be one of {', '.join(LATERAL)}, or None, not {lateral!r}.")
        pairs = [item for item in sizes if isinstance(item, tuple)]
        if pairs and lateral:
            raise SettingError(
                "lateral belongs to machines that are given by their sizes, since convolutions have no lateral "
                "connections; put LateralBernoulliLinear layers into the pairs instead."
            )
        if not pairs:
            pairs, top = _dense(sizes, states, families, min_std, lateral)
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

        Lateral connections start at 0, so that the machine starts as it would without them.

        Args:
            bihm: weights drawn from a normal distribution of deviation 0.001, cut at two deviations, as bidirectional
                machines need; the biases are as ever.
            generator: of the draws.
        """
        for layer in [*self.generative_layers(), *self.recognition_layers(), self.prior]:
            for name, parameter in layer.named_parameters():
                with torch.no_grad():
                    values: Tensor = parameter
                    if isinstance(layer, LateralBernoulliLinear) and name == "weight":
                        parameter.zero_()
                        values = parameter.new_empty(layer.out_features, layer.outside)
                    if not name.endswith("weight"):
                        values.fill_(0.0 if isinstance(layer.family, Gaussian) else -1.0)
                    elif bihm:
                        nn.init.trunc_normal_(values, std=0.001, a=-0.002, b=0.002, generator=generator)
                    elif values.numel():
                        nn.init.xavier_normal_(values, generator=generator)
                    if values is not parameter:
                        parameter[:, : values.shape[1]] = values
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

    def up(self, i: int, parents: Tensor, states: Tensor | None = None) -> Tensor:
        """The predictor of recognition layer i, counted from the bottom, given the states (n, units) below it.

        `states` are those of the layer itself, which only lateral connections look at.
        """
        return predict(self._up(i), self.shapes[i], parents, states)

    def down(self, i: int, parents: Tensor, states: Tensor | None = None) -> Tensor:
        """The predictor of generative layer i, counted from the bottom, given the states (n, units) above it."""
        return predict(self._down(i), self.shapes[i + 1], parents, states)

    def top(self, count: int, states: Tensor | None = None) -> Tensor:
        """The predictor of the prior for so many samples."""
        return predict_top(self.prior, count, states)

    def draw_up(self, i: int, parents: Tensor, generator: Generator | None = None, *, samples: int = 1) -> Draw:
        """So many samples of recognition layer i for each row of the states (n, units) below it."""
        return draw(self._up(i), self.shapes[i], parents, samples, generator)

    def draw_down(self, i: int, parents: Tensor, generator: Generator | None = None) -> Draw:
        """A sample of generative layer i for each row of the states (n, units) above it."""
        return draw(self._down(i), self.shapes[i + 1], parents, 1, generator)

    def draw_top(self, count: int, generator: Generator | None = None) -> Draw:
        """So many samples of the prior."""
        return draw_top(self.prior, count, generator)

    def observe_generative(self, states: Sequence[Tensor], predictors: Sequence[Tensor]) -> None:
        """Feed the Fisher of p with samples and the predictors that `down` and `top` gave for them.

        Args:
            states: of each layer from the data to the top, (n, units); the data may be shared by all samples.
            predictors: of p from the bottom up, the prior last.
        """
        for i, (below, above) in enumerate(itertools.pairwise(states)):
            observe_layer(self._down(i), self.shapes[i + 1], self.shapes[i], above, below, predictors[i])
        observe_top(self.prior, states[-1], predictors[-1])

    def _up(self, i: int) -> StochasticLayer:
        return self.recognition[i]  # type: ignore[return-value]

    def _down(self, i: int) -> StochasticLayer:
        return self.generative[i]  # type: ignore[return-value]

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
        flat = x.flatten(1) if x.dim() > 1 else x.reshape(1, -1)
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
            means: give the expectations of the pixels instead of draws; of pixels with lateral connections, each
                given its parents, draws of the pixels before it among them.
            generator: of the draws.

        Returns:
            (n, pixels) in [0, 1].
        """
        h = self.draw_top(n, generator).states
        return self._descend(len(self.generative), h, means, generator)

    @torch.no_grad()
    def sample_from(self, top: Tensor, *, means: bool = False, generator: Generator | None = None) -> Tensor:
        """Dreams of p that begin with these states of the top layer, (n, units), in the machine's states.

        Args:
            top: the states.
            means: as of `sample`.
            generator: of the draws.

        Returns:
            (n, pixels) in [0, 1].
        """
        return self._descend(len(self.generative), top, means, generator)

    @torch.no_grad()
    def infer(self, x: Tensor, *, generator: Generator | None = None) -> list[Tensor]:
        """A draw of every hidden layer from q(h|x), from the bottom up, (n, units) in the machine's states."""
        h = self.encode(x)
        hidden = []
        for i in range(len(self.recognition)):
            h = self.draw_up(i, h, generator).states
            hidden.append(h)
        return hidden

    @torch.no_grad()
    def reconstruct(self, x: Tensor, *, depth: int = 1, generator: Generator | None = None) -> Tensor:
        """The expectations of the pixels, as of `sample`, after going up with q and down again with p.

        Args:
            x: data in [0, 1], (n, pixels).
            depth: how many layers to go up.
            generator: of the draws.

        Returns:
            (n, pixels) in [0, 1].
        """
        h = self.infer(x, generator=generator)[depth - 1]
        return self._descend(depth, h, True, generator)

    def complete(
        self,
        x: Tensor,
        known: Tensor,
        *,
        sweeps: int = 100,
        candidates: int = 5,
        generator: Generator | None = None,
    ) -> Completion:
        """Unknown pixels filled in from known ones, by sweeps up with q and down with p.

        Args:
            x: data in [0, 1], (n, pixels); unknown pixels may be anything.
            known: true or 1 where a pixel is known, (pixels) or (n, pixels).
            sweeps: how often to go up and down.
            candidates: draws of q that compete, in each sweep, with the hidden state of the one before by their
                importance weights, which makes the limit of many sweeps exact; 0: take a draw of q as it is.
            generator: of the draws.
        """
        return complete(self, x, known, sweeps=sweeps, candidates=candidates, generator=generator)

    def _descend(self, depth: int, h: Tensor, means: bool, generator: Generator | None) -> Tensor:
        for i in reversed(range(1, depth)):
            h = self.draw_down(i, h, generator).states
        bottom = self._down(0)
        if means and not isinstance(bottom, LateralBernoulliLinear):
            return self.decode(bottom.family.mean(self.down(0, h)))
        states, predictor = self.draw_down(0, h, generator)
        return self.decode(bottom.family.mean(predictor) if means else states)

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
        log_above = self.prior.family.log_prob(above, self.top(len(above), above)).sum(-1)
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
        layer = self._down(i)
        if isinstance(layer, LateralBernoulliLinear):
            parts = [layer.log_prob(part[:, None, :], parents) for part in torch.split(child, 64)]
        else:
            predictor = self.down(i, parents)
            parts = [layer.family.log_prob(part[:, None, :], predictor).sum(-1) for part in torch.split(child, 64)]
        return torch.cat(parts)

    def extra_repr(self) -> str:
        return "-".join("×".join(str(s) for s in shape) for shape in self.shapes)


def _dense(
    sizes: Sequence[Any],
    states: tuple[float, float],
    families: str | Sequence[str],
    min_std: float,
    lateral: str | None,
) -> tuple[list[LayerPair], TopLayer]:
    """Pairs of dense layers, and the prior, of these sizes and families from the data up."""
    widths = [int(s) for s in sizes]
    if len(widths) < 2 or min(widths) < 1:
        raise ShapeError(f"a machine needs at least two layers of at least one unit, not {widths}.")
    kinds = [families] * len(widths) if isinstance(families, str) else list(families)
    if len(kinds) != len(widths) or not set(kinds) <= {"bernoulli", "gaussian"}:
        raise ShapeError(f"families must be 'bernoulli' or 'gaussian' for each of {len(widths)} layers, not {kinds}.")

    def layer(parents: int, i: int, network: str) -> StochasticLayer:
        if lateral in (network, "both"):
            if kinds[i] != "bernoulli":
                raise SettingError(
                    f"lateral connections are between Bernoulli units, and layer {i} of the {network} network, counted "
                    f"from the data, has {kinds[i]} ones; choose another lateral, or other families."
                )
            return LateralBernoulliLinear(parents, widths[i], states=states)
        if kinds[i] == "bernoulli":
            return BernoulliLinear(parents, widths[i], states=states)
        return GaussianLinear(parents, widths[i], min_std=min_std)

    pairs = [
        (layer(widths[i + 1], i, "generative"), layer(widths[i], i + 1, "recognition")) for i in range(len(widths) - 1)
    ]
    if lateral in ("generative", "both"):
        top = layer(0, len(widths) - 1, "generative")
        assert isinstance(top, LateralBernoulliLinear)
        return pairs, top
    settings: dict[str, Any] = {"states": states} if kinds[-1] == "bernoulli" else {"min_std": min_std}
    return pairs, Prior(widths[-1], kinds[-1], **settings)
