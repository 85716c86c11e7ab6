"""Several algorithms on miniMNIST, each with its own defaults: a table and a picture.

    python examples/compare_algorithms.py --epochs 5
    python examples/compare_algorithms.py --algorithms rws,nrws,dnrws --epochs 20

Each algorithm has a run folder in runs/compare. Started again, the program goes on where it was.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from dagfisher.app import main, watch
from dagfisher.helmholtz import Run, Settings
from dagfisher.helmholtz.runs import holds_run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--algorithms", default="ws,rws,bihm,nrws,nbihm", help="names with commas between them")
    parser.add_argument("--epochs", type=int, default=5, help="in all (5)")
    parser.add_argument("--out", type=Path, default=Path("runs/compare"), help="a folder (runs/compare)")
    parser.add_argument("--quick", action="store_true", help="half a second of training for each")
    options = parser.parse_args()
    folders = []
    for name in options.algorithms.split(","):
        folder = options.out / name
        if holds_run(folder):
            run = Run.resume(folder, epochs=options.epochs)
        else:
            few = {"eval_examples": 50, "eval_samples": 10} if options.quick else {}
            settings = Settings.resolve(data="mini-mnist", algorithm=name, epochs=options.epochs, **few)
            quarter = 12_500 // settings.batch_size  # of an epoch, in steps: how often the picture has a point
            run = Run.create(folder, replace(settings, eval_every=quarter))
        folders.append(str(folder))
        if not watch(run, seconds=0.5 if options.quick else None):
            sys.exit("stopped; start the program again to go on.")
    sys.exit(main(["compare", *folders, "--out", str(options.out / "compare.png")]))
