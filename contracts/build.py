"""Write the contracts of published drafters and docs/published-drafters.md: ``python contracts/build.py``.

The source is tests/published: what each config says, and what its makers or the threads around it say. The features are
the record's, never a guess of this package; what was filled in to make a config complete does not reach a contract.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featurecontract.contract import (
    CONTRACT_FILE,
    Alignment,
    Block,
    Contract,
    Drafter,
    Feature,
    Projection,
    Provenance,
    Quality,
    Rope,
    Statement,
    Target,
    TensorRecord,
    Vocab,
    dumps,
    loads,
)
from featurecontract.dialects import Candidate, Recognition, dialect_named, recognise
from featurecontract.dialects import Target as DialectTarget

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tests" / "published"))

import published_records as pr  # noqa: E402 - the records' own reader, beside them

PAGE = ROOT / "docs" / "published-drafters.md"
METHODS = {
    **dict.fromkeys(("D1", "D2"), "eagle"),
    **dict.fromkeys(("D17", "D18", "D19", "D22"), "dflash"),
    "D25": "mlp_speculator",
    "D26": "medusa",
}
# Trainers whose code was read: the drafter's residual is taken before its hidden norm, the un-normed state is fed back.
EAGLE_CODE = ("D3", "D5", "D11")
FED_BACK = {
    **dict.fromkeys((*EAGLE_CODE, "D9", "D13"), "pre_norm"),
    **dict.fromkeys(("D17", "D18", "D19", "D22", "D26"), "none"),
}
OWN = "own"

INTRODUCTION = """\
# Published drafters

What 43 published drafters say in their config.json, and what is known of the planes that they were trained on. Each
config is a test: its dialect is recognised, and each of the twelve runtimes gives a prediction or a named reason. Where
the sources settle the target and the planes well enough, `contracts/` holds a contract to copy (`contracts/README.md`).

Features are boundaries: `h[b]` enters decoder layer b, `norm(h[L])` leaves the final norm. *Confidence* is that of the
declared features: below 0.6 the sources leave another reading open, which the contract names in its provenance. A
drafter without a contract says why.

This page is written by `python contracts/build.py` from `tests/published`.
"""


def contracts() -> dict[str, Contract]:
    """Return every contract by its folder's name."""
    found = [record for record in (*pr.records(), pr.read(pr.STORY)) if "contract" in record]
    return {folder(record): contract_of(record) for record in found}


def folder(record: dict[str, Any]) -> str:
    """Return ``org--name``."""
    return str(record["name"]).replace("/", "--")


def contract_of(record: dict[str, Any]) -> Contract:
    """Build the contract that a record states."""
    told, code, facts = record["contract"], record["dialect"][0], record["target"]
    depth, width = facts["num_hidden_layers"], facts["hidden_size"]
    config = pr.stated_config(record)
    method = METHODS.get(code, "eagle3")
    features = tuple(
        Feature(slot=slot, source=source, boundary=boundary, state=state, dim=width, row_offset=int(boundary is None))  # type: ignore[arg-type]
        for slot, (source, boundary, state) in enumerate(pr.boundary(item, depth) for item in told["features"])
    )
    draft, full = pr.body_value(config, "draft_vocab_size"), pr.body_value(config, "vocab_size")
    return Contract(
        name=record["name"],
        method=method,
        target=Target(
            num_hidden_layers=depth,
            hidden_size=width,
            name=facts["name"],
            architecture=facts["architecture"],
            vocab_size=full,  # type: ignore[arg-type]
        ),
        drafter=Drafter(
            hidden_size=_hidden(record),
            architecture=next(iter(config.get("architectures", ())), None),
            dtype=_dtype(config),
            embedding=OWN if method == "mlp_speculator" else "target",
            head=OWN if draft is not None or method in ("eagle3", "mlp_speculator", "medusa") else "target",
            block=_block(config),
            tensors=_tensors(record, config),
        ),
        features=features,
        projections=_projections(record, config, method),
        # speculators counts positions from 1, as `featurecontract init` writes it too.
        alignment=Alignment(position_offset=1 if code == "D13" else 0),
        recurrent_state=told["recurrent"][0] if "recurrent" in told else FED_BACK.get(code, "unknown"),
        norm_before_residual=config.get("norm_before_residual", False if code in EAGLE_CODE else None),
        vocab=Vocab(
            draft_vocab_size=draft,  # type: ignore[arg-type]
            d2t="offset" if draft is not None and full is not None and draft != full else None,
        ),
        rope=_rope(config, told),
        quality=Quality(step_accuracies=tuple(told["quality"]["step_accuracies"])) if "quality" in told else None,
        provenance=_provenance(record),
    )


def _hidden(record: dict[str, Any]) -> int:
    config = record["config"]
    found = pr.body_value(config, "hidden_size") or config.get("emb_dim") or record["target"]["hidden_size"]
    return int(found)


def _dtype(config: dict[str, Any]) -> str | None:
    found = pr.body_value(config, "dtype") or pr.body_value(config, "torch_dtype")
    return str(found) if found else None


def _block(config: dict[str, Any]) -> Block | None:
    inner = config.get("dflash_config", {})
    size = inner.get("block_size") or config.get("block_size")
    return Block(size=size, mask_token_id=inner.get("mask_token_id") or config.get("mask_token_id")) if size else None


def _tensors(record: dict[str, Any], config: dict[str, Any]) -> tuple[TensorRecord, ...]:
    dtype = pr.DTYPES.get(_dtype(config) or "")
    if dtype is None:
        return ()
    return tuple(
        TensorRecord(name=n, dtype=dtype, shape=tuple(shape)) for n, shape in sorted(record["tensors"].items())
    )


