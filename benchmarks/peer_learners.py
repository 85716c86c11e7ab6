"""Peers that need more than a list of parameters: K-FAC by curvlinops, SINGD, L-BFGS, and Pyro's reweighted wake-sleep.

The packages are curvlinops-for-pytorch, singd and pyro-ppl (`pip install 'dagfisher[benchmarks]'`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from models import Learner
from models.machines import MachineLearner
from models.regressions import RegressionLearner, log_likelihood
from models.vaes import VAE
from torch import Tensor, nn

ROWS = 1000
"""At most so many rows of a layer's input are used for its Kronecker factors."""


class Joined(torch.optim.Optimizer):
    """Several optimizers as one, each with its own parameters."""

    def __init__(self, parts: Iterable[torch.optim.Optimizer]) -> None:
        self.parts = list(parts)
        super().__init__([p for part in self.parts for group in part.param_groups for p in group["params"]], {})
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of each."""
        for part in self.parts:
            part.step()


def singd(model: nn.Module, rate: float, damping: float) -> torch.optim.Optimizer:
    """SINGD with dense factors for the linear layers and momentum SGD for what it does not know (priors).

    Everything else is as its documentation has it: momentum 0.9, factors every 10 steps, and, as recommended where the
    first steps are unstable, a normalised rate of the factors.
    """
    from singd.optim.optimizer import SINGD

    found = SINGD(model, lr=rate, damping=damping, warn_unsupported=False, normalize_lr_cov=True)
    known = {p for group in found.param_groups for p in group["params"]}
    others = [p for p in model.parameters() if p not in known]
    return Joined([found, torch.optim.SGD(others, lr=rate, momentum=0.9)]) if others else found


@dataclass
class Part:
    """Parameters with one Kronecker-factored Fisher: a module from inputs to logits, and its inputs at this step."""

    module: nn.Module
    parameters: list[nn.Parameter]
    inputs: Tensor | None = None
    inverse: Any = None

    def refresh(self, damping: float) -> None:
        """Factors from the inputs, with outcomes drawn from the module's own distribution."""
        from curvlinops import KFACLinearOperator
        from curvlinops.inverse import KFACInverseLinearOperator

        assert self.inputs is not None
        x = self.inputs[:ROWS]
        with torch.no_grad():
            shape = self.module(x).shape
        operator = KFACLinearOperator(
            self.module,
            nn.BCEWithLogitsLoss(reduction="sum"),
            self.parameters,
            [(x, torch.zeros(shape))],  # the outcomes are drawn; only their shape counts
            check_deterministic=False,
            separate_weight_and_bias=False,
            num_data=len(x),
            num_per_example_loss_terms=1,
        )
        operator.compute_kronecker_factors()
        # Sums over the rows: damping and result are those of the mean.
        self.inverse = KFACInverseLinearOperator(operator, damping=damping * len(x), use_exact_damping=True), len(x)
        self.inputs = None

    @torch.no_grad()
    def precondition(self) -> None:
        """Replace the gradients by their products with the inverse."""
        inverse, rows = self.inverse
        found = inverse @ [p.grad for p in self.parameters]
        for parameter, product in zip(self.parameters, found, strict=True):
            parameter.grad = rows * product


