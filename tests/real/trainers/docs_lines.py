"""The lines of docs/trainers.md, as they are written there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[3] / "docs" / "trainers.md"


def run_lines(heading: str, **names: Any) -> dict[str, Any]:
    """Run the Python blocks below a heading, one after the other, and return the names that they leave."""
    section = PAGE.read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert blocks, heading
    for block in blocks:
        exec(compile(block, f"{PAGE.name}: {heading}", "exec"), names)  # noqa: S102 - the page's own lines
    return names
