"""Wraps a method of one object and unwraps it again, without keeping the object alive."""

from __future__ import annotations

import functools
import inspect
import os
import weakref
from collections.abc import Callable
from types import MethodType, TracebackType
from typing import Any, cast

from forgather_mem.system.call_wrapping import without_frames
from forgather_mem.telemetry.guard import FailureGuard

# What `copy` and `pickle` ask an object for.
_STATE = "__getstate__"
_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep
# What stands around a method: called with it, and with the arguments and keywords of the call.
Call = Callable[..., object]
Arguments = tuple[object, ...]
Keywords = dict[str, object]
Around = Callable[[Call, Arguments, Keywords], object]


class MethodPatches:
    """Methods, each of one object, that have something around them until it is taken away, the last first.

    Copies of such an object, also pickled ones, are made without: they have the methods of their class.

    Attributes:
        fence: Where failures of what stands around stop; without one they pass.
    """

    def __init__(self, fence: FailureGuard | None = None) -> None:
        self.fence = fence
        self._entries: list[tuple[weakref.ref[object], str, MethodPatch]] = []

    def __bool__(self) -> bool:
        return bool(self._entries)

    def wrap(self, owner: object, name: str, around: Around) -> None:
        """Call `around` in the place of this object's method; nothing happens where there is no such method.

        Args:
            owner, name: Whose method.
            around: Gets the call, its arguments and its keywords.
        """
        method = getattr(owner, name, None)
        if method is not None and hasattr(owner, "__dict__"):
            wrapper = MethodPatch(owner, name, method, around, self.fence)
            owner.__dict__[name] = wrapper
            self._entries.append((weakref.ref(owner), name, wrapper))
            _keep_copies_plain(owner, self.fence)

    def unwrap_all(self) -> None:
        """Unwrap everything; what others have replaced since is theirs and stays."""
        while self._entries:
            reference, name, wrapper = self._entries.pop()
            owner = reference()
            if owner is not None and owner.__dict__.get(name) is wrapper:
                _put_back(wrapper, owner, name)
                _keep_copies_plain(owner, self.fence)


class MethodPatch:
    """A wrapped method of one object. Holds its owner weakly: no cycle keeps a trainer alive.

    Whatever fails in what stands around it, the method is called as without us: once, with what comes of it.

    Attributes:
        around: What is called.
        fence: Where its failures stop, if anywhere.
        name: For messages.
        replaced: Whether somebody had put the method on the object before, so that it stood not only in its class.
    """

    def __init__(self, owner: object, name: str, method: Any, around: Around, fence: FailureGuard | None) -> None:
        functools.update_wrapper(self, method)
        del self.__dict__["__wrapped__"]  # it would keep the owner alive
        self.around = around
        self.fence = fence
        self.name = f"what we do around {name}"
        bound_here = isinstance(method, MethodType) and method.__self__ is owner
        self._owner = weakref.ref(owner) if bound_here else None
        self._function: Callable[..., object] = method.__func__ if bound_here else method
        self.replaced = name in owner.__dict__

    def __call__(self, *arguments: object, **keywords: object) -> object:
        call = _Call(self.original())
        try:
            return self.around(call, arguments, keywords)
        except BaseException as error:
            theirs, call.error = call.error, None
            ours = isinstance(error, Exception) and error is not theirs
            if not ours or self.fence is None or not self.fence.keeps(self.name, error):  # type: ignore[arg-type]
                # A bare `raise` does not add an entry for this frame again: the traceback looks as if unwrapped
                error.__traceback__ = without_ours(error.__traceback__)
                del theirs, call, arguments, keywords  # no cycle; and nobody finds this frame to clear it
                raise
        if theirs is None:
            return call.result if call.done else call.method(*arguments, **keywords)
        theirs.__traceback__ = without_ours(theirs.__traceback__)
        try:
            raise theirs
        finally:
            del theirs, call, arguments, keywords

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.original())

    def original(self) -> Callable[..., object]:
        """The underlying bound method, or what the user had put in its place."""
        if self._owner is None:
            return self._function
        owner = self._owner()
        assert owner is not None, "only the owner's own methods call these, so it is alive"
        return MethodType(self._function, owner)

    def __reduce__(self) -> tuple[object, ...]:
        if self._owner is not None:  # a copy gets the plain method, bound to the copied owner
            return MethodType, (self._function, self._owner())
        return cast, (object, self._function)  # gives the function itself


def _put_back(wrapper: MethodPatch, owner: object, name: str) -> None:
    if wrapper.replaced:
        owner.__dict__[name] = wrapper.original()
    else:
        del owner.__dict__[name]


def _keep_copies_plain(owner: object, fence: FailureGuard | None) -> None:
    """The object's state is asked for through us exactly as long as a wrapper of ours is part of it."""
    names = owner.__dict__
    ours = [name for name, value in names.items() if isinstance(value, MethodPatch)]
    if ours == [_STATE]:
        _put_back(names[_STATE], owner, _STATE)
    elif ours and _STATE not in ours:
        get_state = names.get(_STATE) or MethodType(type(owner).__getstate__, owner)
        names[_STATE] = MethodPatch(owner, _STATE, get_state, _plain_state, fence)


def _plain_state(call: Call, arguments: Arguments, keywords: Keywords) -> object:
    state = call(*arguments, **keywords)
    if not isinstance(state, dict):
        return state
    plain = {}
    for name, value in state.items():
        while isinstance(value, MethodPatch) and value.replaced:
            value = value.original()
        if not isinstance(value, MethodPatch):
            plain[name] = value
    return plain


class _Call:
    """One call of a method, and what has come of it.

    Attributes:
        error: What it raised.
        done: Whether it returned, namely `result`.
    """

    __slots__ = ("done", "error", "method", "result")

    def __init__(self, method: Callable[..., object]) -> None:
        self.method = method
        self.error: BaseException | None = None
        self.done = False
        self.result: object = None

    def __call__(self, *arguments: object, **keywords: object) -> object:
        try:
            self.result = self.method(*arguments, **keywords)
        except BaseException as error:
            self.error = error
            error.__traceback__ = without_ours(error.__traceback__)
            del self, arguments, keywords
            raise
        self.done = True
        return self.result

    @property
    def __self__(self) -> object:
        return getattr(self.method, "__self__", None)


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not one of these wrappers; all of it if there is no other."""
    return without_frames(trace, _HERE)


def call_when_made(trainers: type, call: Callable[[Any], None]) -> None:
    """From now on call this with each object of this class or of a subclass, at the end of the class's constructor.

    An exception of the constructor passes, with the traceback that it has without us.
    """
    construct: Callable[..., None] = trainers.__init__  # type: ignore[misc]

    @functools.wraps(construct)
    def __init__(self: Any, *arguments: object, **keywords: object) -> None:
        try:
            construct(self, *arguments, **keywords)
        except BaseException as error:
            error.__traceback__ = without_ours(error.__traceback__)
            del self, arguments, keywords
            raise
        FailureGuard().call("run", call, self)

    trainers.__init__ = __init__  # type: ignore[misc]
