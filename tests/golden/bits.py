"""Say for each golden case whether two source trees give the same bits, and how far apart they are if not.

    python tests/golden/bits.py /path/of/the/old/code /path/of/the/new/code
    python tests/golden/bits.py . . --threads 1 2           # how much of a difference is the threads' alone
    python tests/golden/bits.py old new --only 'vae, *'

The cases are those beside this file; each tree runs them in a process of its own. All of every tensor is compared.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

Results = dict[str, dict[str, Tensor] | str]
"""The tensors of each case, or the error that it ended with."""


def work(only: str, threads: int, out: Path) -> None:
    """Run the cases with the dagfisher of PYTHONPATH, and save what they give."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import dagfisher
    from golden.cases import CASES

    tree = Path(os.environ["PYTHONPATH"])
    if not Path(dagfisher.__file__).resolve().is_relative_to(tree):
        raise SystemExit(f"dagfisher is {dagfisher.__file__}, not below {tree}.")
    torch.set_num_threads(threads)
    results: Results = {}
    for name in fnmatch.filter(CASES, only):
        try:
            results[name] = CASES[name]()
        except Exception as error:  # whatever it is, it is this case's result
            results[name] = f"{type(error).__name__}: {error}"
    torch.save(results, out)


def results_of(tree: Path, only: str, threads: int) -> Results:
    """What the cases give with the dagfisher of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.pt"
        command = [sys.executable, __file__, "--work", str(out), "--only", only, "--threads", str(threads)]
        subprocess.run(command, env=environment, check=True)
        found: Results = torch.load(out, weights_only=True)
    return found


def compared(one: dict[str, Tensor] | str, other: dict[str, Tensor] | str) -> tuple[str, float]:
    """What to say of a case, and the largest difference over the largest magnitude of its tensor."""
    if isinstance(one, str) or isinstance(other, str):
        same = one == other
        return (
            f"{'the same error' if same else 'ERRORS'}: {one if isinstance(one, str) else other}",
            0.0 if same else 9.9,
        )
    if one.keys() != other.keys():
        return f"OTHER NAMES: {', '.join(sorted(one.keys() ^ other.keys()))}", 9.9
    worst, where, absolute = 0.0, "", 0.0
    for name, tensor in one.items():
        if tensor.shape != other[name].shape or tensor.dtype != other[name].dtype:
            return f"OTHER SHAPE OR TYPE: {name}", 9.9
        if not torch.equal(tensor, other[name]):
            difference = float((tensor.double() - other[name].double()).abs().max())
            relative = difference / max(float(tensor.double().abs().max()), 1e-300)
            if not where or relative > worst:
                worst, where = relative, name
            absolute = max(absolute, difference)
    if not where:
        return "the same bits", 0.0
    return f"differ by up to {absolute:.1e}; relatively most in {where}: {worst:.1e}", worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trees", nargs="*", type=Path, help="two folders that hold a folder dagfisher")
    parser.add_argument("--only", default="*", help="a pattern of case names")
    parser.add_argument("--threads", nargs="*", type=int, default=[1], help="for both trees, or for each")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        return work(options.only, options.threads[0], options.work)
    if len(options.trees) != 2 or len(options.threads) not in (1, 2):
        parser.error("two trees, and one or two numbers of threads")
    one, other = (
        results_of(tree, options.only, threads)
        for tree, threads in zip(options.trees, (options.threads * 2)[:2], strict=True)
    )
    same, worst = 0, 0.0
    for name in one:
        words, relative = compared(one[name], other[name])
        same += words == "the same bits"
        worst = max(worst, relative)
        print(f"{name:<42} {words}")
    print(f"{same} of {len(one)} cases have the same bits; the largest relative difference is {worst:.1e}")
    sys.exit(same != len(one))


if __name__ == "__main__":
    main()
