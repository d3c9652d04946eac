"""Widths of latent attention: the weights' own, by the config's heads; a config that says others is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featurecontract.dialects import lookup
from featurecontract.errors import InputError
from featurecontract.replay._mla import FUSED, MlaSpec
from featurecontract.replay._rope import yarn_mscale

if TYPE_CHECKING:
    from collections.abc import Mapping

    from featurecontract.dialects import DraftConfig

__all__ = ["latent_factor", "latent_scaling", "read_mla"]

_STEP = "correct config.json, or export the checkpoint again from the run that trained it"


class _Widths:
    """Shapes of the first layer's attention while they are read."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], source: str) -> None:
        self.shapes, self.source = shapes, source

    def has(self, part: str) -> bool:
        return self._name(part) in self.shapes

    def size(self, part: str, axis: int = 0) -> int:
        name = self._name(part)
        shape = self.shapes.get(name)
        if shape is None:
            raise InputError.single(
                self.source,
                "is missing from the checkpoint: latent attention (MLA) needs it",
                place=name,
                next_step=_STEP,
                slug="tensor-missing",
            )
        if axis >= len(shape) or not shape[axis]:
            raise self.error(f"is {list(shape)}, which is no such part", part)
        return shape[axis]

    def error(self, message: str, part: str) -> InputError:
        return InputError.single(self.source, message, place=self._name(part), next_step=_STEP, slug="width")

    @staticmethod
    def _name(part: str) -> str:
        return f"layers.0.self_attn.{part}.weight"


def read_mla(
    config: DraftConfig, shapes: Mapping[str, tuple[int, ...]], *, factor: float, eps: float, source: str
) -> tuple[int, MlaSpec]:
    """Return the number of heads and the widths.

    Args:
        config: States ``num_attention_heads``; what it states of widths must be what the weights have.
        shapes: By plain names.
        factor: On the usual scale of the scores (``latent_factor``).
        eps: Of the norms.
        source: The checkpoint, for messages.

    Raises:
        InputError: a tensor is missing, widths do not divide, or the config says others.
    """
    found = _Widths(shapes, source)
    heads = config.integer("num_attention_heads")
    if heads is None:
        raise InputError.single(
            config.source, "states no num_attention_heads", place="num_attention_heads", next_step=_STEP
        )
    if found.has(FUSED) and (found.has("q_a_proj") or found.has("kv_a_proj_with_mqa")):
        raise found.error("stands beside the projections that it holds: keep one of them", FUSED)
    query_rank = found.size("q_a_layernorm") if found.has("q_b_proj") or not found.has("q_proj") else None
    latent_rank = found.size("kv_a_layernorm")
    first = FUSED if found.has(FUSED) else "kv_a_proj_with_mqa"
    left = found.size(first) - latent_rank - (query_rank or 0 if first == FUSED else 0)
    if left <= 0 or left % 2:
        raise found.error(
            f"leaves {left} channels beside latents of {latent_rank}: these cannot be rotated in pairs", first
        )
    value_dim = _divided(found, "o_proj", 1, heads)
    plain_dim = _divided(found, "kv_b_proj", 0, heads) - value_dim
    if plain_dim <= 0:
        raise found.error(f"has no room for keys beside values of {value_dim} channels in {heads} heads", "kv_b_proj")
    last = "q_proj" if query_rank is None else "q_b_proj"
    if found.size(last) != heads * (plain_dim + left):
        raise found.error(
            f"has {found.size(last)} rows, which is not {heads} heads of {plain_dim} and {left} channels",
            last,
        )
    spec = MlaSpec(
        query_rank=query_rank,
        latent_rank=latent_rank,
        plain_dim=plain_dim,
        rope_dim=left,
        value_dim=value_dim,
        scale=(plain_dim + left) ** -0.5 * factor,
        eps=eps,
    )
    _compare(config, spec)
    return heads, spec


def _divided(found: _Widths, part: str, axis: int, heads: int) -> int:
    size = found.size(part, axis)
    if size % heads:
        raise found.error(f"has {size} {('rows', 'columns')[axis]}, which {heads} heads do not divide", part)
    return size // heads


def _compare(config: DraftConfig, spec: MlaSpec) -> None:
    wanted = {
        "q_lora_rank": spec.query_rank,
        "kv_lora_rank": spec.latent_rank,
        "qk_nope_head_dim": spec.plain_dim,
        "qk_rope_head_dim": spec.rope_dim,
        "v_head_dim": spec.value_dim,
    }
    for key, value in wanted.items():
        stated = config.integer(key)
        is_null = stated is None and lookup(config.raw, key) == (True, None)
        if (stated is not None and stated != value) or (is_null and value is not None):
            raise InputError.single(
                config.source,
                f"says {'null' if is_null else stated}, the weights have {'none' if value is None else value}",
                place=key,
                next_step=_STEP,
                slug="width",
            )


def latent_scaling(scaling: Mapping[str, Any], *, source: str, notes: list[str]) -> dict[str, Any]:
    """Return a scaling with what DeepSeek's and vLLM's latent attention take for mscale and mscale_all_dim: 1 and 0.

    Raises:
        InputError: a kind of rope, or an ``attention_factor``, that the runtimes read each in their own way.
    """
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ("default", "mrope", "yarn"):
        raise InputError.single(
            source,
            f"rope of type {str(kind)[:40]!r} is not replayed in latent attention: vLLM takes it for yarn",
            place="rope_scaling",
            next_step="known: default, yarn",
        )
    if scaling.get("attention_factor") is not None:
        raise InputError.single(
            source,
            "attention_factor is not replayed in latent attention: transformers and vLLM use it differently",
            place="rope_scaling",
            next_step="state mscale and mscale_all_dim",
        )
    first, second = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if kind == "yarn" and not (first and second) and (second or first not in (None, 1)):
        notes.append("mscale and mscale_all_dim are read as DeepSeek and vLLM do (1 and 0 where not stated)")
    return {**scaling, "mscale": 1.0 if first is None else first, "mscale_all_dim": 0.0 if second is None else second}


def latent_factor(scaling: Mapping[str, Any], factor: float) -> float:
    """Return what latent attention multiplies its scale by: mscale of ``mscale_all_dim``, squared; 1 without YaRN."""
    if (scaling.get("rope_type") or scaling.get("type")) != "yarn":
        return 1.0
    return yarn_mscale(factor, float(scaling["mscale_all_dim"])) ** 2
