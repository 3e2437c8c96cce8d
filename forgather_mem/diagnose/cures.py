"""What kind of leak is this, and is there a known cure?"""

from __future__ import annotations

import re
import threading
from functools import partial
from types import FunctionType, MethodType, TracebackType
from typing import Any

from forgather_mem.diagnose.growth import Grown
from forgather_mem.diagnose.pieces import LRU_CACHE, big_bytes, inside, is_tensor

_HOOKS = re.compile(r"\._(?:\w+_)?hooks\w*(?:\b|$)|_hooks$")
CURES = {
    "graph": "keep numbers, not graphs: loss.item(), or loss.detach() for a tensor",
    "device": "keep less, and off the GPU: reduce it first (argmax, mean), then .cpu()",
    "view": "a view keeps the whole tensor that it is a part of: keep .clone() of it",
    "tensor": "keep a number or a running mean of it, or only the last ones: deque(maxlen=100)",
    "dict": "give it a bound: drop the oldest entry when a new one comes, or clear it every epoch",
    "lru_cache": "give it a bound of what fits in memory: lru_cache(maxsize=32)",
    "hooks": "keep the handle that register_..._hook() returns, and call handle.remove()",
    "closure": "keep the values that it needs, not the function: it holds all its variables",
    "param_groups": "add each parameter once: add_param_group() at every step adds for ever",
    "optimizer state": "drop the state of parameters that are gone: optimizer.state.pop(parameter)",
    "log records": "a bound on the handler's records, or write them to a file",
    "figures": "close each figure when it is saved: plt.close(figure)",
    "exceptions": "keep str(error), or traceback.clear_frames(error.__traceback__) before keeping it",
    "threads": "end the threads: let them return, and join() them",
    "queue": "nobody takes out of it: a reader that keeps up, or drop: put_nowait() into Queue(maxsize=...)",
    "list": "keep a running total, or only the last ones: deque(maxlen=100)",
    "size": "it is made longer at every step: keep a bounded part of it, or write it out",
    "chain": "each holds the one before: keep the last, without its link to those before",
    "cycle": "break the cycle (a weakref for the way back), or collect: SimpleGarbageCollector",
    "native": "malloc_trim first (actions.TrimHost); what stays is kept by C or C++ code: heaptrack, or "
    "memray run --native, names the function",
    "workers": "keep nothing in the workers, and rows as one array or Arrow table; until then new "
    "workers each epoch: persistent_workers=False",
}


def kind_of(one: Grown, container: Any, path: str, owner: Any) -> str:
    """One of the keys of `CURES`."""
    if one.kind in ("graph", "chain"):
        return one.kind
    if type(container) is LRU_CACHE:
        return "lru_cache"
    if _HOOKS.search(path):
        return "hooks"
    if ".param_groups" in path:
        return "param_groups"
    if ".state" in path and any(base.__name__ == "Optimizer" for base in type(owner).__mro__):
        return "optimizer state"
    if path.endswith("Queue.queue"):
        return "queue"
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
        needed = part.numel() * part.element_size()
        return "view" if big_bytes(part) > 4 * max(needed, 64) else "tensor"
    module = type(part).__module__
    if module == "logging" and type(part).__name__ == "LogRecord":
        return "log records"
    if module.startswith("matplotlib."):
        return "figures"
    if isinstance(part, FunctionType | MethodType | partial):
        return "closure"
    return None


def signature_of(one: Grown) -> str:
    """What one new piece is: "Tensor [8, 128, 800] float32 on cuda:0", "dict of 5", "Record"."""
    if one.kind == "graph":
        return "operation of its graph"
    if not one.samples:
        return ""
    sample = one.samples[0]
    if isinstance(sample, tuple) and len(sample) == 2:  # a dictionary's item
        sample = sample[1]
    if not is_tensor(sample):
        tensor = next((part for part in inside([sample]) if is_tensor(part)), None)
        if tensor is not None and not isinstance(sample, BaseException):
            return f"{_shape(tensor)}, in a {type(sample).__name__}"
    return _shape(sample)


def _shape(thing: Any) -> str:
    if is_tensor(thing):
        dtype = str(thing.dtype).removeprefix("torch.")
        return f"{type(thing).__name__} {list(thing.shape)} {dtype} on {thing.device}"
    if type(thing).__module__ == "numpy" and hasattr(thing, "shape"):
        return f"{type(thing).__name__} {list(thing.shape)} {thing.dtype}"
    if isinstance(thing, list | tuple | dict | set):
        return f"{type(thing).__name__} of {len(thing)}"
    if isinstance(thing, str | bytes | bytearray):
        return f"{type(thing).__name__} of {len(thing):,}"
    return type(thing).__name__
