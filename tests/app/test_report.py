"""A report is one file without a network, whose numbers are those of metrics.csv."""

from __future__ import annotations

import base64
import csv
import html
import io
import json
import re
import shlex
import shutil
import subprocess
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from dagfisher.app import cli
from dagfisher.app.cli import main
from dagfisher.app.markup import strokes, ticks
from dagfisher.app.report import remade, server, traversal
from dagfisher.helmholtz import HelmholtzMachine, Settings
from dagfisher.helmholtz.runs import read_settings
from dagfisher.plots import COLOURS
from dagfisher.probes import LayerProbe, draw_probes, write_probes

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("report")
    threads = torch.get_num_threads()
    for name, algorithm in (("a", "nrws"), ("b", "rws")):
        given = [
            "--data",
            "three-by-three",
            "--layers",
            "6,3",
            "--batch-size",
            "200",
            "--samples",
            "4",
            "--threads",
            "1",
        ]
        given += ["--algorithm", algorithm, "--epochs", "2", "--eval-samples", "5", "--out", str(home / name)]
        assert main(["train", *given]) == 0
    torch.set_num_threads(threads)
    probes = [LayerProbe(0, 9, 0.1, 0.125, 0.125), LayerProbe(1, 6, 0.05, 0.0625, 0.3125)]
    write_probes(probes, home / "a" / "probes.csv")
    draw_probes(probes, home / "a" / "probes.png", title="Linear probes")
    assert main(["report", str(home / "a"), str(home / "b"), "--out", str(home / "report.html")]) == 0
    return home


def written(folder: Path, names: list[str]) -> list[str]:
    """The cells of metrics.csv of a run in these columns, as they are written there."""
    with open(folder / "metrics.csv", encoding="utf-8") as file:
        return [row[name] for row in csv.DictReader(file) for name in names if row[name]]


