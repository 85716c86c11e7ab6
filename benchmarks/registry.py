"""One line for each benchmark: what it shows, what it costs, where its results are and which code they measure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
_OPTIMIZER = tuple(
    f"dagfisher/{room}"
    for room in (
        *("families", "maps", "nn", "capture", "fisher", "solvers", "optim"),
        *("declaration.py", "declare.py", "rules.py", "_draws.py", "_processes.py", "_reading.py", "_torch.py"),
    )
)
_DATA = "dagfisher/datasets"
_MACHINES = (*_OPTIMIZER, "dagfisher/helmholtz", _DATA)
_MODELS = "benchmarks/models"
_TIMED = (_MODELS, "benchmarks/rivals.py", "benchmarks/timed_run.py")
UNRELATED = frozenset(
    f"dagfisher/{name}.py"
    for name in (
        *("optim/checkpoint", "optim/examples", "optim/joining", "optim/saving", "optim/shown"),
        *("helmholtz/completion", "helmholtz/folders", "helmholtz/metrics", "helmholtz/pictures", "helmholtz/presets"),
        *("helmholtz/runs", "helmholtz/shown", "helmholtz/untrained", "helmholtz/visible"),
        *("datasets/build_mini_mnist", "datasets/download", "datasets/errors", "datasets/png"),
    )
)
"""Files of these folders that save, list or show: no figure depends on them, but for benchmarks that name them."""


@dataclass(frozen=True)
class Benchmark:
    """One script.

    Args:
        name: of the script.
        shows: in a line.
        minutes: of one core, about.
        results: files in benchmarks/results; the first has the numbers.
        measures: the files and folders that the script runs, from the root of the repository. Later changes of them, or
            of the script, make the results stale. What prints or draws does not count.
        resumes: the same command goes on where it stopped; the others take minutes and start again.
        begins_empty: its tables begin with what has been run, which can be told before there is any result.
    """

    name: str
    shows: str
    minutes: float
    results: tuple[str, ...]
    measures: tuple[str, ...] = _OPTIMIZER
    resumes: bool = True
    begins_empty: bool = False

    @property
    def script(self) -> Path:
        """What `python` runs."""
        return ROOT / "benchmarks" / f"{self.name}.py"

    @property
    def code(self) -> tuple[str, ...]:
        """The files and folders that the results are of: the script, and what it runs."""
        return (self.script.relative_to(ROOT).as_posix(), *self.measures)

    @property
    def path(self) -> Path:
        """The file of the numbers."""
        return RESULTS / self.results[0]


BENCHMARKS = (
    Benchmark(
        "equal_seconds",
        "natural gradients as they come against tuned SGD, Adam, SOAP and Muon after equal seconds",
        240,
        ("equal_seconds.jsonl", "equal_seconds.png"),
        (*_MACHINES, *_TIMED),
    ),
    Benchmark(
        "peers",
        "fifteen optimizers on the same networks and gradients, each at its best of a grid of equal size",
        120,
        ("peers.jsonl", "peers.png"),
        (*_MACHINES, *_TIMED, "benchmarks/equal_seconds.py", "benchmarks/peer_learners.py"),
        begins_empty=True,
    ),
    Benchmark(
        "published",
        "the experiments of the thesis and the paper, with the published figure beside each",
        6000,
        ("published.jsonl", "published.png"),
        (*_MACHINES, "benchmarks/published_jobs.py", "benchmarks/published_machines.py"),
        begins_empty=True,
    ),
    Benchmark(
        "mini_mnist",
        "WS, RWS, BiHM and their natural forms on miniMNIST, against epochs and seconds",
        120,
        ("mini_mnist.json", "mini_mnist.png"),
        _MACHINES,
    ),
    Benchmark(
        "ablation",
        "what momentum, regularisers, sleep variants and others are worth for NRWS on miniMNIST",
        300,
        ("ablation.json",),
        (*_MACHINES, "benchmarks/mini_mnist.py"),
    ),
    Benchmark(
        "lateral",
        "what connections inside layers are worth on miniMNIST",
        15,
        ("lateral.json",),
        (*_MACHINES, "benchmarks/mini_mnist.py"),
    ),
    Benchmark(
        "visible_fisher",
        "NRWS with the Fisher of p(x) in place of that of p(x, h)",
        10,
        ("visible_fisher.jsonl",),
        (*_MACHINES, "dagfisher/helmholtz/visible.py"),
    ),
    Benchmark(
        "importance",
        "what drawing examples by their norms saves",
        6,
        ("importance.jsonl",),
        (*_OPTIMIZER, _DATA, "dagfisher/optim/examples.py", "dagfisher/importance.py"),
    ),
    Benchmark(
        "second_moment",
        "Adam's second moments in the Fisher metric",
        17,
        ("second_moment.jsonl",),
        (*_MACHINES, *_TIMED),
    ),
    Benchmark(
        "prototypes",
        "figures of the first prototypes, measured again",
        1,
        ("prototypes.json",),
        (*_OPTIMIZER, _DATA),
        resumes=False,
    ),
    Benchmark(
        "search",
        "black-box search against CMA-ES and UMDA",
        30,
        ("search.jsonl", "search.png"),
        (*_OPTIMIZER, "dagfisher/search"),
    ),
    Benchmark(
        "solvers",
        "time, memory and error of each solver beside the textbook",
        10,
        ("solvers.json", "solvers.png"),
        (*_MACHINES, "benchmarks/textbook.py", "benchmarks/trained_layer.py"),
        resumes=False,
    ),
    Benchmark(
        "step_ratio",
        "a whole step of NRWS in steps of RWS",
        4,
        ("step_ratio.json",),
        (*_MACHINES, _MODELS),
        resumes=False,
    ),
    Benchmark(
        "vae_step",
        "a whole natural step of VAEs in steps of Adam",
        8,
        ("vae_step.json",),
        (*_MACHINES, _MODELS),
        resumes=False,
    ),
    Benchmark(
        "convolution",
        "natural steps and memory of convolutional machines",
        2,
        ("convolution.json",),
        _MACHINES,
        resumes=False,
    ),
    Benchmark(
        "dag", "masked and coupled blocks beside dense ones", 3, ("dag.json",), (*_OPTIMIZER, _DATA), resumes=False
    ),
    Benchmark(
        "distributed",
        "what several processes gain on the MNIST network",
        2,
        ("distributed.json",),
        _MACHINES,
        resumes=False,
    ),
    Benchmark(
        "cluster_model",
        "traffic and time of any cluster by formulas",
        0.1,
        ("cluster_model.json",),
        ("dagfisher/fisher", "dagfisher/solvers", "dagfisher/optim/spread.py", "benchmarks/distributed.py"),
        resumes=False,
    ),
    Benchmark("soak", "memory and drift over 100,000 steps", 10, ("soak.json",), resumes=False),
)
PARTS = (
    *("textbook", "trained_layer", "solvers_plot", "rivals", "timed_run", "equal_seconds_report", "front_page"),
    *("peer_learners", "peers_report", "published_jobs", "published_machines", "published_report"),
    *("clipped", "extras", "registry", "report", "stale", "tables"),
)
"""Files of this folder that are parts of others."""


def named(name: str) -> Benchmark:
    """The benchmark of that name."""
    return next(benchmark for benchmark in BENCHMARKS if benchmark.name == name)
