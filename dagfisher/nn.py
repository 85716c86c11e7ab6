"""Ready-made stochastic layers: each is a module, a declared DAG layer and a conditional distribution."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from .declaration import declaration_of
from .declare import declare
from .families import Conditional, Family
from .maps import ConstantMap, register_map


class StochasticLayer(nn.Module):
    """What every layer here offers: the distribution of its units given their parents.

    Derive a layer of your own from a module with a map and from this class, and `declare` it in ``__init__``.
    """

    __jit_unused_properties__: ClassVar[list[str]] = ["family"]  # a layer that was undeclared can be scripted

    def _declare(self, family: str, **settings: Any) -> None:
        """Declare this layer; its family stays when it is undeclared."""
        declare(self, family, **settings)
        declaration = declaration_of(self)
        assert declaration is not None
        self._family = declaration.family

    @property
    def family(self) -> Family:
        """The family that the layer is declared with, or was."""
        declaration = declaration_of(self)
        return cast(Family, self._family if declaration is None else declaration.family)

    def distribution(self, parents: Any) -> Conditional:
        """p(· | parents).

        Args:
            parents: what the forward pass takes, for linear layers (… × in_features).

        Returns:
            A distribution over (… × units).
        """
        return Conditional(self.family, self(parents))

    def sample(self, parents: Any, generator: Generator | None = None) -> Tensor:
        """One draw of all units for each sample of the parents, (… × units), without a gradient."""
        return self.distribution(parents).sample(generator)

    def log_prob(self, child: Tensor, parents: Any) -> Tensor:
        """log p(child | parents), summed over the units.

        Args:
            child: states of the units, (… × units).
            parents: what the forward pass takes.

        Returns:
            One number per sample, (…).
        """
        return self.distribution(parents).log_prob(child)

    def entropy(self, parents: Any) -> Tensor:
        """The entropy of the units given the parents, one number per sample, (…)."""
        return self.distribution(parents).entropy()


class BernoulliLinear(nn.Linear, StochasticLayer):
    """Binary units whose logits are a linear map of their parents.

    Args:
        in_features, out_features: the numbers of parents and of units.
        bias: whether the units have biases.
        states: the lower and the upper state, (0, 1) or (−1, 1).
        device, dtype: of the parameters.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        states: tuple[float, float] = (0, 1),
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self._declare("bernoulli", states=states)


class GaussianLinear(nn.Linear, StochasticLayer):
    """Normal units; a linear map of their parents gives mean and scale, or the mean alone if `std` is fixed.

    Args:
        in_features, out_features: the numbers of parents and of units; there are two outputs for each unit, unless
            `std` is fixed.
        bias: whether there are biases.
        scale: what is linear in the parents: "log_std", log σ, or "log_var", log σ².
        std: σ of every unit, if it is fixed.
        min_std: no σ falls below it.
        device, dtype: of the parameters.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        scale: str = "log_std",
        std: float | None = None,
        min_std: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        outputs = out_features if std is not None else 2 * out_features
        super().__init__(in_features, outputs, bias, device=device, dtype=dtype)
        self._declare("gaussian", scale=scale, std=std, min_std=min_std)


class PoissonLinear(nn.Linear, StochasticLayer):
    """Counts whose log rates are a linear map of their parents.

    Args:
        in_features, out_features: the numbers of parents and of units.
        bias: whether the units have biases.
        device, dtype: of the parameters.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self._declare("poisson")


