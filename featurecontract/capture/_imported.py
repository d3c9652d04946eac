"""Something done to a module as soon as the host imports it, without importing it for the host."""

from __future__ import annotations

import importlib.abc
import importlib.util
import logging
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["when_imported"]

_LOG = logging.getLogger("featurecontract.capture")


def when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call ``then(module)`` now if the module is there, else right after it was imported; once for each name."""
    if name in sys.modules:
        then(sys.modules[name])
    elif not any(isinstance(item, _Finder) and item.name == name for item in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, then))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as everybody else does, and loads it with a function behind."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self.then = name, then
        self._busy = False

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, with its loader's last step extended."""
        if fullname != self.name or self._busy:
            return None
        self._busy = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy = False
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            try:
                self.then(module)
            except Exception as error:  # noqa: BLE001 - the host must be able to import its own modules without us
                _LOG.warning("%s was not tapped: %s", fullname, error)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
