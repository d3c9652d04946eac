"""The custom operator behind a tap: what torch.compile traces instead of the hook's Python.

``featurecontract::tap(x, counter, site)`` declares that it mutates ``counter``, so no compiler removes, repeats or
reorders it; it returns nothing and has no gradient, so the graph around it stays as it was. ``site`` is the number of
a tapped place: when its recording has ended, the operator that stays in the compiled graph does nothing.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

if TYPE_CHECKING:
    from featurecontract.capture._site import Site

__all__ = ["forget", "register", "see", "tap_operator"]

_SITES: WeakValueDictionary[int, Site] = WeakValueDictionary()
_COUNTERS: dict[int, Tensor] = {}
_NUMBERS = count(1)


def register(site: Site) -> int:
    """Return the number by which hooks and the operator find a tapped place."""
    number = next(_NUMBERS)
    _SITES[number] = site
    _COUNTERS[number] = site.counter
    return number


def forget(number: int) -> None:
    """Let go of what a tapped place left here."""
    _COUNTERS.pop(number, None)


def see(number: int, value: Any) -> None:
    """Take what passes: now, or by the operator when a compiler traces the hook.

    A function of the module and a number, because a compiler finds globals and constants from anywhere.
    """
    if torch.compiler.is_compiling():
        if isinstance(value, Tensor) and number in _COUNTERS:
            tap_operator(value.detach(), _COUNTERS[number], number)
        return
    site = _SITES.get(number)
    if site is not None:
        site.take(value)


def _tap(x: Tensor, counter: Tensor, site: int) -> None:  # noqa: ARG001 - declared to be mutated, see above
    found = _SITES.get(site)
    if found is not None:
        found.take(x)


# The types are named here because the schema cannot be read from annotations that are strings.
tap_operator = torch.library.custom_op(
    "featurecontract::tap", _tap, mutates_args=("counter",), schema="(Tensor x, Tensor(a!) counter, int site) -> ()"
)


@tap_operator.register_fake
def _(x: Tensor, counter: Tensor, site: int) -> None:
    """Nothing is returned, so nothing is described."""
