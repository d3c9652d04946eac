"""The contract: what a drafter was trained on, as frozen data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from featurecontract.contract._wiring import Feature, PreNorm, Recurrent, Wiring

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CONTRACT_FILE",
    "CONTRACT_VERSION",
    "METHODS",
    "PROBE_FILE",
    "Alignment",
    "Block",
    "Contract",
    "Drafter",
    "Probe",
    "Projection",
    "Provenance",
    "Quality",
    "Rope",
    "Serving",
    "Statement",
    "Target",
    "TensorRecord",
    "Vocab",
]

CONTRACT_FILE = "feature_contract.json"
# A safetensors file by another ending: vLLM loads every *.safetensors of a checkpoint without an index as weights, and
# dies of the first tensor that it does not know (vLLM 0.32.0, model_executor/model_loader/default_loader.py:186).
PROBE_FILE = "feature_contract.probe"
CONTRACT_VERSION = "1.0"

METHODS = (
    "eagle",
    "eagle3",
    "p_eagle",
    "mtp",
    "dflash",
    "dspark",
    "medusa",
    "mlp_speculator",
    "hass",
    "pard2",
    "other",
)

Owner = Literal["target", "own"]
MapKind = Literal["offset", "absolute", "identity"]
StatementSource = Literal["recorded", "declared", "inferred"]
OWNERS: tuple[str, ...] = get_args(Owner)
MAP_KINDS: tuple[str, ...] = get_args(MapKind)
STATEMENT_SOURCES: tuple[str, ...] = get_args(StatementSource)


def _extra() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The model whose hidden states are fed; widths in elements, ``basis`` says whether a rotation was applied."""

    num_hidden_layers: int
    hidden_size: int
    name: str | None = None
    revision: str | None = None
    architecture: str | None = None
    vocab_size: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    basis: Literal["standard", "rotated"] = "standard"
    tokenizer_sha256: str | None = None
    extra: Mapping[str, Any] = field(default_factory=_extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRecord:
    """The header facts of a tensor that the interface depends on."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str | None = None
    extra: Mapping[str, Any] = field(default_factory=_extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Block drafting (DFlash and its kin): rows per block, the mask token, and which row anchors the block."""

    size: int
    mask_token_id: int | None = None
    anchor: str | None = None
    extra: Mapping[str, Any] = field(default_factory=_extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """The draft model; ``embedding`` and ``head`` say whether it was trained with its own or the target's."""

    hidden_size: int
    architecture: str | None = None
    dtype: str | None = None
    embedding: Owner = "target"
    head: Owner = "own"
    block: Block | None = None
    tensors: tuple[TensorRecord, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=_extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A linear layer that reads features: ``in_features`` columns, from ``slots`` in this order."""

    tensor: str
    role: str
    slots: tuple[int, ...]
    in_features: int
    out_features: int
    bias: bool = False
    pre_norm: PreNorm = "none"
    post_norm: bool = False
    inject_into: str | None = None
    extra: Mapping[str, Any] = field(default_factory=_extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """Row t pairs h at token t with the embedding of token t + token_shift; positions start at position_offset."""

    token_shift: int = 1
    position_offset: int = 0
    extra: Mapping[str, Any] = field(default_factory=_extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocab:
    """The drafter's vocabulary and the kind and digest of its map into the target's."""

    draft_vocab_size: int | None = None
    d2t: MapKind | None = None
    d2t_sha256: str | None = None
    t2d_sha256: str | None = None
    extra: Mapping[str, Any] = field(default_factory=_extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary embedding of the drafter, as trained."""

    theta: float | None = None
    scaling: Mapping[str, Any] | None = None
    type: str | None = None
    style: str | None = None
    max_position_embeddings: int | None = None
    extra: Mapping[str, Any] = field(default_factory=_extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The golden features recorded for fixed token ids, in ``file`` beside the contract."""

    file: str
    sha256: str
    rows: int
    dtype: str
    token_ids: tuple[int, ...]
    noise_floor: float | None = None
    extra: Mapping[str, Any] = field(default_factory=_extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Accuracies in 0..1 for each draft step, the acceptance length, and how many samples gave them."""

    step_accuracies: tuple[float, ...] = ()
    acceptance_length: float | None = None
    samples: int | None = None
    extra: Mapping[str, Any] = field(default_factory=_extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What the drafter was made for: runtimes such as ``sglang==0.5.14``, and the draft shape."""

    runtimes: tuple[str, ...] = ()
    num_steps: int | None = None
    top_k: int | None = None
    num_draft_tokens: int | None = None
    extra: Mapping[str, Any] = field(default_factory=_extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Where a part of the contract comes from; ``path`` is a JSON path, confidence is in 0..1."""

    path: str
    source: StatementSource
    confidence: float
    reason: str = ""
    extra: Mapping[str, Any] = field(default_factory=_extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Who wrote the contract, from what; ``ids`` are the config's own, meaningful only with ``convention``."""

    tool: str | None = None
    tool_version: str | None = None
    trainer: str | None = None
    trainer_version: str | None = None
    date: str | None = None
    dialect: str | None = None
    ids: tuple[int, ...] | None = None
    ids_key: str | None = None
    convention: str | None = None
    statements: tuple[Statement, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=_extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """A feature contract: the declared wiring and every fact that the interface rests on."""

    name: str
    method: str
    target: Target
    drafter: Drafter
    features: tuple[Feature, ...]
    projections: tuple[Projection, ...] = ()
    alignment: Alignment = field(default_factory=Alignment)
    recurrent_state: Recurrent = "unknown"
    norm_before_residual: bool | None = None
    vocab: Vocab = field(default_factory=Vocab)
    rope: Rope | None = None
    probe: Probe | None = None
    quality: Quality | None = None
    serving: Serving | None = None
    provenance: Provenance = field(default_factory=Provenance)
    contract_version: str = CONTRACT_VERSION
    extra: Mapping[str, Any] = field(default_factory=_extra)

    @property
    def wiring(self) -> Wiring:
        """The declared wiring: the features, with the norms of the first projection that reads them."""
        first = self.projections[0] if self.projections else None
        return Wiring(
            features=self.features,
            pre_norm=first.pre_norm if first else "none",
            recurrent_state=self.recurrent_state,
            norm_before_residual=self.norm_before_residual,
            bias=first.bias if first else None,
        )
