"""Make sure that the capture plugin is loaded by the SGLang that a live run starts, installed there or not."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from featurecontract.capture.sglang import ROWS_VARIABLE
from featurecontract.live._engine import CannotRun
from featurecontract.live._sglang_force import VARIABLE as FORCE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from featurecontract.live._job import Job

__all__ = ["FORCED", "OLDEST", "prepare", "usable_version"]

#: The first release with ``sglang.srt.plugins``.
OLDEST = (0, 5, 11)
#: Ids of requests whose tokens are forced begin with these: another prompt, then the probe.
FORCED = ("fc-decode-0", "fc-decode-1")
_GROUP = "sglang.srt.plugins"
_OWN = "featurecontract"
_FOLDER = "plugin"


def prepare(job: Job, *, accepted: Sequence[int]) -> Path:
    """Set the environment that SGLang's processes inherit; return the folder for captures.

    Raises:
        CannotRun: SGLang is told to load other plugins only.
    """
    out = Path(job.out)
    captured = out / "captured"
    captured.mkdir(parents=True, exist_ok=True)
    plan = out / "forced.json"
    plan.write_text(
        json.dumps(
            {
                "tokens": dict(zip(FORCED, ([*job.others[0]], [*job.token_ids]), strict=True)),
                "accepted": list(accepted),
            }
        ),
        "utf-8",
    )
    os.environ[ROWS_VARIABLE] = str(max(2048, 32 * len(job.token_ids)))
    os.environ[FORCE_VARIABLE] = str(plan)
    allowed = os.environ.get("SGLANG_PLUGINS")
    if allowed:
        listed = {item.strip() for item in allowed.split(",")}
        if _OWN not in listed:
            raise CannotRun(f"SGLANG_PLUGINS={allowed} keeps the plugin {_OWN!r} out; add it or unset the variable")
        os.environ["SGLANG_PLUGINS"] = f"{allowed},{_OWN}-live"
    _announce(out / _FOLDER)
    return captured


def usable_version() -> str:
    """Return the installed SGLang's version.

    Raises:
        CannotRun: it is too old for plugins.
        ImportError: there is none.
    """
    try:
        version = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        raise ImportError("No module named 'sglang'") from None
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
    if numbers < OLDEST:
        oldest = ".".join(str(part) for part in OLDEST)
        raise CannotRun(f"SGLang {version} has no plugins (they came with {oldest}); install a newer one")
    return version


def _announce(folder: Path) -> None:
    """Put the entry points of this run, and our own where it is not installed, on the path of SGLang's processes."""
    entries = [f"{_OWN}-live = featurecontract.live._sglang_force:plugin"]
    if not any(item.name == _OWN for item in importlib.metadata.entry_points(group=_GROUP)):
        entries.append(f"{_OWN} = featurecontract.capture.sglang:plugin")
    place = folder / f"{_OWN}_live-1.dist-info"
    place.mkdir(parents=True, exist_ok=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_OWN}-live\nVersion: 1\n", "utf-8")
    (place / "entry_points.txt").write_text("\n".join([f"[{_GROUP}]", *entries, ""]), "utf-8")
    # Processes that are spawned get the parent's sys.path, others the environment's.
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