class CategoricalLinear(nn.Linear, StochasticLayer):
    """One-hot variables of `classes` units each, with coupled blocks; with ``coupled=False`` their diagonal π(1−π).

    Args:
        in_features, out_features: the numbers of parents and of units.
        bias: whether the units have biases.
        classes: units of each variable; None: all units are one variable.
        device, dtype: of the parameters.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        classes: int | None = None,
        coupled: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self._declare("categorical", classes=classes, coupled=coupled)


class MaskedLinear(nn.Linear):
    """A linear map in which unit j sees only the parents with ``mask[j]``; not declared as anything.

    Args:
        mask: (units × parents), true or 1 where a parent is allowed.
        bias: whether the units have biases.
        device, dtype: of the parameters.
    """

    mask: Tensor

    def __init__(self, mask: Tensor, bias: bool = True, *, device: Any = None, dtype: Any = None) -> None:
        super().__init__(mask.shape[1], mask.shape[0], bias, device=device, dtype=dtype)
        self.register_buffer("mask", mask.detach().clone().bool().to(device))

    def forward(self, parents: Tensor) -> Tensor:
        """The predictor."""
        return F.linear(parents, self.mask * self.weight, self.bias)


class MaskedBernoulliLinear(MaskedLinear, StochasticLayer):
    """Binary units, each with the parents that its row of the mask allows."""

    def __init__(self, mask: Tensor, bias: bool = True, *, states: tuple[float, float] = (0, 1), **where: Any) -> None:
        super().__init__(mask, bias, **where)
        self._declare("bernoulli", states=states, mask=self.mask)


class MaskedPoissonLinear(MaskedLinear, StochasticLayer):
    """Counts, each with the parents that its row of the mask allows."""

    def __init__(self, mask: Tensor, bias: bool = True, **where: Any) -> None:
        super().__init__(mask, bias, **where)
        self._declare("poisson", mask=self.mask)


class MaskedGaussianLinear(MaskedLinear, StochasticLayer):
    """Normal units; mean and scale of a unit have the same parents, those that its row of the mask allows.

    Args:
        mask: (units × parents); with a fixed `std` there is one row of the weight for each unit, otherwise two.
        bias: whether the units have biases.
        scale, std, min_std: as of :class:`GaussianLinear`.
        where: ``device`` and ``dtype``.
    """

    def __init__(
        self,
        mask: Tensor,
        bias: bool = True,
        *,
        scale: str = "log_std",
        std: float | None = None,
        min_std: float = 0.0,
        **where: Any,
    ) -> None:
        super().__init__(mask if std is not None else torch.cat([mask, mask]), bias, **where)
        self._declare("gaussian", scale=scale, std=std, min_std=min_std, mask=self.mask)


class MaskedCategoricalLinear(MaskedLinear, StochasticLayer):
    """One-hot variables whose logits each have parents of their own; blocks are per logit, the diagonal π(1−π)."""

    def __init__(self, mask: Tensor, bias: bool = True, *, classes: int | None = None, **where: Any) -> None:
        super().__init__(mask, bias, **where)
        self._declare("categorical", classes=classes, coupled=False, mask=self.mask)


class StochasticConvolution(StochasticLayer):
    """A layer whose units have a place in space: children are (n, channels, space …)."""

    def distribution(self, parents: Any) -> Conditional:
        """p(· | parents), over all channels and positions."""
        predictor = self(parents)
        groups = len(self.family.split(predictor.shape[1]))
        shape = (predictor.shape[1] // groups, *predictor.shape[2:])
        return Conditional(self.family, predictor.flatten(1), shape)


class _BernoulliConvolution(StochasticConvolution):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        *,
        states: tuple[float, float] = (0, 1),
        **settings: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, **settings)
        self._declare("bernoulli", states=states)


class _GaussianConvolution(StochasticConvolution):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        *,
        scale: str = "log_std",
        std: float | None = None,
        min_std: float = 0.0,
        **settings: Any,
    ) -> None:
        outputs = out_channels if std is not None else 2 * out_channels
        super().__init__(in_channels, outputs, kernel_size, **settings)
        self._declare("gaussian", scale=scale, std=std, min_std=min_std)


class BernoulliConv1d(_BernoulliConvolution, nn.Conv1d):
    """Binary units, logits by a convolution; further settings as of ``nn.Conv1d``."""


class BernoulliConv2d(_BernoulliConvolution, nn.Conv2d):
    """Binary units, logits by a convolution; further settings as of ``nn.Conv2d``."""


class BernoulliConv3d(_BernoulliConvolution, nn.Conv3d):
    """Binary units, logits by a convolution; further settings as of ``nn.Conv3d``."""


class BernoulliConvTranspose1d(_BernoulliConvolution, nn.ConvTranspose1d):
    """Binary units, logits by a transposed convolution; further settings as of ``nn.ConvTranspose1d``."""


class BernoulliConvTranspose2d(_BernoulliConvolution, nn.ConvTranspose2d):
    """Binary units, logits by a transposed convolution; further settings as of ``nn.ConvTranspose2d``."""


class BernoulliConvTranspose3d(_BernoulliConvolution, nn.ConvTranspose3d):
    """Binary units, logits by a transposed convolution; further settings as of ``nn.ConvTranspose3d``."""


class GaussianConv1d(_GaussianConvolution, nn.Conv1d):
    """Normal units, mean and scale by a convolution; further settings as of ``nn.Conv1d``."""


class GaussianConv2d(_GaussianConvolution, nn.Conv2d):
    """Normal units, mean and scale by a convolution; further settings as of ``nn.Conv2d``."""


class GaussianConv3d(_GaussianConvolution, nn.Conv3d):
    """Normal units, mean and scale by a convolution; further settings as of ``nn.Conv3d``."""


class GaussianConvTranspose1d(_GaussianConvolution, nn.ConvTranspose1d):
    """Normal units, mean and scale by a transposed convolution; further settings as of ``nn.ConvTranspose1d``."""


class GaussianConvTranspose2d(_GaussianConvolution, nn.ConvTranspose2d):
    """Normal units, mean and scale by a transposed convolution; further settings as of ``nn.ConvTranspose2d``."""


class GaussianConvTranspose3d(_GaussianConvolution, nn.ConvTranspose3d):
    """Normal units, mean and scale by a transposed convolution; further settings as of ``nn.ConvTranspose3d``."""


class Prior(StochasticLayer):
    """Units with no parents: the predictor is the bias. Its parents argument is the number, or shape, of samples.

    Args:
        units: their number.
        family: a name that `declare` knows.
        device, dtype: of the bias.
        settings: of the family.
    """

    def __init__(
        self, units: int, family: str = "bernoulli", *, device: Any = None, dtype: Any = None, **settings: Any
    ) -> None:
        super().__init__()
        outputs = 2 * units if family == "gaussian" and settings.get("std") is None else units
        self.bias = nn.Parameter(torch.zeros(outputs, device=device, dtype=dtype))
        self._declare(family, **settings)

    def forward(self, samples: int | tuple[int, ...] | torch.Size = 1) -> Tensor:
        """The predictor, once for each sample, (samples × outputs)."""
        shape = (samples,) if isinstance(samples, int) else tuple(samples)
        return self.bias.expand(*shape, -1)

    def log_prob(self, child: Tensor, parents: Any = None) -> Tensor:
        """log p(child), one number per sample."""
        return super().log_prob(child, child.shape[:-1] if parents is None else parents)


register_map(Prior, ConstantMap())
