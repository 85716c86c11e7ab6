"""What `pip install dagfisher` would bring: an sdist, a wheel made of it, and an environment with nothing else."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy
import pytest

import dagfisher

ROOT = Path(__file__).resolve().parent.parent
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def call(*command: str | Path, folder: Path) -> str:
    """What a program prints, in a folder and an environment that know nothing of this checkout."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV", "PIP_"))}
    done = subprocess.run([str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist of this checkout, and the wheel that pip makes of it."""
    folder = tmp_path_factory.mktemp("package")
    tree = folder / "tree"
    shutil.copytree(ROOT / "dagfisher", tree / "dagfisher", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tree / name)
    call(sys.executable, "-c", "from setuptools import build_meta; build_meta.build_sdist('..')", folder=tree)
    (sdist,) = folder.glob("*.tar.gz")
    call(*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", folder, sdist, folder=folder)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


@pytest.mark.slow
def test_both_packages_hold_every_file_of_the_library_and_nothing_else(packages: tuple[Path, Path]) -> None:
    files = {p.relative_to(ROOT).as_posix() for p in (ROOT / "dagfisher").rglob("*") if p.is_file()}
    expected = {name for name in files if "__pycache__" not in name}
    assert {"dagfisher/py.typed", "dagfisher/datasets/data/mini-mnist.bits.gz"} < expected
    sdist, wheel = packages
    with zipfile.ZipFile(wheel) as opened:
        assert {name for name in opened.namelist() if ".dist-info/" not in name} == expected
    with tarfile.open(sdist) as opened:
        names = {member.name.partition("/")[2] for member in opened.getmembers() if member.isfile()}
    assert {name for name in names if name.startswith("dagfisher/")} == expected
    assert {"LICENSE", "README.md", "pyproject.toml"} <= names


@pytest.mark.slow
def test_the_wheel_says_what_it_is(packages: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(packages[1]) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        told = email.message_from_string(opened.read(name).decode())
    assert (told["Name"], told["Version"]) == ("dagfisher", dagfisher.__version__)
    links = [value.partition(", ")[0] for value in told.get_all("Project-URL", [])]
    assert {"Homepage", "Source", "Documentation", "Issues", "Changelog"} <= set(links)
    classifiers = told.get_all("Classifier", [])
    assert "Typing :: Typed" in classifiers and len(classifiers) == len(set(classifiers))
    needed = [value for value in told.get_all("Requires-Dist", []) if "extra ==" not in value]
    assert sorted(re.split("[><= ]", value)[0] for value in needed) == ["numpy", "torch", "typing_extensions"]
    assert told["Description-Content-Type"] == "text/markdown" and told["License-Expression"] == "MIT"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_a_clean_environment_trains_with_what_is_installed(
    kind: str, packages: tuple[Path, Path], tmp_path: Path
) -> None:
    home = tmp_path / "clean"
    venv.create(home, symlinks=os.name != "nt")
    programs = home / ("Scripts" if os.name == "nt" else "bin")
    (site,) = (p for p in home.rglob("site-packages") if p.parent.parent.name.startswith("lib") or os.name == "nt")
    # torch, numpy and setuptools as they are here; a path in such a file brings modules, and not the editable install
    # beside them
    (site / "needed.pth").write_text(f"{Path(numpy.__file__).parent.parent}\n")
    package = packages[["sdist", "wheel"].index(kind)]
    install = ["install", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed", package]
    call(*PIP, "--python", programs / "python", *install, folder=tmp_path)
    assert call(programs / "dagfisher", "--version", folder=tmp_path) == f"dagfisher {dagfisher.__version__}\n"
    where = call(programs / "python", "-c", "import dagfisher; print(dagfisher.__file__)", folder=tmp_path)
    assert Path(where.strip()).is_relative_to(site)
    flags = [
        "--epochs=1",
        "--eval-examples=20",
        "--eval-samples=2",
        "--batch-size=5000",
        "--layers=10,5",
        "--threads=1",
    ]
    printed = call(programs / "dagfisher", "train", "--data=mini-mnist", "--out=run", *flags, folder=tmp_path)
    assert "nrws mini-mnist B  epoch 1" in printed


def test_the_version_is_said_once_and_the_changelog_has_it() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in text and dagfisher.__version__ not in text
    versions = re.findall(r"^## \[(\d\S*)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == dagfisher.__version__
