"""What the limits of a panel cut off, in words: no curve leaves a picture silently."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any


def below(axes: Any, diverged: Iterable[str] = ()) -> str:
    """What is under the lower limit of the panel: beginnings of curves, and curves that end there, which are taken out.

    Args:
        axes: with its limits set. A curve that ends under the panel is removed, and so is an area whose gid is its
            label; its label and its end are in the words.
        diverged: what to say of runs that have no curve.

    Returns:
        The words, a line for the beginnings and one for each other curve; empty if everything is shown.
    """
    low, lines = axes.get_ylim()[0], []
    lost = [line for line in axes.lines if line.get_ydata()[-1] < low]
    for line in lost:
        lines.append(f"{line.get_label()} is below and ends at {line.get_ydata()[-1]:.4g}")
        for drawn in [line, *(area for area in axes.collections if area.get_gid() == line.get_label())]:
            drawn.remove()
    first = min((value for line in axes.lines for value in line.get_ydata()), default=math.inf)
    if first < low:
        lines.insert(0, f"beginnings are below, from {first:.4g}")
    return re.sub(r"-(?=\d)", "−", "\n".join([*lines, *diverged]))
