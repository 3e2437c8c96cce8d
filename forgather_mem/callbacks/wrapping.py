"""How is something put around a method of one object, and taken away again, without keeping the object alive?"""

from __future__ import annotations

import functools
import inspect
import os
import weakref
from collections.abc import Callable
from types import MethodType, TracebackType
from typing import Any

_HERE = os.path.dirname(__file__) + os.sep
# Called with the method that it stands around, and the arguments and keywords of the call.
Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class Wrappers:
    """Methods, each of one object, that have something around them until it is taken away, the last first."""

    def __init__(self) -> None:
        self._entries: list[tuple[weakref.ref[Any], str, Wrapper]] = []

    def __bool__(self) -> bool:
        return bool(self._entries)

    def wrap(self, owner: Any, name: str, around: Around) -> None:
        """Call `around` in the place of this object's method; nothing happens where there is no such method."""
        method = getattr(owner, name, None)
        if method is not None and hasattr(owner, "__dict__"):
            wrapper = Wrapper(owner, name, method, around)
            owner.__dict__[name] = wrapper
            self._entries.append((weakref.ref(owner), name, wrapper))

    def unwrap(self, around: Around) -> None:
        """Take this away, wherever it stands."""
        self._take_away([entry for entry in self._entries if entry[2].around is around])

    def unwrap_all(self) -> None:
        """Take everything away; what somebody has replaced meanwhile is theirs and stays."""
        self._take_away(list(self._entries))

    def _take_away(self, entries: list[tuple[weakref.ref[Any], str, Wrapper]]) -> None:
        for entry in reversed(entries):
            self._entries.remove(entry)
            reference, name, wrapper = entry
            owner = reference()
            if owner is None or owner.__dict__.get(name) is not wrapper:
                continue
            if wrapper.replaced:
                owner.__dict__[name] = wrapper.original()
            else:
                del owner.__dict__[name]


class Wrapper:
    """A method of one object, with something around it. Holds its owner weakly: no cycle keeps a trainer alive.

    Attributes:
        around: What is called.
        replaced: Whether somebody had put the method on the object before, so that it stood not only in its class.
    """

    def __init__(self, owner: Any, name: str, method: Any, around: Around) -> None:
        functools.update_wrapper(self, method)
        del self.__dict__["__wrapped__"]  # it would hold the owner
        self.around = around
        bound_here = isinstance(method, MethodType) and method.__self__ is owner
        self._owner = weakref.ref(owner) if bound_here else None
        self._function: Any = method.__func__ if bound_here else method
        self.replaced = name in owner.__dict__

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        # As `original`, without its call: after a pass, with cold caches, each costs some 3 us
        owner = self._owner() if self._owner is not None else None
        call = self._function if owner is None else MethodType(self._function, owner)
        try:
            return self.around(call, arguments, keywords)
        except BaseException as error:
            # A bare `raise` adds no entry for this frame again: the traceback is as without us
            error.__traceback__ = _without_ours(error.__traceback__)
            raise

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.original())

    def original(self) -> Any:
        """What stands behind: the bound method, or what the user had put in its place."""
        if self._owner is None:
            return self._function
        owner = self._owner()
        assert owner is not None, "only the owner's own methods call these, so it is alive"
        return MethodType(self._function, owner)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._owner is not None:  # a copy gets the plain method, bound to the copied owner
            return MethodType, (self._function, self._owner())
        return _same, (self._function,)


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame on that is not one of these wrappers'; all of it where no other is."""
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(_HERE):
        rest = rest.tb_next
    return rest or trace


def _same(value: Any) -> Any:
    return value
