"""Each file needs its own library, and the libraries need environments of their own: elsewhere nothing is collected."""

from __future__ import annotations

import importlib.util

_NEEDS = {"test_speculators_parity.py": "speculators", "test_specforge_parity.py": "specforge"}

collect_ignore = [file for file, library in _NEEDS.items() if importlib.util.find_spec(library) is None]
