"""States given with ``--feature-contract-states`` as a source of replayed statements: ``accuracy`` and ``wiring``.

The drafter's weights are run on the first item that asks. ``accuracy`` holds the replay against the contract's quality
and stands there only where the contract states one. ``wiring`` holds the declared order of the features against every
exchange of two neighbours, and against the runtimes' usual default where its planes are stored.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from featurecontract.plugin._observed import Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from featurecontract.contract import Contract, Feature
    from featurecontract.findings import Finding, Report
    from featurecontract.plugin._settings import Settings

__all__ = ["replayed_source"]

GROUP = "replayed"
_STEPS, _MOST = 3, 16


def replayed_source(contract: Contract, settings: Settings, *, directory: Path, label: str) -> Source:
    """Return the source for the states in ``settings``."""
    quality = contract.quality
    stated = quality is not None and bool(quality.step_accuracies or quality.acceptance_length is not None)
    names = (("accuracy",) if stated else ()) + (("wiring",) if len(contract.features) > 1 else ())
    return Source(
        group=GROUP,
        statements=names or ("accuracy",),
        obtain=lambda: _replayed(contract, settings, directory=directory, label=label),
        path=label,
        home=_homes,
    )


def _replayed(contract: Contract, settings: Settings, *, directory: Path, label: str) -> Report:
    from dataclasses import replace

    from featurecontract.gate import ReplayOptions, replay

    quality, serving = contract.quality, contract.serving
    steps = len(quality.step_accuracies) if quality else 0
    report = replay(
        directory,
        options=ReplayOptions(
            states=str(settings.states),
            planes=settings.planes,
            target=_directory(settings.target),
            follow_links=settings.follow_links,
        ),
        wirings=_rivals(contract),
        steps=min(_MOST, steps or (serving.num_steps if serving and serving.num_steps else _STEPS)),
        strict=settings.strict,
        skip_absent=True,
    )
    return replace(report, checkpoint=label)


def _directory(target: str | None) -> str | None:
    return target if target is not None and Path(target).is_dir() else None


def _rivals(contract: Contract) -> list[str]:
    features = list(contract.features)
    lists = []
    for slot in range(len(features) - 1):
        swapped = list(features)
        swapped[slot], swapped[slot + 1] = swapped[slot + 1], swapped[slot]
        lists.append(",".join(map(_spelled, swapped)))
    depth = contract.target.num_hidden_layers
    if len(features) == 3 and depth > 6:  # noqa: PLR2004 - the default is three boundaries, and apart on such targets
        lists.append(f"2,{depth // 2},{depth - 3}")
    return lists


def _spelled(feature: Feature) -> str:
    return "final_norm" if feature.state == "final_norm" else str(feature.boundary)


def _homes(statements: Sequence[str], report: Report, found: Finding) -> tuple[str, ...]:
    """Return the statements that a finding of the replay is about; what could not be checked is about all of them."""
    del report
    own = {"accuracy-below": "accuracy", "wiring-disagrees": "wiring"}.get(found.slug, "")
    if not found.unchecked and own in statements:
        return (own,)
    # That another wiring cannot be told from the declared one says nothing about the figures.
    if found.slug == "inconclusive" and "difference" in found.details and "wiring" in statements:
        return ("wiring",)
    return tuple(statements)
