"""Tables of the documentation are those of the result files, and no figure is quoted without a source."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dagfisher.helmholtz import PRESETS

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.rst"))]
INCLUDES = sorted((ROOT / "docs" / "results").glob("*.inc"))
OUTPUTS = sorted((ROOT / "docs" / "gallery").glob("*.txt"))
FIGURE = re.compile(r"−\d+\.\d+")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import registry

    return registry


@pytest.fixture
def report(registry: ModuleType) -> ModuleType:
    import report

    return report


def test_every_script_is_in_the_registry_and_every_result_belongs_to_one(registry: ModuleType) -> None:
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if not path.stem.startswith("_")}
    names = [benchmark.name for benchmark in registry.BENCHMARKS]
    assert sorted(scripts) == sorted([*names, *registry.PARTS])
    known = {file for benchmark in registry.BENCHMARKS for file in benchmark.results}
    assert {path.name for path in RESULTS.iterdir()} <= {*known, "conv_helmholtz.png"}  # the last is of an example
    for benchmark in registry.BENCHMARKS:
        assert all((ROOT / path).exists() for path in benchmark.measures), benchmark.name
    assert all((ROOT / path).exists() for path in registry.UNRELATED)


def test_the_includes_are_what_the_results_say(report: ModuleType) -> None:
    written = {path.name: report.unmarked(path.read_text(encoding="utf-8")) for path in INCLUDES}
    fresh = {name: text for each in report.shown() for name, text in report.includes(each).items()}
    assert written.keys() == fresh.keys()
    for name, text in fresh.items():
        assert written[name] == text, f"{name} is not current: run python -m benchmarks report"


def test_pages_that_begin_empty_say_what_has_been_run_and_take_each_result_as_it_comes(
    registry: ModuleType, report: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(report, "ROOT", tmp_path)
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "peers-of-old.inc").write_text("a table that no benchmark makes any more")

    def written() -> dict[str, str]:
        return {path.name: path.read_text(encoding="utf-8") for path in report.write(pictures=False, folder=pages)}

    empty = written()
    assert empty.keys() == {path.name for path in pages.iterdir()} == {"published.inc", "peers.inc"}
    assert "* - mini-b-ours\n     - miniMNIST B, our defaults" in empty["published.inc"]
    assert "- 0 of 9" in empty["published.inc"] and "- 0 of 14" in empty["peers.inc"]
    assert not any(
        "image::" in text or report.MARK in text or "−" in text for text in empty.values() if "peers" in text
    )

    (tmp_path / "results").mkdir()
    row = {"epoch": 1, "seconds": 1.0, "train": -30.0, "log_p": -29.5, "weights": 3.0, "gradients": 1.0}
    record = {"experiment": "sleep", "row": "sleep-well 3", "seed": 1, "name": "a", "epochs": 1, "seconds": 1.0}
    record |= {"published": None, "rows": [row]}
    (tmp_path / "results" / "published.jsonl").write_text(json.dumps(record) + "\n")
    (tmp_path / "results" / "published.png").touch()
    found = written()
    assert found.keys() == empty.keys()
    assert (
        "- 1 of 15" in found["published.inc"] and ".. rubric:: sleep: sleep-well 1, 3, 5, 10" in found["published.inc"]
    )
    assert "- sleep-well 3\n" in found["published.inc"] and "- −29.50\n" in found["published.inc"]
    assert ".. image:: ../results/published.png" in found["published.inc"]
    assert found["peers.inc"] == empty["peers.inc"]


def test_what_is_missing_is_one_sentence(registry: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import extras
    import peers

    # Whether the others are installed here must not matter.
    there = importlib.util.find_spec("torch")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("cma", "pyro") else there)
    extras.need(["matplotlib"])
    with pytest.raises(SystemExit, match=r"^this needs cma and pyro-ppl: pip install 'dagfisher\[benchmarks\]'$"):
        extras.need(["matplotlib", "cma", "pyro"])
    monkeypatch.setattr(
        sys, "argv", ["peers.py", "--minutes", "0", "--models", "mini-machine", "--out", str(tmp_path / "a.jsonl")]
    )
    with pytest.raises(SystemExit, match=r"^this needs pyro-ppl: pip"):
        peers.main()
    command = [
        sys.executable,
        "-S",
        "-c",
        "import sys; sys.path[:0] = ['benchmarks']; import extras; extras.need(['cma'])",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 1 and done.stderr.strip() == "this needs cma: pip install 'dagfisher[benchmarks]'"


def test_pages_include_tables_and_pictures_that_there_are() -> None:
    found = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"^\.\. include:: (\S+\.inc)", text, flags=re.MULTILINE):
            assert (page.parent / name).exists(), (page.name, name)
            found += 1
        for name in re.findall(r"benchmarks/results/([\w.]+)", text):
            assert (RESULTS / name.rstrip(".")).exists(), (page.name, name)
    assert found


def equal(figure: str, other: str) -> bool:
    """The figure is the other one, with as many digits or fewer."""
    digits = len(figure.partition(".")[2])
    return len(other.partition(".")[2]) >= digits and f"{float(other[1:]):.{digits}f}" == figure[1:]


def test_every_log_likelihood_on_a_page_has_a_result_or_a_source() -> None:
    """A figure is in a generated table, printed by an example, published, or in quoted.csv, which has no others."""
    tables = "\n".join(path.read_text(encoding="utf-8") for path in INCLUDES)
    tables += "\n".join(path.read_text(encoding="utf-8").replace("-", "−") for path in OUTPUTS)
    known = {*FIGURE.findall(tables), *(f"−{-preset.published:.3f}" for preset in PRESETS.values())}
    with (ROOT / "docs" / "results" / "quoted.csv").open(encoding="utf-8", newline="") as file:
        quoted = {(row["page"], row["figure"]): row["source"] for row in csv.DictReader(file)}
    missing, used = [], set()
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        for figure in FIGURE.findall(page.read_text(encoding="utf-8")):
            if any(equal(figure, other) for other in known):
                continue
            (used.add if (name, figure) in quoted else missing.append)((name, figure))
    assert not missing, "add the table with a result file, or a line with its source in docs/results/quoted.csv"
    assert used == quoted.keys()
    for source in quoted.values():
        assert source.startswith(("thesis", "paper", "literature")) or (ROOT / source).exists(), source


def test_a_table_in_columns_or_bars_is_read_back(registry: ModuleType) -> None:
    import tables

    from dagfisher.app import table

    rows = [["a b", "", "-1.5 ± 0.2"], ["c", "2", ""]]
    text = f"title\n{table(['', 'x y', 'long head'], rows)}\n\nwords\n\n| p | q |\n|---|---|\n| 1 | - |"
    first, second = tables.parsed(text)
    assert (first.heads, first.rows) == (["", "x y", "long head"], rows)
    assert (second.heads, second.rows) == (["p", "q"], [["1", "-"]])
    assert "     - −1.5 ± 0.2" in first.rst()


def test_results_are_stale_when_their_code_does_something_else_or_they_are_old(
    report: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*command: str) -> str:
        who = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        whole = ["git", "-C", str(tmp_path), *command]
        done = subprocess.run(whole, check=True, capture_output=True, text=True, env={**os.environ, **who})
        return done.stdout.strip()

    def commit(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        git("add", name)
        git("commit", "-q", "-m", name)
        return git("rev-parse", "--short", "HEAD")

    git("init", "-q")
    first = commit("code.py", "1")
    results = tmp_path / "results.jsonl"
    commit("results.jsonl", "{}")
    assert not report.state(results, ["code.py"], root=tmp_path).stale
    assert report.state(results, ["code.py"], age=-1, root=tmp_path).old
    commit("other.py", "1")
    assert not report.state(results, ["code.py"], root=tmp_path).stale
    commit("code.py", "'What it does.'\n1  # one")
    assert not report.state(results, ["code.py"], root=tmp_path).stale
    commit("code.py", "2")
    found = report.state(results, ["code.py"], root=tmp_path)
    assert found.stale and found.changed == ("code.py",) and "1 file of its code changed since" in report.mark(found)
    commit("code.py", "1")
    assert not report.state(results, ["code.py"], root=tmp_path).stale
    commit("code.py", "2")
    commit("results.jsonl", f'{{"on": {{"commit": "{first}+"}}}}')
    assert report.state(results, ["code.py"], root=tmp_path).commit == first
    commit("results.jsonl", "{}")
    assert not report.state(results, ["code.py"], root=tmp_path).stale
    (tmp_path / "room").mkdir()
    monkeypatch.setattr("stale.UNRELATED", {"room/shown.py"})
    commit("room/shown.py", "1")
    assert not report.state(results, ["room"], root=tmp_path).stale
    assert report.state(results, ["room", "room/shown.py"], root=tmp_path).changed == ("room/shown.py",)


def test_the_benchmarks_are_listed_and_run_with_their_own_arguments() -> None:
    def call(*arguments: str) -> str:
        command = [sys.executable, "-m", "benchmarks", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "natural gradients as they come" in call("list")
    direct = [sys.executable, str(ROOT / "benchmarks" / "lateral.py"), "--table"]
    assert call("run", "lateral", "--table") == subprocess.run(direct, capture_output=True, text=True).stdout
