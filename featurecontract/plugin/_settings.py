"""The options and their ini twins as one value, checked before anything is collected."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from featurecontract.contract import CONTRACT_FILE
from featurecontract.errors import FeatureContractError
from featurecontract.plugin._names import file_id, unique

if TYPE_CHECKING:
    from collections.abc import Mapping

    from featurecontract.runtimes import RuntimeRules

__all__ = ["Settings", "Subject", "in_pytest_words", "read_settings"]

_OPTIONS = re.compile(r"(?<![\w-])--(runtime|target|serve-args|rules|follow-links|digests|strict|confidence)(?![\w-])")
# As `featurecontract verify --confidence`.
_CONFIDENCE = 0.9
_MOST_EXAMPLES = 1_000_000
# Deeper than any target: how deep this one is, is known later.
_DEEP = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A checkpoint: where it is, and the first part of its node ids."""

    path: Path
    node_id: str

    @property
    def directory(self) -> Path:
        """The checkpoint's directory."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def label(self) -> str:
        """The checkpoint in headers and parametrised node ids."""
        return self.node_id.removesuffix(CONTRACT_FILE).rstrip("/") or "."


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What was asked for; every path is absolute, because tests may change the working directory."""

    subjects: tuple[Subject, ...]
    runtimes: tuple[str, ...] = ()
    target: str | None = None
    serve_args: str | None = None
    rules: Mapping[str, RuntimeRules]
    strict: bool = False
    digests: bool = False
    follow_links: bool = False
    report: Path | None = None
    captures: tuple[Path, ...] = ()
    confidence: float = _CONFIDENCE
    fuzz: int = 0
    live: tuple[str, ...] = ()
    live_args: Mapping[str, Any]
    live_python: str = sys.executable
    states: Path | None = None
    planes: str | None = None


@dataclass(frozen=True, slots=True)
class _Given:
    """The values of one option: its name for messages, and the directory that relative paths start from."""

    name: str
    values: tuple[str, ...]
    base: Path

    @property
    def text(self) -> str | None:
        return self.values[0] if self.values else None

    def refuse(self, message: str) -> pytest.UsageError:
        return pytest.UsageError(f"{self.name}: {message}")


def in_pytest_words(text: str) -> str:
    """Return a message with the command line's options under their names here; quoted commands stay as they are."""
    parts = text.split("`")
    return "`".join(
        _OPTIONS.sub(r"--feature-contract-\1", item) if index % 2 == 0 else item for index, item in enumerate(parts)
    )


def read_settings(config: pytest.Config) -> Settings:
    """Read and check every option; raises pytest.UsageError with the valid values or the next step."""
    rules = _rules(_given(config, "rules"))
    return Settings(
        subjects=_subjects(_given(config, ""), config.rootpath),
        runtimes=_runtimes(_given(config, "runtime"), rules),
        target=_target(_given(config, "target"), follow_links=_switch(config, "follow_links")),
        serve_args=_serve_args(_given(config, "serve_args")),
        rules=rules,
        strict=_switch(config, "strict"),
        digests=_switch(config, "digests"),
        follow_links=_switch(config, "follow_links"),
        report=_report(_given(config, "report")),
        captures=_captures(_given(config, "capture")),
        confidence=_confidence(_given(config, "confidence")),
        fuzz=_fuzz(_given(config, "fuzz")),
        live=_live(_given(config, "live"), _given(config, "target")),
        live_args=_live_args(_given(config, "live_args")),
        live_python=_live_python(_given(config, "live_python")),
        states=_states(_given(config, "states")),
        planes=_planes(_given(config, "planes"), _given(config, "states")),
    )


def _given(config: pytest.Config, name: str) -> _Given:
    key = f"feature_contract_{name}" if name else "feature_contract"
    value = config.getoption(key)
    if value:
        return _Given("--" + key.replace("_", "-"), _listed(value), Path(config.invocation_params.dir))
    base = config.inipath.parent if config.inipath else config.rootpath
    return _Given(f"{key} in {config.inipath.name if config.inipath else 'ini'}", _listed(config.getini(key)), base)


def _listed(value: Any) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else (value,) if value else ()


def _switch(config: pytest.Config, name: str) -> bool:
    key = f"feature_contract_{name}"
    return bool(config.getoption(key) or config.getini(key))


def _absolute(text: str, base: Path) -> Path:
    # Not resolved: a checkpoint may be a link on purpose, and its node ids are read by people.
    return Path(os.path.abspath(base / Path(text).expanduser()))  # noqa: PTH100


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _subjects(given: _Given, rootdir: Path) -> tuple[Subject, ...]:
    found: dict[Path, Subject] = {}
    for text in given.values:
        path = _absolute(text, given.base)
        if path.name == CONTRACT_FILE:
            path = path.parent
        if not text.strip() or not _exists(path):
            near = sorted(item.parent.name for item in given.base.glob(f"*/{CONTRACT_FILE}"))[:5]
            hint = f"; here: {', '.join(near)}" if near else ""
            step = f"give the directory that holds config.json and {CONTRACT_FILE}"
            raise given.refuse(f"{text!r} does not exist; {step}{hint}")
        directory = path if path.is_dir() else path.parent
        taken = {item.node_id for item in found.values()}
        found.setdefault(path, Subject(path=path, node_id=_node_id(directory, rootdir, taken)))
    return tuple(found.values())


