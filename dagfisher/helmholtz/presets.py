"""Presets: the settings of published rows, as printed, each with its published figure.

The figures are test log-likelihoods with 10,000 importance samples. A *thesis* row is from Várady's "Geometric Learning
of Latent Parameters with Helmholtz Machines" (2025), a *paper* row from "Natural Reweighted Wake-Sleep".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .. import datasets
from .._text import explained, table
from ..errors import SettingError
from .algorithms import algorithm_named
from .settings import FACES, LAYERS, NATURAL_ONLY, PIXELS, Settings

OWN_IMAGES = "your TFD faces"
"""What the list shows for a dataset that is not downloaded."""
FACES_SIDE = 24
"""Of the faces that were published, in pixels."""


@dataclass(frozen=True)
class Preset:
    """The settings of one published result, and its figure."""

    name: str
    settings: Mapping[str, Any]
    """By the names of `Settings`; without ``data`` if the images must be the user's own."""
    published: float
    """The test log-likelihood in nats."""
    source: str
    """Where it is printed."""

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The preset's settings with what is given in place of its own, for `Settings.resolve`.

        With a plain algorithm in place of a natural one, those settings that only natural ones have are left out.
        """
        values = {**self.settings, **given}
        if "data" not in values:
            raise SettingError(
                f"{self.name} is about the Toronto Face Database (TFD), which its authors give out; add --data with "
                f"the path of your images (the page on data of your own has a recipe)."
            )
        unfit = self.left_out(given)
        return {name: value for name, value in values.items() if name not in unfit}

    def left_out(self, given: Mapping[str, Any]) -> list[str]:
        """The names of its settings that an algorithm given in place of its own does not have."""
        if not given.get("algorithm") or algorithm_named(given["algorithm"]).solver is not None:
            return []
        return [name for name in self.settings if name in NATURAL_ONLY and name not in given]

    def unlike(self, settings: Settings, shape: tuple[int, int]) -> list[str]:
        """What a run of these settings, on images of that shape, differs in: names of settings, and the pixels.

        Images of the user's own, of the right shape, are taken for those of the preset.
        """
        side = math.isqrt(PIXELS[self.settings["data"]]) if "data" in self.settings else FACES_SIDE
        names = settings.differences(self.settings)
        if settings.chosen_algorithm.solver is None:  # those of natural algorithms follow from the other algorithm
            names = [name for name in names if name not in NATURAL_ONLY]
        if settings.data not in datasets.NAMES:
            names = [name for name in names if name != "data"]
        return names if shape == (side, side) else [*names, f"pixels ({shape[0]}×{shape[1]}, not {side}×{side})"]


def preset_named(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise SettingError(f"there is no preset {name!r}; `dagfisher presets` lists them.")
    return PRESETS[name]


def listing(part: str = "") -> str:
    """A table of the presets that have that part in their name, data or source, and what its columns say.

    Args:
        part: of a word; capital letters do not matter.
    """
    lines = []
    for preset in PRESETS.values():
        s = preset.settings
        every = s.get("update_every")
        data = f"{s.get('data', OWN_IMAGES)} {s['binarisation']}"
        if not any(part.casefold() in text.casefold() for text in (preset.name, data, preset.source)):
            continue
        rates = [f"{s['lr']:g}", f"{s['damping']:g}" if "damping" in s else "", "" if every is None else f"{every:,}"]
        lines.append(
            [preset.name, data, s["algorithm"], *rates, f"{s['epochs']:,}", f"{preset.published:.2f}", preset.source]
        )
    if not lines:
        raise SettingError(f"no preset has {part!r} in its name, data or source; `dagfisher presets` lists all.")
    heads = ["preset", "data", "algorithm", "rate", "damping", "K", "epochs", "published", "source"]
    columns = {
        "preset": "its name, for dagfisher train --preset NAME",
        "data": "the images and how they become pixels: B rounded, C drawn anew at each step, F drawn once;",
        " ": "TFD is the Toronto Face Database, 24×24, which is not downloaded: add --data with its path",
        "algorithm": "those that `dagfisher algorithms` lists",
        "rate": "the learning rate, constant",
        "damping": "α, of natural algorithms",
        "K": "the minibatches that a Fisher matrix is kept, of natural algorithms",
        "epochs": "as many as the source trained for, or its budget",
        "published": "test log-likelihood in nats, 10,000 samples; higher is better. For yours, after the training:",
        "": "dagfisher evaluate RUN --samples 10000",
        "source": "where it is printed; of bidirectional machines with the figure of p*",
    }
    return f"{table(heads, lines, left=3)}\n\n{explained(columns)}"


_PRINTED: dict[str, Any] = {
    "states": "plus-minus",
    "batch_size": 32,
    "samples": 10,
    "lr_schedule": "constant",
    "momentum": 0.0,
}
"""What all rows share (thesis, Appendix A.2)."""
_KEPT = 1000
"""K, unless a row says otherwise (thesis, Appendix A.2)."""
_FACES = {"layers": FACES, "binarisation": "C"}
_DATA: dict[str, dict[str, Any]] = {
    "mini-mnist-b": {"data": "mini-mnist", "binarisation": "B", "layers": LAYERS["mini-mnist"]},
    "mini-mnist-c": {"data": "mini-mnist", "binarisation": "C", "layers": LAYERS["mini-mnist"]},
    "mnist": {"data": "mnist", "binarisation": "F", "layers": LAYERS["mnist"]},
    "fashion-mnist": {"data": "fashion-mnist", "binarisation": "C", "layers": LAYERS["fashion-mnist"]},
    "faces": _FACES,
}
_TUNED = {"mnist": (0.002, 0.002, 0.2), "fashion-mnist": (0.004, 0.002, 0.1), "faces": (0.002, 0.002, 0.2)}
"""The rate of RWS, the rate of NRWS and its damping (thesis, Tables 5.1 and 5.2)."""
_ACCELERATION: dict[str, dict[str, Any]] = {
    "slow": {},
    "momentum": {"momentum": 0.95},
    "nesterov": {"momentum": 0.95, "nesterov": True},
    "adam": {"momentum": None, "adam": (0.9, 0.999)},
}
_SLOW = 1e-4
"""The rate of all rows of Tables 6.1 and 6.2."""


def _preset(
    source: str,
    data: str,
    algorithm: str,
    rate: float,
    damping: float | None,
    epochs: int,
    published: float,
    **more: Any,
) -> Preset:
    """A row; ``named`` and ``kept`` in `more` are a suffix of its name and K, the rest are settings."""
    suffix, kept = more.pop("named", ""), more.pop("kept", _KEPT)
    settings = {**_PRINTED, **_DATA[data], "algorithm": algorithm, "lr": rate, "epochs": epochs, **more}
    if algorithm_named(algorithm).solver is not None:
        settings.update(damping=damping, update_every=kept, trust_region="none", fisher="wake")
    origin = source.partition(",")[0]
    settings = {name: value for name, value in settings.items() if value is not None}
    return Preset(f"{origin}-{data}-{algorithm}{suffix}", settings, published, source)


def _tuned(source: str, data: str, algorithm: str, epochs: int, published: float, **more: Any) -> Preset:
    """A row with the rate and the damping of Tables 5.1 and 5.2."""
    plain, natural, damping = _TUNED[data]
    rate = plain if algorithm == "rws" else natural
    return _preset(source, data, algorithm, rate, damping, epochs, published, **more)


def _of_chapter_5() -> Iterator[Preset]:
    seeds = "thesis, Appendix D (24 seeds)"
    yield _preset(seeds, "mini-mnist-b", "nrws", 0.002, 0.05, 100, -28.39, named="-100")
    yield _preset(seeds, "mini-mnist-b", "nrws", 0.002, 0.05, 200, -28.20, named="-200")
    for data, rows in {
        "mini-mnist-b": {"ws": (0.04, -29.337), "rws": (0.02, -28.695), "nrws": (0.004, -27.606)},
        "mini-mnist-c": {"ws": (0.02, -38.232), "rws": (0.01, -37.811), "nrws": (0.004, -36.578)},
    }.items():
        for algorithm, (rate, published) in rows.items():
            yield _preset("thesis, Table D.1", data, algorithm, rate, 0.05, 500, published)
    for algorithm, published in {"ws": -90.56, "rws": -87.36, "dnrws": -86.88, "nrws": -84.91}.items():
        kept = 1 if algorithm == "dnrws" else _KEPT
        yield _preset("thesis, Table 5.1", "mnist", algorithm, 0.002, 0.2, 2000, published, kept=kept)
    for data, rws, nrws in (("fashion-mnist", -236.96, -235.65), ("faces", -372.73, -370.05)):
        yield _tuned("thesis, Table 5.2", data, "rws", 2000, rws)
        yield _tuned("thesis, Table 5.2", data, "nrws", 2000, nrws)
    yield _tuned("thesis, Section 5.3.7 (10 seeds)", "faces", "nrws", 1000, -370.0, named="-1000")
    bidirectional = (
        ("5.3", "mnist", 0.001, 0.1, (-87.6, -90.745), (-86.18, -89.21)),
        ("5.4", "fashion-mnist", 0.002, 0.1, (-237.99, -239.41), (-235.95, -237.15)),
        ("5.4", "faces", 0.002, 0.2, (-375.44, -375.54), (-370.24, -370.39)),
    )
    for number, data, rate, damping, *pairs in bidirectional:
        for algorithm, (p, p_star) in zip(("bihm", "nbihm"), pairs, strict=True):
            yield _preset(f"thesis, Table {number}, p* {p_star}", data, algorithm, rate, damping, 2000, p)


def _of_chapter_6() -> Iterator[Preset]:
    accelerated: dict[tuple[str, str, int], tuple[float, ...]] = {
        ("mnist", "rws", 2000): (-97.58, -87.14, -87.25, -86.75),
        ("mnist", "rws", 5000): (-92.83, -86.0, -86.07, -85.65),
        ("mnist", "nrws", 2000): (-90.79, -85.7, -85.47, -86.59),
        ("fashion-mnist", "rws", 2000): (-249.44, -239.05, -238.99, -238.28),
        ("fashion-mnist", "rws", 5000): (-244.85, -237.44, -237.39, -236.66),
        ("fashion-mnist", "nrws", 2000): (-243.1, -236.16, -236.29, -237.33),
        ("faces", "rws", 2000): (-377.77, -373.76, -373.72, -371.51),
        ("faces", "rws", 5000): (-377.24, -372.57, -372.42, -370.89),
        ("faces", "nrws", 2000): (-376.74, -369.7, -369.68, -370.01),
    }
    for (data, algorithm, epochs), figures in accelerated.items():
        source = f"thesis, Table {'6.1' if data == 'mnist' else '6.2'}"
        damping = _TUNED[data][2]
        more: dict[str, Any] = {"layers": (300, 200, 100, 75, 50, 35, 30, 25, 20, 10)} if data == "mnist" else {}
        for (method, settings), published in zip(_ACCELERATION.items(), figures, strict=True):
            named = f"-{method}{_longer(epochs)}"
            yield _preset(
                source, data, algorithm, _SLOW, damping, epochs, published, named=named, **{**more, **settings}
            )
    penalised: dict[tuple[str, str, int], tuple[float, tuple[float, float], tuple[float, float]]] = {
        ("fashion-mnist", "rws", 2000): (-239.39, (1e-5, -239.29), (1e-5, -239.34)),
        ("fashion-mnist", "rws", 5000): (-237.47, (1e-5, -237.61), (1e-5, -237.63)),
        ("fashion-mnist", "nrws", 2000): (-236.49, (1e-5, -236.65), (1e-5, -236.51)),
        ("faces", "rws", 2000): (-373.87, (0.01, -372.89), (0.05, -370.39)),
        ("faces", "rws", 5000): (-372.63, (0.01, -372.9), (0.05, -370.3)),
        ("faces", "nrws", 2000): (-370.32, (0.01, -372.5), (0.1, -370.9)),
    }
    for (data, algorithm, epochs), (plain, *pairs) in penalised.items():
        longer = _longer(epochs)
        yield _tuned("thesis, Table 6.3", data, algorithm, epochs, plain, named=f"-plain{longer}")
        for norm, (strength, published) in zip(("l1", "l2"), pairs, strict=True):
            more = {"named": f"-{norm}{longer}", norm: strength}
            yield _tuned("thesis, Table 6.3", data, algorithm, epochs, published, **more)
    entropy: dict[str, Any] = {"warm_up_epochs": 50.0, "warm_up_shape": "hyperbolic"}
    for data, algorithm, epochs, published in (
        ("fashion-mnist", "rws", 2000, -238.71),
        ("fashion-mnist", "rws", 5000, -237.04),
        ("fashion-mnist", "nrws", 2000, -236.05),
        ("faces", "rws", 2000, -373.18),
        ("faces", "rws", 5000, -371.31),
        ("faces", "nrws", 2000, -369.61),
    ):
        more = {"named": f"-entropy{_longer(epochs)}", "entropy": 2.0, **entropy}
        yield _tuned("thesis, Table 6.4", data, algorithm, epochs, published, **more)
    for data, strength, method, published in (
        ("mnist", 0.5, "nesterov", -84.88),
        ("fashion-mnist", 0.5, "nesterov", -235.43),
        ("faces", 2.0, "momentum", -369.61),
    ):
        more = {"named": "-best", "entropy": strength, **_ACCELERATION[method], **entropy}
        yield _preset("thesis, Table 6.5", data, "nrws", _SLOW, _TUNED[data][2], 2000, published, **more)


def _of_paper() -> Iterator[Preset]:
    for data, rows in {
        "mini-mnist-b": {"ws": (0.02, -29.337), "rws": (0.05, -28.695), "nrws": (0.002, -27.606)},
        "mini-mnist-c": {"ws": (0.02, -38.232), "rws": (0.005, -37.811), "nrws": (0.002, -36.578)},
    }.items():
        for algorithm, (rate, published) in rows.items():
            yield _preset("paper, Table 1", data, algorithm, rate, 0.05, 500, published, kept=100)
    for algorithm, published in {"ws": -89.84, "rws": -86.168, "nrws": -86.138}.items():
        yield _preset("paper, Table 2", "mnist", algorithm, 0.02, 0.1, 2000, published, kept=100)


def _longer(epochs: int) -> str:
    return "" if epochs == 2000 else f"-{epochs}"


PRESETS: dict[str, Preset] = {p.name: p for p in (*_of_chapter_5(), *_of_chapter_6(), *_of_paper())}
"""The presets by name."""
