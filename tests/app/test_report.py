"""A report is one file without a network, whose numbers are those of metrics.csv."""

from __future__ import annotations

import base64
import csv
import html
import io
import re
import shutil
import subprocess
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from dagfisher.app.cli import main
from dagfisher.app.report import server, traversal
from dagfisher.helmholtz import HelmholtzMachine
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


def test_numbers_are_those_of_metrics_csv(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    tables = re.findall(r"<summary>metrics.csv</summary>.*?</table>", text, flags=re.DOTALL)
    for name, shown in zip("ab", tables, strict=True):
        header = re.findall("<th>(.*?)</th>", shown)
        cells = re.findall("<td>(.*?)</td>", shown)
        with open(folder / name / "metrics.csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert cells == [row[key] for row in rows for key in header]
        assert len(rows) == 2
    for cells in (["0", "9", "0.1", "0.125", "0.125"], ["1", "6", "0.05", "0.0625", "0.3125"]):
        assert "".join(f"<td>{cell}</td>" for cell in cells) in text
    picture = base64.b64encode((folder / "a" / "probes.png").read_bytes()).decode()
    assert text.count(picture) == 1


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
    moving: Any = Image.open(io.BytesIO(base64.b64decode(found["dreams from one noise, while it trained (2 frames)"])))
    assert moving.n_frames == 2
    expected = {"dreams", "reconstructed from layer 2", "a dream, and with each top unit flipped"}
    assert expected | {"eigenvalues of the Fisher blocks, by layer"} <= set(found)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [390, 1280])
def test_in_a_browser_pictures_load_and_nothing_is_wider_than_the_window(folder: Path, width: int) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    script = (
        "<script>onload = () => { const wide = [...document.querySelectorAll('body *')].filter(e =>"
        " !e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth + 1).length;"
        " document.title = 'found ' +"
        " [document.images.length, [...document.images].filter(i => !i.naturalWidth).length, wide].join(' ') }</script>"
    )
    probe = folder / f"probe{width}.html"
    probe.write_text(text.replace("</body>", f"{script}</body>"), encoding="utf-8")
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--enable-logging=stderr"]
    done = subprocess.run(
        [CHROMIUM, *flags, f"--user-data-dir={folder}/profile{width}", "--dump-dom", probe.as_uri()],
        capture_output=True,
        text=True,
        check=True,
    )
    title = re.search("<title>found (.*?)</title>", done.stdout)
    assert title is not None
    images, broken, wide = map(int, title.group(1).split())
    assert images == text.count("<img ") and broken == 0 and wide == 0
    assert "CONSOLE" not in done.stderr


def test_live_serves_what_is_there_now(folder: Path) -> None:
    with server([folder / "a"]) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        with urllib.request.urlopen(f"http://127.0.0.1:{serving.server_port}/") as answer:
            text = answer.read().decode()
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