def _node_id(directory: Path, rootdir: Path, taken: set[str]) -> str:
    name = file_id(directory, rootdir)
    if name not in taken:
        return name
    label = name.removesuffix(f"/{CONTRACT_FILE}")
    return unique(label, {item.removesuffix(f"/{CONTRACT_FILE}") for item in taken}) + f"/{CONTRACT_FILE}"


def _rules(given: _Given) -> Mapping[str, RuntimeRules]:
    from featurecontract.runtimes import read_rules

    found: dict[str, RuntimeRules] = {}
    for text in given.values:
        try:
            rules = read_rules(_absolute(text, given.base))
        except FeatureContractError as error:
            step = "" if ";" in str(error) else "; `featurecontract schema rules` prints the format"
            raise given.refuse(in_pytest_words(str(error)) + step) from None
        found[rules.runtime] = rules
    return found


def _runtimes(given: _Given, rules: Mapping[str, RuntimeRules]) -> tuple[str, ...]:
    from featurecontract.runtimes import choose

    try:
        for text in given.values:
            choose(text, extra=rules)
    except FeatureContractError as error:
        raise given.refuse(in_pytest_words(str(error))) from None
    return given.values


def _target(given: _Given, *, follow_links: bool) -> str | None:
    if given.text is None:
        return None
    from featurecontract.checkpoint import read_target

    path = _absolute(given.text, given.base)
    text = str(path) if _exists(path) else given.text
    try:
        read_target(text, follow_links=follow_links)
    except FeatureContractError as error:
        raise given.refuse(in_pytest_words(str(error))) from None
    return text


def _serve_args(given: _Given) -> str | None:
    text = given.text
    if text is None:
        return None
    from featurecontract.serving import read_arguments

    name = text.strip().removeprefix("@")
    path = _absolute(name, given.base) if name and "\n" not in name else None
    if path is not None and (text.strip().startswith("@") or (_exists(path) and path.is_file())):
        text = f"@{path}"
    try:
        arguments = read_arguments(text)
        _ = arguments.layers_to_capture
    except FeatureContractError as error:
        raise given.refuse(str(error).removeprefix("--serve-args: ")) from None
    return text


def _captures(given: _Given) -> tuple[Path, ...]:
    found: dict[Path, None] = {}
    for text in given.values:
        path = _absolute(text, given.base)
        if not text.strip() or not _exists(path):
            step = "name a capture-*.json, or the directory that holds them (`featurecontract.capture` writes both)"
            raise given.refuse(f"{text!r} does not exist; {step}")
        found[path] = None
    return tuple(found)


def _confidence(given: _Given) -> float:
    if given.text is None:
        return _CONFIDENCE
    try:
        value = float(given.text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise given.refuse(f"{given.text!r} is no number from 0 to 1; leave it out for {_CONFIDENCE}")
    return value


def _fuzz(given: _Given) -> int:
    if given.text is None:
        return 0
    text = given.text.strip()
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:10]) <= _MOST_EXAMPLES and len(text) < 10):  # noqa: PLR2004
        raise given.refuse(
            f"{given.text!r} is no number of examples from 1 to {_MOST_EXAMPLES}; 100 takes about a second"
        )
    if find_spec("hypothesis") is None:
        raise given.refuse('hypothesis is not installed: pip install "featurecontract[pytest]"')
    return int(text)


def _live(given: _Given, target: _Given) -> tuple[str, ...]:
    from featurecontract.live import phases

    try:
        for name in given.values:
            phases(name)
    except FeatureContractError as error:
        raise given.refuse(str(error)) from None
    if given.values and (target.text is None or not _absolute(target.text, target.base).is_dir()):
        raise given.refuse("needs the target's directory, with its weights: --feature-contract-target DIR")
    return tuple(dict.fromkeys(given.values))


def _live_args(given: _Given) -> Mapping[str, Any]:
    from featurecontract.live import options_from_file, options_from_text

    if given.text is None:
        return {}
    name = given.text.strip().removeprefix("@")
    path = _absolute(name, given.base)
    try:
        if given.text.strip().startswith("@") or (_exists(path) and path.is_file()):
            return options_from_file(path)
        return options_from_text(given.text)
    except FeatureContractError as error:
        raise given.refuse(str(error)) from None


def _live_python(given: _Given) -> str:
    if given.text is None:
        return sys.executable
    path = _absolute(given.text, given.base)
    found = str(path) if _exists(path) and os.access(path, os.X_OK) else shutil.which(given.text)
    if found is None:
        raise given.refuse(f"{given.text!r} is no program; name the Python that has the runtime installed")
    return found


def _states(given: _Given) -> Path | None:
    if given.text is None:
        return None
    path = _absolute(given.text, given.base)
    if not given.text.strip() or not _exists(path):
        raise given.refuse(f"{given.text!r} does not exist; name a file or a folder of stored hidden states")
    return path


def _planes(given: _Given, states: _Given) -> str | None:
    from featurecontract.contract import parse_wiring

    if given.text is None:
        return None
    if states.text is None:
        raise given.refuse("names the planes of stored states: give --feature-contract-states DIR")
    try:
        parse_wiring(given.text, num_hidden_layers=_DEEP)
    except FeatureContractError as error:
        raise given.refuse(str(error)) from None
    return given.text


def _report(given: _Given) -> Path | None:
    if given.text is None:
        return None
    path = _absolute(given.text, given.base)
    step = "name a file in a directory that is there and can be written"
    if path.is_dir():
        raise given.refuse(f"{given.text!r} is a directory; {step}")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise given.refuse(f"{given.text!r} cannot be written ({error.strerror or error}); {step}") from None
    return path