class KFAC(torch.optim.SGD):
    """Momentum SGD on gradients that K-FAC preconditions, with factors that are made anew every so many steps."""

    def __init__(self, model: nn.Module, parts: list[Part], rate: float, damping: float, every: int = 20) -> None:
        super().__init__(model.parameters(), lr=rate, momentum=0.9)
        self.parts, self.damping, self.every, self.count = parts, damping, every, 0

    @property
    def due(self) -> bool:
        """The factors are made anew at the coming step."""
        return self.count % self.every == 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Precondition, then move."""
        due, self.count = self.due, self.count + 1
        for part in self.parts:
            if due:
                part.refresh(self.damping)
            part.precondition()
        super().step()


class Decoded(nn.Module):
    """Images to logits with the same noise each time, as K-FAC wants a network."""

    def __init__(self, vae: VAE) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.vae.forward(x, torch.Generator().manual_seed(0))[0]
        return logits


def kfac(learner: Learner, rate: float, damping: float) -> torch.optim.Optimizer:
    """K-FAC for the model of a learner: a machine by layers, each with its own outcomes, a VAE from end to end.

    The Fisher of a VAE is that of p(x|z) with z = z(x, noise), which is what K-FAC is for a network with one output.
    Only dense models.
    """
    model, parts = learner.model, []
    if isinstance(model, VAE):
        parts.append(Part(Decoded(model), list(model.parameters())))
        _watch(model, parts[0], lambda: optimizer.due)
    elif isinstance(learner, RegressionLearner):
        parts.append(Part(model, list(model.parameters())))
        _watch(model, parts[0], lambda: optimizer.due)
    else:
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                plain = nn.Linear(layer.in_features, layer.out_features)
                plain.weight, plain.bias = layer.weight, layer.bias
                parts.append(Part(plain, [layer.weight, layer.bias]))
                _watch(layer, parts[-1], lambda: optimizer.due)
    optimizer = KFAC(model, parts, rate, damping)
    return optimizer


def _watch(module: nn.Module, part: Part, due: Callable[[], bool]) -> None:
    """Keep the first input of the module at each step that makes factors: of a machine, that of the wake phase."""

    def hook(_: nn.Module, given: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled() and part.inputs is None and due():
            part.inputs = given[0].detach()

    module.register_forward_pre_hook(hook)


def use(learner: Learner, optimizer: torch.optim.Optimizer) -> Learner:
    """The learner with that optimizer in place of its own."""
    learner.optimizer = optimizer
    if isinstance(learner, MachineLearner):
        learner.trainer.optimizer = optimizer
    return learner


class FullBatch(Learner):
    """A regression by L-BFGS: a step is one call with all training data, its line search included."""

    def __init__(self, inner: RegressionLearner, rate: float, history: int) -> None:
        optimizer = torch.optim.LBFGS(
            inner.model.parameters(), lr=rate, history_size=history, max_iter=4, line_search_fn="strong_wolfe"
        )
        super().__init__(inner.model, optimizer, inner.examples)
        self.inner = inner

    def _learn(self) -> tuple[Tensor, int]:
        x, y, _ = self.inner.data["train"]
        passes = 0

        def closure() -> Tensor:
            nonlocal passes
            passes += 1
            self.optimizer.zero_grad()
            loss = -log_likelihood(self.inner.family, self.model(x), y)
            loss.backward()
            return loss

        found: Any = self.optimizer.step(closure)  # type: ignore[arg-type]
        return -found.detach(), passes * len(x)

    def _evaluate(self, split: str) -> float:
        return self.inner._evaluate(split)


class Pyro(Learner):
    """The same machine by Pyro's ReweightedWakeSleep and Adam, half wake and half sleep for q as ours.

    Pyro has one importance weight for the whole minibatch, not one for each example, so weights degenerate.
    """

    def __init__(self, inner: MachineLearner, rate: float, decay: float, samples: int, seed: int) -> None:
        from pyro.infer import ReweightedWakeSleep

        optimizer = torch.optim.Adam(inner.model.parameters(), lr=rate, betas=(0.9, decay))
        super().__init__(inner.model, optimizer, inner.examples)
        self.inner, self.machine = inner, inner.machine
        torch.manual_seed(seed)
        self.objective = ReweightedWakeSleep(samples, insomnia=0.5, max_plate_nesting=1)

    def _model(self, x: Tensor, observations: dict[str, Tensor] | None = None) -> None:
        import pyro
        from pyro.distributions import Bernoulli

        layers = self.machine.generative_layers()
        with pyro.plate("data", len(x)):
            bits = pyro.sample(f"h{len(layers)}", Bernoulli(logits=self.machine.prior.bias).to_event(1))
            for i in range(len(layers) - 1, -1, -1):
                logits = layers[i](2 * bits - 1)
                observed = {"obs": x} if i == 0 else {}
                bits = pyro.sample("x" if i == 0 else f"h{i}", Bernoulli(logits=logits).to_event(1), **observed)

    def _guide(self, x: Tensor, observations: dict[str, Tensor] | None = None) -> None:
        import pyro
        from pyro.distributions import Bernoulli

        bits = x if observations is None else observations["x"]
        with pyro.plate("data", len(x)):
            for i, layer in enumerate(self.machine.recognition_layers(), 1):
                bits = pyro.sample(f"h{i}", Bernoulli(logits=layer(2 * bits - 1)).to_event(1))

    def _learn(self) -> tuple[Tensor, int]:
        x = next(self.inner.batches)
        self.optimizer.zero_grad()
        loss, _ = self.objective.loss_and_grads(self._model, self._guide, x)
        self.optimizer.step()
        return torch.tensor(-loss / len(x)), len(x)

    def _evaluate(self, split: str) -> float:
        return self.inner._evaluate(split)
