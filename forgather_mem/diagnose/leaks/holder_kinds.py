"""The kinds of leaks: how each is recognized, who fills the holder, and the cure."""

from __future__ import annotations

import inspect
import queue
import re
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType, TracebackType
from typing import Any, NamedTuple

from forgather_mem.diagnose.leaks.kept_lines import KeptLines, tracemalloc
from forgather_mem.diagnose.leaks.snapshot import GrownObject
from forgather_mem.heap.containers import LRU_CACHE, TEE
from forgather_mem.heap.object_size import WRITTEN, big_bytes, deep_bytes, inside, is_array, is_tensor, is_torch
from forgather_mem.heap.owner_paths import attributes_of
from forgather_mem.source.frame_variables import all_frames
from forgather_mem.source.source_lines import is_user_file, with_callers

# The attribute that has the items, by the module of the class `Queue`
_ITEMS_OF_QUEUE = {"queue": "queue", "asyncio.queues": "_queue", "multiprocessing.queues": "_buffer"}
# How the path to what `itertools.cycle` keeps goes through it
CYCLE = " (cycle)"
# Methods that empty what they belong to; `empty()` of a queue asks whether it is
_EMPTIES = re.compile(r"(?:reset|clear|free)(?:_|$)|empty_")
# What grows is what has the hooks, and not something that one of them keeps
_HOOKS = re.compile(r"_hooks\w*$")


class Held(NamedTuple):
    """What has grown, the container, its path for people, and the object that has it."""

    one: GrownObject
    container: object
    path: str
    owner: object


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderKind:
    """A kind of leak.

    Attributes:
        name: The suspect's `kind`.
        is_sized: Whether all that it keeps can be counted: a graph belongs to C++, and frames may hold one.
        cure: What to do about it; `{last}` stands for code that leaves only the last ones, if the source shows any.
        holder: Recognizes it by what has grown.
        item: Recognizes it by something inside a new item.
    """

    name: str
    cure: str
    holder: Callable[[Held], bool] = lambda held: False
    item: Callable[[Any], bool] = lambda item: False
    is_sized: bool = True


# The first that fits counts.
_KINDS = (
    HolderKind(name="graph", is_sized=False,
        holder=lambda held: held.one.kind == "graph",
        item=lambda item: is_tensor(item) and item.grad_fn is not None,
        cure="keep numbers, not graphs: .item()"),
    HolderKind(name="cycle iterator", holder=lambda held: CYCLE in held.path,
        cure="itertools.cycle() keeps a copy of every item: start a new pass with iter(loader) when one ends"),
    HolderKind(name="tee", holder=lambda held: type(held.container) is TEE,
        cure="itertools.tee() keeps each item until this iterator has it, too: del it after use, or read both alike"),
    HolderKind(name="hooks",
        holder=lambda held: _HOOKS.search(held.path) is not None,
        cure="register it once; or keep the handle that register_..._hook() returns, and call handle.remove()"),
    HolderKind(name="chain",
        holder=lambda held: held.one.kind == "chain" and not any(map(is_array, held.one.samples[:1])),
        cure="each holds the one before it: keep only the last, without its link to the others"),
    HolderKind(name="lru_cache", holder=lambda held: type(held.container) is LRU_CACHE,
        cure="limit it to what fits in memory: lru_cache(maxsize=8)"),
    HolderKind(name="param_groups", holder=lambda held: held.path.endswith((".param_groups", "]['params']")),
        cure="add each parameter once: add_param_group() at every step keeps adding"),
    HolderKind(name="optimizer state",
        holder=lambda held: is_torch(held.owner, "optim", "Optimizer") and held.path.endswith(".state"),
        cure="remove parameters you no longer use: optimizer.state.pop(parameter), and from param_groups"),
    HolderKind(name="queue", holder=lambda held: queue_module(held) is not None,
        cure="drain it, or bound it with maxsize: then put() waits, and put_nowait() raises"),
    HolderKind(name="simple queue", holder=lambda held: issubclass(type(held.container), queue.SimpleQueue),
        cure="drain it; a SimpleQueue has no limit, queue.Queue(maxsize=...) has: then put() waits"),
    HolderKind(name="exceptions", is_sized=False, item=lambda item: isinstance(item, BaseException | TracebackType),
        cure="keep str(error), or traceback.clear_frames(error.__traceback__) before keeping it"),
    HolderKind(name="threads", is_sized=False,
        item=lambda item: isinstance(item, threading.Thread),
        cure="let the threads return, and join() them"),
    HolderKind(name="device", item=lambda item: is_tensor(item) and item.device.type != "cpu",
        cure="keep less, and off the GPU: reduce it first (argmax, mean), then .cpu()"),
    HolderKind(name="view",
        item=lambda item: is_tensor(item) and big_bytes(item) > 4 * max(item.numel() * item.element_size(), 64),
        cure="a view keeps the whole tensor alive: keep a .clone() of it"),
    HolderKind(name="tensor", item=is_tensor, cure="keep only the last ones{last}, or a running mean of it"),
    HolderKind(name="log records",
        item=lambda item: type(item).__module__ == "logging" and type(item).__name__ == "LogRecord",
        cure="give the handler a limit (and a MemoryHandler a target), or log to a file"),
    HolderKind(name="figures",
        item=lambda item: type(item).__module__.startswith("matplotlib."),
        cure="close each figure after saving it: plt.close(figure)"),
    HolderKind(name="closure", item=lambda item: isinstance(item, FunctionType | MethodType | partial),
        cure="remove each after its use: a function keeps all its variables alive"),
    HolderKind(name="size", cure="keep only its last part{last}, or write it to a file"),
    HolderKind(name="dict", cure="remove entries after use, or the oldest when one is added, or clear it every epoch"),
    HolderKind(name="list", cure="keep only the last ones{last}, or a running total"),
    HolderKind(name="cycle",
        cure="break the cycle (a weakref for the back reference), or collect: SimpleGarbageCollector"),
    HolderKind(name="made",
        cure="find the line that allocates it: memray run --native"),
    HolderKind(name="workers", cure="keep nothing in the workers, and store rows as one array or Arrow table"),
    HolderKind(name="copied pages",
        cure="store the rows as one array, tensor or Arrow table: reading a Python object writes to its page. "
        "gc.freeze() before the loader is made saves the collector's part only"),
)  # fmt: skip
KINDS = {kind.name: kind for kind in _KINDS}


