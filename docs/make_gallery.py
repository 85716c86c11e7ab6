"""Pictures and outputs of the gallery: runs programs of `examples/` and keeps what they draw and print.

    python docs/make_gallery.py                        # all; half an hour of one core
    python docs/make_gallery.py wrap_vae wrap_sbn      # some

Each picture becomes docs/gallery/NAME.png, at most 1,000 points wide and 150 KB large, each output NAME.txt. All
pictures of inspect_fisher.py go to docs/inspect/, for the page about it. Programs that would take long run with the
arguments below, which their pages show.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from dagfisher.plots import Curve, draw_curves

DOCS = Path(__file__).resolve().parent
EXAMPLES, GALLERY, INSPECT = DOCS.parent / "examples", DOCS / "gallery", DOCS / "inspect"
ARGUMENTS = {
    "compare_algorithms": ["--epochs", "1"],
    "gaussian_images": ["--epochs", "1"],
    "train_mnist": ["--epochs", "1"],
}
PICTURES = {
    "compare_algorithms": "runs/compare/compare.png",
    "gaussian_images": "runs/gaussian/curves.png",
    "inspect_fisher": "runs/inspect/structure.png",
    "train_mnist": "runs/mnist/samples.png",
}
"""Where a program draws, if not to runs/NAME.png."""
WIDEST, LARGEST, COLOURS = 1000, 150_000, 256


def run(name: str, folder: Path) -> None:
    """Run a program in a folder and keep what it printed there, in NAME.txt."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *ARGUMENTS.get(name, [])]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    (folder / f"{name}.txt").write_text(done.stdout, encoding="utf-8")


def keep(name: str, folder: Path) -> None:
    """Take the picture and the output of a program from the folder that it ran in to the gallery."""
    printed = (folder / f"{name}.txt").read_text(encoding="utf-8")
    shown = " ".join(["$ python", f"examples/{name}.py", *ARGUMENTS.get(name, [])])
    lines = [line.rstrip() for line in printed.splitlines() if not line.endswith(".png")]
    (GALLERY / f"{name}.txt").write_text("\n".join([shown, *lines]) + "\n", encoding="utf-8")
    picture = folder / PICTURES.get(name, f"runs/{name}.png")
    if name == "nrws_from_scratch":  # it prints only; its picture is the curve of what it prints
        found = [tuple(map(float, row)) for row in re.findall(r"step +(\d+) +([\d.]+) s .*?> (-[\d.]+)", printed)]
        steps, seconds, bounds = zip(*found, strict=True)
        curve = Curve("nrws_from_scratch.py", [step / 500 for step in steps], seconds, bounds)
        draw_curves([curve], picture, title="NRWS from scratch, miniMNIST B", quantity="test log p(x), lower bound")
    smaller(picture, GALLERY / f"{name}.png")
    if name == "inspect_fisher":
        for each in picture.parent.glob("*.png"):
            smaller(each, INSPECT / each.name)


def smaller(source: Path, path: Path) -> None:
    """Write the picture with fewer points and colours, so that the repository stays small."""
    image = Image.open(source).convert("RGB")
    for width in (WIDEST, 800, 600):
        height = round(image.height * min(1.0, width / image.width))
        size = (min(width, image.width), height)
        image.resize(size, Image.Resampling.LANCZOS).quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(
            path, optimize=True
        )
        if path.stat().st_size <= LARGEST:
            return
    raise SystemExit(f"{path.name} is larger than {LARGEST} bytes.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted(path.stem for path in EXAMPLES.glob("*.py"))
    parser.add_argument("names", nargs="*", help="programs (all)")
    chosen = parser.parse_args().names or known
    for name in chosen:
        if name not in known:
            raise SystemExit(f"there is no examples/{name}.py.")
    GALLERY.mkdir(exist_ok=True)
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            run(name, Path(folder))
            keep(name, Path(folder))
        print(GALLERY / f"{name}.png")


if __name__ == "__main__":
    main()
