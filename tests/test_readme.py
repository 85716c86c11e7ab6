"""The code that the README and the documentation show runs as it is."""

import re
import textwrap
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.rst"))


def markdown_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def rest_blocks(text: str) -> list[str]:
    found = re.findall(r"^\.\. code-block:: python\n\n((?:[ ]+.*\n|\n)+)", text, flags=re.MULTILINE)
    return [textwrap.dedent(block) for block in found]


def run(code: str, namespace: dict[str, object], label: str) -> None:
    exec(compile(code, label, "exec"), namespace)


README_BLOCKS = markdown_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
PAGES_WITH_CODE = [page for page in PAGES if rest_blocks(page.read_text(encoding="utf-8"))]


def test_there_is_code_to_run() -> None:
    assert README_BLOCKS
    assert PAGES_WITH_CODE


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
    for index, block in enumerate(rest_blocks(page.read_text(encoding="utf-8"))):
        run(block, namespace, f"{page.name} block {index}")
