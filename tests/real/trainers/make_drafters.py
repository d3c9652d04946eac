"""Write the exported checkpoints of the three libraries with their contracts: ``python make_drafters.py OUT``.

Each is made by its own library in its own environment, from the folder that FEATURECONTRACT_VENVS names. OUT then holds
``target`` and ``speculators``, ``specforge-default``, ``specforge-override``, ``modelopt``, each with a contract.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
#: Library -> the folders that its run leaves.
MADE = {
    "speculators": ("speculators",),
    "specforge": ("specforge-default", "specforge-override"),
    "modelopt": ("modelopt",),
}


def main(out: Path) -> int:
    """Run every library's script, and return 0 when all contracts are there."""
    venvs = Path(os.environ.get("FEATURECONTRACT_VENVS", ".venvs")).resolve()
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(ROOT), str(HERE)])
    environment = os.environ | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}
    failed = []
    for library, folders in MADE.items():
        python = venvs / library / "bin" / "python"
        if not python.exists():
            print(f"NOT RUN {library}: there is no {python} (requirements/make_environment.sh {library})")
            failed.append(library)
            continue
        done = subprocess.run(
            [str(python), str(HERE / f"{library}_run.py"), str(out)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        missing = [name for name in folders if not (out / name / "feature_contract.json").exists()]
        if done.returncode or missing:
            print(f"FAILED {library}: {done.stderr[-2000:]}")
            failed.append(library)
        else:
            print(f"made {', '.join(folders)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
