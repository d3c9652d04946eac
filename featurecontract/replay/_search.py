"""Which wiring was it trained with? Ranks every ordered choice of planes without running every one.

1. Screening, on a few rows from the middle of each sequence: each slot alone (the others hold the mean over all
   planes), then coordinate ascent from several starts, then the orders and near neighbours of the best.
2. Polishing, on more rows: the best of the screening, and every wiring that differs from the best of those in one
   slot or in order, until nothing does better; what falls clearly behind drops out.
3. Full replays of what is left, on all tokens; the answer is the paired difference to the runner-up in standard errors
   clustered by sequence. Below the asked confidence there is no winner.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import permutations, product
from typing import TYPE_CHECKING, TypeVar

import torch

from featurecontract.errors import InputError, UsageError
from featurecontract.replay._estimate import Comparison, paired_sums
from featurecontract.replay._likelihood import Bench
from featurecontract.replay._slices import Slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor

    from featurecontract.replay._drafter import Drafter
    from featurecontract.replay._texts import PlaneName, Text

__all__ = ["MIN_SEQUENCES", "MIN_TOKENS", "Found", "Ranked", "search"]

Chosen = tuple["PlaneName", ...]
_Item = TypeVar("_Item")

#: Below these an error clustered by sequence means nothing, and the search refuses to rank.
MIN_SEQUENCES, MIN_TOKENS = 8, 256
MAX_TOKENS = 4096
_SCREEN_ROWS = 384
_POLISH_ROWS = 1024
_ROUNDS = 4
_STARTS = 3
_SWEEPS = 4
_NEAR = 2
_POOL = 32
_FINALISTS = 12
_DROP_AT = 6.0
_CHUNK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One wiring that was fully replayed.

    Attributes:
        wiring: Its planes.
        log_likelihood: Mean over tokens, in nats.
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
        winner: The best one, if its lead is beyond the asked confidence; else None.
        tied: Finalists that cannot be told from the best one, itself included.
        confidence: That the best one beats every other that was compared, by the pairs' own errors.
        margin: Its lead over the runner-up in standard errors.
        possible: Ordered choices that there are.
        screened: Wirings that were scored in screening or polishing.
        full_replays: Wirings that were replayed in full.
        tokens, sequences: What the full replays ran on.
        blind: The best one's lead over features that say nothing (every slot the mean over the planes).
    """

    ranking: tuple[Ranked, ...]
    winner: Chosen | None
    tied: tuple[Chosen, ...]
    confidence: float
    margin: float
    possible: int
    screened: int
    full_replays: int
    tokens: int
    sequences: int
    blind: Comparison