def queue_module(held: Held) -> str | None:
    """The module of the queue whose items have grown; None for what is in no queue."""
    modules = (base.__module__ for base in type(held.owner).__mro__ if base.__name__ == "Queue")
    return next((module for module in modules if held.path.endswith(f".{_ITEMS_OF_QUEUE.get(module)}")), None)


def kind_of(held: Held) -> HolderKind:
    """The first kind that recognizes the holder, or else what a new item is for the most part."""
    for kind in _KINDS:
        if kind.holder(held):
            return kind
    for item, part in [(one, part) for one in held.one.samples[:2] for part in inside([one])]:
        for kind in _KINDS:
            if kind.item(part) and (not kind.is_sized or _is_most_of(part, item)):
                return KINDS["size"] if held.one.kind == "size" and kind.name in ("tensor", "view", "graph") else kind
    if held.one.kind == "size":
        return KINDS["size"]
    return KINDS["dict" if issubclass(type(held.container), dict | set) else "list"]


def _is_most_of(part: object, item: object) -> bool:
    """Whether a part of an item takes most of its bytes."""
    return part is item or 2 * deep_bytes(part, set(), set()) >= deep_bytes(item, set(), set())


def cure_of(kind: HolderKind, held: Held) -> str:
    """What to do about this holder: of what can be applied here."""
    if (method := _emptied_by(held)) is not None:
        return f"{method}() empties it: call it once what it holds is no longer needed"
    if kind.name == "lru_cache" and "." in held.container.__qualname__.rpartition("<locals>.")[2]:  # type: ignore[attr-defined]
        return f"{kind.cure}: each key holds `self`, too; or keep a dict in the object"
    if kind.name == "size" and any(isinstance(sample, WRITTEN) for sample in held.one.samples):
        return "write it to a file, then empty it: seek(0) and truncate()"
    if kind.name == "tensor" and isinstance(held.container, dict | set):
        return KINDS["dict"].cure
    if kind.name == "simple queue" or queue_module(held) == "queue":
        ours = [*with_callers(sys._getframe())]  # where a library's `get` is a dictionary's
        codes = [one.f_code for one in all_frames() if one not in ours or is_user_file(one.f_code.co_filename)]
        if not any({"get", "get_nowait"} & {*code.co_names} for code in codes):
            return "drain it: no thread that runs takes from it now. With a maxsize put() would wait for ever"
    if kind.name == "threads" and any(frame.f_code is queue.Queue.put.__code__ for frame in all_frames()):
        return "threads wait in Queue.put: tell them to end (a flag), and then take what is left in the queue"
    tensors = [part for part in inside(held.one.samples) if is_tensor(part) and part.numel() > 1]
    if kind.name == "graph" and any(part.grad_fn is not None for part in tensors):
        without = "keep only the last ones{last}, without their graphs: .detach()"
        return without if held.one.kind == "items" else "add it without its graph: .detach()"
    if kind.name == "graph" and tensors and held.one.kind == "items":  # which have more bytes than a number's graph
        return "keep only the last ones{last}; of what has a graph its number, .item()"
    return kind.cure


