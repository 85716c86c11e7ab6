"""The table and the picture that the README and the front page of the documentation begin with.

    python benchmarks/front_page.py            # writes README.md, docs/front_table.inc and docs/_static/hero.png
    python benchmarks/front_page.py --check    # says whether the two texts agree with the results, writes nothing

`python -m benchmarks report` writes them too, with all other tables and pictures.

The table and the curves are made of what `equal_seconds.py` has kept. The matrices are those of two networks with 3, 4
and 6 units. In one the units are binary random variables. Its Fisher matrix is an expectation over all 8,192 states,
without any use of the theory of blocks; beside it is what the optimizer has collected from the same states. In the
other the 4 hidden units are deterministic: its Fisher matrix is an expectation over its 8 inputs. Ten seconds.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from clipped import below
from equal_seconds import RESULTS, Results
from equal_seconds_report import Runs, needed, outcomes, plot, shorter, soonest
from models import Model, named
from rivals import LABELS, METHODS
from torch import Tensor, nn

import dagfisher
from dagfisher import inspect
from dagfisher.plots import FAINT, GUIDE, INK, tidy

ROOT = Path(__file__).resolve().parent.parent
README, TABLE, PICTURE = ROOT / "README.md", ROOT / "docs" / "front_table.inc", ROOT / "docs" / "_static" / "hero.png"
ROWS = 5
ORDER = {
    "mini-machine": "Helmholtz machine, 5 layers, miniMNIST",
    "mnist-machine": "Helmholtz machine, 12 layers, MNIST",
    "mnist-vae": "VAE 784-400-20, MNIST",
    "fashion-vae": "VAE 784-400-20, FashionMNIST",
    "mnist-conv-vae": "convolutional VAE, MNIST",
    "mini-vae": "VAE 196-200-20, miniMNIST",
    "softmax": "softmax regression, 10 classes",
    "logistic": "logistic regression, 40 features",
}
"""What the rows are taken from, in this order: the first that have been measured, whoever is ahead."""
HEAD = (
    "model",
    "best tuned rival",
    "its result",
    "after",
    "dagfisher gets there after",
    "dagfisher after the same time",
)
BEGIN = "<!-- equal seconds: written by python benchmarks/front_page.py -->"
END = "<!-- end of equal seconds -->"
UNITS = (3, 4, 6)
CURVES = "mini-machine"


def rows(runs: Runs) -> list[list[str]]:
    """The rows of the table: for five models, when the natural gradient has what the best rival has at the end."""
    found = []
    for name, label in ORDER.items():
        model = named(name)
        outcome = outcomes(runs, model, model.seconds)
        natural = outcome.pop("natural", None)
        if natural is None or not outcome or len(found) == ROWS:
            continue
        best = max(outcome.values(), key=lambda rival: rival.mean)
        digits = 4 if model.kind == "regression" else 2
        seconds, _ = needed(shorter(runs, natural), best, model.seconds)
        there = f"not in {model.seconds:g} s" if seconds == "not reached" else f"{float(seconds):.1f} s"
        cells = [best.shown(digits), f"{model.seconds:g} s", there, natural.shown(digits)]
        found.append(
            [
                label,
                f"{LABELS[best.method]} (best of {len(outcome)})",
                *(cell.replace("-", "−").replace(" ", "\u00a0") for cell in cells),
            ]
        )
    return found


def markdown(table: list[list[str]]) -> str:
    """The table for the README."""
    lines = [list(HEAD), ["---"] * len(HEAD), *table]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def list_table(table: list[list[str]]) -> str:
    """The table for the documentation."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for cells in [list(HEAD), *table]:
        lines += [f"   {'* -' if i == 0 else '  -'} {cell}" for i, cell in enumerate(cells)]
    return "\n".join(lines) + "\n"


