"""What each step of an optimizer does, as flat numbers for any logger, and as a figure of all steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import MissingStatisticsError, SettingError
from ..optim import DAGNaturalGradient
from ..plots import INK, blank, depth_colours, tidy

PANELS = {"lr": "learning rate", "damping": "damping α", "divergence": "KL of a step (nats)", "factor": "shortened to"}
"""What the figure shows of the numbers: those whose names begin so, and the label of their axis."""


def numbers(opt: DAGNaturalGradient) -> dict[str, float]:
    """The numbers among :meth:`~dagfisher.DAGNaturalGradient.diagnostics`, each with a name of its own.

    For example ``{"step": 12, "lr/group 0": 0.002, "damping/group 0": 0.1, "damping/fc1": 0.1}``; what is
    not known yet is left out.
    """
    found = opt.diagnostics()
    flat: dict[str, float] = {"step": found["step"]}
    for i, group in enumerate(found["groups"]):
        flat.update({f"{key}/group {i}": value for key, value in group.items()})
    for name, layer in found["layers"].items():
        flat.update({f"{key}/{name}": value for key, value in layer.items() if isinstance(value, (int, float))})
    return flat


@dataclass(frozen=True)
class Trace:
    """The `numbers` of the steps that were followed, in their order."""

    rows: tuple[Mapping[str, float], ...]

    def figure(self) -> Any:
        """A matplotlib figure: rate, damping of each group and layer, KL of each step, and how far it was shortened."""
        figure = blank(12, 6.5)
        for axes, (prefix, label) in zip(figure.subplots(2, 2).flatten(), PANELS.items(), strict=True):
            names = dict.fromkeys(name for row in self.rows for name in row if name.startswith(f"{prefix}/"))
            groups = [name for name in names if name.startswith(f"{prefix}/group ")]
            colours = depth_colours(len(names) - len(groups))
            for i, name in enumerate(names):
                along = [row["step"] for row in self.rows if name in row]
                values = [row[name] for row in self.rows if name in row]
                style: dict[str, Any] = {"color": INK, "linestyle": ("-", "--", ":")[i % 3], "linewidth": 1.5}
                if name not in groups:
                    style.update(color=colours[i - len(groups)])
                elif colours:
                    style.update(linewidth=3, alpha=0.5)
                axes.plot(along, values, label=name.partition("/")[2], **style)
            if not names:
                axes.text(0.5, 0.5, "no trust region", ha="center", color=INK, transform=axes.transAxes)
            drawn = [float(y) for line in axes.lines for y in line.get_ydata()]
            if prefix == "damping" and drawn and min(drawn) > 0:
                axes.set_yscale("log")
            else:
                axes.set_ylim(0, 1.05 * max(drawn, default=1.0) or 1.0)
            axes.set_ylabel(label, color=INK)
            axes.set_xlabel("step", color=INK)
            tidy(axes)
            if len(names) > 1:
                axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure


class Follower:
    """Notes the `numbers` of an optimizer after its steps; made by `follow`."""

    def __init__(self, opt: DAGNaturalGradient, send: Callable[[dict[str, float]], Any] | None, every: int) -> None:
        self._rows: list[dict[str, float]] = []
        self._send = send
        self._every = every
        self._count = 0
        self._hook = opt.register_step_post_hook(self._note)

    def _note(self, opt: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._count += 1
        if self._count % self._every:
            return
        assert isinstance(opt, DAGNaturalGradient)
        row = numbers(opt)
        self._rows.append(row)
        if self._send is not None:
            self._send(dict(row))

    def trace(self) -> Trace:
        """What was noted so far."""
        if not self._rows:
            raise MissingStatisticsError("no step was followed yet; take some, and then look at their trace.")
        return Trace(tuple(self._rows))

    def close(self) -> None:
        """Follow no further step."""
        self._hook.remove()


def follow(
    opt: DAGNaturalGradient, send: Callable[[dict[str, float]], Any] | None = None, *, every: int = 1
) -> Follower:
    """Note what each coming step does: rate, damping, KL, whether it was shortened.

    Args:
        opt: is followed until `Follower.close`.
        send: is given a dict of `numbers` each time, for example ``wandb.log``.
        every: note every so many steps; noting waits for the device.
    """
    if not isinstance(every, int) or every < 1:
        raise SettingError(f"every must be a whole number of at least 1, not {every!r}.")
    return Follower(opt, send, every)


def scalars(writer: Any) -> Callable[[dict[str, float]], None]:
    """A function for `follow` that sends its numbers to TensorBoard.

    Args:
        writer: a ``torch.utils.tensorboard.SummaryWriter``, or anything else with ``add_scalar(name, value, step)``.
    """

    def send(row: dict[str, float]) -> None:
        for name, value in row.items():
            if name != "step":
                writer.add_scalar(name, value, int(row["step"]))

    return send
