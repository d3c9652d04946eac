"""Draft tokens of a capture against what the drafter's weights draft on the captured rows: `draft-tokens-differ`."""

from __future__ import annotations

import math
import os
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any

from featurecontract.checkpoint import open_checkpoint
from featurecontract.contract import CONTRACT_FILE
from featurecontract.errors import FeatureContractError, InputError
from featurecontract.findings import Drafted, DraftedStep, Finding
from featurecontract.gate._drafts_judge import judge_drafts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from featurecontract.capture._record import Capture
    from featurecontract.checkpoint import Checkpoint
    from featurecontract.contract import Contract
    from featurecontract.replay import Drafter, Redrafted, Rounds, TargetParts

__all__ = ["Drafting", "unreplayable"]

#: Weights, as float32, that a verification reads; larger drafters are said to be left out.
MAX_BYTES = 16 * 2**30
SAMPLED = "the runtime sampled its drafts: only greedy ones can be drafted again"
NO_TOKENS = "the capture holds no draft tokens"


def unreplayable(checkpoint: Checkpoint | None, contract: Contract, *, lent: bool) -> str:
    """Return why a drafter's weights cannot be replayed, as far as names and sizes say; empty where they can. No torch.

    Args:
        checkpoint: The drafter, None where there is none.
        contract: Its contract.
        lent: Whether a target's weights are at hand.
    """
    from featurecontract.replay._names import plain_names

    if checkpoint is None or not checkpoint.tensors:
        return "the drafter's weights are not at hand"
    if contract.method not in ("eagle3", "eagle", "hass"):
        return f"a drafter by {contract.method} is not replayed"
    try:
        names = plain_names(checkpoint.tensors, source=str(checkpoint.path))
    except InputError as error:
        return error.problems[0].message
    return _lacking(checkpoint, names, lent=lent)


def _lacking(checkpoint: Checkpoint, names: Mapping[str, str], *, lent: bool) -> str:
    """Return which part of a drafter is not there, or that it is too large; ``names`` are ours by the file's."""
    from featurecontract.replay._names import layer_count

    plain = set(names.values())
    if not layer_count(plain):
        return "the drafter's weights hold neither midlayer.* nor layers.0.*"
    for part, what in (("embed.weight", "embedding"), ("head.weight", "output head")):
        if part not in plain and not lent:
            return f"the drafter shares the target's {what}: give --target DIR"
    size = 4 * sum(math.prod((checkpoint.tensors or {})[name].shape) for name in names)
    if size > MAX_BYTES:
        return (
            f"its weights take {size / 2**30:.0f} GiB as float32, more than the {MAX_BYTES // 2**30} GiB replayed here"
        )
    return ""


