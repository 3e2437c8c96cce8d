"""The kinds of leaks, and the known cure for each."""

from __future__ import annotations

import re
import threading
from functools import partial
from types import FunctionType, MethodType, TracebackType
from typing import Any

from forgather_mem.diagnose.leaks.snapshot import GrownObject
from forgather_mem.heap.object_size import LRU_CACHE, array_bytes, big_bytes, inside, is_tensor

_HOOKS = re.compile(r"\._(?:\w+_)?hooks\w*(?:\b|$)|_hooks$")
# Names that `walk` gives to iterators that keep their items
ITERATORS = {"cycle": "cycle iterator", "_tee": "tee", "_tee_dataobject": "tee"}
CURES = {
    "graph": "keep numbers, not graphs: loss.item(), or loss.detach() for a tensor",
    "device": "keep less, and off the GPU: reduce it first (argmax, mean), then .cpu()",
    "view": "a view keeps the whole tensor alive: keep a .clone() of it",
    "tensor": "keep a number or a running mean of it, or only the last ones: deque(maxlen=100)",
    "dict": "remove entries after use, or the oldest when one is added, or clear it every epoch",
    "lru_cache": "limit it to what fits in memory: lru_cache(maxsize=32)",
    "hooks": "register it once; or keep the handle that register_..._hook() returns, and call handle.remove()",
    "closure": "keep the values you need, not the function: it keeps all its variables alive",
    "param_groups": "add each parameter once: add_param_group() at every step keeps adding",
    "optimizer state": "remove parameters you no longer use: optimizer.state.pop(parameter), and from param_groups",
    "log records": "give the handler a target or a limit, or log to a file",
    "figures": "close each figure after saving it: plt.close(figure)",
    "exceptions": "keep str(error), or traceback.clear_frames(error.__traceback__) before keeping it",
    "threads": "let the threads return, and join() them",
    "queue": "more is put in than taken out: with Queue(maxsize=...) put() waits, put_nowait() raises Full",
    "list": "keep a running total, or only the last ones: deque(maxlen=100)",
    "size": "it grows at every step: keep only a limited part of it, or write it to a file",
    "chain": "each holds the one before it: keep only the last, without its link to the others",
    "cycle": "break the cycle (a weakref for the back reference), or collect: SimpleGarbageCollector",
    "native": "try malloc_trim first (actions.TrimHost); C or C++ code keeps the rest: heaptrack, or "
    "memray run --native, names the function",
    "native line": "is what this line allocates freed with its object? If so, try malloc_trim first "
    "(actions.TrimHost), then heaptrack, or memray run --native",
    "cycle iterator": "itertools.cycle() keeps a copy of every item: start a new pass with iter(loader) when one ends",
    "tee": "itertools.tee() keeps what only one of its iterators has read: read both, or make two iterators",
    "open contexts": "these contexts are entered and never left: close() the stack, or use `with`",
    "library": "a library keeps it and never drops it: pass it less (numbers, not arrays), call it once, or "
    "remove what you no longer need",
    "workers": "keep nothing in the workers, and store rows as one array or Arrow table; until then, start "
    "new workers each epoch: persistent_workers=False",
}


def kind_of(one: GrownObject, container: Any, path: str, owner: Any) -> str:
    """One of the keys of `CURES`."""
    if one.kind == "graph":
        return one.kind
    for name, told in ITERATORS.items():
        if f"({name})" in path:
            return told
    if _HOOKS.search(path):
        return "hooks"
    if one.kind == "chain" and not any(is_tensor(sample) or array_bytes(sample) for sample in one.samples[:1]):
        return one.kind  # an array holds no other object
    if type(container) is LRU_CACHE:
        return "lru_cache"
    if ".param_groups" in path:
        return "param_groups"
    if ".state" in path and any(base.__name__ == "Optimizer" for base in type(owner).__mro__):
        return "optimizer state"
    if path.endswith("Queue.queue"):
        return "queue"
    if path.endswith("ExitStack._exit_callbacks"):
        return "open contexts"
    for part in inside(one.samples):
        kind = _of_part(part)
        if kind is not None:
            return "size" if one.kind == "size" and kind in ("tensor", "view") else kind
    if one.kind == "size":
        return "size"
    return "dict" if issubclass(type(container), dict | set) else "list"


def _of_part(part: Any) -> str | None:
    if isinstance(part, BaseException | TracebackType):
        return "exceptions"
    if isinstance(part, threading.Thread):
        return "threads"
    if is_tensor(part):
        if part.grad_fn is not None:
            return "graph"
        if part.device.type != "cpu":
            return "device"
        return "view" if _is_small_view(part) else "tensor"
    module = type(part).__module__
    if module == "logging" and type(part).__name__ == "LogRecord":
        return "log records"
    if module.startswith("matplotlib."):
        return "figures"
    if isinstance(part, FunctionType | MethodType | partial):
        return "closure"
    return None


def _is_small_view(tensor: Any) -> bool:
    needed = max(int(tensor.numel()) * int(tensor.element_size()), 64)
    return big_bytes(tensor) > 4 * needed


def signature_of(one: GrownObject) -> str:
    """Describes one new piece: "Tensor [8, 128, 800] float32 on cuda:0", "dict of 5", "Record"."""
    if one.kind == "graph":
        return "operation of its graph"
    if not one.samples:
        return ""
    sample = one.samples[0]
    if isinstance(sample, tuple) and len(sample) == 2:  # an item of a dict
        sample = sample[1]
    if not is_tensor(sample):
        tensor = next((part for part in inside([sample]) if is_tensor(part)), None)
        if tensor is not None and not isinstance(sample, BaseException):
            return f"{_shape(sample)} with {_shape(tensor)}"
    return _shape(sample)


def _shape(thing: Any) -> str:
    if is_tensor(thing):
        dtype = str(thing.dtype).removeprefix("torch.")
        part = ", view of a larger one" if _is_small_view(thing) else ""
        return f"{type(thing).__name__} {list(thing.shape)} {dtype} on {thing.device}{part}"
    if type(thing).__module__ == "numpy" and hasattr(thing, "shape"):
        return f"{type(thing).__name__} {list(thing.shape)} {thing.dtype}"
    if isinstance(thing, list | tuple | dict | set):
        return f"{type(thing).__name__} of {len(thing)}"
    if isinstance(thing, str | bytes | bytearray):
        return f"{type(thing).__name__} of {len(thing):,}"
    return type(thing).__name__
