"""Where to listen: a module, an argument of a callable, or a name pattern, and how to attach there and let go."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from featurecontract.capture._method import replace_method
from featurecontract.capture._operator import see
from featurecontract.capture._record import POINTS, CapturePoint
from featurecontract.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

__all__ = ["Place", "Tap", "all_places"]

_MAX_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tap:
    """One place to listen at, and what passes there.

    Build it with ``Tap.module``, ``Tap.callable``, ``Tap.method`` or ``Tap.pattern``; the keywords are those of the
    attributes.

    Attributes:
        point: ``features`` (before any pre-projection norm), ``projection_input`` (what the projection itself
            receives) or ``recurrent`` (the hidden state that enters draft step 2).
        argument: Which argument carries the rows: its position (``self`` is not counted) or its name.
        name: What the capture calls the place; by default the module's or callable's own name.
        shard: ``(index, count)`` where this process holds a part of the columns (or rows).
        shard_axis: ``columns`` or ``rows``: what ``shard`` counts.
        like: A tensor with the width, dtype and device of the rows, for a place that is reached for the first time
            inside a CUDA graph capture.
    """

    target: Any
    pattern_text: str = ""
    method_name: str = ""
    point: CapturePoint = "features"
    argument: int | str = 0
    name: str = ""
    shard: tuple[int, int] | None = None
    shard_axis: Literal["columns", "rows"] = "columns"
    like: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if self.point not in POINTS:
            raise UsageError(f"there is no capture point {self.point!r} (points: {', '.join(POINTS)})")
        if self.shard is not None and not 0 <= self.shard[0] < self.shard[1]:
            raise UsageError(f"shard {self.shard} is not (index, count) with index below count")

    @classmethod
    def module(cls, module: nn.Module, **how: Any) -> Tap:
        """Listen to the input of a module, with a forward pre-hook."""
        if not isinstance(module, nn.Module):
            raise UsageError(f"Tap.module needs a torch.nn.Module, not {type(module).__name__}")
        return cls(target=module, **how)

    @classmethod
    def callable(cls, path: str, **how: Any) -> Tap:
        """Listen to an argument of ``package.module:function`` or ``package.module:Class.method``.

        The name is replaced in its home while the recording runs. A module that took the function with
        ``from package.module import function`` before keeps the old one: name it by that module.
        """
        if path.count(":") != 1 or not all(path.split(":")):
            raise UsageError(f"{path!r} is not PACKAGE.MODULE:NAME, such as my_engine.drafter:Drafter.combine")
        return cls(target=path, **how)

    @classmethod
    def method(cls, owner: object, method: str, /, **how: Any) -> Tap:
        """Listen to an argument of one object's method; other objects of its class are left alone."""
        if not callable(getattr(owner, method, None)):
            raise UsageError(f"{type(owner).__name__} has no method {method!r}")
        return cls(target=owner, method_name=method, **how)

    @classmethod
    def pattern(cls, model: nn.Module, pattern: str, **how: Any) -> Tap:
        """Listen to every module of ``model`` whose dotted name matches, such as ``*.fc`` (fnmatch, with case)."""
        return cls(target=model, pattern_text=pattern, **how)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Place:
    """A tap resolved to one place: attach a site's number there, get back the function that lets go."""

    tap: Tap
    name: str
    attach: Callable[[int], Callable[[], None]]
    module: nn.Module | None = None


def _places(tap: Tap) -> list[Place]:
    """Resolve a tap.

    Raises:
        UsageError: nothing is there, or the callable has no such argument.
    """
    if tap.method_name:
        return [_method_place(tap, tap.target, tap.method_name)]
    if isinstance(tap.target, str):
        return [_callable_place(tap, tap.target)]
    if not tap.pattern_text:
        return [_module_place(tap, tap.target, tap.name or type(tap.target).__name__)]
    # A compiled model puts this in front of every name.
    named = [(name.removeprefix("_orig_mod."), module) for name, module in tap.target.named_modules()]
    found = [(name, module) for name, module in named if fnmatchcase(name, tap.pattern_text)]
    if not found:
        leaf = tap.pattern_text.rpartition(".")[2].strip("*")
        near = [name for name, _ in named if leaf and leaf in name] or [name for name, _ in named if name]
        more = f", and {len(near) - _MAX_SHOWN} more" if len(near) > _MAX_SHOWN else ""
        raise UsageError(f"no module matches {tap.pattern_text!r} (there are: {', '.join(near[:_MAX_SHOWN])}{more})")
    return [_module_place(tap, module, name) for name, module in found]


