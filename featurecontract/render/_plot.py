"""A small plot: accuracy by step, one line for each replayed wiring, with the interval of each figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurecontract.errors import InputError, UsageError
from featurecontract.render._values import wiring_text

if TYPE_CHECKING:
    from pathlib import Path

    from featurecontract.findings import Report

__all__ = ["check_plot", "plot_replayed"]

FORMATS = (".png", ".svg")
MAX_LINES = 12


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
    # Not pyplot: a figure of its own needs no window system and keeps no global state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for item in report.replayed[:MAX_LINES]:
        values = [100 * point.value for point in item.measure]
        below = [100 * (point.value - (point.value if point.low is None else point.low)) for point in item.measure]
        above = [100 * ((point.value if point.high is None else point.high) - point.value) for point in item.measure]
        label = wiring_text(item.wiring) + (" (declared)" if item.declared else "")
        axes.errorbar(range(1, len(values) + 1), values, yerr=[below, above], marker="o", capsize=3, label=label)
    axes.set_xlabel("draft step")
    axes.set_ylabel("right, %")
    axes.set_xticks(range(1, 1 + max((len(item.measure) for item in report.replayed), default=1)))
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError.single(str(path), f"cannot be written: {error}", next_step="choose another --plot") from None
