"""Pictures are PNG files that show what they are given."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

from dagfisher import plots
from dagfisher.errors import MissingExtraError


def size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def test_a_tile_shows_every_pixel_of_every_image_in_order() -> None:
    images = torch.arange(5.0)[:, None].expand(5, 6) / 5  # five images of 2×3, each of one grey
    canvas = torch.from_numpy(plots.tile(images, (2, 3)))
    greys = sorted({round(float(v), 4) for v in canvas.flatten()})
    assert greys == [0.0, 0.15, 0.2, 0.4, 0.6, 0.8]
    scale = 28  # 84 // 3
    for i, grey in enumerate((0.0, 0.2, 0.4, 0.6, 0.8)):
        top = i // 3 * (2 * scale + plots.TILE_GAP) + plots.TILE_GAP
        left = i % 3 * (3 * scale + plots.TILE_GAP) + plots.TILE_GAP
        assert torch.allclose(canvas[top : top + 2 * scale, left : left + 3 * scale], torch.tensor(grey))


@pytest.mark.parametrize("count", [1, 3, 9])
def test_curves(tmp_path: Path, count: int) -> None:
    curves = [plots.Curve(f"run {i}", [1, 2, 3], [2.0, 4.0, 6.0], [-40.0 - i, -30.0, -29.0]) for i in range(count)]
    plots.draw_curves(curves, tmp_path / "curves.png", title="data", quantity="log-likelihood")
    assert size(tmp_path / "curves.png")[0] == 1500


def test_curves_without_a_point(tmp_path: Path) -> None:
    plots.draw_curves([plots.Curve("nothing yet", [], [], [])], tmp_path / "c.png", title="", quantity="")
    assert (tmp_path / "c.png").exists()


def test_panels(tmp_path: Path) -> None:
    panel = plots.Panel("noise", torch.rand(10, 12))
    plots.draw_panels([[panel, panel], [panel]], (3, 4), tmp_path / "new" / "panels.png", title="two and one")
    assert size(tmp_path / "new" / "panels.png")[0] > 600


def test_limits_leave_the_first_steps_out() -> None:
    low, high = plots._limits([[-200.0, -40.0, -35.0, -33.0, -32.0], [-100.0, -34.0, -32.0, -31.0, -30.0]])
    assert low is not None and -41 < low < -40
    assert high is not None and -30 < high < -29
    assert plots._limits([]) == (None, None)
    assert plots._limits([[-1.0]]) == (None, None)
    assert plots._limits([[-1.0, -1.0], []]) == (None, None)


def test_limits_cut_a_steep_curve_where_the_others_are_but_not_its_end() -> None:
    others = [[-32.0, -31.0, -30.0], [-33.0, -31.0, -30.0]]
    assert plots._limits([[-999.0, -900.0, -34.0], *others]) == pytest.approx((-45.75, -29.25))
    assert plots._limits([[-999.0, -900.0, -60.0], *others]) == pytest.approx((-61.5, -28.5))
    flat = [-30.0] * 3
    assert plots._limits([[-999.0, -900.0, -30.0], flat]) == pytest.approx((-1047.45, 18.45))


def test_limits_show_a_curve_that_stays_at_its_end_for_long_from_its_first_fifth_on() -> None:
    fast = [-30 - 70 * math.exp(-step / 2) for step in range(40)]
    slow = [-40 + step / 10 for step in range(40)]
    low, _ = plots._limits([fast])
    assert low is not None and low < fast[8]
    low, _ = plots._limits([fast, slow])
    assert low is not None and low < slow[-1]


def test_the_colours_of_neighbours_differ_in_lightness() -> None:
    def lightness(colour: str) -> float:
        red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    assert len(set(plots.COLOURS)) == len(plots.MARKERS)
    assert abs(lightness(plots.COLOURS[0]) - lightness(plots.COLOURS[1])) > 0.05


def test_a_method_has_one_colour_in_all_pictures() -> None:
    def colours(*labels: str) -> list[str]:
        return [style["color"] for style in plots.line_styles(labels)]

    natural, plain, adam = colours("natural, lr 1", "plain, lr 3", "Adam, lr 0.3")
    assert [natural, plain, adam] == [plots.COLOURS[0], plots.COLOURS[1], plots.COLOURS[2]]
    assert colours("RWS", "NRWS") == [plain, natural]
    assert colours("rws mini-mnist B", "nbihm mini-mnist B", "RWS, Adam", "dnrws") == [plain, natural, adam, natural]
    assert colours("EM", "natural", "Adam, the best of four rates")[1:] == [natural, adam]
    assert len(set(colours("EM", "natural", "another", "Adam"))) == 4


def test_dashes_tell_lines_of_one_method_apart() -> None:
    styles = plots.line_styles(["natural", "natural, damped", "SGD", "natural, diagonal"])
    assert [style["linestyle"] for style in styles] == ["-", "--", "-", "-."]
    assert len({(style["color"], style["linestyle"]) for style in plots.line_styles(["run"] * 14)}) == 14


def test_lines_that_are_all_of_one_method_have_shades_of_its_colour() -> None:
    shades = [style["color"] for style in plots.line_styles(["nrws a", "nrws b", "nrws c"])]
    assert len(set(shades)) == 3 and not set(shades) & set(plots.COLOURS[1:])
    for shade in shades:
        red, green, blue = (int(shade[i : i + 2], 16) for i in (1, 3, 5))
        assert red < green < blue
    assert plots.line_styles(["Adam, lr 0.1"])[0]["color"] == plots.ADAM


def test_curves_whose_method_is_given_have_its_colour() -> None:
    curves = [plots.Curve(label, [1, 2], [1, 2], [-3.0, -2.0]) for label in ("test", "train")]
    for method, others in (("nrws", {plots.PLAIN, plots.ADAM}), ("rws", {plots.NATURAL, plots.ADAM})):
        figure = plots.draw_curves(curves, None, title="", quantity="", method=method)
        drawn = [line.get_color() for line in figure.axes[0].lines]
        assert drawn == [style["color"] for style in plots.line_styles([method] * 2)] and not set(drawn) & others


def test_colours_of_layers_get_lighter_and_are_none_of_a_method() -> None:
    colours = plots.depth_colours(12)
    assert len(set(colours)) == 12 and not {colour.upper() for colour in colours} & set(plots.COLOURS)
    sums = [sum(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for colour in colours]
    assert sums == sorted(sums)
    assert plots.depth_colours(0) == []


def test_a_picture_says_what_it_does_not_show() -> None:
    def words(values: list[float]) -> list[str]:
        curves = [plots.Curve("NRWS", range(len(values)), range(len(values)), values)]
        figure = plots.draw_curves(curves, None, title="", quantity="q")
        return [text.get_text() for text in figure.texts if text.get_text()]

    steep = [-137.94, -60.0, *(-40.0 + i for i in range(8))]
    assert words(steep) == ["not shown: beginnings, from −137.9"]
    assert words([-40.0] * 10) == words([-33.0, *steep[3:], -33.0]) == []


def test_without_matplotlib_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'dagfisher\[examples\]'"):
        plots.draw_curves([], tmp_path / "c.png", title="", quantity="")
    assert not list(tmp_path.iterdir())