def with_table(text: str, table: str) -> str:
    """The README with this table between its two comments."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def stochastic() -> tuple[inspect.Structure, Tensor]:
    """The whole Fisher matrix of the random network, and the one that the optimizer has collected, by blocks."""
    torch.manual_seed(5)
    top, middle, bottom = UNITS
    layers = [dagfisher.nn.BernoulliLinear(a, b) for a, b in ((middle, bottom), (top, middle))]
    net = nn.ModuleList([*layers, dagfisher.nn.Prior(top)]).double()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=1.0)
    states = torch.tensor(list(itertools.product((0.0, 1.0), repeat=sum(UNITS))), dtype=torch.float64)
    h, g, x = states.split(UNITS, dim=1)

    def log_prob(model: nn.ModuleList) -> Tensor:
        down, up, prior = model
        return down.log_prob(x, g) + up.log_prob(g, h) + prior.log_prob(h)

    with torch.no_grad():
        weights = log_prob(net).exp()
    opt = dagfisher.DAGNaturalGradient(net.parameters(), damping=1.0)
    with dagfisher.sample_weights(weights):
        (weights * log_prob(net)).sum().backward()
    damped = [opt.fisher_blocks(layer.bias if layer is net[-1] else layer.weight) for layer in net]
    blocks = [2 * block - torch.eye(len(block), dtype=block.dtype) for layer in damped for block in layer]
    return inspect.structure(net, log_prob, weights=weights), torch.block_diag(*blocks)


def deterministic() -> Tensor:
    """The Fisher matrix of a network of the same shape whose hidden units are functions: E[JᵀQJ] over its inputs."""
    torch.manual_seed(5)
    top, middle, bottom = UNITS
    net = nn.Sequential(nn.Linear(top, middle), nn.Tanh(), nn.Linear(middle, bottom)).double()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=1.0)
    inputs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=top)), dtype=torch.float64)
    values = {name: value.detach() for name, value in net.named_parameters()}
    jacobian = torch.func.jacrev(lambda given: torch.func.functional_call(net, given, (inputs,)))(values)
    parts = []
    for layer, units in (("2", bottom), ("0", middle)):  # in the order of units, each with its bias last
        both = [jacobian[f"{layer}.weight"].flatten(3), jacobian[f"{layer}.bias"].unsqueeze(-1)]
        parts.append(torch.cat(both, dim=-1).reshape(*both[0].shape[:2], units, -1).flatten(2))
    scores = torch.cat(parts, dim=-1)
    rho = torch.sigmoid(net(inputs)).detach()
    return torch.einsum("no,nop,noq->pq", rho * (1 - rho), scores, scores) / len(inputs)


def draw(runs: Runs, path: Path) -> None:
    """Three matrices above, the curves of one model below."""
    from matplotlib.figure import Figure

    whole, blocks = stochastic()
    figure = Figure(figsize=(10, 8.4), layout="constrained", facecolor="white")
    upper, lower = figure.subfigures(2, 1, height_ratios=[1.06, 1])
    upper.get_layout_engine().set(h_pad=0.09)
    off = float((whole.fisher - blocks).abs().max() / whole.fisher.abs().max())
    panels = (
        (deterministic(), "deterministic hidden units:\nweights of all layers are coupled"),
        (whole.fisher, f"random units: all entries, by a sum over\n{2 ** sum(UNITS):,} states; the zeros are exact"),
        (blocks, f"what dagfisher inverts:\nthe same, to {off:.0e}"),
    )
    for axes, (matrix, title) in zip(upper.subplots(1, 3), panels, strict=True):
        shown = (matrix.abs() / matrix.abs().max()).sqrt()
        axes.imshow(shown.numpy(), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color(FAINT)
        axes.set_title(title, fontsize=10, color=INK)
    upper.suptitle("The Fisher information matrix of a small network", fontweight="bold", color=INK)
    curves(runs, named(CURVES), lower)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def curves(runs: Runs, model: Model, figure: Any) -> None:
    """The figure on test of every method against processor seconds."""
    axes, ends = figure.subplots(), []
    found = outcomes(runs, model, model.seconds)
    for method in reversed([method for method in METHODS if method in found]):  # natural on top
        ends += [end for _, end in plot(axes, found[method])]
    best = max((found[method] for method in found if method != "natural"), key=lambda rival: rival.mean)
    axes.axhline(best.mean, color=GUIDE, linestyle=":", linewidth=1.2)
    first = soonest(shorter(runs, found["natural"]), best)
    if first is not None and first.specs[0].budget < model.seconds:  # what the table says comes from it
        plot(axes, first, f"natural, a training of {first.specs[0].budget:g} s", "--")
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: ("natural" not in labels[i], -i))
    legend = {"loc": "outside lower center", "ncols": 6, "frameon": False, "columnspacing": 1.2}
    figure.legend([handles[i] for i in order], [labels[i] for i in order], **legend)
    axes.set_xlim(0, model.seconds)
    axes.set_ylim(min(ends) - 4, max(ends) + 0.3)
    words = "processor seconds of training, one thread; shaded: the range of three seeds"
    axes.set_xlabel("\n".join(filter(None, [words, below(axes)])), color=INK)
    axes.set_ylabel("test log-likelihood (nats)", color=INK)
    tidy(axes)
    figure.suptitle(f"{ORDER[model.name]}: nothing tuned against tuned rivals", fontweight="bold", color=INK)


def texts(runs: Runs) -> dict[Path, str]:
    """What the README and the include of the front page have to say, by their files."""
    table = rows(runs)
    return {README: with_table(README.read_text(encoding="utf-8"), markdown(table)), TABLE: list_table(table)}


def write(results: Path, pictures: bool = True) -> Iterator[Path]:
    """Write both tables and draw the picture from a file of results; gives the files."""
    runs = Results(results).runs
    for path, text in texts(runs).items():
        path.write_text(text, encoding="utf-8")
        yield path
    if pictures:
        draw(runs, PICTURE)
        yield PICTURE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; say whether the texts agree")
    parser.add_argument("--results", type=Path, default=RESULTS / "equal_seconds.jsonl", help="the file of results")
    arguments = parser.parse_args()
    if arguments.check:
        wanted = texts(Results(arguments.results).runs)
        stale = [path.name for path, text in wanted.items() if path.read_text(encoding="utf-8") != text]
        sys.exit(f"not as the results: {', '.join(stale)}" if stale else 0)
    for path in write(arguments.results):
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