def search(
    drafter: Drafter,
    texts: Iterable[Text],
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
        texts: Sequences that hold all planes; read until ``max_tokens``.
        planes: The choices.
        confidence: Below it there is no winner.
        max_tokens: Tokens that are used.
        seed: Of the random starts.
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
    return _Search(
        drafter,
        _taken(texts, max_tokens),
        tuple(planes),
        confidence=confidence,
        seed=seed,
        say=progress or (lambda _line: None),
    ).run()


def _taken(texts: Iterable[Text], max_tokens: int) -> list[Text]:
    out: list[Text] = []
    total = 0
    for text in texts:
        if total >= max_tokens:
            break
        out.append(text)
        total += len(text.token_ids)
    return out


class _Search:
    """One search: the scores so far, and the stages."""

    def __init__(
        self,
        drafter: Drafter,
        texts: list[Text],
        planes: Chosen,
        *,
        confidence: float,
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self.drafter, self.texts, self.planes = drafter, texts, planes
        self.slots, self.confidence, self.say = drafter.spec.slots, confidence, say
        self.random = random.Random(seed)  # noqa: S311 - starts of an ascent, no secret
        sequences = tokens = 0
        if any(len(text.token_ids) > drafter.spec.token_shift + 1 for text in texts):
            self.full = Bench(drafter, texts)
            sequences, tokens = int((self.full.sizes > 0).sum()), self.full.tokens
        if sequences < MIN_SEQUENCES or tokens < MIN_TOKENS:
            raise InputError.single(
                "the search",
                f"{tokens} tokens that the drafter can draft, in {sequences} sequences: too few to rank on",
                next_step=f"give at least {MIN_SEQUENCES} sequences and {MIN_TOKENS} tokens; 16 sequences of the "
                "training data are better",
                slug="inconclusive",
            )
        self.scores: dict[Chosen, float] = {}
        self.screened: set[Chosen] = set()

    def run(self) -> Found:
        pool = self.screen()
        finalists = self.polish(pool)
        return self.decide(finalists)

    # --- screening ---------------------------------------------------------------------------------------------

    def screen(self) -> list[Chosen]:
        rows = max(8, _SCREEN_ROWS // len(self.texts))
        bench = Bench(self.drafter, self.texts, rows=rows)
        with torch.inference_mode():
            slices = Slices(self.drafter, bench.planes(self.planes))
        alone = self.alone(bench, slices)
        self.say(f"screening on {bench.tokens} tokens: each of {len(self.planes)} planes in each of {self.slots} slots")
        tops: list[Chosen] = []
        for number, start in enumerate(self.starts(alone), start=1):
            best = self.ascend(bench, slices, start)
            self.say(f"ascent {number} of at most {_STARTS}: {_shown(best)} ({len(self.scores)} wirings scored)")
            # A start drawn at random that ends where the others did: one hill is all there is to find.
            if best in tops and number > 1:
                break
            tops.append(best)
        for _ in range(2):
            best = max(self.scores, key=self.scores.__getitem__)
            self.score(bench, slices, self.around(best))
        self.screened |= self.scores.keys()
        return sorted(self.scores, key=self.scores.__getitem__, reverse=True)

    def alone(self, bench: Bench, slices: Slices) -> list[list[PlaneName]]:
        """Return, for each slot, the planes by how well they do there while the others hold the mean."""
        out = []
        for slot in range(self.slots):
            wirings = [tuple(name if at == slot else None for at in range(self.slots)) for name in self.planes]
            values = torch.cat([bench.of_slices(slices, part).sum(1) for part in _chunks(wirings)])
            order = values.argsort(descending=True).tolist()
            out.append([self.planes[index] for index in order])
        return out

    def starts(self, alone: list[list[PlaneName]]) -> Iterator[Chosen]:
        yield self.distinct(alone)
        for _ in range(_STARTS - 1):
            yield tuple(self.random.sample(self.planes, self.slots))

    def distinct(self, ranked: list[list[PlaneName]]) -> Chosen:
        out: list[PlaneName] = []
        for names in ranked:
            out.append(next(name for name in names if name not in out))
        return tuple(out)

    def ascend(self, bench: Bench, slices: Slices, start: Chosen) -> Chosen:
        best = start
        self.score(bench, slices, [best])
        for _ in range(_SWEEPS):
            before = best
            for slot in range(self.slots):
                edits = [
                    (*best[:slot], name, *best[slot + 1 :])
                    for name in self.planes
                    if name not in best[:slot] + best[slot + 1 :]
                ]
                # Two planes may sit in each other's slot: an ascent that never swaps would stop there.
                swaps = [_swapped(best, slot, other) for other in range(self.slots) if other != slot]
                self.score(bench, slices, [*edits, *swaps])
                best = max([best, *edits, *swaps], key=self.scores.__getitem__)
            if best == before:
                break
        return best

    def around(self, best: Chosen) -> list[Chosen]:
        """Return the orders of a wiring, and the wirings whose slots lie at most two planes off."""
        orders = list(permutations(best)) if self.slots <= 5 else []  # noqa: PLR2004 - 120 orders
        index = {name: at for at, name in enumerate(self.planes)}
        spread = range(-_NEAR, _NEAR + 1) if self.slots <= 3 else range(-1, 2)  # noqa: PLR2004 - 125 neighbours
        near = []
        for offsets in product(spread, repeat=self.slots if self.slots <= 5 else 0):  # noqa: PLR2004
            places = [index[name] + offset for name, offset in zip(best, offsets, strict=False)]
            if len(places) == self.slots and all(0 <= at < len(self.planes) for at in places):
                near.append(tuple(self.planes[at] for at in places))
        return [wiring for wiring in [*orders, *near] if len(set(wiring)) == self.slots]

    def score(self, bench: Bench, slices: Slices, wirings: Iterable[Chosen]) -> None:
        new = [wiring for wiring in dict.fromkeys(wirings) if wiring not in self.scores]
        for part in _chunks(new):
            for wiring, value in zip(part, bench.of_slices(slices, part).sum(1).tolist(), strict=True):
                self.scores[wiring] = value / bench.tokens

    # --- polishing and the answer --------------------------------------------------------------------------------

    def polish(self, pool: list[Chosen]) -> list[Chosen]:
        """Return the finalists: the best wirings on more rows, every single edit of the best one among them."""
        bench = Bench(self.drafter, self.texts, rows=max(8, _POLISH_ROWS // len(self.texts)))
        totals: dict[Chosen, Tensor] = {}
        waiting = pool[:_POOL]
        edited: set[Chosen] = set()
        with torch.inference_mode():
            slices = Slices(self.drafter, bench.planes(self.planes))
        for _ in range(_ROUNDS):
            new = [wiring for wiring in dict.fromkeys(waiting) if wiring not in totals]
            for part in _chunks(new):
                totals.update(zip(part, bench.of_slices(slices, part), strict=True))
            leader = max(totals, key=lambda wiring: float(totals[wiring].sum()))
            self.say(f"{len(totals)} wirings compared on {bench.tokens} tokens, {_shown(leader)} ahead")
            if leader in edited:
                break
            edited.add(leader)
            waiting = [*self.edits(leader), *self.around(leader)]
        self.screened |= totals.keys()
        order = sorted(totals, key=lambda wiring: float(totals[wiring].sum()), reverse=True)
        best = order[0]
        near = [w for w in order[1:] if paired_sums(totals[best] - totals[w], bench.sizes).margin < _DROP_AT]
        return [best, *near[: _FINALISTS - 1]] if near else order[:2]

    def edits(self, wiring: Chosen) -> list[Chosen]:
        """Return every wiring that differs in one slot, or by a swap of two."""
        out = []
        for slot in range(self.slots):
            others = wiring[:slot] + wiring[slot + 1 :]
            out += [(*wiring[:slot], name, *wiring[slot + 1 :]) for name in self.planes if name not in wiring]
            out += [_swapped(wiring, slot, other) for other in range(slot + 1, self.slots) if others]
        return out

    def decide(self, finalists: list[Chosen]) -> Found:
        totals: dict[Chosen, Tensor] = {}
        for number, wiring in enumerate(finalists, start=1):
            totals[wiring] = self.full.replay(wiring)
            self.say(f"full replay {number} of {len(finalists)}: {_shown(wiring)}")
        order = sorted(finalists, key=lambda wiring: float(totals[wiring].sum()), reverse=True)
        best = order[0]
        pairs = {w: paired_sums(totals[best] - totals[w], self.full.sizes) for w in order[1:]}
        blind = paired_sums(totals[best] - self.blind(), self.full.sizes)
        # The best of many is tested against each of them: the chances add up (Bonferroni).
        doubt = min(1.0, sum(pair.chance for pair in pairs.values()))
        tied = (best, *(w for w, pair in pairs.items() if pair.chance * len(pairs) > 1 - self.confidence))
        sure = doubt <= 1 - self.confidence and blind.chance <= 1 - self.confidence
        return Found(
            ranking=tuple(
                Ranked(
                    wiring=wiring,
                    log_likelihood=float(totals[wiring].sum()) / self.full.tokens,
                    behind=pairs.get(wiring),
                )
                for wiring in order
            ),
            winner=best if sure else None,
            tied=(best,) if sure else tied,
            confidence=1 - doubt,
            margin=min((pair.margin for pair in pairs.values()), default=0.0),
            possible=_possible(len(self.planes), self.slots),
            screened=len(self.screened),
            full_replays=len(finalists),
            tokens=self.full.tokens,
            sequences=int((self.full.sizes > 0).sum()),
            blind=blind,
        )

    def blind(self) -> Tensor:
        """Return the log-likelihoods of a drafter whose every slot holds the mean over the planes."""
        mean: Tensor | None = None
        for name in self.planes:
            plane = self.full.planes([name])[name]
            mean = plane if mean is None else mean + plane
        assert mean is not None  # noqa: S101 - there are planes
        features = (mean / len(self.planes)).repeat(1, 1, self.slots)
        with torch.inference_mode():
            return self.full.of_states(self.drafter.project(features)[None])[0]


def _chunks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]


def _swapped(wiring: Chosen, first: int, second: int) -> Chosen:
    out = list(wiring)
    out[first], out[second] = out[second], out[first]
    return tuple(out)


def _shown(wiring: Chosen) -> str:
    return "[" + ", ".join(map(str, wiring)) + "]"


def _possible(planes: int, slots: int) -> int:
    count = 1
    for taken in range(slots):
        count *= planes - taken
    return count
