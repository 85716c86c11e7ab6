"""The code that the README and the documentation show runs as it is."""

import doctest
import importlib
import re
import sys
import textwrap
import types
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.rst"))


def markdown_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def rest_blocks(text: str) -> list[str]:
    found = re.findall(r"^( *)\.\. code-block:: python\n\n((?:\1 +.*\n|\n)+)", text, flags=re.MULTILINE)
    return [textwrap.dedent(block) for _, block in found]


def run(code: str, namespace: dict[str, object], label: str) -> None:
    exec(compile(code, label, "exec"), namespace)


README_BLOCKS = markdown_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
PAGES_WITH_CODE = [page for page in PAGES if rest_blocks(page.read_text(encoding="utf-8"))]


def data_page(namespace: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of the reader's own: the arrays and the files that the page speaks of."""
    images = np.random.default_rng(0).integers(0, 256, (12, 4, 4), dtype=np.uint8)
    namespace |= {"numpy": np, "train": images[:8], "valid": images[8:10], "test": images[10:]}
    np.savez("mine.npz", train=images[:8], valid=images[8:10], test=images[10:])
    faces = {"images": np.random.default_rng(1).integers(0, 256, (8, 48, 48), dtype=np.uint8)}
    faces["folds"] = np.array([0, 0, 1, 1, 1, 2, 3, 3])[:, None].repeat(5, axis=1)
    reader = types.SimpleNamespace(io=types.SimpleNamespace(loadmat={"TFD_48x48.mat": faces}.__getitem__))
    monkeypatch.setitem(sys.modules, "scipy", reader)  # which need not be installed
    monkeypatch.setitem(sys.modules, "scipy.io", reader.io)


READERS_OWN = {"data": data_page}
"""What the reader of a page has before its first block, by page."""


def test_there_is_code_to_run() -> None:
    assert README_BLOCKS
    assert PAGES_WITH_CODE
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert len(rest_blocks(text)) == text.count("code-block:: python"), page.name


@pytest.mark.parametrize("index", range(len(README_BLOCKS)))
def test_each_block_of_the_readme_runs_alone(index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    run(README_BLOCKS[index], {"__name__": "readme"}, f"README.md block {index}")


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: page.stem)
@pytest.mark.usefixtures("registries")
def test_the_blocks_of_a_page_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": page.stem}
    if page.stem in READERS_OWN:
        READERS_OWN[page.stem](namespace, monkeypatch)
    for index, block in enumerate(rest_blocks(page.read_text(encoding="utf-8"))):
        run(block, namespace, f"{page.name} block {index}")


@pytest.mark.parametrize("name", ["dagfisher._settings", "dagfisher.datasets"])
def test_the_examples_of_a_docstring_give_what_they_show(name: str) -> None:
    module = importlib.import_module(name)
    namespace = dict(vars(module))
    for example in doctest.DocTestParser().get_examples(module.__doc__ or ""):
        if example.want:
            assert repr(eval(example.source, namespace)) == example.want.strip()
        else:
            run(example.source, namespace, name)


def test_no_other_docstring_has_examples() -> None:
    files = {path for path in (ROOT / "dagfisher").rglob("*.py") if ">>> " in path.read_text(encoding="utf-8")}
    assert files == {ROOT / "dagfisher" / "_settings.py", ROOT / "dagfisher" / "datasets" / "__init__.py"}
