"""Write numbers.json: what the golden cases give with the dagfisher that Python finds.

    PYTHONPATH=/path/of/the/old/code python tests/golden/make.py

An existing file is what later code is held to; it is replaced only with --again. Version 0.1 bounded a step, not the
natural gradient, and knew no ``max_rows=math.inf``: with it `cases._bound_steps` must do nothing, and the large
convolutions must leave that setting out.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import dagfisher
from golden.cases import CASES, projected

NUMBERS = Path(__file__).with_name("numbers.json")


def text_of(content: dict[str, Any]) -> str:
    """JSON with a line for each list of numbers; Python writes floats so that they are read back exactly."""
    lines = [f'"made with": {json.dumps(content["made with"])}']
    for case, numbers in content["cases"].items():
        inner = ",\n".join(f"    {json.dumps(name)}: {json.dumps(values)}" for name, values in numbers.items())
        lines.append(f"  {json.dumps(case)}: {{\n{inner}\n  }}")
    return "{\n" + lines[0] + ',\n"cases": {\n' + ",\n".join(lines[1:]) + "\n}\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--again", action="store_true", help="replace the numbers that there are")
    options = parser.parse_args()
    if NUMBERS.exists() and not options.again:
        parser.exit(2, f"{NUMBERS} exists; give --again to replace what later code is held to.\n")
    torch.set_num_threads(1)
    content = {
        "made with": {"dagfisher": dagfisher.__version__, "torch": torch.__version__},
        "cases": {name: projected(run()) for name, run in CASES.items()},
    }
    NUMBERS.write_text(text_of(content), encoding="utf-8")
    assert json.loads(NUMBERS.read_text(encoding="utf-8")) == content
    print(f"{NUMBERS}: {len(CASES)} cases, by {dagfisher.__file__}")


if __name__ == "__main__":
    main()
