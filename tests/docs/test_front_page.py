"""README, front page and gallery: their figures are those of the results, their links and programs exist."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import dagfisher

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
GALLERY = ROOT / "docs" / "gallery"
FILES = "https://github.com/dagfisher/dagfisher/blob/main/"
RAW = "https://raw.githubusercontent.com/dagfisher/dagfisher/main/"


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("front_page")


# The table and the picture


def test_the_tables_are_those_of_the_kept_results(front: ModuleType) -> None:
    table = front.rows(front.Results(front.RESULTS / "equal_seconds.jsonl").runs)
    assert len(table) == 5
    assert front.with_table(README, front.markdown(table)) == README, "run python benchmarks/front_page.py"
    assert front.TABLE.read_text(encoding="utf-8") == front.list_table(table)


def test_both_pages_say_how_often_it_is_ahead(front: ModuleType) -> None:
    table = front.rows(front.Results(front.RESULTS / "equal_seconds.jsonl").runs)
    ahead = ["none", "one", "two", "three", "four", "all"][sum(not row[4].startswith("not") for row in table)]
    for text in (README, (ROOT / "docs" / "index.rst").read_text(encoding="utf-8")):
        assert f"On {ahead} of the five models" in " ".join(text.split())


def test_a_result_that_changes_changes_the_table(front: ModuleType) -> None:
    runs = front.Results(front.RESULTS / "equal_seconds.jsonl").runs
    changed = dict(runs)
    for spec, record in runs.items():
        if (spec.model, spec.method, spec.stage) == ("mini-machine", "natural", "final"):
            curve = [[*point[:3], None if point[3] is None else point[3] - 50] for point in record["curve"]]
            changed[spec] = {**record, "curve": curve}
    before, after = front.rows(runs)[0], front.rows(changed)[0]
    assert after[:4] == before[:4] and after[4].startswith("not") and after[5] != before[5]


def test_the_zeros_of_the_picture_are_those_of_a_sum_over_all_states(front: ModuleType) -> None:
    whole, blocks = front.stochastic()
    assert whole.exact and whole.fisher.shape == blocks.shape == (49, 49)
    assert whole.outside < 1e-12
    torch.testing.assert_close(blocks, whole.fisher, rtol=1e-9, atol=1e-12)
    dense = front.deterministic()
    assert dense.shape == (46, 46) and torch.linalg.eigvalsh(dense).min() > -1e-9
    assert (dense[:30, 30:].abs() > 1e-6).double().mean() > 0.9  # weights of the two layers are coupled


def test_the_fisher_of_the_deterministic_network_is_the_curvature_of_its_divergence(front: ModuleType) -> None:
    """½ΔᵀFΔ is the mean divergence between the outputs of a network and of one whose first bias has moved a little."""
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 6)).double()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=1.0)
    inputs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * 3)
    with torch.no_grad():
        p = torch.sigmoid(net(inputs))
        entropy = binary_cross_entropy_with_logits(net(inputs), p, reduction="sum")
        net[0].bias[0] += 1e-3
        divergence = (binary_cross_entropy_with_logits(net(inputs), p, reduction="sum") - entropy) / len(inputs)
    place = 6 * 5 + 3  # after the six units above, the bias of the first hidden unit
    assert float(divergence) == pytest.approx(0.5e-6 * float(front.deterministic()[place, place]), rel=1e-2)


# The README


def test_links_of_the_readme_are_absolute_and_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert len(links) > 20
    for link in links:
        assert link.startswith((FILES, RAW)), link
        assert (ROOT / link.removeprefix(FILES).removeprefix(RAW)).exists(), link


def test_the_change_from_adam_runs_and_is_eight_lines() -> None:
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
    lines = diff.splitlines()
    assert sum(line[0] in "+-" for line in lines) == 8

    class VAE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.mean, self.log_var = nn.Linear(20, 16), nn.Linear(16, 4), nn.Linear(16, 4)
            self.decode, self.out = nn.Linear(4, 16), nn.Linear(16, 20)

        def negative_bound(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.tanh(self.encode(x))
            mean, log_var = self.mean(h), self.log_var(h)
            z = mean + torch.exp(log_var / 2) * torch.randn_like(mean)
            logits = self.out(torch.tanh(self.decode(z)))
            divergence = 0.5 * (mean**2 + log_var.exp() - 1 - log_var).sum()
            return (binary_cross_entropy_with_logits(logits, x, reduction="sum") + divergence) / len(x)

    for sign, kind in (("-", torch.optim.Adam), ("+", dagfisher.DAGNaturalGradient)):
        torch.manual_seed(0)
        prototypes = torch.bernoulli(torch.full((4, 20), 0.5))
        batches = [prototypes[torch.randint(4, (100,))] for _ in range(60)]
        given: dict[str, Any] = {"VAE": VAE, "torch": torch, "nn": nn, "dagfisher": dagfisher}
        given |= {"batches": batches, "steps": len(batches)}
        exec("\n".join(line[1:] for line in lines if line[0] in f" {sign}"), given)
        assert type(given["opt"]) is kind
        assert given["loss"].item() < 13  # it learned something: independent pixels have 20 log 2 = 13.9 nats


# The gallery


def test_every_example_has_a_page_a_picture_and_an_output() -> None:
    cards = re.findall(r"^   (\w+)$", (ROOT / "docs" / "gallery.rst").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(cards) == EXAMPLES
    for name in EXAMPLES:
        page = (GALLERY / f"{name}.rst").read_text(encoding="utf-8")
        assert f".. example:: {name}" in page and len(page.split()) > 25, name
        output = (GALLERY / f"{name}.txt").read_text(encoding="utf-8")
        assert output.startswith(f"$ python examples/{name}.py") and len(output.splitlines()) > 2, name
        picture = (GALLERY / f"{name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG") and 5_000 < len(picture) <= 150_000, name
    assert sum(path.stat().st_size for path in GALLERY.glob("*.png")) < 3_000_000
    assert {path.stem for path in GALLERY.iterdir()} == set(EXAMPLES)


def test_every_example_is_run_by_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_example*.py"))
    for name in EXAMPLES:
        assert re.search(rf'"{name}(\.py)?"', tests), name


def test_a_page_of_the_gallery_has_picture_conclusion_output_and_code() -> None:
    gallery = runpy.run_path(str(ROOT / "docs" / "gallery.py"))
    page = gallery["page"]("wrap_vae", "Use it.")
    assert ".. image:: wrap_vae.png" in page and "Use it." in page
    assert "python examples/wrap_vae.py --seconds 60" in page and "natural gradient" in page
    start = int(re.search(r":lines: (\d+)-", page)[1])  # type: ignore[index]
    assert (ROOT / "examples" / "wrap_vae.py").read_text(encoding="utf-8").splitlines()[start - 1] == "import argparse"


# The page of settings


def test_the_batches_of_the_page_of_settings_are_those_of_the_benchmarks(front: ModuleType) -> None:
    page = (ROOT / "docs" / "settings.rst").read_text(encoding="utf-8")
    rows = re.findall(r"^   \* - (.*)\n     - (.*)$", page, flags=re.MULTILINE)
    found = {model.strip(): [int(number) for number in re.findall(r"\d+", batch)] for model, batch in rows}
    models = importlib.import_module("models").MODELS
    binary = {tuple(vars(model.natural_batch).values()) for model in models if model.kind == "machine"}
    assert binary == {tuple(found["Helmholtz machine, sigmoid belief network, binary"])}
    dense = {model.natural_batch.size for model in models if model.kind == "vae" and "400" in model.label}
    conv = {model.natural_batch.size for model in models if model.kind == "vae" and "conv" in model.label.lower()}
    assert dense == set(found["VAE, dense"]) and conv == set(found["VAE, convolutional"])


# The page of data
