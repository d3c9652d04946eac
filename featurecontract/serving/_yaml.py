"""YAML from outside: plain data only, bounded in size, depth and values; no aliases, no tags that build objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["YamlError", "parse_yaml"]

_MAX_DEPTH = 32
_MAX_EVENTS = 20_000
_MAX_SCALAR = 4096
_MAX_NUMBER = 40


class YamlError(ValueError):
    """The document cannot be used; the text is one line and names the line of the document where it can."""


def parse_yaml(text: str) -> object:
    """Return the one document of ``text`` as plain Python values.

    Raises:
        YamlError: PyYAML is missing, or the document is malformed, too large, or more than plain data.
    """
    try:
        import yaml
    except ImportError:
        raise YamlError("reading YAML needs PyYAML; `pip install pyyaml`, or write the same as JSON") from None
    try:
        _check_events(yaml.parse(text, Loader=yaml.SafeLoader))
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _check_nodes(node)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise YamlError(f"{line}{_one_line(error.problem or error.context or 'not YAML')}") from None
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, LookupError, RecursionError) as error:
        raise YamlError(_one_line(str(error)) or "not YAML") from None


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]


def _check_events(events: Iterator[Any]) -> None:
    """Refuse before anything is built: the parser is iterative and lazy, the composer recurses."""
    depth = 0
    for count, event in enumerate(events):
        kind = type(event).__name__
        line = event.start_mark.line + 1
        if count > _MAX_EVENTS:
            raise YamlError(f"line {line}: more than {_MAX_EVENTS} values")
        if kind == "AliasEvent":
            raise YamlError(f"line {line}: aliases are not read here; write the value out")
        if kind in {"MappingStartEvent", "SequenceStartEvent"}:
            depth += 1
            if depth > _MAX_DEPTH:
                raise YamlError(f"line {line}: nested deeper than {_MAX_DEPTH}")
        elif kind in {"MappingEndEvent", "SequenceEndEvent"}:
            depth -= 1
        elif kind == "ScalarEvent" and len(event.value) > _MAX_SCALAR:
            raise YamlError(f"line {line}: a value of more than {_MAX_SCALAR} characters")


def _check_nodes(node: Any) -> None:
    """Refuse a key that is given twice, of which PyYAML silently keeps the last, and numbers without end."""
    if isinstance(node.value, str):
        # Python cannot even print an integer of some thousand digits.
        if node.tag.endswith(":int") and len(node.value) > _MAX_NUMBER:
            raise YamlError(f"line {node.start_mark.line + 1}: a number of more than {_MAX_NUMBER} characters")
        return
    seen: set[str] = set()
    for item in node.value:
        if not isinstance(item, tuple):
            _check_nodes(item)
            continue
        key, value = item
        if isinstance(key.value, str):
            if key.value in seen:
                line = key.start_mark.line + 1
                raise YamlError(f"line {line}: the key {key.value[:60]!r} is given twice")
            seen.add(key.value)
        _check_nodes(key)
        _check_nodes(value)
