"""What is known of a target model: from its config.json, or from ``name:L,H[,ARCHITECTURE]``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from featurecontract.checkpoint._checkpoint import read_config
from featurecontract.checkpoint._paths import quoted, shown_path
from featurecontract.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["TargetFacts", "read_target"]

_MAX_LAYERS = 10_000
_MAX_WIDTH = 1_048_576
_MAX_VOCAB = 100_000_000
_MAX_ARCHITECTURES = 8
#: Where multimodal configs keep the text model's config, in the order they are looked for.
_INNER = (
    ("text_config",),
    ("thinker_config", "text_config"),
    ("llm_config",),
    ("language_config",),
    ("language_model",),
)
#: Older spellings, read when the usual key is missing (transformers ``attribute_map`` of GPT-2, MPT and ChatGLM).
_SPELLINGS = {
    "num_hidden_layers": ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
}
_SHORT = re.compile(r"(?P<name>.+):(?P<layers>[0-9]{1,6}),(?P<width>[0-9]{1,8})(?:,(?P<arch>[A-Za-z_][A-Za-z0-9_]*))?")
_SHORT_FORM = "NAME:LAYERS,WIDTH[,ARCHITECTURE] (such as Kimi-K2.5:61,7168,DeepseekV3ForCausalLM)"
_FORMS = f"name a model directory, its config.json, or {_SHORT_FORM}"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """A target of ``num_hidden_layers`` decoder layers, each ``hidden_size`` wide.

    ``architecture`` is the outer one (the class that the runtime loads), ``architectures`` the outer and inner ones
    in this order; ``model_type`` is the text model's. What the config does not say is None. ``config`` is the raw
    config.json, for the few runtimes that look for layer ids in the target's.
    """

    source: str
    num_hidden_layers: int
    hidden_size: int
    name: str | None = None
    vocab_size: int | None = None
    architecture: str | None = None
    architectures: tuple[str, ...] = ()
    model_type: str | None = None
    outer_model_type: str | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    rope_theta: float | None = None
    tie_word_embeddings: bool | None = None
    hc_mult: int | None = None
    num_loops: int | None = None
    config: Mapping[str, object] = field(default_factory=dict, hash=False, compare=False)


def read_target(text: str, *, follow_links: bool = False) -> TargetFacts:
    """Read a target from a model directory, a ``config.json`` path, or ``name:L,H[,ARCHITECTURE]``.

    The name in the third form may hold slashes and colons. A path that exists comes first.

    Raises:
        InputError: the text is none of the three, or the config lacks a usable layer count or width.
    """
    path = Path(text)
    try:
        exists = bool(text) and path.exists()
    except (OSError, ValueError):
        exists = False
    if exists:
        directory, file = (path, "config.json") if path.is_dir() else (path.parent, path.name)
        if not file.endswith(".json"):
            raise InputError.single(shown_path(path), "is no target", next_step=_FORMS)
        config = read_config(directory, file=file, follow_links=follow_links)
        return _from_config(config, source=text, shown=shown_path(directory / file), name=_name(directory))
    match = _SHORT.fullmatch(text) if text.isprintable() else None
    if match is None:
        raise InputError.single(quoted(text), "is no target: nothing has this path", next_step=_FORMS)
    problems = tuple(
        Problem(place=key, message=f"is {number}, not in 1..{limit}", next_step=f"write {_SHORT_FORM}")
        for key, number, limit in (
            ("num_hidden_layers", int(match["layers"]), _MAX_LAYERS),
            ("hidden_size", int(match["width"]), _MAX_WIDTH),
        )
        if not 1 <= number <= limit
    )
    if problems:
        raise InputError(quoted(text), problems)
    return TargetFacts(
        source=text,
        name=match["name"],
        num_hidden_layers=int(match["layers"]),
        hidden_size=int(match["width"]),
        architecture=match["arch"],
        architectures=(match["arch"],) if match["arch"] else (),
    )


def _name(directory: Path) -> str | None:
    """Return the directory's name; for a Hugging Face cache, the model's."""
    real = directory.absolute()
    cache = real.parent.parent.name
    if real.parent.name == "snapshots" and cache.startswith("models--"):
        return cache.removeprefix("models--").replace("--", "/")
    return real.name or None


class _Config:
    """The outer config and the text model's; reads collect problems and look inside first."""

    def __init__(self, outer: dict[str, object]) -> None:
        self.outer = outer
        self.prefix, self.inner = self._text_model(outer)
        self.problems: list[Problem] = []

    @staticmethod
    def _text_model(outer: dict[str, object]) -> tuple[str, dict[str, object]]:
        for path in _INNER:
            found: object = outer
            for key in path:
                found = found.get(key) if isinstance(found, dict) else None
            if isinstance(found, dict) and any(key in found for keys in _SPELLINGS.values() for key in keys):
                return ".".join(path) + ".", found
        return "", outer

    def look(self, key: str) -> Iterator[tuple[str, Any]]:
        """Yield the key's place and value, inside first; null counts as missing."""
        for prefix, section in ((self.prefix, self.inner), ("", self.outer)):
            if section.get(key) is not None:
                yield prefix + key, section[key]

    def size(self, key: str, limit: int, *, required: bool) -> int:
        """Return a count in 1..limit, 0 when it is missing or wrong; a required one must be in the text model."""
        for spelling in _SPELLINGS.get(key, (key,)):
            for place, value in self.look(spelling):
                if type(value) is int and 1 <= value <= limit:
                    return value
                message = f"is {quoted(value)}, not a whole number in 1..{limit}"
                self.problems.append(Problem(place=place, message=message, next_step="correct the target's config"))
                return 0
        if required:
            step = "name the target's own config.json, or give NAME:LAYERS,WIDTH"
            self.problems.append(Problem(place=self.prefix + key, message="is missing", next_step=step))
        return 0

    def first(self, key: str, kind: type[_T]) -> _T | None:
        """Return the first value of exactly this type (an int is no bool)."""
        return next((value for _, value in self.look(key) if type(value) is kind), None)

    def architectures(self) -> tuple[str, ...]:
        found: list[str] = []
        for section in (self.outer, self.inner):
            listed = section.get("architectures")
            if isinstance(listed, list):
                found += [name for name in listed[:_MAX_ARCHITECTURES] if isinstance(name, str)]
        return tuple(dict.fromkeys(found))

    def quantization(self) -> str | None:
        for key in ("quantization_config", "compression_config"):
            for _, value in self.look(key):
                if isinstance(value, dict):
                    method = value.get("quant_method") or value.get("quant_algo")
                    return method if isinstance(method, str) else "unnamed"
        return None

    def rope_theta(self) -> float | None:
        """Return the base, also from transformers 5 ``rope_parameters``, there possibly one per attention type."""
        for key in ("rope_theta", "rope_parameters"):
            for _, value in self.look(key):
                nested = value.get("rope_theta", value.get("full_attention")) if isinstance(value, dict) else value
                theta = nested.get("rope_theta") if isinstance(nested, dict) else nested
                if type(theta) in (int, float):
                    return float(cast("float", theta))
        return None


