"""Every benchmark by its name: `python -m benchmarks list`, `run NAME`, `report`; each is also a script of its own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # the scripts import each other by their bare names
