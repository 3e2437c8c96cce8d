"""Suspects of a leak: what has grown, with its name, line and cure, most likely first."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import CodeType, FunctionType, MethodType, TracebackType
from typing import Any

from forgather_mem.diagnose.leaks.holder_kinds import KINDS, Held, HolderKind, kind_of, signature_of
from forgather_mem.diagnose.leaks.snapshot import GrownObject
from forgather_mem.heap.object_size import LRU_CACHE, deep_bytes, inside, is_tensor
from forgather_mem.heap.owner_paths import attributes_of
from forgather_mem.heap.reachable import ReachableGraph
from forgather_mem.heap.source_lines import (
    bounds,
    files_of,
    growing_line,
    is_user_class,
    is_user_file,
    matching_line,
    place,
    place_of_code,
    source_line,
)
from forgather_mem.telemetry.report import LeakSuspect
from forgather_mem.telemetry.report_schema import keys_of

MAX_SUSPECTS = 5
_LAST_NAME = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\]|\(.*\)|\{\.\.\.\})*$")
_VARIABLE = re.compile(r"(?:local|variable|default of) '(\w+)'")
# The parts of a holder's name that vary from run to run: keys, and a function's current line
_INDICES, _LINES = re.compile(r"\[[^\]]*\]"), re.compile(r"(\([^():]*):\d+(?=\))")
_MODULE_PARTS = re.compile(r"\._(?:modules|parameters|buffers)\.")


@dataclass(slots=True, kw_only=True)
class Suspect:
    """One thing that grows: a `LeakSuspect` in the making, with what only the search needs.

    `kind` is a key of `KINDS`. `bounded`: why it will stop growing by itself, or may. `key`: the container's `id`.
    """

    type: str
    bytes_per_step: float
    count_per_step: float
    held_by: str | None
    allocated_at: str | None = None
    source_line: str = ""
    whose: str = "user"
    cure: str | None = None
    count: int | None = None
    bytes: int | None = None
    kind: str = ""
    each: str = ""
    where: str = "python"
    bounded: str | None = None
    key: int = 0

    def reported(self) -> LeakSuspect:
        """The suspect as the report has it."""
        holder = _INDICES.sub("[...]", _LINES.sub(r"\1", self.held_by or "nobody"))
        signature = " ".join(filter(None, [self.kind, "in", holder, self.source_line]))
        known = {name: value for name, value in asdict(self).items() if name in keys_of(LeakSuspect)}
        return LeakSuspect(**known, signature=signature)

    def set_line(self, found: tuple[str, int]) -> None:
        """Set where it is created."""
        self.allocated_at = place(*found)
        self.source_line = source_line(*found)
        self.whose = "user" if is_user_file(found[0]) else "library"


def suspect_of(one: GrownObject, walk: ReachableGraph) -> Suspect:
    """A suspect made from something that has grown, with its name, line and cure."""
    container = walk.nodes[one.position]
    path = one.name or walk.holder(one.position)
    owner = walk.owner(one.position)
    if type(container) is LRU_CACHE:
        path = f"{getattr(container, '__module__', '')}.{container.__qualname__}"
    kind = kind_of(Held(one, container, path, owner))
    if one.kind == "size" and one.samples:
        instance = attributes_of(container) is not None and type(container).__module__ != "builtins"
        path = (type(container).__name__ if instance else path) + _slot(container, one.samples[0])
        path = _MODULE_PARTS.sub(".", path)
    if kind.iterators:
        ends = (path.index(f"({name})") + len(name) + 2 for name in kind.iterators if f"({name})" in path)
        path = path[: min(ends)]
    line = _place(one, kind, container, path, owner)
    if kind.name in ("list", "dict", "tensor") and _is_a_librarys(owner, path, line):
        kind = KINDS["library"]
    tensors = any(is_tensor(part) for part in inside(one.samples)) or kind.name == "graph"
    suspect = Suspect(
        type=type(container).__name__ if type(container) is not LRU_CACHE else "lru_cache",
        bytes_per_step=one.bytes_per_step,
        count_per_step=one.count_per_step if one.kind in ("items", "chain") else 0.0,
        held_by=path,
        each=signature_of(one),
        cure=KINDS["dict"].cure if kind.name == "tensor" and isinstance(container, dict) else kind.cure,
        count=one.count if one.kind == "items" else None,
        bytes=int(one.count * one.each_bytes) if one.kind == "items" else None,
        kind=kind.name,
        where="tensors" if tensors else "python",
        bounded=_bounded(one, container, path, owner),
        key=id(container) if one.kind == "items" and not one.name else 0,
    )
    if line is not None:
        suspect.set_line(line)
    return suspect


def cycle_suspects(garbage: list[object], steps: int) -> list[Suspect]:
    """Garbage by class; the user's classes are the most informative."""
    if not garbage:
        return []
    num_bytes = 0.0
    counted: set[tuple[object, int]] = set()
    places = {id(thing) for thing in garbage}
    for thing in garbage:
        num_bytes += deep_bytes(thing, places - {id(thing)}, counted)
    classes: dict[type, int] = {}
    for thing in garbage:
        classes[type(thing)] = classes.get(type(thing), 0) + 1
    ordered = sorted(classes, key=lambda cls: (not is_user_class(cls), cls.__module__ == "builtins", -classes[cls]))
    telling = ordered[0]
    sample = next(thing for thing in garbage if type(thing) is telling)
    found = traced([sample]) or _function_place(garbage)
    if is_user_class(telling):
        found = matching_line([rf"\b{telling.__name__}\("], files_of([telling])) or found
    tensors = any(is_tensor(thing) for thing in garbage)
    suspect = Suspect(
        type="reference cycle",
        bytes_per_step=num_bytes / steps,
        count_per_step=classes[telling] / steps,
        held_by=f"{telling.__name__}, in a reference cycle",
        each=", ".join(cls.__name__ for cls in ordered[:3]),
        cure=KINDS["cycle"].cure,
        kind="cycle",
        where="tensors" if tensors else "python",
    )
    if found is not None:
        suspect.set_line(found)
    return [suspect]


