"""Versions of runtimes: PEP 440, llama.cpp's ``b<number>``, and ranges such as ``>=0.5.6,<0.5.13``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from featurecontract.errors import UsageError

if TYPE_CHECKING:
    from packaging.version import Version

__all__ = ["build_number", "in_range", "parse_version", "release_of"]

_CLAUSE = re.compile(r"(>=|<=|==|>|<)\s*(\S{1,40})")


@lru_cache(maxsize=4096)
def parse_version(text: str) -> Version:
    """Parse a version; local parts are ignored, ``b6000`` is llama.cpp's build 6000. Raises UsageError."""
    from packaging.version import InvalidVersion, Version

    build = build_number(text)
    try:
        # A real version is far shorter; the cut keeps a hostile one from costing time.
        return Version(build or Version(text[:60]).public)
    except InvalidVersion:
        raise UsageError(f"{text[:60]!r} is not a version such as 0.5.12 (or b6000 for llama.cpp)") from None


def build_number(text: str) -> str:
    """Return the number of a build such as llama.cpp's ``b6000``, empty for every other version."""
    found = re.fullmatch(r"b(\d{1,9})", text, re.ASCII)
    return found[1] if found else ""


@lru_cache(maxsize=4096)
def release_of(text: str) -> Version:
    """Return the release a version stands for: a pre-release or dev build already has its release's code."""
    from packaging.version import Version

    version = parse_version(text)
    post = "" if version.post is None else f".post{version.post}"
    return Version(".".join(str(part) for part in version.release) + post)


@dataclass(frozen=True, slots=True)
class _Clause:
    operator: str
    version: Version

    def holds(self, version: Version) -> bool:
        if self.operator == ">=":
            return version >= self.version
        if self.operator == "<=":
            return version <= self.version
        if self.operator == ">":
            return version > self.version
        if self.operator == "<":
            return version < self.version
        return version == self.version


@lru_cache(maxsize=4096)
def _clauses(spec: str) -> tuple[_Clause, ...]:
    out = []
    for part in (item.strip() for item in spec.split(",") if item.strip()):
        found = _CLAUSE.fullmatch(part)
        if not found:
            raise UsageError(f"{spec!r}: {part!r} is not a version clause such as >=0.5.6")
        out.append(_Clause(found[1], parse_version(found[2])))
    return tuple(out)


@lru_cache(maxsize=16384)
def in_range(version: str, spec: str) -> bool:
    """Whether a version lies in a range; an empty range holds every version."""
    release = release_of(version)
    return all(clause.holds(release) for clause in _clauses(spec))
