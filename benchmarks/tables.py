"""The tables of each benchmark as rows, made from its file of results; `report` writes them for the documentation."""

from __future__ import annotations

import importlib
import itertools
import json
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from registry import named


@dataclass(frozen=True)
class Table:
    """Heads and rows of text, and what is said above it; tables with a title are on the same page as the one before."""

    heads: list[str]
    rows: list[list[str]]
    title: str = ""

    def rst(self) -> str:
        """As a list-table, with minus signs where a number is negative."""
        lines = [f".. rubric:: {self.title}", ""] if self.title else []
        lines += [".. list-table::", "   :header-rows: 1", ""]
        for row in [self.heads, *self.rows]:
            cells = [re.sub(r"(?<![\w.])-(?=\d)", "−", cell) for cell in row]
            lines += [f"   {'* -' if i == 0 else '  -'} {cell}".rstrip() for i, cell in enumerate(cells)]
        return "\n".join(lines)


def parsed(text: str) -> list[Table]:
    """The tables in a text, in columns under a rule of `dagfisher.app.table` or between bars."""
    found = []
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        rules = [i for i, line in enumerate(lines) if re.match(r"^[─|-][─ |-]*$", line)]
        if not rules or rules[0] == 0:
            continue
        rule = rules[0]
        if lines[rule].startswith("|"):
            cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        else:
            spans = [match.span() for match in re.finditer("─+", lines[rule])]
            cells = [[line[start:end].strip() for start, end in spans] for line in lines]
        found.append(Table(cells[rule - 1], cells[rule + 1 :]))
    return found


def in_print(texts: dict[str, str]) -> str:
    """Several tables, each under its title if it has one, as a script prints them."""
    return "\n\n".join(f"{title}\n{text}" if title else text for title, text in texts.items())


def _titled(texts: dict[str, str]) -> list[Table]:
    """The tables in several texts, each under the title of its text."""
    return [replace(found, title=title) for title, text in texts.items() for found in parsed(text)]


