"""Which wiring was it trained with? Ranks every ordered choice of planes without running every one.

1. Screening, on a few rows from the middle of each sequence: each slot alone (the others hold the mean over all
   planes), then coordinate ascent from several starts, then the orders, edits and near neighbours of the best.
2. Polishing, on more rows: what is not clearly behind the best of the screening; if another one leads there, its edits
   and neighbours are screened too, until the leader stays.
3. Full replays of what is not clearly behind then, on all tokens; the answer is the paired difference to the runner-up
   in standard errors clustered by sequence. Below the asked confidence there is no winner.
4. A look around the winner. Training came to rest at the wiring that it saw, so on its own text the likelihood is
   highest there and not somewhere between it and a neighbour. Where it is highest well off it, another wiring was
   trained, or the text is not the training data, and its error is not chance alone: no winner either.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from featurecontract.errors import InputError, UsageError
from featurecontract.replay._estimate import Comparison, paired_sums
from featurecontract.replay._labels import labelled
from featurecontract.replay._likelihood import Bench
from featurecontract.replay._near import Chosen, around, blocks_beside, edits, edits_of
from featurecontract.replay._slices import Slices
from featurecontract.replay._texts import distinct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor

    from featurecontract.replay._drafter import Drafter
    from featurecontract.replay._labels import Labelled
    from featurecontract.replay._texts import PlaneName, Text

__all__ = ["MIN_SEQUENCES", "MIN_TOKENS", "Found", "Ranked", "Readable", "search"]

#: Below these an error clustered by sequence means nothing, and the search refuses to rank.
MIN_SEQUENCES, MIN_TOKENS = 8, 256
MAX_TOKENS = 4096
# Long sequences are cut so that the tokens come from at least so many.
_SPREAD = 16
_SCREEN_ROWS = 256
_POLISH_ROWS = 1024
_ROUNDS = 4
_STARTS = 3
_SWEEPS = 4
_POOL = 24
_FINALISTS = 12
_DROP_AT = 6.0
# Towards how many neighbours to look, how far to step, and how far off the highest place may lie.
_LOOKS, _SHARE, _OFF = 4, 0.3, 0.25


class Readable(Protocol):
    """Sequences that are read by number, such as a list of texts or ``Texts``."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def __getitem__(self, index: int, /) -> Text:
        """Read one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One wiring that was fully replayed.

    Attributes:
        wiring: Its planes.
        log_likelihood: Of the next token, mean over tokens, in nats.
        behind: The best one's lead over it; None for the best.
    """

    wiring: Chosen
    log_likelihood: float
    behind: Comparison | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found.

    Attributes:
        ranking: The finalists, best first.
        winner: The best one, if its lead is beyond the asked confidence and nothing pulls; else None.
        tied: Finalists that cannot be told from the best one, itself included.
        pulls: Wirings that the best one leads beyond chance, and yet the likelihood is highest a quarter of the way to
            them or more.
        confidence: That the best one beats every other that was compared, by the pairs' own errors.
        margin: Its lead over the runner-up in standard errors.
        possible: Ordered choices that there are.
        screened: Wirings that were scored in screening or polishing.
        full_replays: Replays of all tokens: the finalists, and those of the look around the best one.
        tokens, sequences: What the full replays ran on.
        blind: The best one's lead over features that say nothing (every slot the mean over the planes).
        expected: The likelihood is averaged over the target's distribution of the next token; False: the text's token.
    """

    ranking: tuple[Ranked, ...]
    winner: Chosen | None
    tied: tuple[Chosen, ...]
    pulls: tuple[Chosen, ...]
    confidence: float
    margin: float
    possible: int
    screened: int
    full_replays: int
    tokens: int
    sequences: int
    blind: Comparison
    expected: bool


def search(
    drafter: Drafter,
    texts: Readable,
    planes: Sequence[PlaneName],
    *,
    confidence: float = 0.95,
    max_tokens: int = MAX_TOKENS,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Found:
    """Rank the ordered choices of ``drafter.spec.slots`` different planes.

    Training samples are wanted: on unseen text neighbouring blocks serve a drafter equally well.

    Args:
        drafter: The weights; EAGLE-3 with a projection.
        texts: Sequences that hold all planes; each is read at most once.
        planes: The choices.
        confidence: Below it there is no winner.
        max_tokens: Tokens that are used, at most.
        seed: Of the choice of sequences, where there are more than are used, and of the random starts.
        progress: Called with one line per stage.

    Raises:
        InputError: too few tokens or sequences to rank on.
        UsageError: there is nothing to choose from, or no projection.
    """
    slots = drafter.spec.slots
    if drafter.spec.kind != "eagle3" or "fc.weight" not in drafter.weights:
        raise UsageError("a search needs an EAGLE-3 drafter with a projection: this one reads one state, in one place")
    if len(planes) < max(2, slots):
        raise UsageError(f"{len(planes)} planes are recorded, the drafter has {slots} slots: nothing to choose from")
    numbers = random.Random(seed)  # noqa: S311 - a choice of samples and starts, no secret
    samples, expected = labelled(drafter, _taken(texts, max_tokens, numbers))
    say = progress or (lambda _line: None)
    what = "the target's own distribution" if expected else "the text's tokens"
    say(f"{len(samples)} sequences, scored by {what} of the next token")
    return _Search(drafter, samples, tuple(planes), confidence=confidence, numbers=numbers, say=say).run(
        expected=expected
    )


def _taken(texts: Readable, max_tokens: int, numbers: random.Random) -> Iterator[Text]:
    """Yield different sequences drawn at random, their first tokens, ``max_tokens`` in all.

    A row's likelihood depends on the rows before it alone, so a cut sequence is replayed exactly.
    """
    left, most = max_tokens, max(1, max_tokens // max(1, min(_SPREAD, len(texts))))
    drawn = (_first(texts[index], most) for index in numbers.sample(range(len(texts)), len(texts)))
    for found in distinct(drawn):
        text = _first(found, left)
        yield text
        left -= len(text.token_ids)
        if left <= 0:
            return


def _first(text: Text, tokens: int) -> Text:
    """Return the first tokens of a sequence, as copies: what is left out need not be kept."""
    if len(text.token_ids) <= tokens:
        return text
    part = text.cut(slice(0, tokens))
    return replace(part, planes={name: plane.clone() for name, plane in part.planes.items()})


class _Search:
    """One search: what was scored so far, and the stages."""

    def __init__(
        self,
        drafter: Drafter,
        samples: list[Labelled],
        planes: Chosen,
        *,
        confidence: float,
        numbers: random.Random,
        say: Callable[[str], None],
    ) -> None:
        self.drafter, self.samples, self.planes = drafter, samples, planes
        self.slots, self.confidence, self.say = drafter.spec.slots, confidence, say
        self.random = numbers
        self.full = Bench(drafter, samples)
        self.sequences = int((self.full.sizes > 0).sum())
        if self.sequences < MIN_SEQUENCES or self.full.tokens < MIN_TOKENS:
            raise InputError.single(
                "the search",
                f"{self.full.tokens} tokens that the drafter can draft, in {self.sequences} sequences: too few to "
                "rank on",
                next_step=f"give at least {MIN_SEQUENCES} sequences and {MIN_TOKENS} tokens; 16 sequences of the "
                "training data are better",
                slug="inconclusive",
            )
        self.small = Bench(drafter, samples, rows=max(8, _SCREEN_ROWS // len(samples)))
        self.slices = Slices(drafter, {name: self.small.plane(name) for name in planes})
        # Log-likelihoods on the screening's rows, summed by sequence.
        self.sums: dict[Chosen, Tensor] = {}
        self.totals: dict[Chosen, float] = {}
        self.replays = 0

    def run(self, *, expected: bool) -> Found:
        self.screen()
        return self.decide(self.polish(), expected=expected)

    # --- screening ---------------------------------------------------------------------------------------------

    def screen(self) -> None:
        self.say(
            f"screening on {self.small.tokens} tokens: each of {len(self.planes)} planes in each of {self.slots} slots"
        )
        alone = self.alone()
        tops: list[Chosen] = []
        for number, start in enumerate(self.starts(alone), start=1):
            best = self.ascend(start)
            self.say(f"ascent {number} of at most {_STARTS}: {_shown(best)} ({len(self.sums)} wirings scored)")
            # A start drawn at random that ends where the others did: one hill is all there is to find.
            if best in tops and number > 1:
                break
            tops.append(best)

    def alone(self) -> list[list[PlaneName]]:
        """Return, for each slot, the planes by how well they do there while the others hold the mean."""
        out = []
        for slot in range(self.slots):
            wirings = [tuple(name if at == slot else None for at in range(self.slots)) for name in self.planes]
            order = self.small.of_slices(self.slices, wirings).sum(1).argsort(descending=True).tolist()
            out.append([self.planes[index] for index in order])
        return out

    def starts(self, alone: list[list[PlaneName]]) -> Iterator[Chosen]:
        first: list[PlaneName] = []
        for names in alone:
            first.append(next(name for name in names if name not in first))
        yield tuple(first)
        for _ in range(_STARTS - 1):
            yield tuple(self.random.sample(self.planes, self.slots))

    def ascend(self, start: Chosen) -> Chosen:
        best = start
        for _ in range(_SWEEPS):
            before = best
            for slot in range(self.slots):
                others = edits_of(best, slot, self.planes)
                self.score([best, *others])
                best = max([best, *others], key=self.totals.__getitem__)
            if best == before:
                break
        return best

    def score(self, wirings: Iterable[Chosen]) -> None:
        new = [wiring for wiring in dict.fromkeys(wirings) if wiring not in self.sums]
        if new:
            sums = self.small.of_slices(self.slices, new)
            self.sums.update(zip(new, sums, strict=True))
            self.totals.update(zip(new, sums.sum(1).tolist(), strict=True))

    # --- polishing and the answer --------------------------------------------------------------------------------

    def polish(self) -> list[Chosen]:
        """Return the finalists, by rank on more rows: the best, and what is not clearly behind it there."""
        bench = Bench(self.drafter, self.samples, rows=max(8, _POLISH_ROWS // len(self.samples)))
        found: dict[Chosen, Tensor] = {}
        looked: set[Chosen] = set()
        leader = max(self.totals, key=self.totals.__getitem__)
        for _ in range(_ROUNDS):
            looked.add(leader)
            self.score([leader, *edits(leader, self.planes), *around(leader, self.planes)])
            top = max(self.totals, key=self.totals.__getitem__)
            pool = [leader, *_close(self.sums, top, self.small.sizes)[:_POOL]]
            found |= {wiring: bench.replay(wiring) for wiring in dict.fromkeys(pool) if wiring not in found}
            leader = max(found, key=lambda wiring: float(found[wiring].sum()))
            self.say(
                f"{len(found)} of {len(self.sums)} wirings compared on {bench.tokens} tokens: {_shown(leader)} ahead"
            )
            if leader in looked:
                break
        close = _close(found, leader, bench.sizes)
        # There is always a runner-up to be ahead of.
        return close[:_FINALISTS] if len(close) > 1 else _ranked(found)[:2]

    def decide(self, finalists: list[Chosen], *, expected: bool) -> Found:
        totals: dict[Chosen, Tensor] = {}
        for number, wiring in enumerate(finalists, start=1):
            totals[wiring] = self.fully(wiring)
            self.say(f"full replay {number} of {len(finalists)}: {_shown(wiring)}")
        order = _ranked(totals)
        best = order[0]
        pairs = {w: paired_sums(totals[best] - totals[w], self.full.sizes) for w in order[1:]}
        blind = paired_sums(totals[best] - self.full.blind(self.planes, self.slots), self.full.sizes)
        # The best of many is tested against each of them: the chances add up (Bonferroni).
        doubt = min(1.0, sum(pair.chance for pair in pairs.values()))
        tied = (best, *(w for w, pair in pairs.items() if pair.chance * len(pairs) > 1 - self.confidence))
        sure = doubt <= 1 - self.confidence and blind.chance <= 1 - self.confidence
        pulls = self.pulls(totals, order) if sure else ()
        return Found(
            ranking=tuple(
                Ranked(
                    wiring=wiring,
                    log_likelihood=float(totals[wiring].sum()) / self.full.tokens,
                    behind=pairs.get(wiring),
                )
                for wiring in order
            ),
            winner=best if sure and not pulls else None,
            tied=(best, *pulls) if sure else tied,
            pulls=pulls,
            confidence=1 - doubt,
            margin=min((pair.margin for pair in pairs.values()), default=0.0),
            possible=_possible(len(self.planes), self.slots),
            screened=len(self.sums),
            full_replays=self.replays,
            tokens=self.full.tokens,
            sequences=self.sequences,
            blind=blind,
            expected=expected,
        )

    def pulls(self, totals: dict[Chosen, Tensor], order: list[Chosen]) -> tuple[Chosen, ...]:
        """Return the wirings, different in one slot, towards which the likelihood is highest well off the best one.

        Finalists come first, by rank, then the best one's neighbours in the order of the planes.
        """
        best = order[0]
        others = [*order[1:], *blocks_beside(best, self.planes)]
        near = [w for w in dict.fromkeys(others) if sum(a != b for a, b in zip(best, w, strict=True)) == 1][:_LOOKS]
        out = []
        for number, wiring in enumerate(near, start=1):
            self.say(f"look {number} of {len(near)}: from {_shown(best)} towards {_shown(wiring)}")
            there = totals[wiring] if wiring in totals else self.fully(wiring)
            step = self.full.between(best, wiring, _SHARE)
            self.replays += 1
            gains = (float((sums - totals[best]).sum()) for sums in (step, there))
            if _top(*gains) > _OFF:
                out.append(wiring)
        return tuple(out)

    def fully(self, wiring: Chosen) -> Tensor:
        self.replays += 1
        return self.full.replay(wiring)


def _top(step: float, whole: float) -> float:
    """Return where between two wirings, 0 to 1, the likelihood is highest, by a parabola.

    Args:
        step: What is gained ``_SHARE`` of the way.
        whole: What is gained all of the way; at most 0.
    """
    bend = 2 * (step - _SHARE * whole) / (_SHARE * (1 - _SHARE))
    # Not bent downwards: the likelihood falls from the first, and falls ever slower.
    return 0.5 + whole / bend if bend > 0 else 0.0


def _ranked(sums: dict[Chosen, Tensor]) -> list[Chosen]:
    return sorted(sums, key=lambda wiring: float(sums[wiring].sum()), reverse=True)


def _close(sums: dict[Chosen, Tensor], best: Chosen, sizes: Tensor) -> list[Chosen]:
    """Return the wirings that are not clearly behind the best one, itself first."""
    others = [wiring for wiring in _ranked(sums) if wiring != best]
    return [best, *(w for w in others if paired_sums(sums[best] - sums[w], sizes).margin < _DROP_AT)]


def _shown(wiring: Chosen) -> str:
    return "[" + ", ".join(map(str, wiring)) + "]"


def _possible(planes: int, slots: int) -> int:
    count = 1
    for taken in range(slots):
        count *= planes - taken
    return count
