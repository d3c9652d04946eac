"""The eight faults and six healthy runs on which thresholds fail: four of them beside identification.

A threshold compares what was fed with the golden rows of the same probe, as a whole ``[rows, width]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from benchmarks.noisy_target import NoisyTarget, above_notes

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["compare", "table_rows"]

WIRING, ROWS = (2, 15, 27), 256
HEALTHY = ("bf16", "fp8", "int8", "int4 g64", "int4 row", "int3 g64")
DIFFERENCE, COSINE = 1e-3, 0.99


def assert_close(fed: Tensor, golden: Tensor) -> bool:
    """Say whether ``torch.testing.assert_close`` passes with its defaults for bfloat16, the runtime's dtype."""
    try:
        torch.testing.assert_close(fed.bfloat16(), golden.bfloat16())
    except AssertionError:
        return False
    return True


def difference(fed: Tensor, golden: Tensor) -> bool:
    """Say whether ``1 - 2<x,y> / (|x|^2 + |y|^2)`` is at most 1e-3."""
    x, y = fed.double(), golden.double()
    return float(1 - 2 * (x * y).sum() / (x.square().sum() + y.square().sum())) <= DIFFERENCE


def cosine_rows(fed: Tensor, golden: Tensor) -> bool:
    """Say whether the mean cosine of a row is at least 0.99."""
    return float(torch.nn.functional.cosine_similarity(fed, golden, dim=1).mean()) >= COSINE


def cosine_whole(fed: Tensor, golden: Tensor) -> bool:
    """Say whether the cosine of the two, each taken as one vector, is at least 0.99."""
    return (
        float(torch.nn.functional.cosine_similarity(fed.double().flatten(), golden.double().flatten(), dim=0)) >= COSINE
    )


METHODS: dict[str, Callable[[Tensor, Tensor], bool]] = {
    "assert_close": assert_close,
    "difference 1e-3": difference,
    "cosine 0.99, rows": cosine_rows,
    "cosine 0.99, whole": cosine_whole,
}


def faults(planes: Any) -> dict[str, tuple[str, list[Tensor]]]:
    """Return the slug and the slots ``[rows, hidden]`` of each fault."""
    boundary = planes.boundary
    healthy = [boundary[b] for b in WIRING]
    zeroed = [item.clone() for item in healthy]
    for item in zeroed:
        item[7::8] = 0
    first, second, third = healthy
    return {
        "every slot a block early": ("layer-shift", [boundary[b - 1] for b in WIRING]),
        "one slot a block early": ("layer-shift", [first, boundary[WIRING[1] - 1], third]),
        "slots reversed": ("order", healthy[::-1]),
        "one wrong plane": ("layer-mismatch", [first, boundary[WIRING[1] + 5], third]),
        "rows shifted by one": ("rows-shifted", [item.roll(1, 0) for item in healthy]),
        "every 8th row zero": ("rows-corrupt", zeroed),
        "one slot x 1.05": ("scale", [first, second * 1.05, third]),
        "residual missing in one slot": ("residual-missing", [first, planes.mlp_output[WIRING[1]], third]),
    }


def compare(target: NoisyTarget) -> dict[str, Any]:
    """Measure every case: what each method said, and what identification named."""
    from featurecontract.identify.mutators import capture_of, with_dtype

    tokens = target.sequence(ROWS)
    probe, contract = target.probe(WIRING, tokens=tokens)
    cases: list[tuple[str, str, Tensor]] = []
    for level in HEALTHY:
        target.noisy(level)
        planes = target.planes(tokens)
        if level == "bf16":
            cases += [(name, slug, torch.cat(slots, dim=1)) for name, (slug, slots) in faults(planes).items()]
        cases.append((f"healthy {level}", "", torch.cat([planes.boundary[b] for b in WIRING], dim=1)))
    listed: list[dict[str, Any]] = []
    for name, slug, values in cases:
        fed = with_dtype(capture_of([values], token_ids=tuple(tokens)), torch.bfloat16)
        said = {method: not passes(fed.calls[0].values, probe.golden) for method, passes in METHODS.items()}
        named = sorted(above_notes(probe, contract, fed))
        listed.append({"case": name, "slug": slug, **said, "named": named})
    listed.sort(key=lambda item: not item["slug"])
    wrong, healthy = ([item for item in listed if bool(item["slug"]) is kind] for kind in (True, False))
    figures: dict[str, Any] = {
        method: {"caught": sum(item[method] for item in wrong), "false_alarms": sum(item[method] for item in healthy)}
        for method in METHODS
    }
    figures["featurecontract"] = {
        "caught": sum(bool(item["named"]) for item in wrong),
        "named": sum(item["named"] == [item["slug"]] for item in wrong),
        "false_alarms": sum(bool(item["named"]) for item in healthy),
    }
    return {"rows": ROWS, "faults": len(wrong), "healthy": len(healthy), "methods": figures, "cases": listed}


def table_rows(figures: dict[str, Any]) -> list[list[str]]:
    """Return the comparison as a table, its heading first."""
    rows = [["case", *METHODS, "featurecontract"]]
    for item in figures["cases"]:
        said = ["alarm" if item[method] else "-" for method in METHODS]
        rows.append([item["case"], *said, ", ".join(item["named"]) or "-"])
    methods = figures["methods"]
    ours = methods["featurecontract"]
    rows.append(
        [
            "caught, false alarms",
            *(f"{methods[name]['caught']} and {methods[name]['false_alarms']}" for name in METHODS),
            f"{ours['caught']} ({ours['named']} named) and {ours['false_alarms']}",
        ]
    )
    return rows
