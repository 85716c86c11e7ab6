"""Sparse coding with a Laplace prior: a dictionary of strokes is found again in noisy sums of them.

    python examples/sparse_coding.py                   # a table, and runs/sparse_coding.png; half a minute
    python examples/sparse_coding.py --seconds 20      # for each run
    python examples/sparse_coding.py --quick           # a second for each, a single learning rate for Adam

The model is x = D h + μ + σ ε, with codes h whose prior is a Laplace distribution, which favours zeros, a dictionary D
and one learned σ for all pixels (scale="tied"). The recognition of h is normal, with a mean that is linear in x and a
learned σ for each code (scale="constant"). The evidence bound is maximised by reparametrisation; the divergence of q
from the prior has a closed form. Both layers are stochastic, so that all Fisher blocks are exact.

The images are noisy sums of 16 strokes with Laplace-distributed strengths. The space that the strokes span is found at
once; the Laplace prior alone tells the strokes from their mixtures. Turning the dictionary to them takes long, since
the gradient along such turns is small, so that the steps have to be large. Each run has the same processor time, and
its rate falls to zero in the second half. Rates were chosen by the bound at the end: natural 0.1 with momentum 0.9
(with 0.03 it does not get round in time, 0.2 diverges); Adam's are all in the table. At equal seconds both arrive. With
nothing given, the natural gradient is ahead of both after an eighth of the time, at −104.0 nats, but has found no more
than 6 of the 16 strokes in the end.
"""

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import normalize, pad

import dagfisher
from dagfisher.app import table
from dagfisher.nn import GaussianLinear
from dagfisher.plots import FAINT, line_styles

SIDE, CODES, NOISE, BATCH, POINTS = 10, 16, 0.5, 400, 8
NATURAL = partial(dagfisher.DAGNaturalGradient, lr=0.1, damping=0.1, update_every=50, momentum=0.9)
METHODS = {"natural, lr 0.1": NATURAL}
METHODS |= {f"Adam, lr {lr}": partial(torch.optim.Adam, lr=lr) for lr in (0.04, 0.02, 0.01)}


def make_strokes() -> Tensor:
    """Two straight and two oblique strokes across each quarter of the image, (16 × pixels)."""
    along, middle = torch.arange(5), torch.full((5,), 2)
    images = torch.zeros(2, 2, 4, SIDE, SIDE)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        for kind, (row, column) in enumerate(((middle, along), (along, middle), (along, along), (along, 4 - along))):
            images[i, j, kind, 5 * i + row, 5 * j + column] = 1
    return images.view(CODES, -1)


def make_images(count: int, generator: Generator) -> Tensor:
    strengths = torch.empty(count, CODES).exponential_(generator=generator)
    signs = 2 * torch.randint(0, 2, (count, CODES), generator=generator) - 1
    return (signs * strengths) @ STROKES + NOISE * torch.randn(count, SIDE**2, generator=generator)


STROKES = make_strokes()


class SparseCoding(nn.Module):
    """p(x | h) and q(h | x); the prior of every code is a Laplace distribution with location 0 and scale 1."""

    def __init__(self) -> None:
        super().__init__()
        self.recognise = GaussianLinear(SIDE**2, CODES, scale="constant")
        self.dictionary = GaussianLinear(CODES, SIDE**2, scale="tied")
        nn.init.constant_(self.recognise.log_std, -1)

    def bound(self, x: Tensor) -> Tensor:
        """The evidence lower bound, the mean over the images, in nats."""
        mean, std = self.recognise(x), torch.exp(self.recognise.log_std)
        h = mean + std * torch.randn_like(mean)
        size = std * math.sqrt(2 / math.pi) * torch.exp(-0.5 * (mean / std).square())  # of h: its mean |h| under q
        size = size + mean * torch.erf(mean / (std * math.sqrt(2)))
        divergence = size + math.log(2) - 0.5 * math.log(2 * math.pi * math.e) - self.recognise.log_std
        return (self.dictionary.log_prob(x, h) - divergence.sum(1)).mean()

    @torch.no_grad()
    def matches(self) -> Tensor:
        """For each stroke the greatest |cosine| that an atom of the dictionary has with it."""
        return (normalize(STROKES, dim=1) @ normalize(self.dictionary.weight, dim=0)).abs().amax(1)


def train(
    label: str, seconds: float, seed: int = 0, clock: Callable[[], float] = time.process_time
) -> tuple[SparseCoding, list[tuple[float, float]], int]:
    """The model, its bounds of new images at eight moments, and the steps that it took."""
    torch.manual_seed(seed)
    generator = Generator().manual_seed(seed)
    model, test = SparseCoding(), make_images(2000, generator)
    opt = METHODS[label](model.parameters())
    lr, spent, steps, points = opt.param_groups[0]["lr"], 0.0, 0, []
    while spent < seconds:
        x, began = make_images(BATCH, generator), clock()
        opt.param_groups[0]["lr"] = lr * min(1.0, 2 * (1 - spent / seconds))
        opt.zero_grad()
        (-model.bound(x)).backward()
        opt.step()
        steps, spent = steps + 1, spent + clock() - began
        if spent >= seconds * (len(points) + 1) / POINTS:
            with torch.no_grad():
                points.append((spent, float(model.bound(test))))
    return model, points, steps


def tiles(atoms: Tensor) -> Tensor:
    """Atoms (16 × pixels) as one picture, each from −1 to 1."""
    images = pad((atoms / atoms.abs().amax(1, keepdim=True)).view(4, 4, SIDE, SIDE), (1, 1, 1, 1), value=math.nan)
    return images.permute(0, 2, 1, 3).flatten(0, 1).flatten(1, 2)


def draw(curves: dict[str, list[tuple[float, float]]], pictures: dict[str, Tensor], out: Path) -> None:
    """The bounds against seconds, and the dictionaries beside them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.4), layout="constrained")
    left, *others = figure.subplots(1, 1 + len(pictures))
    for (label, points), style in zip(curves.items(), line_styles(list(curves))):
        left.plot(*zip(*points), label=label, **style)
    left.set(xlabel="seconds of training", ylabel="evidence lower bound (nats)")
    left.grid(color=FAINT, linewidth=0.8)
    left.legend(frameon=False, loc="upper left")
    for axes, (title, picture) in zip(others, pictures.items()):
        axes.imshow(picture.numpy(), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
        axes.set(title=title, xticks=[], yticks=[])
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)
    print(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/sparse_coding.png"), help="the picture to write")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each run (6)")
    parser.add_argument("--quick", action="store_true", help="a second for each")
    options = parser.parse_args()
    torch.set_num_threads(1)
    curves, pictures, lines = {}, {"the strokes": tiles(STROKES)}, []
    for label in list(METHODS)[: 2 if options.quick else None]:
        model, curves[label], steps = train(label, 1.0 if options.quick else options.seconds)
        pictures[f"dictionary, {label}"] = tiles(model.dictionary.weight.detach().T)
        bounds, found = [curves[label][i][1] for i in (0, POINTS // 2 - 1, -1)], int((model.matches() > 0.9).sum())
        lines.append([label, str(steps), *(f"{bound:.1f}" for bound in bounds), f"{found} of {CODES}"])
    headings = [f"bound after {share} of the time" for share in ("1/8", "1/2", "all")]
    print(table(["gradient", "steps", *headings, "strokes found"], lines))
    draw(curves, dict(list(pictures.items())[:3]), options.out)
