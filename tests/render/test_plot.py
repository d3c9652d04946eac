"""The plot of replayed wirings: what is drawn, and that it can be told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from featurecontract.contract import parse_wiring
from featurecontract.errors import InputError
from featurecontract.findings import Estimate, Replayed, Report
from featurecontract.render import plot_replayed
from featurecontract.render._plot import MAX_LINES, draw

pytest.importorskip("matplotlib", reason="the plot needs the extra `plot`")


def replayed(wiring, values, *, declared=False, agreement=()):
    def figures(shares):
        return tuple(Estimate(value=v, low=max(0.0, v - 0.1), high=min(1.0, v + 0.05), samples=50) for v in shares)

    return Replayed(
        wiring=parse_wiring(wiring, num_hidden_layers=30),
        declared=declared,
        accuracy=figures(values),
        agreement=figures(agreement),
        acceptance_length=None,
        sequences=12,
        rows=600,
        source="states",
    )


def report(*items):
    return Report(checkpoint="ckpt", replayed=tuple(items))


TWO = (replayed("0,3,16", (0.4, 0.3, 0.2), declared=True), replayed("2,15,27", (0.1, 0.05)))


def test_lines_intervals_and_axes():
    figure = draw(report(*TWO))
    (axes,) = figure.axes
    mine, other = (line for line in axes.lines if line.get_label().startswith(("embedding", "h[")))
    assert list(mine.get_ydata()) == pytest.approx([40, 30, 20])
    assert list(other.get_ydata()) == pytest.approx([10, 5])
    assert mine.get_color() == "black"
    assert other.get_color() != "black"
    assert axes.get_ylim()[0] == 0
    assert list(axes.get_xticks()) == [1, 2, 3]
    # An interval stands at the step of its figure and at its sides, and beside the other wiring's.
    spans = [segment for bars in axes.collections for segment in bars.get_segments()]
    assert [float(end[1]) for span in spans for end in span] == pytest.approx([30, 45, 20, 35, 10, 25, 0, 15, 0, 10])
    assert len({round(float(s[0][0]), 6) for s in spans}) == 5
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "embedding, h[3], h[16] (declared)",
        "h[2], h[15], h[27]",
    ]


def test_every_line_differs_from_every_other():
    many = [replayed(f"0,3,{at}", (0.3, 0.2)) for at in range(4, 4 + MAX_LINES + 2)]
    figure = draw(report(TWO[0], *many))
    (axes,) = figure.axes
    drawn = [line for line in axes.lines if line.get_label().startswith("embedding")]
    assert len(drawn) == MAX_LINES
    assert len({(line.get_color(), line.get_linestyle()) for line in drawn}) == MAX_LINES
    assert "3 more wirings are not drawn" in figure.get_suptitle()


def test_the_title_says_what_is_counted():
    assert "text's next token" in draw(report(*TWO)).get_suptitle()
    known = replayed("0,3,16", (0.4,), agreement=(0.6,))
    figure = draw(report(known))
    assert "target's own choice" in figure.get_suptitle()
    assert list(figure.axes[0].lines[-1].get_ydata()) == pytest.approx([60])


@pytest.mark.parametrize("items", [(), (replayed("0,3,16", ()),)], ids=["nothing", "no-step"])
def test_nothing_to_draw_is_an_empty_plot(items, tmp_path):
    plot_replayed(report(*items), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_files(tmp_path):
    plot_replayed(report(*TWO), tmp_path / "a.PNG")
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")
    plot_replayed(report(*TWO), tmp_path / "a.svg")
    assert "embedding, h[3], h[16] (declared)" in (tmp_path / "a.svg").read_text()
    with pytest.raises(InputError, match="cannot be written"):
        plot_replayed(report(*TWO), Path(tmp_path, "none", "a.png"))
