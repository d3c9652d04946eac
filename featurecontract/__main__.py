"""``python -m featurecontract``: the commands, with an interrupt during their import answered as one during the run."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from featurecontract.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)
