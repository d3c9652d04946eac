"""The program: the commands, with an interrupt during their import answered as one during the run."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run a command, as the console script and ``python -m featurecontract`` do."""
    try:
        from featurecontract.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