def _module_place(tap: Tap, module: nn.Module, name: str) -> Place:
    index, keyword = _argument(module.forward, tap.argument, name)

    def attach(number: int) -> Callable[[], None]:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            see(number, _pick(args, kwargs, index, keyword))

        return module.register_forward_pre_hook(hook, with_kwargs=True).remove

    return Place(tap=tap, name=name, attach=attach, module=module)


def _callable_place(tap: Tap, path: str) -> Place:
    home, _, dotted = path.partition(":")
    *owners, name = dotted.split(".")
    try:
        owner: Any = importlib.import_module(home)
        for part in owners:
            owner = getattr(owner, part)
        raw = inspect.getattr_static(owner, name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{path!r} cannot be found ({error}); the form is PACKAGE.MODULE:Class.method") from None
    bound = inspect.isclass(owner) and not isinstance(raw, staticmethod)
    if not callable(_function(raw)):
        raise UsageError(f"{path!r} is no function, it is {type(raw).__name__}")
    index, keyword = _argument(_function(raw), tap.argument, path, skip=bound)

    def attach(number: int) -> Callable[[], None]:
        # Looked up again: another tap may have been placed here in between, and must go on hearing.
        there, own = inspect.getattr_static(owner, name), name in vars(owner)
        function = _function(there)

        @wraps(function)
        def tapped(*args: Any, **kwargs: Any) -> Any:
            see(number, _pick(args, kwargs, index, keyword))
            return function(*args, **kwargs)

        placed = type(there)(tapped) if isinstance(there, (staticmethod, classmethod)) else tapped
        setattr(owner, name, placed)

        def detach() -> None:
            # Somebody who wrapped the name after us keeps what they made; ours only passes calls on from now.
            if vars(owner).get(name) is placed:
                setattr(owner, name, there) if own else delattr(owner, name)

        return detach

    return Place(tap=tap, name=tap.name or path, attach=attach)


def _method_place(tap: Tap, owner: Any, name: str) -> Place:
    index, keyword = _argument(getattr(owner, name), tap.argument, name)

    def attach(number: int) -> Callable[[], None]:
        def around(call: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            see(number, _pick(args, kwargs, index, keyword))
            return call()

        return replace_method(owner, name, around)

    label = tap.name or f"{type(owner).__name__}.{name}"
    return Place(tap=tap, name=label, attach=attach, module=owner if isinstance(owner, nn.Module) else None)


def _function(raw: Any) -> Any:
    return raw.__func__ if isinstance(raw, (staticmethod, classmethod)) else raw


def _argument(function: Any, argument: int | str, place: str, *, skip: bool = False) -> tuple[int, str]:
    """Return the position in ``args`` and the keyword of an argument; -1 and ``""`` where it has none."""
    offset = 1 if skip else 0
    with contextlib.suppress(TypeError, ValueError):
        listed = list(inspect.signature(function).parameters.values())
        positional = [p for p in listed if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        open_ended = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in listed)
        names = [p.name for p in positional]
        if isinstance(argument, str):
            if argument in names:
                return names.index(argument), argument
            if open_ended or any(p.name == argument for p in listed):
                return -1, argument
        elif argument + offset < len(names):
            return argument + offset, names[argument + offset]
        elif any(p.kind is p.VAR_POSITIONAL for p in listed):
            return argument + offset, ""
        shown = ", ".join(names[offset:]) or "none"
        raise UsageError(f"{place} has no argument {argument!r} (arguments: {shown})")
    # A builtin without a signature: the call itself will tell.
    return (-1, argument) if isinstance(argument, str) else (argument + offset, "")


def _pick(args: tuple[Any, ...], kwargs: dict[str, Any], index: int, keyword: str) -> Any:
    if keyword and keyword in kwargs:
        return kwargs[keyword]
    return args[index] if 0 <= index < len(args) else None


def all_places(taps: tuple[Tap | nn.Module, ...]) -> Iterator[Place]:
    """Resolve taps; a bare module stands for ``Tap.module(module)``."""
    for tap in taps:
        yield from _places(tap if isinstance(tap, Tap) else Tap.module(tap))
