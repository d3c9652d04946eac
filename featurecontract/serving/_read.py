"""Reading ``--serve-args``: text, or a file with a command line, YAML or JSON. Bounded, strict, nothing is run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from featurecontract.contract.strict_json import open_regular, parse_json, read_all
from featurecontract.errors import InputError, UsageError
from featurecontract.serving._arguments import Arguments, Flag, parse_integer, shown
from featurecontract.serving._rules import known_flags, resolve_flag
from featurecontract.serving._words import QuoteError, split_words
from featurecontract.serving._yaml import YamlError, parse_yaml

__all__ = ["MAX_BYTES", "read_arguments"]

MAX_BYTES = 1024 * 1024
_MAX_WORDS = 20_000
_MAX_PATH = 4096
_OPTION = "--serve-args"
_ENVIRONMENT = re.compile(r"([A-Z_][A-Z0-9_]{0,100})=(.*)", re.DOTALL)
_FLAG = re.compile(r"(--?[A-Za-z][A-Za-z0-9_.+-]*)(?:=(.*))?", re.DOTALL)
_FILE_NAME = re.compile(r"[^\s=]+\.(?:ya?ml|json|txt|sh|args|cfg|conf)")
_PATH = re.compile(r"\.{0,2}/\S*")
_YAML_START = re.compile(r"(?:---\s*\n)?['\"]?[A-Za-z_][A-Za-z0-9_-]*['\"]?[ \t]*:(?:\s|$)")
_CONFIG_FLAGS = ("--config", "--extra-llm-api-options")
# Keys that make a whole document a speculative config.
_SPECULATIVE_KEYS = {"decoding_type", "num_speculative_tokens", "method"}


class _RefusedError(ValueError):
    """What is wrong, on one line; the reader adds where."""


def read_arguments(text: str) -> Arguments:
    """Read the value of ``--serve-args``.

    ``text`` is a command line (``KEY=VALUE`` assignments in front are its environment), ``@FILE``, or the path of a
    file: a command line with comments and continued lines, or YAML or JSON such as TensorRT-LLM's LLM API options and
    vLLM's ``--config``. A ``--config`` file that the command line names is read too, when it is there.

    Raises:
        UsageError: the text cannot be used; the message names the flag.
        InputError: the file cannot be read or used.
    """
    if len(text) > MAX_BYTES:
        raise UsageError(f"{_OPTION}: longer than {MAX_BYTES} characters; put the arguments into a file: @FILE")
    path = _path_of(text)
    if path is not None:
        return _read_file(path)
    try:
        return _from_words(text, _OPTION, follow=True)
    except _RefusedError as error:
        raise UsageError(f"{_OPTION}: {error}") from None


def _path_of(text: str) -> Path | None:
    name = text.strip()
    if name.startswith("@"):
        if len(name) == 1:
            raise UsageError(f"{_OPTION}: @ needs a file name: @serve-args.txt")
        return Path(name[1:])
    if not name or len(name) > _MAX_PATH or "\n" in name or name.startswith("-"):
        return None
    return Path(name) if _FILE_NAME.fullmatch(name) or _PATH.fullmatch(name) or _is_there(name) else None


def _is_there(name: str) -> bool:
    """Whether something has this path; what may not be looked at counts, so that the reader can say so."""
    try:
        Path(name).lstat()
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


def _read_file(path: Path) -> Arguments:
    source = str(path)
    content = _content(path)
    try:
        if content.lstrip()[:1] == "{" or path.suffix == ".json":
            return _from_mapping(parse_json(content.encode(), source=source), source)
        if path.suffix in {".yaml", ".yml"} or _looks_like_yaml(content):
            return _from_mapping(parse_yaml(content), source)
        return _from_words(content, source, follow=False)
    except (_RefusedError, YamlError, UsageError) as error:
        raise InputError.single(source, str(error).removeprefix(f"{source}: ")) from None


def _content(path: Path) -> str:
    source = str(path)
    if "\0" in source or len(source) > _MAX_PATH:
        raise UsageError(f"{_OPTION}: {shown(source)} is not a file name")
    with open_regular(path, source=source) as stream:
        data = read_all(stream, source=source, max_bytes=MAX_BYTES)
    try:
        return data.decode("utf-8").lstrip("\ufeff")
    except UnicodeDecodeError as error:
        raise InputError.single(source, f"byte {error.start} is not UTF-8", next_step="save it as UTF-8") from None


def _looks_like_yaml(content: str) -> bool:
    lines = (line for line in content.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    first = next(lines, "")
    return bool(_YAML_START.match(f"{first}\n{next(lines, '')}" if first.strip() == "---" else first))


def _from_words(text: str, source: str, *, follow: bool) -> Arguments:
    try:
        words = split_words(text)
    except QuoteError as error:
        raise _RefusedError(str(error)) from None
    if len(words) > _MAX_WORDS:
        raise _RefusedError(f"more than {_MAX_WORDS} words")
    environment: dict[str, str] = {}
    positional: list[str] = []
    flags: list[Flag] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        match = _FLAG.fullmatch(word)
        if match is None:
            assigned = _ENVIRONMENT.fullmatch(word)
            if assigned:
                environment[assigned[1]] = assigned[2]
            else:
                positional.append(word)
            continue
        name, value = _dashed(match[1]), match[2]
        following = words[position] if position < len(words) else None
        if value is None and _takes(name, following):
            value, position = following, position + 1
        flags.append(Flag(name, value))
    return _assemble(source, flags, environment, positional, follow=follow)


def _dashed(name: str) -> str:
    """Turn underscores before the first dot into dashes, as vLLM does; the other runtimes' flags have none."""
    head, dot, rest = name.partition(".")
    return head.replace("_", "-") + dot + rest


