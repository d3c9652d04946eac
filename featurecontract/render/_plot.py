"""A small plot: accuracy by step, one line for each replayed wiring, with the interval of each figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featurecontract.errors import InputError, UsageError
from featurecontract.render._values import wiring_text

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from featurecontract.findings import Replayed, Report

__all__ = ["check_plot", "draw", "plot_replayed"]

FORMATS = (".png", ".svg")
MAX_LINES = 12
# Okabe and Ito's colours, which differ for colour-blind eyes too, without the yellow; black is the declared wiring's.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("s", "^", "D", "v", "P", "X")


def check_plot(path: Path) -> None:
    """Refuse a file that could not be written, before minutes are spent.

    Raises:
        UsageError: its ending is neither .png nor .svg, or matplotlib is not installed.
    """
    import importlib.util

    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path}: write a file that ends in .png or .svg")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'featurecontract[plot]'")


def plot_replayed(report: Report, path: Path) -> None:
    """Draw a report's replayed wirings.

    Raises:
        UsageError: matplotlib is not installed.
        InputError: the file cannot be written.
    """
    check_plot(path)
    try:
        draw(report).savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError.single(str(path), f"cannot be written: {error}", next_step="choose another --plot") from None


def draw(report: Report) -> Figure:
    """Return the plot: one line for each wiring, black for the declared one, intervals side by side."""
    # Not pyplot: a figure of its own needs no window system and keeps no global state.
    from matplotlib.figure import Figure

    shown = report.replayed[:MAX_LINES]
    figure = Figure(figsize=(6.4, 4.0 + 0.18 * ((len(shown) + 1) // 2)), layout="constrained")
    axes = figure.subplots()
    others = 0
    for index, item in enumerate(shown):
        style: dict[str, Any] = {"color": "black", "marker": "o", "linewidth": 2.2, "zorder": 3}
        if not item.declared:
            colour, again = _COLOURS[others % len(_COLOURS)], others >= len(_COLOURS)
            style = {"color": colour, "marker": _MARKERS[others % len(_MARKERS)], "linestyle": ":" if again else "-"}
            others += 1
        # Side by side, or the intervals of one step would cover each other.
        _line(axes, item, offset=0.5 * ((index + 0.5) / len(shown) - 0.5), style=style)
    steps = max((1, *(len(item.measure) for item in shown)))
    axes.set_xlabel("draft step")
    axes.set_ylabel("right, % of the rows right until then")
    axes.set_xticks(range(1, steps + 1))
    axes.set_xlim(0.5, steps + 0.5)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", linewidth=0.5, alpha=0.4)
    if shown:
        figure.suptitle(_title(report), fontsize="medium")
        figure.legend(fontsize="small", loc="outside lower center", ncols=2, frameon=False)
    return figure


def _line(axes: Any, item: Replayed, *, offset: float, style: dict[str, Any]) -> None:
    """Draw one wiring's figures, moved sideways by ``offset`` of a step."""
    at = [step + offset for step in range(1, len(item.measure) + 1)]
    values = [100 * point.value for point in item.measure]
    below = [100 * (point.value - (point.value if point.low is None else point.low)) for point in item.measure]
    above = [100 * ((point.value if point.high is None else point.high) - point.value) for point in item.measure]
    label = wiring_text(item.wiring) + (" (declared)" if item.declared else "")
    axes.errorbar(
        at, values, yerr=[below, above], fmt="none", ecolor=style["color"], elinewidth=1, capsize=2, alpha=0.5
    )
    axes.plot(at, values, label=label, markersize=5, **style)


def _title(report: Report) -> str:
    """Say what is drawn, and what is not."""
    first = report.replayed[0]
    what = "the target's own choice" if first.agreement else "the text's next token"
    left = len(report.replayed) - MAX_LINES
    more = f"; {left} more wirings are not drawn" if left > 0 else ""
    return f"Drafts that are {what}, {first.sequences} sequences{more}"
