"""The notebooks run as they are, show tables, figures and a bar, and what they say is true."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from PIL import Image

import dagfisher
from dagfisher import plots
from dagfisher._text import table
from dagfisher.helmholtz import HelmholtzMachine, Run, Settings, Trainer

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "examples" / "notebooks"


class Executed:
    """The outputs of a notebook, by the code of their cells."""

    def __init__(self, name: str, folder: Path) -> None:
        self.book: Any = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
        nbformat.validate(self.book)
        assert not any(cell.get("outputs") for cell in self.book.cells)  # they are made anew by everyone
        place = {"metadata": {"path": folder}}
        NotebookClient(self.book, timeout=300, kernel_name="python3", resources=place).execute()

    def outputs(self, code: str) -> list[Any]:
        """Of the one cell with this code in it."""
        (cell,) = (cell for cell in self.book.cells if cell.cell_type == "code" and code in cell.source)
        return list(cell.outputs)

    def text(self, code: str) -> str:
        return "".join(output.text for output in self.outputs(code) if output.output_type == "stream")

    def shown(self, code: str, kind: str) -> str:
        (found,) = (output.data[kind] for output in self.outputs(code) if kind in output.get("data", {}))
        return str(found)


def is_picture(png: str) -> bool:
    image: Any = Image.open(io.BytesIO(base64.b64decode(png)))
    image.load()
    return min(image.size) > 200


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for variable in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "settings"))
    return tmp_path


@pytest.mark.slow
def test_a_machine_in_five_minutes(folder: Path) -> None:
    found = Executed("machine_in_five_minutes", folder)
    values = [float(v) for v in re.findall(r"log p\(x\) (\S+)", found.text("trainer = Trainer("))]
    assert len(values) == 4 and values[-1] > values[0] + 30
    assert "NRWS after 40 steps" in found.shown("trainer = Trainer(", "text/html")
    assert float(re.findall(r"blocks: (\S+)", found.text("inspect.structure"))[0]) < 1e-12
    assert is_picture(found.shown("inspect.structure", "image/png"))
    assert any("widget-view" in kind for output in found.outputs("watch(run") for kind in output.get("data", {}))
    table = found.shown("watch(run", "text/html")
    assert table.count("<tr>") == 6 and "NRWS on mini-mnist B, 1 of 1 epoch" in table
    tests = [float(v) for v in re.findall(r"test (\S+) ±", found.text("watch(run"))]
    assert tests[-1] > -33.5 and tests[-1] > tests[0]
    assert is_picture(found.shown("run.draw()", "image/png"))
    assert re.search(r"determine [\d,]+ of 18,016 parameters", found.text("inspect.spectrum"))


@pytest.mark.slow
def test_wrap_your_vae(folder: Path) -> None:
    found = Executed("wrap_your_vae", folder)
    assert "gaussian scale" in found.text("declare_model")
    natural, adam = (float(v) for v in re.findall(r"(\S+) nats", found.text("natural = train(")))
    assert natural > adam > -45
    assert is_picture(found.shown("draw_curves([", "image/png"))
    assert "bernoulli" in found.shown("dagfisher.summary", "text/html")
    assert is_picture(found.shown("inspect.spectrum", "image/png"))


def test_a_table_is_text_and_html_with_the_same_cells() -> None:
    made = table(["a", "b<c"], [["x", "1"], ["y & z", "22"]])
    cells = re.findall(r"<t[hd]><div[^>]*>(.*?)</div></t[hd]>", made._repr_html_())
    assert cells == ["a", "b&lt;c", "x", "1", "y &amp; z", "22"]
    assert made._repr_html_().startswith('<div style="overflow-x: auto"><table>')  # wide ones scroll on narrow screens
    assert made.splitlines()[0] == "a      b<c"
    assert 'left">y' in made._repr_html_() and 'right">22' in made._repr_html_()


def test_summaries_trainers_and_runs_are_shown_as_html(tmp_path: Path) -> None:
    machine = HelmholtzMachine([9, 4, 2])
    trainer = Trainer(machine, "nrws", samples=3)
    trainer.step(torch.rand(12, 9).round())
    for shown in (dagfisher.summary(machine)._repr_html_(), trainer._repr_html_()):
        assert shown.count("<tr>") == 1 + len(list(machine.generative)) * 2 + 1
    assert "NRWS after 1 step, 3 samples for each example, lr 0.2" in trainer._repr_html_()
    assert "RWS after 0 steps" in Trainer(machine, "rws")._repr_html_()
    quick = {"batch_size": 900, "samples": 2, "eval_samples": 2, "threads": 1}
    settings = Settings.resolve(data="three-by-three", layers=(4, 2), epochs=12, **quick)
    run = Run.create(tmp_path / "a&b", settings)
    assert "a&amp;b: NRWS on three-by-three B, 0 of 12 epochs" in run._repr_html_()
    before = torch.get_num_threads()
    run.train()
    torch.set_num_threads(before)
    epochs = re.findall(r'<tr><td><div style="text-align: right">(.*?)</div>', run._repr_html_())
    assert epochs == ["1", *map(str, range(4, 13))]  # the first row, and the last ones
    curves, samples = run.draw()
    for figure in (curves, samples, plots.blank(3, 2)):
        assert figure._repr_png_().startswith(b"\x89PNG")
