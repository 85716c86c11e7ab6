"""Tables of the documentation are those of the result files, and no figure is quoted without a source."""

from __future__ import annotations

import ast
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
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.rst"))]
INCLUDES = sorted((ROOT / "docs" / "results").glob("*.inc"))
FIGURE = re.compile(r"−(?:\d[\d,]*\.\d+|\d[\d,]*\d)|(?<=\s)-\d+\.\d+")
"""A log-likelihood as pages have it: with a decimal point, or of two digits or more (−1 is a state of a unit)."""
NUMBER = re.compile(r"(?<![\w.])[−-]((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)")


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
        assert all((ROOT / path).exists() for path in benchmark.code), benchmark.name
    assert all((ROOT / path).exists() for path in registry.UNRELATED)


def test_a_benchmark_counts_the_parts_that_it_runs(registry: ModuleType) -> None:
    printing = {"clipped", "extras", "tables", "solvers_plot"}
    folder = ROOT / "benchmarks"
    for benchmark in registry.BENCHMARKS:
        for node in ast.walk(ast.parse(benchmark.script.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or [name.name for name in node.names] == ["facts"]:
                continue
            part = str(node.module).partition(".")[0]
            path = folder / part if (folder / part).is_dir() else folder / f"{part}.py"
            if path.exists() and part not in printing and not part.endswith("_report"):
                assert path.relative_to(ROOT).as_posix() in benchmark.code, (benchmark.name, part)


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
    assert "* - mini-b-ours\n     - miniMNIST B, our settings" in empty["published.inc"]
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


def test_a_report_of_one_benchmark_leaves_the_others_and_that_of_equal_seconds_has_the_front_pages(
    report: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import front_page

    (tmp_path / "other.inc").touch()
    (tmp_path / "README.md").write_text(f"above\n{front_page.BEGIN}\nold\n{front_page.END}\nbelow")
    monkeypatch.setattr(front_page, "README", tmp_path / "README.md")
    monkeypatch.setattr(front_page, "TABLE", tmp_path / "front_table.inc")
    files = [path.name for path in report.write(pictures=False, folder=tmp_path, names=["soak", "equal_seconds"])]
    assert files == ["equal_seconds.inc", "equal_seconds-2.inc", "README.md", "front_table.inc", "soak.inc"]
    assert (tmp_path / "other.inc").exists()
    written = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert written.startswith("above") and written.endswith("below") and "| best tuned rival |" in written


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
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert all(path.exists() for path in included(page)), page.name
        for name in re.findall(r"benchmarks/results/([\w.]+)", text):
            assert (RESULTS / name.rstrip(".")).exists(), (page.name, name)


def test_every_generated_table_is_on_a_page() -> None:
    assert {path.name for page in PAGES for path in included(page)} >= {path.name for path in INCLUDES}


def included(page: Path) -> list[Path]:
    """The tables and recorded outputs that a page includes; the README's own table is that of the front page."""
    if page == README:
        return [ROOT / "docs" / "front_table.inc"]
    names = re.findall(
        r"^\.\. (?:literal)?include:: (\S+\.(?:inc|txt))$", page.read_text(encoding="utf-8"), re.MULTILINE
    )
    return [(page.parent / name).resolve() for name in names]


def equal(figure: str, number: str) -> bool:
    """The figure is the number, with as many digits or fewer."""
    digits = len(figure.partition(".")[2])
    plain = number.replace(",", "")
    return len(plain.partition(".")[2]) >= digits and f"{float(plain):.{digits}f}" == figure[1:].replace(",", "")


def holds(text: str, figure: str) -> bool:
    """One of the negative numbers in a text is this figure."""
    return any(equal(figure, number) for number in NUMBER.findall(text))


def supports(source: str, figure: str) -> bool:
    """The figure is really in its source.

    A source is the name of a generated table or of a recorded output; or a file of results, a colon, and words that all
    stand in the line of the run; or `published:` and the name of a preset, or where it is printed if there is none.
    """
    kind, _, words = source.partition(": ")
    if kind == "published" and words in PRESETS:
        return equal(figure, f"{-PRESETS[words].published:.3f}")
    if kind == "published":
        return words.startswith(("thesis, ", "paper, ", "literature, "))
    path = ROOT / kind
    if not path.is_file():
        return False
    text = path.read_text(encoding="utf-8")
    if path in INCLUDES or path.suffix == ".txt":
        return not words and holds(text, figure)
    runs = [line for line in text.splitlines() if all(word in line for word in words.split())]
    return path.parent == RESULTS and bool(words) and holds("\n".join(runs).replace(",", ", "), figure)


def test_every_log_likelihood_on_a_page_has_a_result_or_a_source() -> None:
    """It is in a table or recorded output that its page includes, or else in quoted.csv with a source that has it."""
    with (ROOT / "docs" / "results" / "quoted.csv").open(encoding="utf-8", newline="") as file:
        lines = [(row["page"], row["figure"], row["source"]) for row in csv.DictReader(file)]
    quoted = {(page, figure) for page, figure, _ in lines}
    there, missing = set(), set()
    for page in PAGES:
        tables = "\n".join(path.read_text(encoding="utf-8") for path in included(page))
        for figure in FIGURE.findall(page.read_text(encoding="utf-8")):
            key = page.relative_to(ROOT).as_posix(), figure
            there.add(key)
            if key not in quoted and not holds(tables, figure):
                missing.add(key)
    unsupported = [line for line in lines if not supports(line[2], line[1])]
    assert not unsupported, "the sources of these lines of quoted.csv do not have the figures"
    assert not quoted - there, "no page has these figures of quoted.csv"
    assert not missing, "lines 'page,figure,source' are missing in docs/results/quoted.csv"


def test_a_source_has_the_figure_or_does_not_count() -> None:
    assert supports("docs/results/lateral.inc", "−28.51") and supports("docs/results/lateral.inc", "−28.5")
    assert not supports("docs/results/lateral.inc", "−55.2") and not supports("docs/results/none.inc", "−28.51")
    assert supports('benchmarks/results/visible_fisher.jsonl: "joint" 0.03', "−35.44")
    assert not supports('benchmarks/results/visible_fisher.jsonl: "visible"', "−35.44")
    assert not supports("benchmarks/results/visible_fisher.jsonl", "−35.44")
    assert not supports("benchmarks/lateral.py", "−1") and not supports("benchmarks/lateral.py: seed", "−1")
    assert supports("published: thesis-mnist-nrws", "−84.91") and not supports("published: thesis-mnist-nrws", "−84.92")
    assert supports("published: thesis, Table 5.1", "−89.5") and not supports("published: somewhere", "−89.5")
    assert FIGURE.findall("−495 ± 48, −1,970, (−28.51), x ∈ {−1, 1}\n  -3.5 j-2.5") == [
        "−495",
        "−1,970",
        "−28.51",
        "-3.5",
    ]
    assert holds("- −1,969.94 ± 3", "−1,970") and not holds("100-50-20 of 2026-11-18", "−50")


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
    commit("results.jsonl", '{"commit": "abcdef0"}')
    found = report.state(results, ["code.py"], root=tmp_path)
    assert (
        found.stale
        and found.commit is None
        and "Measured at commit abcdef0, not in this history." in report.mark(found)
    )
    commit("results.jsonl", f'{{"commit": "abcdef0"}}\n{{"commit": "{first}"}}')
    found = report.state(results, ["code.py"], root=tmp_path)
    assert found.commit == first and str(found).endswith("some of it measured at abcdef0, not in this history")
    commit("results.jsonl", "{}")
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