def test_numbers_are_those_of_metrics_csv(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    tables = re.findall(r"<summary>metrics.csv</summary>.*?</table>", text, flags=re.DOTALL)
    for name, shown in zip("ab", tables, strict=True):
        cells = re.findall('<td><span title="(.*?)">(.*?)</span></td>', shown)
        assert [full for full, _ in cells] == written(folder / name, re.findall("<th>(.*?)</th>", shown))
        assert [float(short) for _, short in cells] == pytest.approx([float(full) for full, _ in cells], rel=1e-5)
        assert shown.count("<tr>") == 3
    assert "0.3125" in text
    picture = base64.b64encode((folder / "a" / "probes.png").read_bytes()).decode()
    assert text.count(picture) == 1


def test_its_commands_make_the_same_run_again(folder: Path) -> None:
    text = html.unescape((folder / "report.html").read_text(encoding="utf-8"))
    for name, command in zip("ab", re.findall("dagfisher (train --out runs/again .*?)<", text), strict=True):
        options = cli._parser().parse_args(shlex.split(command))
        given = {key: value for key, value in vars(options).items() if key in Settings.resolve().as_dict()}
        assert Settings.resolve(**given) == read_settings(folder / name)
        assert len(given) < 15  # what is the default of these data and this algorithm is not said
    unusual = Settings.resolve(adam=True, nesterov=False, baseline=False, layers=(7,), lr_schedule="step:5:0.5")
    options = cli._parser().parse_args(shlex.split(remade(unusual, "again")))
    assert Settings.resolve(**{key: v for key, v in vars(options).items() if key in unusual.as_dict()}) == unusual


def test_methods_have_the_colours_of_all_pictures_and_black_is_the_ink_of_the_page() -> None:
    natural, plain, other = strokes(["nrws", "rws", "nws"])
    assert f'stroke="{COLOURS[0]}"' in natural and f'stroke="{COLOURS[1]}"' in plain
    assert f'stroke="{COLOURS[0]}"' in other and other != natural  # dashes tell them apart
    many = "".join(strokes(["my algorithm"] * 7))
    assert "var(--ink)" in many and "#000000" not in many


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 3, [0, 1, 2, 3]),
        (-34.5, -28.9, [-36, -34, -32, -30, -28]),
        (0.0002, 0.154, [0, 0.05, 0.1, 0.15, 0.2]),
        (0, 122.6, [0, 50, 100, 150]),
        (0.2, 0.2, [0.18, 0.19, 0.2, 0.21, 0.22]),
        (0, 0, [0, 0.25, 0.5, 0.75, 1]),
    ],
)
def test_axes_have_round_numbers_around_the_values(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected


def test_it_is_small_and_asks_for_nothing(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert len(text.encode()) < 5_000_000
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", text)
    assert not re.search(r"url\(|@import|https?://|<script", text)
    assert 'name="viewport"' in text and "prefers-color-scheme: dark" in text


def test_every_picture_is_whole(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    found = dict(re.findall(r'alt="([^"]*)" src="data:image/png;base64,([^"]*)"', text))
    for source in found.values():
        image: Any = Image.open(io.BytesIO(base64.b64decode(source)))
        image.load()
        assert min(image.size) > 10
    moving: Any = Image.open(io.BytesIO(base64.b64decode(found["dreams while it trained"])))
    assert moving.n_frames == 2
    expected = {"dreams now", "reconstructed from layer 2", "top units flipped"}
    assert expected | {"generative.0", "recognition.1", "prior"} <= set(found)  # the eigenvalues of each layer


LOOK = """<script>onload = () => {
  const wide = [...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') &&
    e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80));
  const found = { width: innerWidth, wide, images: document.images.length,
    broken: [...document.images].filter(i => !i.naturalWidth).length,
    asked: performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith('data:')),
    numbers: [...document.querySelectorAll('details span')].map(e => [e.title, e.textContent]),
    paper: getComputedStyle(document.body).backgroundColor };
  parent.postMessage(JSON.stringify(found), '*') }
</script>"""
FRAME = """<!DOCTYPE html><script>onmessage = e => document.body.append(
  Object.assign(document.createElement('output'), { textContent: e.data }))
</script><body><iframe src="look.html" style="width: WIDTHpx; height: 900px; border: 0"></iframe></body>"""
"""A window has at least 500 pixels; a frame inside it may have fewer."""


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize(("width", "scheme", "paper"), [(390, 0, "rgb(22, 24, 28)"), (1280, 1, "rgb(255, 255, 255)")])
def test_in_a_browser(folder: Path, width: int, scheme: int, paper: str) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    (folder / "look.html").write_text(text.replace("</body>", f"{LOOK}</body>"), encoding="utf-8")
    (folder / "frame.html").write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900", "--enable-logging=stderr"]
    flags += [f"--blink-settings=preferredColorScheme={scheme}", f"--user-data-dir={folder}/profile{width}"]
    flags += [
        "--virtual-time-budget=10000",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
    ]
    done = subprocess.run(
        [CHROMIUM, *flags, "--dump-dom", (folder / "frame.html").as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    answer = re.search("<output>(.*)</output>", done.stdout)
    assert answer is not None
    found = json.loads(html.unescape(answer.group(1)))
    assert found["images"] == text.count("<img ") and found["broken"] == 0
    assert found["width"] == width and found["wide"] == []
    assert found["asked"] == []
    assert found["paper"] == paper
    assert "CONSOLE" not in done.stderr
    columns = re.findall("<th>(.*?)</th>", text[text.index("metrics.csv</summary>") :].partition("</thead>")[0])
    numbers = [full for name in "ab" for full in written(folder / name, columns)]
    assert [full for full, _ in found["numbers"]] == numbers
    assert [float(short) for _, short in found["numbers"]] == pytest.approx([float(n) for n in numbers], rel=1e-5)


def test_live_serves_what_is_there_now(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server([folder / "a"]) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        with urllib.request.urlopen(f"http://127.0.0.1:{serving.server_port}/") as answer:
            text = answer.read().decode()
        monkeypatch.setattr("dagfisher.app.report.page", lambda folders, refresh: "another page")
        address = f"http://127.0.0.1:{serving.server_port}/"
        assert urllib.request.urlopen(address).read().decode() == text  # nothing new, nothing done
        (folder / "a" / "metrics.csv").touch()
        assert urllib.request.urlopen(address).read() == b"another page"
        serving.shutdown()
    assert 'http-equiv="refresh"' in text
    assert html.escape(str(folder / "a")) in text


def test_a_traversal_flips_one_top_unit_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    machine, seen = HelmholtzMachine([4, 3, 2], states=(-1, 1)), []
    plain = HelmholtzMachine.sample_from
    monkeypatch.setattr(
        HelmholtzMachine, "sample_from", lambda self, top, **k: seen.append(top[0]) or plain(self, top, **k)
    )
    assert traversal(machine).shape == (3, 4)
    changed = [(row != seen[0]).tolist() for row in seen]
    assert changed == [[False, False], [True, False], [False, True]]
    assert all(set(row.tolist()) <= {-1.0, 1.0} for row in seen)


def test_folders_without_a_run_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "is a run folder" in capsys.readouterr().err
