"""``init``: write a contract when it is decided what it says, else list what is open and write nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from featurecontract.contract import (
    CONTRACT_FILE,
    atomic_write,
    contract_from_dict,
    contract_to_dict,
    dumps,
    parse_wiring,
)
from featurecontract.errors import InputError, Problem, UsageError
from featurecontract.gate._compose import compose_contract, pick_candidate
from featurecontract.gate._from_search import found_by_search
from featurecontract.gate._inputs import load_inputs

if TYPE_CHECKING:
    from featurecontract.dialects import Candidate
    from featurecontract.gate._inputs import Inputs

__all__ = ["write_contract"]


def write_contract(
    path: str,
    *,
    target: str | None,
    dialect: str | None = None,
    features: str | None = None,
    convention: str | None = None,
    from_search: str | None = None,
    name: str | None = None,
    digests: bool = False,
    force: bool = False,
    follow_links: bool = False,
) -> str:
    """Write the contract and return what to tell the user.

    Raises UsageError when several candidates fit, and InputError when the checkpoint cannot have this contract;
    nothing is written then. The write is atomic: an interruption leaves the old contract or the new one.
    """
    directory = Path(path) if os.path.isdir(path) else Path(path).parent  # noqa: PTH112 - does not raise
    file = directory / CONTRACT_FILE
    if target is None:
        raise UsageError("init needs the target that the drafter was trained for: --target T")
    if os.path.lexists(file) and not force:
        raise _taken(file)
    # A contract that is being replaced may be broken; it has no say in the new one.
    inputs = load_inputs(
        path, target=target, dialect=dialect, contract=None, ignore_contract=True, follow_links=follow_links
    )
    blocking = [
        item
        for item in inputs.recognition.findings
        if item.slug in ("ids-conflict", "ids-out-of-range", "ids-ambiguous")
    ]
    if blocking and features is None and from_search is None:
        problems = tuple(Problem(place="", message=item.message, next_step=item.next_step) for item in blocking)
        raise InputError(str(directory), problems, slug=blocking[0].slug)
    candidate: Candidate | None = None
    if from_search is not None:
        if features is not None or convention is not None:
            raise UsageError("--from-search brings the features; leave --features and --convention out")
        candidate = found_by_search(
            from_search, num_hidden_layers=inputs.target.num_hidden_layers, checkpoint=inputs.checkpoint
        )
        wiring = candidate.wiring
    elif features is not None:
        wiring = parse_wiring(features, num_hidden_layers=inputs.target.num_hidden_layers)
        if convention is not None:
            raise UsageError("--features are boundaries already; leave --convention out")
    else:
        candidate = _only_candidate(inputs, convention)
        wiring = candidate.wiring
    contract = compose_contract(
        inputs, wiring, candidate=candidate, declared=features is not None, name=name, digests=digests
    )
    # What cannot be read back is not written: a hostile config or an odd --name may have made it invalid.
    contract_from_dict(contract_to_dict(contract), source=f"the contract for {directory}")
    try:
        # Without --force the name is claimed, not replaced: another run may have written one in the meantime.
        with atomic_write(file, exclusive=not force) as stream:
            stream.write(dumps(contract))
    except FileExistsError:
        raise _taken(file) from None
    except OSError as error:
        raise InputError.single(
            str(file), f"cannot be written: {error.strerror or error}", next_step="make the checkpoint writable"
        ) from None
    projection = contract.projections[0] if contract.projections else None
    width = f", {projection.in_features} -> {projection.out_features}" if projection else ""
    return f"wrote {file}: [{contract.wiring}]{width}\n"


def _taken(file: Path) -> InputError:
    what = "there is a contract already"
    if not os.path.exists(file):  # noqa: PTH110 - does not raise
        what = "a link that leads nowhere has the contract's name"
    return InputError.single(str(file), what, next_step="keep it, or replace it with --force")


def _only_candidate(inputs: Inputs, convention: str | None) -> Candidate:
    left = pick_candidate(inputs, convention=convention)
    if len(left) == 1:
        return left[0]
    where = str(inputs.checkpoint.directory)
    if not left:
        raise InputError.single(
            where,
            "the config states no features that fit this target",
            next_step="state what it was trained on with --features, such as --features 2,18,33",
            slug="features-missing",
        )
    lines = [
        f"--features {','.join(_word(b) for b in item.wiring.boundaries)} "
        f"(confidence {item.confidence:.2f}: {item.reason})"
        for item in left
    ]
    raise UsageError(
        f"{where}: {len(left)} readings of the config fit, nothing was written; choose one: " + "; or ".join(lines)
    )


def _word(boundary: int | None) -> str:
    return "embedding" if boundary == 0 or boundary is None else str(boundary)
