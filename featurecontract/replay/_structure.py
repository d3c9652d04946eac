"""Sizes and flags of a drafter: the contract's word, then the config's by its dialect; widths are the weights' own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featurecontract.dialects import MLA_ARCHITECTURES, Target, recognise
from featurecontract.errors import InputError
from featurecontract.replay._drafter import ACTIVATIONS
from featurecontract.replay._mla import is_latent
from featurecontract.replay._names import layer_count
from featurecontract.replay._rope import RopeSpec, read_scaling
from featurecontract.replay._spec import DrafterSpec
from featurecontract.replay._structure_mla import latent_factor, latent_scaling, read_mla

if TYPE_CHECKING:
    from collections.abc import Mapping

    from featurecontract.checkpoint import Checkpoint
    from featurecontract.contract import Contract
    from featurecontract.dialects import DraftConfig, Recognition
    from featurecontract.replay._mla import MlaSpec
    from featurecontract.replay._spec import Kind

__all__ = ["read_spec"]

_STEP = "name the right directory, or correct config.json"
_REPLAYED = ("eagle3", "eagle", "hass")
# Norms that scale by 1 + w, or rows that are scaled otherwise: the plain forward pass would be wrong.
_OTHER_FORWARD = (
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "gemma4",
    "cohere",
    "granite",
    "minicpm",
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
)
_DEPTH_UNKNOWN = 1_000
_LATENT_EPS = 1e-6


def read_spec(
    checkpoint: Checkpoint,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    contract: Contract | None = None,
    target_hidden_size: int | None = None,
    **overrides: Any,
) -> DrafterSpec:
    """Return the structure of a drafter whose tensors have these shapes, by the names of ``plain_names``.

    Raises:
        InputError: it is not of a kind that is replayed, or config and weights contradict each other.
    """
    return _Reader(checkpoint, shapes, contract, target_hidden_size).spec(overrides)


class _Reader:
    """One checkpoint's facts while they are put together."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        shapes: Mapping[str, tuple[int, ...]],
        contract: Contract | None,
        target_hidden_size: int | None,
    ) -> None:
        self.source = str(checkpoint.directory / "config.json")
        self.weights, self.latent = str(checkpoint.path), is_latent(shapes)
        self.shapes, self.contract = shapes, contract
        self.notes: list[str] = []
        target = contract.target if contract else None
        hidden = target.hidden_size if target else target_hidden_size
        depth = target.num_hidden_layers if target else _DEPTH_UNKNOWN
        self.recognition: Recognition = recognise(
            checkpoint.config, Target(num_hidden_layers=depth, hidden_size=hidden or 1), source=self.source
        )
        self.config: DraftConfig = self.recognition.config
        self.target_hidden = hidden or self.config.integer("target_hidden_size") or self.config.integer("hidden_size")

    def error(
        self, message: str, place: str = "", slug: str = "checkpoint-unreadable", step: str = _STEP
    ) -> InputError:
        return InputError.single(self.source, message, place=place, next_step=step, slug=slug)

    def spec(self, overrides: Mapping[str, Any]) -> DrafterSpec:
        method = self.contract.method if self.contract else self.recognition.method
        if method not in _REPLAYED:
            raise self.error(f"a drafter by {method} is not replayed; EAGLE-1, EAGLE-2 and EAGLE-3 are")
        if self.config.body("model_type") in _OTHER_FORWARD:
            raise self.error(f"a drafter of model_type {self.config.body('model_type')} is not replayed", "model_type")
        kind: Kind = "eagle3" if method == "eagle3" else "eagle"
        hidden = self.shapes["head.weight"][-1] if len(self.shapes["head.weight"]) == 2 else 0  # noqa: PLR2004
        eps, rope = self.eps(), self.rope()
        heads, kv_heads, head_dim, mla = self.latent_heads(kind, rope, eps) if self.latent else self.heads(hidden)
        target_hidden = self.target_hidden or hidden
        fc = self.shapes.get("fc.weight", (hidden, target_hidden))
        width = fc[-1] if kind == "eagle3" else target_hidden
        if width % target_hidden:
            raise self.error(
                f"fc.weight takes {width} columns, which is no whole number of planes of {target_hidden}",
                "fc.weight",
                "width",
                "give the target that the drafter was trained for",
            )
        alignment = self.contract.alignment if self.contract else None
        offset = 1 if self.recognition.dialect.startswith("speculators") else 0
        found = DrafterSpec(
            kind=kind,
            hidden_size=hidden,
            target_hidden_size=target_hidden,
            num_layers=self.layers(),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            mla=mla,
            feature_width=width,
            draft_vocab_size=self.shapes["head.weight"][0],
            eps=eps,
            pre_norm=self.pre_norm(kind),
            recurrent=self.recurrent(kind),
            head_norm=self.head_norm(kind),
            input_norms=kind == "eagle3"
            and self.config.flag("eagle_config.use_input_layernorm_in_first_layer") is not False,
            norm_before_residual=self.norm_before_residual(kind),
            activation=self.activation(),
            rope=rope,
            windows=self.windows(),
            token_shift=alignment.token_shift if alignment else 1,
            position_offset=alignment.position_offset if alignment else offset,
        )
        return replace(found, **overrides, notes=tuple(self.notes))

    def layers(self) -> int:
        count = layer_count(self.shapes)
        if not count:
            raise self.error("the weights hold neither midlayer.* nor layers.0.*", slug="tensor-missing")
        return count

    def latent_heads(self, kind: Kind, rope: RopeSpec, eps: float) -> tuple[int, int, int, MlaSpec]:
        """Return heads, key heads, a query's width and the widths of latent attention (MLA)."""
        if kind == "eagle":
            raise self.error("an EAGLE-1 or 2 drafter with latent attention (MLA) is not replayed; EAGLE-3 ones are")
        factor = latent_factor(self.scaling(), rope.factor)
        heads, mla = read_mla(self.config, self.shapes, factor=factor, eps=eps, source=self.weights)
        if eps != _LATENT_EPS:
            self.notes.append(
                f"the norms inside of latent attention take rms_norm_eps {eps:g}, as vLLM and SGLang do; "
                f"transformers takes {_LATENT_EPS:g} there"
            )
        return heads, heads, mla.plain_dim + mla.rope_dim, mla

    def heads(self, hidden: int) -> tuple[int, int, int, None]:
        """Return heads, key heads and head width: the config counts the heads, the weights give the width."""
        if self.config.architecture in MLA_ARCHITECTURES:
            raise self.error(
                f"{self.config.architecture} has latent attention (MLA), the weights have plain q_proj and k_proj",
                "architectures",
                "width",
            )
        count = self.config.integer("num_attention_heads")
        kv_count = self.config.integer("num_key_value_heads") or count
        query = self.shapes.get("layers.0.self_attn.q_proj.weight", (0,))[0]
        key = self.shapes.get("layers.0.self_attn.k_proj.weight", (0,))[0]
        if not query or not key:
            raise self.error("the weights have no q_proj or k_proj in layer 0", slug="tensor-missing")
        if not count or not kv_count:
            raise self.error("states no num_attention_heads", "num_attention_heads")
        if query % count or key % kv_count or query // count != key // kv_count or count % kv_count:
            raise self.error(
                f"{count} heads and {kv_count} key heads do not divide q_proj's {query} rows and k_proj's {key}",
                "num_attention_heads",
                "width",
            )
        width = query // count
        stated = self.config.integer("head_dim")
        if stated is not None and stated != width:
            self.notes.append(
                f"config.json says head_dim {stated}, the weights have {width}: the weights were followed"
            )
        if not hidden or width % 2:
            raise self.error(f"heads of {width} channels cannot be rotated", "num_attention_heads", "width")
        return count, kv_count, width, None

    def eps(self) -> float:
        value = self.config.body("rms_norm_eps")
        if value is None:
            self.notes.append("config.json states no rms_norm_eps: 1e-6 was taken")
            return 1e-6
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1:
            raise self.error("is not a small positive number", "rms_norm_eps")
        return float(value)

    def pre_norm(self, kind: str) -> Any:
        if kind == "eagle":
            return "none"
        if self.contract and self.contract.projections:
            return self.contract.projections[0].pre_norm
        if "input_norm.weight" in self.shapes:
            return "joint"
        return "per_feature" if "fc_norm.0.weight" in self.shapes else "none"

    def recurrent(self, kind: str) -> Any:
        stated = self.contract.recurrent_state if self.contract else "unknown"
        found = stated if stated in ("pre_norm", "post_norm") else self.recognition.recurrent_state
        if kind == "eagle":
            return "pre_norm"
        if found not in ("pre_norm", "post_norm") and self.latent and self.config.flag("norm_output"):
            # SpecForge, which means something else by the flag, trains no latent attention.
            self.notes.append("norm_output: the normed state enters step 2, as vLLM and SGLang run latent attention")
            return "post_norm"
        if found not in ("pre_norm", "post_norm"):
            self.notes.append("nobody says which state enters step 2: pre_norm was assumed (--recurrent-state says)")
            return "pre_norm"
        return found

    def head_norm(self, kind: str) -> bool:
        if kind == "eagle" or self.config.flag("eagle_config.use_last_layernorm") is False:
            return False
        # SpecForge's norm_output says whether the head reads normed rows (modeling/draft/llama3_eagle.py, 0.2.0); it
        # trains no latent attention.
        trainer = self.recognition.family.trainer if self.recognition.family else ""
        specforge = trainer.startswith("SpecForge") and not self.latent
        return not (specforge and self.config.flag("norm_output") is False)

    def norm_before_residual(self, kind: str) -> bool:
        stated = self.contract.norm_before_residual if self.contract else None
        if stated is None:
            stated = self.config.any_flag("norm_before_residual", "eagle_config.norm_before_residual")
        if stated is None and kind == "eagle3":
            self.notes.append("norm_before_residual is not stated: false was taken")
        return bool(stated)

    def activation(self) -> str:
        value = self.config.body("hidden_act") or "silu"
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise self.error(f"{str(value)[:40]!r} is not replayed; known: {', '.join(ACTIVATIONS)}", "hidden_act")
        return value

    def rope(self) -> RopeSpec:
        rope = self.contract.rope if self.contract else None
        place = self.rope_place()
        theta = (
            rope.theta if rope and rope.theta else self.config.body("rope_theta") or place.get("rope_theta") or 10000.0
        )
        if not isinstance(theta, (int, float)) or isinstance(theta, bool) or not 1 < theta < 1e12:  # noqa: PLR2004
            raise self.error("is not a number above 1", "rope_theta")
        longest = self.config.integer("max_position_embeddings")
        trainer = self.recognition.family.trainer if self.recognition.family else ""
        found = read_scaling(
            self.scaling(notes=self.notes),
            theta=float(theta),
            longest=longest,
            deepseek=self.latent or trainer.startswith("SpecForge"),
            source=self.source,
        )
        partial = self.config.body("partial_rotary_factor")
        if isinstance(partial, float) and 0 < partial < 1:
            found = replace(found, partial=partial)
        style = rope.style if rope else None
        if style is None and self.latent:
            # What DeepSeek trains with and every runtime runs; transformers' config can say otherwise.
            return replace(found, interleaved=self.config.body("rope_interleave") is not False)
        return replace(found, interleaved=style in ("interleaved", "gptj"))

    def scaling(self, notes: list[str] | None = None) -> Mapping[str, Any]:
        rope = self.contract.rope if self.contract else None
        scaling = rope.scaling if rope and rope.scaling is not None else self.rope_place()
        return (
            latent_scaling(scaling, source=self.source, notes=[] if notes is None else notes)
            if self.latent
            else scaling
        )

    def rope_place(self) -> Mapping[str, Any]:
        for key in ("rope_parameters", "rope_scaling"):
            found = self.config.body(key)
            if isinstance(found, dict):
                inner = found.get("full_attention")
                return inner if isinstance(inner, dict) else found
        return {}

    def windows(self) -> tuple[int | None, ...]:
        count = self.layers()
        kinds, window = self.config.body("layer_types"), self.config.body("sliding_window")
        if not isinstance(kinds, list) or type(window) is not int or window < 1:
            return (None,) * count
        listed = [kind == "sliding_attention" for kind in kinds[:count]]
        return tuple(window if at < len(listed) and listed[at] else None for at in range(count))