def native_suspect(code: CodeType | None, line: int, bytes_per_step: float) -> Suspect:
    """Memory that no Python object holds, with the line at which C or C++ code allocates it, if it was seen."""
    suspect = Suspect(
        type="native memory",
        bytes_per_step=bytes_per_step,
        count_per_step=0.0,
        held_by=f"C or C++ code that {code.co_qualname} calls" if code else None,
        cure=KINDS["native line" if code else "native"].cure,
        kind="native",
        where="native",
    )
    if code:
        suspect.set_line((code.co_filename, line))
    return suspect


def _place(one: GrownObject, kind: HolderKind, container: object, path: str, owner: object) -> tuple[str, int] | None:
    """The line that adds to it: where it was created if that names the holder, else found in the source."""
    name = _name_in(path)
    seen = traced(one.samples)
    if seen and name and re.search(rf"\b{name}\b", source_line(*seen)):
        return seen
    if kind.name == "hooks":
        function = _function_place(one.samples)
        files = files_of([]) if function is None else list(dict.fromkeys([function[0], *files_of([])]))
        hook = matching_line(kind.made_by, files) or function
        if hook is not None:
            return hook
    if type(container) is LRU_CACHE:
        return place_of_code(container.__wrapped__.__code__) if hasattr(container.__wrapped__, "__code__") else None
    if kind.name == "param_groups":
        found = matching_line(kind.made_by, files_of([])) or seen
        return found or growing_line("param_groups", files_of([]))
    cls = owner if isinstance(owner, type) else type(owner)
    is_attribute = path.rpartition(f".{name}")[1] != ""
    grows = not kind.iterators  # nothing is added to those
    found = growing_line(name, files_of([cls]), attribute=is_attribute) if name and grows else None
    if found is None and name and kind.name in ("chain", "size", "graph"):
        found = matching_line([rf"\.{re.escape(name)}\s*=[^=]", rf"^\s*{re.escape(name)}\s*=[^=]"], files_of([cls]))
    if found is None and kind.name == "closure":
        found = _function_place(one.samples)
    if found is None and kind.name == "exceptions":
        found = _raised(one.samples)
    if found is None and kind.name == "threads":
        found = _made_of_users_class(one.samples)
    if found is None and kind.made_by and kind.name != "hooks":
        named = [rf"\b{re.escape(name)}\b.*{pattern}" for pattern in kind.made_by] if name else []
        found = seen if kind.name == "log records" else None
        found = found or matching_line([*named, *kind.made_by], files_of([cls]))
    return found or _made_of_users_class(one.samples) or seen


