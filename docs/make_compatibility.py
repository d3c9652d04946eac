"""Write docs/compatibility.md from docs/compatibility.json, which `make matrix` leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE / "compatibility.md"
HEAD = """# Compatibility

What real trainers export, on real runtimes: drafters of a tiny random Llama (8 layers, width 64), trained and exported
by the library's own code, served by the runtime's own code on a CPU, another prompt before the probe. *Predicted* is
what `featurecontract predict` says of the files, *observed* is what entered the projection, named by `verify`. The
*verdict* is that on the contract which the trainer left beside its checkpoint. `make matrix` runs all of it and writes
this page (docs/make_compatibility.py); `.ci/run` runs a part of it.

"""
TAIL = """
Not run, for want of a GPU: vLLM's second model runner and its DFlash path inside of CUDA graphs (their sources are held
against what the plugin expects, in tests/real/vllm), tensor and pipeline parallelism, quantised targets.
"""


def page(results: list[dict[str, Any]]) -> str:
    """Return the page."""
    names = ("drafter of", "config", "runtime", "trained on", "predicted", "observed", "verdict", "date")
    rows = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for item in results:
        skipped = item["status"] == "not run"
        slugs = ", ".join(dict.fromkeys(text.partition(":")[0] for text in item["findings"]))
        verdict = item["verdict"] + (f" ({slugs})" if slugs else "")
        cells = (
            f"{item['trainer']} ({item['drafter']})",
            item["change"] or "as exported",
            item["runtime"],
            item["declared"],
            item["predicted"],
            f"*not run*: {item['reason']}" if skipped else item["observed"] or "*nothing*",
            "" if skipped else verdict,
            item["date"],
        )
        rows.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |")
    return HEAD + "\n".join(rows) + "\n" + TAIL


if __name__ == "__main__":
    PAGE.write_text(page(json.loads((HERE / "compatibility.json").read_text("utf-8"))), "utf-8")
