"""``show``: a contract for people, with each boundary in the words of every tool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featurecontract.contract import digest, spell
from featurecontract.render._clean import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from featurecontract.contract import Contract

__all__ = ["describe_contract"]


# No published drafter has more than ten features; a hostile contract has as many as it likes.
SHOWN = 32


def describe_contract(contract: Contract) -> str:
    """Return a contract as lines of text, ending with a newline."""
    return "\n".join(clean(line, limit=400) for line in _lines(contract)) + "\n"


def _lines(contract: Contract) -> Iterator[str]:
    target, drafter = contract.target, contract.drafter
    yield f"contract  {contract.name} ({contract.method}), version {contract.contract_version}"
    yield f"digest    sha256 {digest(contract)}"
    named = f"{target.name or 'unnamed'}{f', {target.architecture}' if target.architecture else ''}"
    yield f"target    {named}: {target.num_hidden_layers} layers, {target.hidden_size} wide"
    yield (
        f"drafter   {drafter.architecture or 'unnamed'}: {drafter.hidden_size} wide, embedding {drafter.embedding}, "
        f"head {drafter.head}"
    )
    for projection in contract.projections[:SHOWN]:
        slots = [contract.features[slot] for slot in projection.slots[:SHOWN]]
        dims = sorted({item.dim for item in slots if item.dim})
        form = f"{len(slots)} x {dims[0]}" if len(dims) == 1 else " + ".join(str(item.dim) for item in slots)
        norm = "" if projection.pre_norm == "none" else f", {projection.pre_norm} norm before it"
        yield (
            f"{projection.role:<9} {projection.tensor}: {form} -> {projection.in_features} -> "
            f"{projection.out_features}{norm}{', with bias' if projection.bias else ''}"
        )
    yield "features"
    for feature in contract.features[:SHOWN]:
        columns = contract.wiring.columns(feature.slot)
        place = f"[{columns[0]}:{columns[1]}]" if columns else ""
        words = f"{feature}"
        if feature.source == "target" and feature.boundary is not None and feature.state == "residual":
            words = spell(feature.boundary, num_hidden_layers=target.num_hidden_layers)
        shifted = f", of token t{feature.row_offset:+d}" if feature.row_offset else ""
        yield f"  slot {feature.slot} {place:<15} {words}{shifted}"
    if len(contract.features) > SHOWN:
        yield f"  and {len(contract.features) - SHOWN} more slots; `-o json` prints them all"
    if contract.recurrent_state != "none":
        yield f"step 2+   feeds back the {contract.recurrent_state} state"
    vocab = contract.vocab
    if vocab.draft_vocab_size:
        yield f"vocab     {vocab.draft_vocab_size} draft tokens, d2t {vocab.d2t or 'not stated'}"
    provenance = contract.provenance
    if provenance.ids is not None:
        ids = list(provenance.ids[:SHOWN])
        yield f"ids       {ids} at {provenance.ids_key or '?'} as {provenance.convention or 'stated'}"
    for statement in provenance.statements[:SHOWN]:
        certainty = f"{statement.source}, confidence {statement.confidence:.2f}"
        yield f"source    {statement.path}: {certainty}; {statement.reason}"
    if contract.serving and contract.serving.runtimes:
        yield f"serving   {', '.join(contract.serving.runtimes)}"
