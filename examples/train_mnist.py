"""MNIST with twelve hidden layers, in a run folder that can be left at any moment and taken up again.

    python examples/train_mnist.py                    # start, or go on after Ctrl-C, a crash or a power cut
    python examples/train_mnist.py --epochs 200       # go on for longer

The same as `dagfisher train --data mnist --algorithm nrws --epochs 100 --out runs/mnist`, written out. MNIST is taken
from the folder in DAGFISHER_DATA, or downloaded once.
"""

import argparse
from pathlib import Path

from dagfisher.app import watch
from dagfisher.helmholtz import Run, Settings
from dagfisher.helmholtz.runs import holds_run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/mnist"), help="the run folder (runs/mnist)")
    parser.add_argument("--epochs", type=int, default=100, help="in all (100)")
    parser.add_argument("--quick", action="store_true", help="one second of training only")
    options = parser.parse_args()
    if holds_run(options.out):
        run = Run.resume(options.out, epochs=options.epochs)
    else:
        settings = Settings.resolve(
            data="mnist",
            binarisation="B",
            layers=[300, 200, 100, 75, 50, 35, 30, 25, 20, 15, 10, 10],
            algorithm="nrws",
            epochs=options.epochs,
            eval_examples=50 if options.quick else 1000,
            eval_samples=10 if options.quick else 100,
        )
        run = Run.create(options.out, settings)
    if not watch(run, seconds=1.0 if options.quick else None):
        print("stopped; start the program again to go on.")
    elif run.finished:
        final = run.estimate("test", examples=1000, samples=1000)
        print(f"test log-likelihood {final.mean:.2f} ± {final.standard_error:.2f} ({run.data.label})")
