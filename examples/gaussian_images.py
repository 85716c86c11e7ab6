"""Grey images without binarising them: FashionMNIST with Gaussian pixels and binary hidden units.

    python examples/gaussian_images.py                     # RWS and NRWS, some two minutes each
    python examples/gaussian_images.py --data my_faces.npy --layers 200,100,50,20 --epochs 20

The 256 grey levels are dequantised: x = (level + u)/256 with u uniform on [0, 1), drawn anew at each step. A pixel is
normal with a mean and a standard deviation of its own, both linear in the hidden units; no deviation falls below 0.01
(of a range of 2). The log-likelihood is of x, in nats per image; in bits per dimension it is of the grey levels,
8 − log₂ p(x)/pixels, an upper bound on what a code for them takes.

Each algorithm runs as it comes. An epoch of NRWS, whose minibatches are larger, takes three fifths of one of RWS; so it
has five for three of RWS, and both have about the same seconds. Every layer finds its own damping: some 4,000 for the
pixels, whose deviations become small, and less than 1 for the binary units above. One run on FashionMNIST, on a core
that was busy with other things too: RWS 922 nats (6.30 bits per dimension) after 174 seconds, NRWS 1,104 (5.97) after
151; where RWS ended, NRWS was after 26 seconds.
"""

import argparse
import sys
from pathlib import Path

from dagfisher import plots
from dagfisher.app import table, watch
from dagfisher.helmholtz import Run, Settings
from dagfisher.helmholtz.pictures import display, run_curve
from dagfisher.helmholtz.runs import holds_run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="fashion-mnist", help="a dataset or a file with grey values (fashion-mnist)")
    parser.add_argument("--layers", default="200,100,50,20", help="hidden units from the data up (200,100,50,20)")
    parser.add_argument("--epochs", type=int, default=3, help="of RWS, in all (3); NRWS has 5/3 as many")
    parser.add_argument("--out", type=Path, default=Path("runs/gaussian"), help="a folder (runs/gaussian)")
    parser.add_argument("--quick", action="store_true", help="half a second of training for each")
    options = parser.parse_args()
    lines, curves, panels = [], [], []
    for algorithm in ("rws", "nrws"):
        folder, epochs = options.out / algorithm, options.epochs
        if algorithm == "nrws":
            epochs = -(-5 * epochs // 3)
        if holds_run(folder):
            run = Run.resume(folder, epochs=epochs)
        else:
            settings = Settings.resolve(
                data=options.data,
                binarisation="G",  # Gaussian pixels
                algorithm=algorithm,
                layers=options.layers,
                epochs=epochs,
                eval_every=500 if algorithm == "rws" else 250,
                eval_examples=50 if options.quick else 500,
                eval_samples=10 if options.quick else 100,
            )
            run = Run.create(folder, settings)
        if not watch(run, seconds=0.5 if options.quick else None, pictures=False):
            sys.exit("stopped; start the program again to go on.")
        last, name = run.rows[-1], display(algorithm)
        bits = run.data.bits_per_dimension(last.test_log_likelihood)
        figure = f"{last.test_log_likelihood:.1f} ± {last.test_standard_error:.1f}"
        shown = "" if bits is None else f"{bits:.3f}"
        lines.append([name, f"{last.epoch:.2f}", f"{last.seconds:.0f}", figure, shown])
        curves.append(run_curve(name, run.rows))
        data, made, dreams = run.panels()
        panels.append([data, made._replace(title=f"{name}: reconstructions"), dreams._replace(title=f"{name}: dreams")])
    label = run.data.label
    print(table(["algorithm", "epochs", "seconds", f"test log-likelihood, {label}", "bits per dimension"], lines))
    plots.draw_curves(curves, options.out / "curves.png", title=label, quantity="test log-likelihood (nats)")
    plots.draw_panels(panels, run.data.shape, options.out / "samples.png", title=f"{label}: grey values")
    print(options.out / "curves.png", options.out / "samples.png")