class Drafting:
    """Drafts a checkpoint's captures again; the weights are read once, when the first capture needs them.

    Args:
        path: The drafter's directory, or its contract file.
        contract: The contract; its word wins over the config's.
        target: The target's directory, for what the drafter shares with it and as alternatives; else it lends nothing.
        follow_links: Whether links that leave a directory may be followed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        contract: Contract,
        *,
        target: str | os.PathLike[str] | None = None,
        follow_links: bool = False,
    ) -> None:
        """Keep what to read; nothing is read yet."""
        given = os.fspath(path)
        is_file = os.path.basename(given) == CONTRACT_FILE and not os.path.isdir(given)  # noqa: PTH112, PTH119
        self.path = (os.path.dirname(given) or ".") if is_file else given  # noqa: PTH120
        self.contract, self.follow_links = contract, follow_links
        is_directory = target is not None and os.path.isdir(target)  # noqa: PTH112 - does not raise
        self.target = os.fspath(target) if target is not None and is_directory else None
        self._rounded: dict[str, Drafter] = {}

    @cached_property
    def _checkpoint(self) -> Checkpoint | None:
        try:
            return open_checkpoint(self.path, follow_links=self.follow_links)
        except (FeatureContractError, OSError):
            return None

    @cached_property
    def reason(self) -> str:
        """Why the weights cannot be replayed, as far as that is known without reading them."""
        return unreplayable(self._checkpoint, self.contract, lent=self._lends())

    def _lends(self) -> bool:
        """Whether the target's directory holds weights; a config alone lends nothing."""
        try:
            return self.target is not None and bool(
                open_checkpoint(self.target, follow_links=self.follow_links).tensors
            )
        except (FeatureContractError, OSError):
            return False

    @cached_property
    def _parts(self) -> TargetParts:
        from featurecontract import replay

        if self.target is None:
            return replay.TargetParts()
        return replay.parts_of_checkpoint(open_checkpoint(self.target, follow_links=self.follow_links))

    @cached_property
    def _drafter(self) -> Drafter | str:
        """The drafter in float32, or why there is none."""
        from featurecontract import replay

        if self.reason:
            return self.reason
        assert self._checkpoint is not None  # noqa: S101 - else there is a reason
        try:
            return replay.read_drafter(
                self._checkpoint,
                contract=self.contract,
                target_hidden_size=self.contract.target.hidden_size,
                embedding=self._parts.embedding,
                head=self._parts.head,
                target_vocab_size=self.contract.target.vocab_size or self._parts.vocab_size,
            )
        except (FeatureContractError, OSError) as error:
            return " ".join(str(error).split())[:400]

    def _own_embedding(self) -> Tensor | None:
        """Return the embedding in the drafter's own file, where the contract says that the target's is used."""
        from featurecontract import replay
        from featurecontract.replay._names import plain_names

        checkpoint = self._checkpoint
        if checkpoint is None or not checkpoint.tensors or self.contract.drafter.embedding == "own":
            return None
        names = {plain: name for name, plain in plain_names(checkpoint.tensors, source=self.path).items()}
        return replay.read_tensor(checkpoint, names["embed.weight"]) if "embed.weight" in names else None

    def __call__(self, capture: Capture, *, phase: str | None = None) -> tuple[Drafted, tuple[Finding, ...]]:
        """Draft a merged capture's rounds again, those of one phase or all; nothing is raised for what cannot be.

        The rows of every phase count as what stood before a round.
        """
        from featurecontract import replay

        about: dict[str, Any] = {"source": capture.source, "runtime": capture.runtime}
        if not any(call.draft_tokens for call in capture.calls if phase is None or call.phase == phase):
            return Drafted(**about, reason=NO_TOKENS), ()
        if capture.extra.get("drafts_sampled"):
            return Drafted(**about, reason=SAMPLED), ()
        drafter = self._drafter
        if isinstance(drafter, str):
            return Drafted(**about, reason=drafter), ()
        # An embedding may have fewer rows than the target has tokens; what is beyond it cannot be fed.
        rows = int(drafter.weights["embed.weight"].shape[0])
        rounds = replay.rounds_of(
            capture,
            width=drafter.spec.feature_width,
            vocab_size=min(self.contract.target.vocab_size or rows, rows),
            phase=phase,
        )
        about |= {"point": rounds.point, "dtype": rounds.dtype}
        if rounds.dtype not in self._rounded:
            self._rounded[rounds.dtype] = replay.rounded(drafter, rounds.dtype)
        drafter = self._rounded[rounds.dtype]
        found = replay.redraft(drafter, rounds)
        skipped = Counter(rounds.skipped) + found.skipped
        if not found.pairs:
            most = ", ".join(f"{reason} ({count})" for reason, count in skipped.most_common(3))
            return Drafted(**about, skipped=dict(skipped), reason=f"no round can be compared: {most or 'none'}"), ()
        drafted = Drafted(
            **about,
            phases=tuple(dict.fromkeys(pair.phase for pair in found.pairs)),
            rounds=rounds.count,
            steps=_steps(found),
            skipped=dict(skipped),
            notes=drafter.spec.notes,
        )
        return judge_drafts(drafted, found.pairs, lambda: self._tried(drafter, rounds), **self._command(capture))

    def _tried(self, drafter: Drafter, rounds: Rounds) -> list[tuple[str, str, Redrafted]]:
        """Return the name and the part of every alternative, and what it drafts."""
        from featurecontract import replay

        return [
            (item.name, item.part, replay.redraft(item.drafter, rounds, advance=item.advance))
            for item in replay.alternatives(
                drafter,
                target=self._parts,
                own_embedding=self._own_embedding(),
                behind_norm=rounds.point != "features",
            )
        ]

    def _command(self, capture: Capture) -> dict[str, str]:
        return {"path": self.path, "target": self.target or "", "runtime": capture.runtime}


def _steps(found: Redrafted) -> tuple[DraftedStep, ...]:
    counts: dict[int, Counter[str]] = {}
    for pair in found.pairs:
        kind = "equal" if pair.equal else "differing" if pair.differs else "near_ties"
        counts.setdefault(pair.step, Counter())[kind] += 1
    return tuple(
        DraftedStep(step=step, equal=kinds["equal"], near_ties=kinds["near_ties"], differing=kinds["differing"])
        for step, kinds in sorted(counts.items())
    )