def short(number: float) -> str:
    """Three digits, or the whole number where it has more."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _data(name: str) -> Any:
    return json.loads(named(name).path.read_text())


def _runs(name: str) -> list[Table]:
    """Of the scripts whose results are runs in one JSON file."""
    module = importlib.import_module(name)
    return parsed(module.show(module.Results(named(name).path, _data(name)["settings"])))


def _lines(name: str) -> list[Table]:
    """Of the scripts whose results are JSON lines."""
    lines = named(name).path.read_text().splitlines()
    return parsed(importlib.import_module(name).show([json.loads(line) for line in lines]))


def _whole(name: str, function: str) -> list[Table]:
    return parsed(getattr(importlib.import_module(name), function)(_data(name)))


def _equal_seconds() -> list[Table]:
    script, report = (importlib.import_module(name) for name in ("equal_seconds", "equal_seconds_report"))
    results = script.Results(named("equal_seconds").path)
    return parsed(report.tables(results.runs, script.MODELS, script.Plan().seconds))


def _peers() -> list[Table]:
    script, report = (importlib.import_module(name) for name in ("peers", "peers_report"))
    models = [script.named(name) for name in script.SECONDS]
    return _titled(report.tables(script.Results(named("peers").path).runs, models))


def _published() -> list[Table]:
    script, report = (importlib.import_module(name) for name in ("published", "published_report"))
    return _titled(report.tables(script.read(named("published").path)))


def _mini_mnist() -> list[Table]:
    module = importlib.import_module("mini_mnist")
    results = module.Results(named("mini_mnist").path, {})
    heads, rows = ["algorithm", "best rate", "epoch 5", "epoch 10", "epoch 20", "seconds"], []
    for name in module.CONTENDERS:
        runs = results.final(name)
        values = {epoch: [run["rows"][epoch - 1]["log_p"] for run in runs] for epoch in (5, 10, 20)}
        means = [f"{statistics.fmean(values[epoch]):.2f}" for epoch in values]
        means[-1] += f" ± {statistics.stdev(values[20]):.2f}"
        seconds = statistics.median(run["rows"][-1]["seconds"] for run in runs)
        rows.append([name, f"{runs[0]['lr']:g}", *means, f"{seconds:.0f}"])
    fewer = results.shorter()
    ends = [
        [f"{run['seed']}", f"{fewer}", f"{run['rows'][-1]['seconds']:.0f}", f"{run['rows'][-1]['log_p']:.2f}"]
        for run in results.final("NRWS", fewer)
    ]
    mean = statistics.fmean(run["rows"][-1]["log_p"] for run in results.final("NRWS", fewer))
    ends = [*ends, ["mean", f"{fewer}", "", f"{mean:.2f}"]]
    return [Table(heads, rows), Table(["NRWS, seed", "epochs", "seconds", "log-likelihood"], ends)]


def _solvers() -> list[Table]:
    rows = [
        [
            row["solver"],
            *(short(row[name]) for name in ("fresh_ms", "reused_ms")),
            short(row["kept_bytes"] / 1e6),
            f"{row['error']:.0e}",
        ]
        for row in _data("solvers")["trained_layer"]
    ]
    return [Table(["solver", "fresh, ms", "reused, ms", "kept, MB", "relative error"], rows)]


def _by_threads(name: str, show: Callable[[list[dict[str, Any]]], list[Table]]) -> list[Table]:
    """One table for each number of threads, of files that keep them apart or have only one."""
    data = _data(name)
    parts = {str(data["threads"]): data} if "rows" in data else data
    tables = []
    for threads, part in sorted(parts.items()):
        for table in show(part["rows"]):
            first = f"{threads} thread" + ("" if threads == "1" else "s")
            tables.append(Table([table.heads[0] or first, *table.heads[1:]], table.rows))
    return tables


def _step_ratio() -> list[Table]:
    show = importlib.import_module("step_ratio").show
    return _by_threads("step_ratio", lambda rows: parsed(show(rows)))


def _vae_step() -> list[Table]:
    heads = ["", "natural, ms", "plain, ms", "ratio", "must", "aim"]

    def show(rows: list[dict[str, Any]]) -> list[Table]:
        numbers = [[short(row[c]) for c in ("natural_ms", "plain_ms", "ratio", "must", "aim")] for row in rows]
        return [Table(heads, [[row["name"], *cells] for row, cells in zip(rows, numbers, strict=True)])]

    return _by_threads("vae_step", show)


def _convolution() -> list[Table]:
    data = _data("convolution")
    rows = []
    for bottom, steps in itertools.groupby(data["steps"], key=lambda row: row["bottom"]):
        own = {row["algorithm"]: row for row in steps}
        ratios = [f"{own[f'NRWS K={k}']['ratio']:.2f}" for k in (1000, 100, 1)]
        rows.append([bottom, f"{own['RWS']['ms']:.0f}", *ratios])
    heads = ["bottom layers", "RWS, ms", "NRWS / RWS, K = 1000", "K = 100", "K = 1"]
    memory = [["48×48 pixels, 300 units above", f"{data['peak_bytes'] / 1e9:.2f}"]]
    return [Table(heads, rows), Table(["dense machine", "resident memory, GB"], memory)]


def _soak() -> list[Table]:
    data = _data("soak")
    first, last = (point[1] / 1e6 for point in (data["memory"][0], data["memory"][-1]))
    row = [f"{data['steps']:,}", f"{first:.0f} to {last:.0f}", f"{data['bytes_per_step']:.0f}", f"{data['drift']:.1%}"]
    return [Table(["steps", "resident memory, MB", "bytes a step", "drift of auto from dense"], [row])]


def _cluster_model() -> list[Table]:
    module, data = importlib.import_module("cluster_model"), _data("cluster_model")
    return parsed(f"{module.shown(data['check'])}\n\n{module.shown(data['estimates'])}")


TABLES: dict[str, Callable[[], list[Table]]] = {
    "equal_seconds": _equal_seconds,
    "peers": _peers,
    "published": _published,
    "mini_mnist": _mini_mnist,
    **{name: lambda name=name: _runs(name) for name in ("ablation", "lateral")},  # type: ignore[misc]
    **{
        name: lambda name=name: _lines(name)  # type: ignore[misc]
        for name in ("visible_fisher", "importance", "search", "second_moment")
    },
    "prototypes": lambda: _whole("prototypes", "show"),
    "solvers": _solvers,
    "step_ratio": _step_ratio,
    "vae_step": _vae_step,
    "convolution": _convolution,
    "dag": lambda: _whole("dag", "tables"),
    "distributed": lambda: _whole("distributed", "table"),
    "cluster_model": _cluster_model,
    "soak": _soak,
}
"""By benchmark; each gives the tables of its file of results, which must be there but for those that begin empty."""