def last_name(path: str) -> str:
    """The attribute that a path ends with; of several, as "Layer.keys and values", the first."""
    return path.rpartition(".")[2].partition(" and ")[0]


def form_of(container: type, kind: str, grows: type) -> str:
    """How only the last ones are left in a container, or in the value that has grown; "" where there is no order."""
    if issubclass(container, deque):
        return ", deque(maxlen={most})"
    if kind == "size" and grows is not bytearray:
        return ", {it} = {it}[-{most}:]"
    return "" if kind != "size" and issubclass(container, dict | set) else ", del {it}[:-{most}]"


def last_of(form: str, written: str | None, pace: float) -> str:
    """Code that leaves only the last ones of what is `written` so; "" without a name for it.

    As many as ten steps bring, so that a short run shows that it helps, but two; a hundred of what has no items.
    """
    most = max(2, round(10 * pace)) if pace else 100
    return form.format(it=written, most=most) if written is not None or "{it}" not in form else ""


def _emptied_by(held: Held) -> str | None:
    """The public method of the holder's that by its name empties it, and names what has grown: `Mock.reset_mock`."""
    slot = last_name(held.path)
    for owner in (type(held.owner), type(held.container)):
        for name in filter(_EMPTIES.match, dir(owner)):
            code = getattr(inspect.getattr_static(owner, name), "__code__", None)
            for attribute in getattr(code, "co_names", ()):
                # `_mock_call_args_list` is emptied by a property `call_args_list`, a metric's states by `setattr`
                is_slot = 2 * len(attribute) > len(slot) and f"_{slot}".endswith(f"_{attribute}")
                if is_slot or attribute == "setattr":
                    return f"{owner.__name__}.{name}"
    return None


def cure_of_cycle(cls: type) -> str:
    """What to do about a cycle of objects of this class."""
    if any(base.__module__.startswith("torch.autograd") for base in cls.__mro__):
        return "ctx.save_for_backward(out) for what is given back: `ctx.out = out` is a cycle"
    return KINDS["cycle"].cure


def recorder() -> str | None:
    """A recorder of torch's or Python's that is on, and how it is turned off."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.autograd._profiler_enabled():
        return "autograd's profiler is on: give it a schedule, or leave its `with` block"
    if torch is not None and torch.is_anomaly_enabled():
        return "anomaly mode is on: torch.autograd.set_detect_anomaly(False)"
    return "tracemalloc is on: tracemalloc.stop()" if tracemalloc.is_tracing() and not KeptLines.records else None


def signature_of(one: GrownObject, container: object) -> str:
    """Describes one new piece: "Tensor [8, 128, 800] float32 on cuda:0", or where they differ "e.g. dict of 5"."""
    if not one.samples or one.kind in ("graph", "size"):  # one of these is longer by the end of the run
        return "what a step adds to its graph" * (one.kind == "graph")
    is_of_pairs = isinstance(container, dict | LRU_CACHE)
    texts = [_described(_newer_of(it, one.each_bytes) if is_of_pairs else it) for it in one.samples[:8]]
    return texts[0] if len(set(texts)) == 1 else f"e.g. {texts[0]}"


def _newer_of(pair: object, each_bytes: float) -> object:
    """What is new in an item of a dict or a cache, whose key may be a tuple of one argument."""
    if isinstance(pair, tuple) and len(pair) == 2:
        pair = min(reversed(pair), key=lambda part: abs(deep_bytes(part, set(), set()) - each_bytes))
    return pair[0] if isinstance(pair, tuple) and len(pair) == 1 else pair


def _described(sample: object) -> str:
    largest = max(inside([sample]), key=big_bytes)
    if largest is not sample and big_bytes(largest) and _is_most_of(largest, sample):
        return f"{_shape(sample)} with {_shape(largest)}"
    return _shape(sample)


def _shape(thing: Any) -> str:
    if is_tensor(thing):
        kind = f"{type(thing).__name__} {list(thing.shape)} {str(thing.dtype).removeprefix('torch.')} on {thing.device}"
        return kind + " with its graph" * (thing.grad_fn is not None)
    if type(thing).__module__ == "numpy" and hasattr(thing, "shape"):
        return f"{type(thing).__name__} {list(thing.shape)} {thing.dtype}"
    if isinstance(thing, list | tuple | dict | set | str | bytes | bytearray):
        return f"{type(thing).__name__} of {len(thing):,}"
    function = getattr((attributes_of(thing) or {}).get("_target"), "__qualname__", None)  # a thread's
    return f"{type(thing).__name__} of {function}" if function else type(thing).__name__
