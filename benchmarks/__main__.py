"""The benchmarks and what is known of their results.

    python -m benchmarks list                     # what each shows, how long it takes, whether its results are stale
    python -m benchmarks run peers --minutes 8    # everything after the name goes to the script; long ones resume
    python -m benchmarks report                   # every table and picture of the documentation, from the result files
    python -m benchmarks report peers dag         # those of two benchmarks
    python -m benchmarks report --age 90          # results of more than 90 days are stale too

`report` measures nothing. It writes docs/results/*.inc, which the pages include, with a mark where results are stale,
and draws the pictures again. With equal_seconds go the README's table, docs/front_table.inc and docs/_static/hero.png.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from extras import need
from registry import BENCHMARKS, ROOT, named
from report import listing, write
from stale import AGE


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    shown = commands.add_parser("list", help="the benchmarks, one line each")
    runs = commands.add_parser("run", help="run one, from where it stopped", add_help=False)
    runs.add_argument("name", choices=[benchmark.name for benchmark in BENCHMARKS], metavar="NAME")
    makes = commands.add_parser("report", help="the tables and pictures of the documentation")
    makes.add_argument("names", nargs="*", metavar="NAME", help="of these benchmarks alone")
    makes.add_argument("--no-pictures", action="store_true", help="tables alone")
    for each in (shown, makes):
        each.add_argument("--age", type=float, default=AGE, help=f"days after which results are stale ({AGE})")
    options, more = parser.parse_known_args()
    if options.command == "run":
        sys.exit(subprocess.run([sys.executable, str(named(options.name).script), *more], cwd=ROOT).returncode)
    if more:
        parser.error(f"unknown: {' '.join(more)}")
    if options.command == "report":
        need([] if options.no_pictures else ["matplotlib"])
        for name in set(options.names) - {benchmark.name for benchmark in BENCHMARKS}:
            parser.error(f"no benchmark is called {name}: python -m benchmarks list")
        for path in write(options.age, pictures=not options.no_pictures, names=options.names):
            print(path.relative_to(ROOT))
    print(listing(options.age))


if __name__ == "__main__":
    main()
