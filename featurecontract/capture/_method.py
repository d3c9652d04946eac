"""A method of one object, replaced by one of ours around it; other objects of its class are left alone."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["named", "replace_method"]


def replace_method(
    owner: Any, name: str, around: Callable[[Callable[[], Any], tuple[Any, ...], dict[str, Any]], Any]
) -> Callable[[], None]:
    """Put ``around(call, args, kwargs)`` in the place of ``owner.name``, on this object only; return the way back.

    ``call()`` runs the method as it was asked for.

    Raises:
        AttributeError: there is no such method.
    """
    own = vars(owner).get(name)
    function = getattr(owner, name)

    @wraps(function)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return around(lambda: function(*args, **kwargs), args, kwargs)

    # In the object's own dictionary, past a module's bookkeeping of its parts.
    vars(owner)[name] = replaced

    def restore() -> None:
        # Somebody who wrapped the method after us keeps what they made; ours only passes calls on from now.
        if vars(owner).get(name) is not replaced:
            return
        if own is None:
            del vars(owner)[name]
        else:
            vars(owner)[name] = own

    return restore


def named(function: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], Mapping[str, Any]]:
    """Return a function that gives the arguments of a call by their names."""
    names = list(inspect.signature(function).parameters)
    return lambda args, kwargs: dict(zip(names, args, strict=False)) | kwargs