def _projections(record: dict[str, Any], config: dict[str, Any], method: str) -> tuple[Projection, ...]:
    told = record["contract"]
    if record["dialect"][0] in pr.WITHOUT_PROJECTION:
        return ()
    count = len(told["features"])
    block = method == "dflash"
    return (
        Projection(
            tensor="fc.weight",
            role="fc",
            slots=tuple(range(count)),
            in_features=count * record["target"]["hidden_size"],
            out_features=_hidden(record),
            bias="bias" in told,
            pre_norm=told.get("pre_norm", "per_feature" if config.get("fc_norm") else "none"),
            post_norm=block,
            inject_into="every draft layer's keys and values" if block else None,
        ),
    )


def _rope(config: dict[str, Any], told: dict[str, Any]) -> Rope | None:
    scaling = pr.body_value(config, "rope_scaling")
    place: Any = pr.body_value(config, "rope_parameters") or scaling or {}
    theta = told.get("rope_theta") or pr.body_value(config, "rope_theta") or place.get("rope_theta")
    longest = pr.body_value(config, "max_position_embeddings")
    if theta is None and longest is None:
        return None
    return Rope(
        theta=theta if theta is None else float(theta),  # type: ignore[arg-type]
        scaling=scaling,  # type: ignore[arg-type]
        type=place.get("rope_type") or place.get("type"),
        max_position_embeddings=longest,  # type: ignore[arg-type]
    )


def recognition(record: dict[str, Any]) -> Recognition:
    """Return what the package makes of the record's config."""
    depth, width = pr.target_of(record)
    return recognise(record["config"], DialectTarget(num_hidden_layers=depth, hidden_size=width))


def reading(record: dict[str, Any]) -> Candidate | None:
    """Return the candidate that reads the config as the record does; None where its ids cannot say it."""
    depth = pr.target_of(record)[0]
    wanted = tuple(pr.boundary(item, depth) for item in record["contract"]["features"])
    for candidate in recognition(record).candidates:
        if tuple((item.source, item.boundary, item.state) for item in candidate.wiring.features) == wanted:
            return candidate
    return None


def _provenance(record: dict[str, Any]) -> Provenance:
    found = reading(record)
    return Provenance(
        tool="contracts/build.py",
        trainer=record["contract"].get("trainer"),
        dialect=recognition(record).dialect,
        ids=found.ids if found else None,
        ids_key=(found.ids_key or None) if found else None,
        convention=found.convention if found else None,
        statements=tuple(_statements(record)),
    )


def _statements(record: dict[str, Any]) -> Iterator[Statement]:
    told, code = record["contract"], record["dialect"][0]
    reason = told["reason"] + (f"; the alternative is {told['alternative']}" if "alternative" in told else "")
    yield _statement("features", told["confidence"], f"{reason}. Source: {record['source']}", told.get("source"))
    if "recurrent" in told:
        yield _statement("recurrent_state", told["recurrent"][1], told["recurrent"][2], "declared")
    elif FED_BACK.get(code) == "pre_norm":
        yield _statement("recurrent_state", 0.8, "the trainer of this dialect feeds the un-normed state back")
    if "bias" in told:
        reason = (
            "the config does not say `bias`, and then the reference builds fc with one, as SGLang's llama_eagle.py does"
        )
        yield _statement("projections[0].bias", told["bias"], reason)
    if "rope_theta" in told:
        yield _statement("rope.theta", 0.9, told["rope_reason"])
    if "quality" in told:
        yield _statement("quality", 1.0, told["quality"]["reason"], "declared")
    if "hidden_size" not in pr.stated_config(record) and any("hidden_size" in key for key in record["reconstructed"]):
        yield _statement("drafter.hidden_size", 0.8, "the target's width; the drafter's own was not seen")


def _statement(path: str, confidence: float, reason: str, source: str | None = None) -> Statement:
    return Statement(path=path, source=source or "inferred", confidence=confidence, reason=reason)  # type: ignore[arg-type]


def page(written: dict[str, Contract]) -> str:
    """Return docs/published-drafters.md."""
    lines = [INTRODUCTION, "| drafter | dialect | declared features | confidence | source |", "|---|---|---|---|---|"]
    for record in (*pr.records(), pr.read(pr.STORY)):
        contract = written.get(folder(record))
        dialect = " or ".join(dialect_named(code).name for code in record["dialect"])
        name, source = record["name"], _source(record["source"])
        if contract is None:
            lines.append(f"| {name} | {dialect} | none: {record['no_contract']} | | {source} |")
            continue
        link = f"[{name}](../contracts/{folder(record)}/{CONTRACT_FILE})"
        confidence = record["contract"]["confidence"]
        lines.append(f"| {link} | {dialect} | {contract.wiring} | {confidence:.2f} | {source} |")
    return "\n".join(lines) + "\n"


def _source(text: str) -> str:
    return f"<{text}>" if text.startswith("https://") and " " not in text else text


def main() -> None:
    """Write every contract, after reading it back, and the page."""
    written = contracts()
    for name, contract in written.items():
        data = dumps(contract)
        if loads(data) != contract:
            raise SystemExit(f"{name}: does not read back as it was written")
        (HERE / name).mkdir(exist_ok=True)
        (HERE / name / CONTRACT_FILE).write_bytes(data)
    PAGE.write_text(page(written), encoding="utf-8")


if __name__ == "__main__":
    main()