def _kind(name: str) -> str:
    """Return what a flag takes: a kind of value, ``switch``, or empty where the flag is not read here."""
    head, dot, _ = name.partition(".")
    kinds = {known_flags()[flag]["kind"] for flag in resolve_flag(head)}
    if dot:
        return "text" if kinds == {"json"} else ""
    return kinds.pop() if len(kinds) == 1 else ("text" if kinds and "switch" not in kinds else "")


def _takes(name: str, following: str | None) -> bool:
    """Whether the next word is the value of a flag; raises where a flag that needs one has none."""
    kind = _kind(name)
    if kind == "switch":
        return False
    flagged = following is not None and _FLAG.fullmatch(following) is not None
    if following is None or flagged:
        if kind:
            raise _RefusedError(f"{name} needs a value")
        return False
    return bool(kind) or not _ENVIRONMENT.fullmatch(following)


def _assemble(
    source: str,
    flags: list[Flag],
    environment: dict[str, str],
    positional: list[str],
    *,
    base: dict[str, Any] | None = None,
    follow: bool = False,
) -> Arguments:
    settings: list[Flag] = []
    unread: list[str] = []
    for item in flags:
        if item.name not in _CONFIG_FLAGS or item.value is None:
            continue
        if follow and _is_file(item.value):
            inner = _read_file(Path(item.value))
            settings += inner.flags
            base = {**(base or {}), **inner.speculative} if inner.speculative is not None else base
        else:
            unread.append(item.value)
    merged = [*settings, *flags]
    _check_values(merged)
    return Arguments(
        source=source,
        flags=tuple(merged),
        environment=environment,
        positional=tuple(positional),
        speculative=_speculative(merged, base),
        unread=tuple(unread),
    )


def _check_values(flags: list[Flag]) -> None:
    """Refuse the values that no version of any runtime takes, naming the flag."""
    for item in flags:
        if _kind(item.name) == "integer":
            value = item.value or ""
            try:
                parse_integer(value, item.name, least=-(2**31))
            except UsageError as error:
                message = str(error).replace(f" of at least {-(2**31)}", "")
                raise _RefusedError(message) from None


def _speculative(flags: list[Flag], base: dict[str, Any] | None) -> dict[str, Any] | None:
    """Merge ``--speculative-config``: a file's, then JSON, then dotted flags, which vLLM lets replace the JSON."""
    dotted: dict[str, dict[str, Any]] = {}
    for item in flags:
        head, dot, path = item.name.partition(".")
        if resolve_flag(head) != ("--speculative-config",) or item.value is None:
            continue
        if dot:
            _put(dotted.setdefault(head, {}), path, item.value, item.name)
        else:
            base = _json_mapping(item.value, item.name)
    # Each spelling makes one more JSON at the end of the line, and the last one counts.
    found = list(dotted.values())[-1] if dotted else base
    return None if found is None else {str(key).replace("-", "_"): value for key, value in found.items()}


def _json_mapping(text: str, name: str) -> dict[str, Any]:
    try:
        value = parse_json(text.encode("utf-8", "replace"), source=name)
    except InputError as error:
        raise _RefusedError(f'{error}; quote the JSON: {name} \'{{"method": "eagle3"}}\'') from None
    if not isinstance(value, dict):
        raise _RefusedError(f"{name}: {shown(text)} is not a JSON object")
    return value


def _put(target: dict[str, Any], path: str, text: str, name: str) -> None:
    keys = path.removesuffix("+").split(".")
    if not all(keys) or len(keys) > 8:  # noqa: PLR2004
        raise _RefusedError(f"{name[:80]} is not a dotted key such as --speculative-config.method")
    for key in keys[:-1]:
        target = target.setdefault(key, {})
        if not isinstance(target, dict):
            raise _RefusedError(f"{name[:80]}: {key[:80]!r} already has a value")
    value: object = text
    if path.endswith("+"):
        value = text.split(",")
    else:
        try:
            value = parse_json(text.encode("utf-8", "replace"), source=name)
        except InputError:
            value = text
    target[keys[-1]] = value


def _from_mapping(document: object, source: str) -> Arguments:
    """Read a config file: its top-level scalars are flags, ``speculative_config`` is what it says."""
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise _RefusedError("not a mapping of options")
    if _SPECULATIVE_KEYS & document.keys():
        document = {"speculative_config": document}
    flags: list[Flag] = []
    base: dict[str, Any] | None = None
    for key, value in document.items():
        name = "--" + str(key).replace("_", "-")
        if name == "--speculative-config" and not isinstance(value, str):
            if value is not None and not isinstance(value, dict):
                raise _RefusedError(f"{key}: {shown(value)} is not a mapping")
            base = value
        elif isinstance(value, bool):
            flags += [Flag(name)] if value else []
        elif isinstance(value, str | int | float) and _FLAG.fullmatch(name):
            flags.append(Flag(name, str(value)))
    return _assemble(source, flags, {}, [], base=base)
