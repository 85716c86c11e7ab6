"""A tiny machine by brute force: every hidden state, its probabilities, and expected gradients by autograd."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from dagfisher.helmholtz import HelmholtzMachine


def tiny_machine(states: tuple[float, float], sizes: tuple[int, ...] = (3, 2, 2)) -> HelmholtzMachine:
    """A machine in float64 with weights far from zero."""
    torch.manual_seed(3)
    machine = HelmholtzMachine(list(sizes), states=states).double()
    with torch.no_grad():
        for p in machine.parameters():
            p.copy_(torch.randn_like(p))
    return machine


def all_states(width: int, states: tuple[float, float]) -> Tensor:
    """Every vector of the two states, (2^width, width)."""
    return torch.tensor(list(itertools.product(states, repeat=width)), dtype=torch.float64)


def log_bernoulli(value: Tensor, logit: Tensor) -> Tensor:
    """log-probability of two-valued units, from torch.distributions."""
    bits = (value > 0.5).double() if value.min() >= 0 else (value > 0).double()
    return torch.distributions.Bernoulli(logits=logit).log_prob(bits).sum(-1)


def hidden_states(machine: HelmholtzMachine, states: tuple[float, float]) -> list[Tensor]:
    """Every joint state of the hidden layers, one tensor per layer."""
    widths = machine.sizes[1:]
    joint = all_states(sum(widths), states)
    return list(joint.split(widths, dim=1))


def log_joint(machine: HelmholtzMachine, x: Tensor, hidden: list[Tensor]) -> Tensor:
    """log p(x, h) for one x (in the machine's states) and every h, differentiable."""
    result = log_bernoulli(hidden[-1], machine.prior.bias.expand_as(hidden[-1]))
    below = [x.expand(len(hidden[0]), -1), *hidden[:-1]]
    for layer, child, parents in zip(machine.generative, below, hidden, strict=True):
        result = result + log_bernoulli(child, parents @ layer.weight.T + layer.bias)
    return result


def log_recognition(machine: HelmholtzMachine, x: Tensor, hidden: list[Tensor]) -> Tensor:
    """log q(h|x) for one x and every h, differentiable."""
    parents = x.expand(len(hidden[0]), -1)
    result = torch.zeros(len(hidden[0]), dtype=torch.float64)
    for layer, child in zip(machine.recognition, hidden, strict=True):
        result = result + log_bernoulli(child, parents @ layer.weight.T + layer.bias)
        parents = child
    return result


def gradients(loss: Tensor, parameters: list[torch.nn.Parameter]) -> list[Tensor]:
    """∂loss/∂parameters."""
    return list(torch.autograd.grad(loss, parameters, retain_graph=True))
