"""A contract for an old checkpoint: from a reading that the user, or the only candidate, has decided."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from featurecontract._version import __version__
from featurecontract.checkpoint import check_vocab_map
from featurecontract.contract import (
    Alignment,
    Contract,
    Drafter,
    Projection,
    Provenance,
    Rope,
    Statement,
    Target,
    TensorRecord,
    Vocab,
    Wiring,
)
from featurecontract.dialects.specforge import USE_AUX
from featurecontract.errors import InputError
from featurecontract.gate._drafter import PROJECTED, block_of, has_projection, norm_before_projection
from featurecontract.gate._rope import rope_of

if TYPE_CHECKING:
    from featurecontract.dialects import Candidate
    from featurecontract.gate._inputs import Inputs

__all__ = ["compose_contract", "pick_candidate"]

_INTERFACE = (
    "fc.weight",
    "fc.bias",
    "eh_proj.weight",
    "main_proj.weight",
    "input_norm.weight",
    "hidden_norm.weight",
    "mask_hidden",
    "d2t",
    "t2d",
    "embed_tokens.weight",
    "lm_head.weight",
)


def pick_candidate(inputs: Inputs, *, convention: str | None = None) -> tuple[Candidate, ...]:
    """Return the candidates that are left under a convention; exactly one means that it is decided."""
    candidates = inputs.recognition.candidates
    if convention is not None:
        candidates = tuple(item for item in candidates if item.convention in (None, convention))
    return candidates


def compose_contract(
    inputs: Inputs,
    wiring: Wiring,
    *,
    candidate: Candidate | None = None,
    declared: bool,
    name: str | None = None,
    digests: bool = False,
) -> Contract:
    """Build the contract of a checkpoint for a wiring; raises InputError where the projection does not fit it.

    ``declared`` says that the user stated the features, else they were inferred from ``candidate``.
    """
    recognition = inputs.recognition
    config = recognition.config
    method = recognition.method if recognition.family else "eagle3"
    projection = _projection(inputs, wiring, method)
    wiring = _fitted(inputs, wiring, projection)
    facts = inputs.target
    hidden = config.integer("hidden_size") or config.integer("emb_dim") or facts.hidden_size
    vocab_facts = (
        check_vocab_map(
            inputs.checkpoint,
            target_vocab_size=facts.vocab_size,
            draft_vocab_size=config.integer("draft_vocab_size"),
        )
        if inputs.checkpoint.tensors is not None
        else None
    )
    kind: Any = vocab_facts.kind if vocab_facts and vocab_facts.kind in ("offset", "absolute", "identity") else None
    return Contract(
        name=name or inputs.checkpoint.directory.resolve().name,
        method=method,
        target=Target(
            num_hidden_layers=facts.num_hidden_layers,
            hidden_size=facts.hidden_size,
            name=facts.name or _verifier(inputs),
            architecture=facts.architecture,
            vocab_size=facts.vocab_size,
            dtype=facts.dtype,
            quantization=facts.quantization,
        ),
        drafter=Drafter(
            hidden_size=hidden,
            architecture=config.architecture or None,
            dtype=_dtype(inputs),
            embedding=_embedding(inputs),
            head=_head(inputs),
            block=block_of(config),
            tensors=_records(inputs, digests=digests),
        ),
        features=wiring.features,
        projections=(projection,) if projection else (),
        alignment=Alignment(position_offset=1 if recognition.dialect.startswith("speculators") else 0),
        recurrent_state=recognition.recurrent_state,  # type: ignore[arg-type]
        norm_before_residual=_norm_before_residual(inputs),
        vocab=Vocab(
            draft_vocab_size=config.integer("draft_vocab_size"),
            d2t=kind,
            d2t_sha256=vocab_facts.d2t_sha256 if vocab_facts else None,
            t2d_sha256=vocab_facts.t2d_sha256 if vocab_facts else None,
        ),
        rope=_rope(inputs),
        provenance=_provenance(inputs, candidate, declared=declared),
    )


def _verifier(inputs: Inputs) -> str | None:
    config = inputs.recognition.config
    for key in (
        "speculators_config.verifier.name_or_path",
        "target_model_name_or_path",
        "base_model_name_or_path",
    ):
        value = config.get(key)
        if isinstance(value, str) and value and not value.startswith("/"):
            return value[:200]
    return None


def _dtype(inputs: Inputs) -> str | None:
    for key in ("dtype", "torch_dtype"):
        value = inputs.recognition.config.body(key)
        if isinstance(value, str) and value:
            return value[:40]
    return None


def _pre_norm(inputs: Inputs) -> Any:
    found = norm_before_projection(inputs)
    if found == "both":
        raise InputError.single(
            str(inputs.checkpoint.directory / "config.json"),
            "norm_before_fc and fc_norm are both set; a contract states one norm before the projection",
            place="fc_norm",
            next_step="set the flag of the norm that was not trained to false; a drafter that trained both cannot be "
            "declared yet",
            slug="norm-before-fc",
        )
    return found


def _projection(inputs: Inputs, wiring: Wiring, method: str) -> Projection | None:
    if method in ("medusa", "mlp_speculator", "pard2", "other"):
        return None
    config = inputs.recognition.config
    if config.any_flag(*USE_AUX) is False:
        return None
    facts = inputs.projection
    slots = tuple(item.slot for item in wiring.features)
    if facts is not None and len(facts.shape) == 2:  # noqa: PLR2004
        tensor, (out_features, in_features) = facts.name, (facts.shape[0], facts.shape[1])
    elif inputs.checkpoint.tensors is not None:
        if method in PROJECTED and len(slots) > 1 and not has_projection(inputs):
            raise InputError.single(
                str(inputs.checkpoint.directory),
                f"there is no fc.weight, and nothing else that could project {len(slots)} features",
                next_step="export the checkpoint again with its projection, or name the right directory",
                slug="tensor-missing",
            )
        return None
    else:
        width = wiring.width or len(slots) * inputs.target.hidden_size
        tensor, in_features = "fc.weight", width
        out_features = config.integer("hidden_size") or inputs.target.hidden_size
    bias_name = tensor.removesuffix("weight") + "bias"
    names = inputs.checkpoint.tensors or {}
    return Projection(
        tensor=tensor,
        role="eh_proj" if "eh_proj" in tensor else "fc",
        slots=slots,
        in_features=in_features,
        out_features=out_features,
        bias=bias_name in names or (not names and bool(config.flag("bias"))),
        pre_norm=_pre_norm(inputs),
        post_norm=method in ("dflash", "dspark"),
        inject_into="every draft layer's keys and values" if method in ("dflash", "dspark") else None,
    )


def _fitted(inputs: Inputs, wiring: Wiring, projection: Projection | None) -> Wiring:
    """Give every slice its width, and refuse a projection that does not hold a whole number of them."""
    hidden = inputs.target.hidden_size
    wiring = wiring.with_dim(hidden)
    if projection is None or wiring.width == projection.in_features:
        return wiring
    streams = inputs.target.hc_mult or 1
    if streams > 1 and projection.in_features == (wiring.width or 0) * streams:
        return Wiring(
            features=tuple(
                replace(item, dim=hidden * streams, reduction="concat", streams=streams) for item in wiring.features
            )
        )
    count = len(wiring.features)
    raise InputError.single(
        str(inputs.checkpoint.directory),
        f"{projection.tensor} takes {projection.in_features} columns = {projection.in_features / hidden:g} planes of "
        f"{hidden}; {count} features are {count * hidden} columns",
        place=projection.tensor,
        next_step="state as many features as the projection has planes (--features), or give the right --target",
        slug="width",
    )


def _records(inputs: Inputs, *, digests: bool) -> tuple[TensorRecord, ...]:
    tensors = inputs.checkpoint.tensors or {}
    return tuple(
        TensorRecord(
            name=name,
            dtype=facts.dtype,
            shape=facts.shape,
            sha256=inputs.checkpoint.sha256(name) if digests else None,
        )
        for name, facts in sorted(tensors.items())
        if name.endswith(_INTERFACE) or "fc_norm." in name or "aux_norm_" in name
    )


def _embedding(inputs: Inputs) -> Any:
    config = inputs.recognition.config
    stated, own = config.get("target_hidden_size"), config.body("hidden_size")
    trained = config.flag("embed_requires_grad") is True
    return "own" if trained or (isinstance(stated, int) and stated != own) else "target"


def _head(inputs: Inputs) -> Any:
    tensors = inputs.checkpoint.tensors
    if tensors is None:
        return "own" if inputs.recognition.config.has("draft_vocab_size") else "target"
    return "own" if any(name.endswith("lm_head.weight") for name in tensors) else "target"


def _norm_before_residual(inputs: Inputs) -> bool | None:
    flag = inputs.recognition.config.any_flag("norm_before_residual", "eagle_config.norm_before_residual")
    if flag is not None or inputs.recognition.method not in ("eagle3", "p_eagle"):
        return flag
    # speculators' class and command line disagree about the default; every other trainer keeps the plain residual.
    return None if inputs.recognition.dialect.startswith("speculators") else False


def _rope(inputs: Inputs) -> Rope | None:
    facts = rope_of(inputs)
    longest = inputs.recognition.config.integer("max_position_embeddings")
    if not facts and longest is None:
        return None
    return Rope(
        theta=facts.get("theta"),
        scaling=facts.get("scaling"),
        type=facts.get("type"),
        max_position_embeddings=longest,
    )


def _provenance(inputs: Inputs, candidate: Candidate | None, *, declared: bool) -> Provenance:
    recognition = inputs.recognition
    reason = candidate.reason if candidate else "stated on the command line"
    statements = [
        Statement(
            path="features",
            source="declared" if declared else "inferred",
            confidence=1.0 if declared or candidate is None else candidate.confidence,
            reason=reason,
        )
    ]
    if recognition.family:
        statements.append(
            Statement(
                path="recurrent_state",
                source="inferred",
                confidence=0.8 if recognition.recurrent_state != "unknown" else 0.0,
                reason=f"by the rule of {recognition.dialect}",
            )
        )
    found = candidate
    return Provenance(
        tool="featurecontract init",
        tool_version=__version__,
        trainer=recognition.family.trainer or None if recognition.family else None,
        date=dt.datetime.now(tz=dt.timezone.utc).date().isoformat(),
        dialect=recognition.dialect or None,
        ids=found.ids if found else None,
        ids_key=(found.ids_key or None) if found else None,
        convention=found.convention if found else None,
        statements=tuple(statements),
    )