def _made_of_users_class(samples: Sequence[object]) -> tuple[str, int] | None:
    """Where the source creates one, if its class is the user's."""
    for sample in samples[:1]:
        inner = sample[1] if isinstance(sample, tuple) and len(sample) == 2 else sample
        if is_user_class(type(inner)):
            return matching_line([rf"\b{type(inner).__name__}\("], files_of([type(inner)]))
    return None


def traced(samples: Sequence[object]) -> tuple[str, int] | None:
    """Where one of these was created, as recorded by a tracemalloc window: the user's innermost line."""
    if not tracemalloc.is_tracing():
        return None
    for part in inside(list(samples)):
        trace = tracemalloc.get_object_traceback(part)
        if trace is not None:
            lines = [(frame.filename, frame.lineno) for frame in reversed(trace)]
            own = [found for found in lines if is_user_file(found[0])]
            if own:
                return own[0]
    return None


def _function_place(samples: Sequence[object]) -> tuple[str, int] | None:
    for part in inside(list(samples)):
        function = part.__func__ if isinstance(part, MethodType) else getattr(part, "func", part)
        if isinstance(function, FunctionType) and (found := place_of_code(function.__code__)):
            return found
    return None


def _raised(samples: Sequence[object]) -> tuple[str, int] | None:
    for part in inside(list(samples)):
        trace: TracebackType | None = getattr(part, "__traceback__", None) if isinstance(part, BaseException) else None
        while trace is not None:
            if is_user_file(trace.tb_frame.f_code.co_filename):
                return trace.tb_frame.f_code.co_filename, trace.tb_lineno
            trace = trace.tb_next
    return None


def _name_in(path: str) -> str | None:
    variables = _VARIABLE.findall(path)
    if variables and not re.search(r"\)\.\w+", path):
        return str(variables[-1])
    found = _LAST_NAME.search(re.sub(r"\[[^\]]*\]| \(\w+\)$", "", path))  # without keys and a trailing "(cycle)"
    return found[1] if found else None


def _slot(container: object, value: object) -> str:
    names = container if isinstance(container, dict) else getattr(container, "__dict__", {})
    return next((f".{name}" for name, held in list(names.items()) if held is value and isinstance(name, str)), "")


def _is_a_librarys(owner: object, path: str, line: tuple[str, int] | None) -> bool:
    """Whether a library created the container and fills it: the user's line does not name it."""
    cls = owner if isinstance(owner, type) else type(owner)
    if owner is None or is_user_class(cls):
        return False
    return line is None or (_name_in(path) or "") not in source_line(*line)


def _bounded(one: GrownObject, container: object, path: str, owner: object) -> str | None:
    """Why it will stop growing, or may; None if there is no sign of that."""
    if one.bound is not None:
        return f"{path} holds {one.bound:,} at most"
    rows = _rows(owner)
    if rows is not None and one.kind == "items" and one.count < rows and issubclass(type(container), dict):
        return f"{path} holds one entry for each of {rows:,} rows at most"
    name = _name_in(path)
    cls = owner if isinstance(owner, type) else type(owner)
    if name and bounds(name, files_of([cls]), item=path.endswith("]")):
        return f"the code that fills {path} also looks at its size"
    return None


def _rows(owner: Any) -> int | None:
    """The number of rows of a dataset."""
    if not hasattr(type(owner), "__getitem__") or not hasattr(type(owner), "__len__"):
        return None
    if hasattr(type(owner), "keys") or isinstance(owner, list):
        return None  # it has as many as were added
    try:
        return len(owner)
    except (TypeError, NotImplementedError, AttributeError):
        return None
