"""The algorithms, each an objective and an optimizer, and the settings that they default to."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import SettingError


@dataclass(frozen=True)
class Algorithm:
    """An objective (two words) and the settings that suit it; natural ones add DAGNaturalGradient."""

    name: str
    summary: str
    weights: str
    """Of the samples in the generative update: "uniform", "importance" (p/q) or "root" (√(p/q))."""
    recognition: str
    """"sleep", "wake", "both" (half of each) or "reinforce"."""
    lr: float
    solver: str | None = None
    """Of DAGNaturalGradient; None: plain gradients."""
    damping: float = 0.2
    """Where it starts; it is adapted."""
    update_every: int = 100

    @property
    def sleeps(self) -> bool:
        """Whether dreams teach the recognition network."""
        return self.recognition in ("sleep", "both")


_TABLE = (
    Algorithm("ws", "wake-sleep: p from samples of q, q from dreams", "uniform", "sleep", 0.05),
    Algorithm(
        "rws",
        "reweighted wake-sleep: importance weights; q from dreams and weighted samples",
        "importance",
        "both",
        0.2,
    ),
    Algorithm("bihm", "bidirectional: weights √(p/q) for both networks, no dreams", "root", "wake", 0.1),
    Algorithm(
        "reinforce", "evidence bound; q by REINFORCE with a leave-one-out baseline", "uniform", "reinforce", 0.02
    ),
    Algorithm("nws", "natural wake-sleep", "uniform", "sleep", 0.05, "auto"),
    Algorithm("nrws", "natural reweighted wake-sleep", "importance", "both", 0.1, "auto"),
    Algorithm(
        "dnrws", "natural reweighted wake-sleep with diagonal Fisher blocks", "importance", "both", 0.05, "diagonal"
    ),
    Algorithm("nbihm", "natural bidirectional machine", "root", "wake", 0.1, "auto"),
)
ALGORITHMS: dict[str, Algorithm] = {algorithm.name: algorithm for algorithm in _TABLE}


def algorithm_named(name: str) -> Algorithm:
    """The algorithm of that name."""
    if name.lower() not in ALGORITHMS:
        raise SettingError(f"unknown algorithm {name!r}; choose one of {', '.join(ALGORITHMS)}.")
    return ALGORITHMS[name.lower()]
