"""The JSON Schema of rules files, from the data classes that read them."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, get_args

from featurecontract.runtimes._format import RuntimeRules, allowed_words, field_types

__all__ = ["rules_schema"]


def rules_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12) that rules files satisfy."""
    definitions: dict[str, Any] = {}
    root = _object(RuntimeRules, definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": definitions}


def _object(cls: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    types = field_types(cls)
    properties = {item.name: _type(cls, item.name, types[item.name], definitions) for item in fields(cls)}
    required = [item.name for item in fields(cls) if item.default is MISSING and item.default_factory is MISSING]
    return {
        "title": cls.__name__,
        "description": (cls.__doc__ or "").split("\n")[0],
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _type(owner: Any, name: str, hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    words = allowed_words(owner, name)
    if words:
        return {"enum": list(words)}
    text = str(hint)
    if text.startswith("tuple["):
        return {"type": "array", "items": _type(owner, name, get_args(hint)[0], definitions)}
    if text.startswith("dict"):
        return {"type": "object", "additionalProperties": {"type": "string"}}
    if hint in (str, int, bool):
        return {"type": {str: "string", int: "integer", bool: "boolean"}[hint]}
    if isinstance(hint, type):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = {}
            definitions[hint.__name__] = _object(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {"type": "integer"}