def _from_config(raw: dict[str, object], *, source: str, shown: str, name: str | None) -> TargetFacts:
    config = _Config(raw)
    layers = config.size("num_hidden_layers", _MAX_LAYERS, required=True)
    width = config.size("hidden_size", _MAX_WIDTH, required=True)
    vocab = config.size("vocab_size", _MAX_VOCAB, required=False)
    hc_mult = config.size("hc_mult", _MAX_LAYERS, required=False)
    num_loops = config.size("num_loops", _MAX_LAYERS, required=False)
    if config.problems:
        raise InputError(shown, tuple(config.problems))
    architectures = config.architectures()
    outer_type = raw.get("model_type")
    return TargetFacts(
        source=source,
        name=name,
        num_hidden_layers=layers,
        hidden_size=width,
        vocab_size=vocab or None,
        architecture=architectures[0] if architectures else None,
        architectures=architectures,
        model_type=config.first("model_type", str),
        outer_model_type=outer_type if isinstance(outer_type, str) else None,
        num_attention_heads=config.first("num_attention_heads", int),
        num_key_value_heads=config.first("num_key_value_heads", int),
        dtype=config.first("dtype", str) or config.first("torch_dtype", str),
        quantization=config.quantization(),
        rope_theta=config.rope_theta(),
        tie_word_embeddings=config.first("tie_word_embeddings", bool),
        hc_mult=hc_mult or None,
        num_loops=num_loops or None,
        config=raw,
    )
