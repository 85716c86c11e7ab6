"""The whole of natural reweighted wake-sleep (NRWS) on plain linear layers and the public optimizer.

    python examples/nrws_from_scratch.py
    python examples/nrws_from_scratch.py --order alternating

A Helmholtz machine has a generative network p(x, h) and a recognition network q(h|x). Here each layer of both is a
nn.Linear that gives logits, declared to be Bernoulli. Comments name the lines of Algorithm 4 of Várady's thesis, whose
order is "alternating": wake samples move p and q, then dreams of the new p move q. (Moving layer by layer is the same:
given samples and weights, no gradient depends on another layer.) "together" moves all at once, as its authors' code.
"""

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import dagfisher
from dagfisher import datasets

SIZES = [196, 100, 50, 20, 10, 10]  # miniMNIST at the bottom; every unit is −1 or +1
B, S = 100, 5  # examples, samples per example


def layer(parents: int, units: int, bias: bool = True) -> nn.Linear:
    made = nn.Linear(parents, units, bias=bias)
    nn.init.xavier_normal_(made.weight)
    if bias:
        nn.init.constant_(made.bias, -1.0)
    return dagfisher.declare(made, "bernoulli")  # this line makes it a layer with a Fisher matrix


def draw(logits: Tensor) -> Tensor:
    return 2 * torch.bernoulli(torch.sigmoid(logits.detach())) - 1


def log_prob(logits: Tensor, units: Tensor) -> Tensor:
    return -binary_cross_entropy_with_logits(logits, (units + 1) / 2, reduction="none").sum(-1)


q = nn.ModuleList(layer(below, above) for below, above in zip(SIZES, SIZES[1:]))
p = nn.ModuleList(layer(above, below) for below, above in zip(SIZES, SIZES[1:]))
p.append(layer(1, SIZES[-1], bias=False))  # the prior of the top units: their only parent is the constant 1


def wake(x: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """Every layer's state for S samples of q(h|x) per example, p's logits, log p(x, h) and log q(h|x)."""
    h, log_q = [x.repeat(S, 1)], torch.zeros(())
    for above in q:
        logits = above(h[-1])  # captured, each sample with weight 1/n: this is what the Fisher of q is made of
        h.append(draw(logits))
        log_q = log_q + log_prob(logits, h[-1])
    h.append(torch.ones(len(h[0]), 1))
    with dagfisher.no_capture():  # the Fisher of p needs weights that are not known yet
        logits_p = [below(parents) for below, parents in zip(p, h[1:])]
    log_p = sum((log_prob(logits, units) for logits, units in zip(logits_p, h)), torch.zeros(()))
    return h, logits_p, log_p, log_q


def move(opt: torch.optim.Optimizer, loss: Tensor) -> None:
    loss.backward()
    opt.step()  # lines 10, 14, 20: the inverse Fisher matrices, made anew now and then, times the gradients
    opt.zero_grad()


def step(opt: torch.optim.Optimizer, x: Tensor, order: str = "together") -> None:
    # Lines 6 and 8, wake: sample h ~ q(h|x), and weight the S samples of an example by ω̃ ∝ p(x, h)/q(h|x).
    h, logits_p, log_p, log_q = wake(x)
    weights = torch.softmax((log_p - log_q).detach().view(S, -1), 0).reshape(-1) / len(x)
    # Lines 7 and 9: the gradient of p, and the Fisher of p, both from the wake samples with the weights ω̃/B.
    loss = -(weights * log_p).sum()
    with dagfisher.sample_weights(weights):
        for below, parents, logits in zip(p, h[1:], logits_p):
            dagfisher.observe(below, parents, logits)
    # Line 12: the wake half of the gradient of q; 1/S is subtracted from ω̃, a baseline that changes no expectation.
    # Line 13, the Fisher of q, was captured when q was sampled.
    loss = loss - 0.5 * ((weights - 1 / len(weights)) * log_q).sum()
    if order == "alternating":
        move(opt, loss)  # line 15
        loss = torch.zeros(())
        for above, parents in zip(q, h):
            above(parents)  # line 19: if this step makes a Fisher, it is that of the wake samples too
    # Line 17, sleep: dream (x, h) ~ p, from the top down.
    with torch.no_grad():
        dream = [draw(p[-1](torch.ones(len(weights), 1)))]
        for below in reversed(p[:-1]):
            dream.insert(0, draw(below(dream[0])))
    # Line 18: the sleep half of the gradient of q. Line 19: it shares the Fisher of the wake samples, so dreams are not
    # captured.
    with dagfisher.no_capture():
        for above, parents, units in zip(q, dream, dream[1:]):
            loss = loss - 0.5 * log_prob(above(parents), units).mean()
    move(opt, loss)  # line 21, and 15 if they come together


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500, help="minibatches (500, one epoch, at most)")
    parser.add_argument("--order", choices=("together", "alternating"), default="together")
    given = parser.parse_args()
    steps = given.steps
    torch.manual_seed(0)
    data, began = datasets.load("mini-mnist"), time.perf_counter()
    opt = dagfisher.DAGNaturalGradient(nn.ModuleList([p, q]).named_parameters())  # nothing to tune
    falling = torch.optim.lr_scheduler.LambdaLR(opt, lambda done: min(1.0, 2 * (1 - done / steps)))
    for number, x in zip(range(1, steps + 1), data.batches(B, seed=0, epoch=0)):
        step(opt, 2 * x - 1, given.order)
        falling.step()
        if number in (1, 3, 10, 30) or number % 100 == 0:
            with torch.no_grad():
                _, _, log_p, log_q = wake(2 * data.evaluation("test")[:1000] - 1)
            bound = (torch.logsumexp((log_p - log_q).view(S, -1), 0) - torch.tensor(float(S)).log()).mean()
            spent = time.perf_counter() - began
            print(f"step {number:3}  {spent:4.1f} s  test log p(x) > {bound:.2f} ({S} samples)", flush=True)
