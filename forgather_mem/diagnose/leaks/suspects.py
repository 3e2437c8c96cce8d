"""Suspects of a leak: what has grown, with its name, line and cure, most likely first."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from forgather_mem.diagnose.leaks import holder_kinds
from forgather_mem.diagnose.leaks.growing import LEAK
from forgather_mem.diagnose.leaks.holder_lines import bound_of_holder, data_sets, line_of_function, lines_of_holder
from forgather_mem.diagnose.leaks.snapshot import GrownObject
from forgather_mem.heap.containers import LRU_CACHE, length_of, newest
from forgather_mem.heap.holder_names import anywhere, module_names, names_of, slot_names
from forgather_mem.heap.object_size import Sorts, big_bytes, deep_bytes, inside, is_array, is_tensor
from forgather_mem.heap.owner_paths import attributes_of, has_attributes, write_path
from forgather_mem.heap.reachable import ReachableGraph
from forgather_mem.source.container_code import added_to, adding_lines
from forgather_mem.source.source_lines import Line, is_user_class, is_user_file, line_name, source_line, user_modules
from forgather_mem.telemetry.report import LeakSuspect, LineIs
from forgather_mem.telemetry.report_schema import keys_of

MAX_SUSPECTS = 5
# The parts of a holder's name that vary from run to run: keys
INDICES = re.compile(r"\[[^\]]*\]")
# Where torch keeps a module's parts; people write module.part
_PARTS = re.compile(r"\._(?:modules|parameters|buffers)(?=\.|$)")


@dataclass(slots=True, kw_only=True)
class Suspect:
    """One thing that grows: a `LeakSuspect` in the making, with what only the search needs.

    `kind` is a key of `KINDS`, which has its usual cure. `bounded`: why it will stop growing by itself, or may;
    `full_bytes`: what it will hold then, if known. `seen_at`: the step at which it was counted. `place`: where. `last`:
    any other one is a better explanation. `lines`: all that add to it, as far as the source shows, where it is
    `written` so; `form`: how it is shortened.
    """

    type: str
    bytes_per_step: float
    count_per_step: float = 0.0
    held_by: str | None = None
    allocated_at: str | None = None
    line_is: LineIs = "made"
    source_line: str = ""
    whose: str = "user"
    cure: str | None = None
    count: int | None = None
    bytes: int | None = None
    kind: str = ""
    each: str = ""
    where: str = "python"
    bounded: str | None = None
    full_bytes: int | None = None
    seen_at: int = 0
    place: Place | None = None
    form: str = ""
    lines: tuple[Line, ...] = ()
    written: str | None = None
    last: bool = False

    def __post_init__(self) -> None:
        if self.cure is None and self.kind:
            self.cure = holder_kinds.KINDS[self.kind].cure

    @property
    def since_step(self) -> int:
        """The step of its first item, by how many came a step since; below 1 if not known."""
        return round(self.seen_at - self.count / self.count_per_step) + 1 if self.count and self.count_per_step else 0

    def reported(self) -> LeakSuspect:
        """The suspect as the report has it."""
        holder = INDICES.sub("[...]", self.held_by or "nobody")
        signature = " ".join(filter(None, [self.kind, "in", holder, self.source_line]))
        known = {name: getattr(self, name) for name in keys_of(LeakSuspect) if hasattr(self, name)}
        pace = self.count_per_step / max(1, len(self.place.names) if self.place is not None else 1)  # of one of several
        cure = self.cure and self.cure.replace("{last}", holder_kinds.last_of(self.form, self.written, pace))
        return LeakSuspect(**{**known, "cure": cure, "signature": signature})

    def set_line(self, found: Line, line_is: LineIs = "added") -> None:
        """Set where it is `added` to its holder, or else `made`."""
        self.allocated_at, self.line_is = line_name(*found), line_is
        self.source_line = source_line(*found)
        self.whose = "user" if is_user_file(found[0]) else "library"
        self.written = added_to(*found) if found in self.lines else None


def suspect_of(one: GrownObject, walk: ReachableGraph) -> Suspect:
    """A suspect made from something that has grown, with its name, line and cure."""
    container = walk.nodes[one.position]
    path = one.name or path_of(walk, one.position)
    owner = walk.owner(one.position)
    if type(container) is LRU_CACHE:
        path = f"{getattr(container, '__module__', '')}.{container.__qualname__}"
    kind = holder_kinds.kind_of(holder_kinds.Held(one, container, path, owner))
    is_item = not (has_attributes(container) or walk.is_namespace(one.position) or walk.is_module(one.position))
    is_value = any(sample is container for sample in one.samples)
    if one.kind == "size" and one.samples and not is_value:
        is_plain = has_attributes(container) and path == walk.holder(one.position)
        path = (type(container).__name__ if is_plain else path) + _slots(container, one.samples, is_item)
        path = _PARTS.sub("", path)
    if kind.name == "cycle iterator":
        path = path[: path.index(holder_kinds.CYCLE) + len(holder_kinds.CYCLE)]
    names = names_of(walk, one.position)
    if one.kind == "size" and walk.is_module(one.position) and one.samples:
        names = module_names(walk.label(one.position), container, one.samples[0], item=False)
    elif one.kind == "size" and is_item and not is_value:
        names = [replace(named, item=True) for named in names]
    elif one.kind == "size":
        slots_of = owner if attributes_of(owner) is container else container
        names = slot_names(slots_of, holder_kinds.last_name(path)) or names
    held = holder_kinds.Held(one, container, path, owner)
    lines = lines_of_holder(held, names)
    bound = bound_of_holder(held, names, data_sets(walk, one.position, names, lines))
    grows = one.samples[0] if one.kind == "size" and one.samples else container
    places = {id(walk.nodes[at]): walk.holder(at) for at in (one.position, *one.others)}
    bounded, most = bound if bound is not None else (None, None)
    whole, cls = one.kind == "items" and one.is_whole, owner if isinstance(owner, type) else type(owner)
    suspect = Suspect(
        type="lru_cache" if type(container) is LRU_CACHE else type(grows).__name__, held_by=path, kind=kind.name,
        bytes_per_step=one.bytes_per_step,
        count_per_step=one.count_per_step if one.kind in ("items", "chain", "objects") else 0.0,
        each=holder_kinds.signature_of(one, container) if one.part is None else "",
        cure=holder_kinds.cure_of(kind, held), count=one.count if one.kind == "items" else None, lines=tuple(lines),
        bytes=int(one.count * one.each_bytes) if whole else None, bounded=bounded,
        where={"graph": "tensors", "closure": "host"}.get(kind.name) or _matter((one.part or one).samples),
        full_bytes=int(most * one.each_bytes) if most is not None else None,
        last=walk.is_librarys_variable(one.position) and not is_user_class(cls),
        place=Place(places, sort_of(one.samples) if one.kind == "items" else None),
        form=holder_kinds.form_of(type(container), one.kind, type(grows)) if bound is None else "",
    )  # fmt: skip
    if not lines and one.part is not None:
        lines = list(suspect_of(one.part, walk).lines)
    if len(lines) == 1:
        suspect.set_line(lines[0])
    return suspect


def count_again(suspects: list[Suspect], step: int, first_step: int, over: bool = False) -> None:
    """Update how much the holders hold now, and how fast they have grown; what has become shorter does not only grow.

    A look of some steps may have seen more or less than usual: what has come since then is closer to the run's rate.
    When the training is `over` its variables may be gone, and another object be where the holder was: what was counted
    at the last step stays, unless it has its name, too, and has not gained more than it did while it trained.
    """
    counted = [(one, one.place) for one in suspects if one.count and one.place is not None]
    if not counted:
        return
    walk = ReachableGraph.walk()  # the collector does not show what is frozen
    there: dict[int, object] = {}
    for _, place in counted:
        there |= place.find(walk, over)
    walk.forget()
    for one, place in counted:
        lengths = [length_of(there.get(key)) for key in place.names]
        length = sum(length or 0 for length in lengths) if None not in lengths else None  # a container may be gone
        if over and one.seen_at == step and (length or 0) < (one.count or 0):
            continue  # what ended with the training has emptied it
        if length is None or not one.count:
            one.bytes = one.count = None  # it is gone, or its id was reused: there were more at the end
        else:
            is_long = step - one.seen_at > 2 * LEAK.judged_every
            whole, before = length / max(1, step - first_step), one.count_per_step
            if over and length > LEAK.explained[1] * (one.count + before * (step - one.seen_at)):
                continue  # no step has added so much
            pace = pace_of(length - one.count, step - one.seen_at, whole) if is_long else before
            if over and 0 <= length - one.count - before * (step - one.seen_at) <= before:
                pace = before  # the last are of a step that has not ended
            if step == one.seen_at and abs(one.count - before * (step - first_step)) < 2:
                pace = pace_of(one.count, step - first_step, whole)  # its end adds some, as an evaluation does
            if length < LEAK.shrunk_frac * one.count:
                one.bounded = f"{one.held_by} has become shorter since: {one.count:,} items then, {length:,} now"
            if one.count_per_step and (pace > 0 or one.bounded is None):  # else it has not grown since, and is none
                pace = max(0.0, pace)
                one.bytes_per_step, one.count_per_step = one.bytes_per_step / one.count_per_step * pace, pace
            one.bytes = None if one.bytes is None else round(one.bytes / one.count * length)
            one.count, one.seen_at = length, step


def pace_of(count: int, steps: int, whole: float, is_even: bool = True) -> float:
    """Items a step, of which so many came in so many steps, to within one; `whole` if it began empty.

    Where steps are not even, as an evaluation lies between some, these may have brought less than others do.

    >>> pace_of(12, 12, 1.04), pace_of(12, 12, 1.04, is_even=False)
    (1, 1.04)
    >>> pace_of(11, 12, 0.8), pace_of(36, 144, 0.254), pace_of(5, 56, 0.083), pace_of(28, 12, 2.3)
    (1.0, 0.25, 0.083, 2.3)
    """
    pace, off = count / steps, 1 / steps
    if count > 0 and is_even:
        each = (pace - off, pace + off) if count >= steps else (1 / (pace + off), 1 / max(pace - off, 1e-9))
        if (fits := math.ceil(each[0])) == math.floor(each[1]):
            return fits if count >= steps else 1 / fits
    # A quarter is a guess
    return whole if 4 * abs(whole - pace) <= pace or abs(whole - pace) <= off else pace


def _matter(samples: Sequence[object]) -> str:
    """What most of their bytes are: those of tensors, of objects but arrays, or of several; four fifths are most."""
    parts = [*inside(samples)]
    tensors, arrays = (sum(map(big_bytes, filter(which, parts))) for which in (is_tensor, is_array))
    whole = sum(map(big_bytes, parts))
    return "python" if 5 * arrays <= whole else "tensors" if 5 * tensors > 4 * whole else "host"


def cycle_suspects(garbage: list[object], steps: int) -> list[Suspect]:
    """Garbage by class; the user's classes are the most informative."""
    if not garbage:
        return []
    counted: set[object] = set()
    places = {id(thing) for thing in garbage}
    num_bytes = sum(deep_bytes(thing, places - {id(thing)}, counted) for thing in garbage)
    classes = Counter(map(type, garbage))
    ordered = sorted(classes, key=lambda cls: (not is_user_class(cls), cls.__module__ == "builtins", -classes[cls]))
    telling = ordered[0]
    found = line_of_function(garbage) or _line_of_link(garbage, telling)
    count = classes[telling]
    pace = pace_of(count, steps, count / steps)  # the newest may be in use still
    suspect = Suspect(
        type="garbage", bytes_per_step=num_bytes / count * pace, count_per_step=pace, kind="cycle",
        held_by=f"{telling.__name__}, in a reference cycle", each=", ".join(cls.__name__ for cls in ordered[:3]),
        cure=holder_kinds.cure_of_cycle(telling), where=_matter(garbage),
    )  # fmt: skip
    if found is not None:
        suspect.set_line(found)
    return [suspect]


def _line_of_link(garbage: Sequence[object], cls: type) -> Line | None:
    """The line that sets an attribute of one of this class to something in its cycle."""
    ids, one = set(map(id, garbage)), next(thing for thing in garbage if type(thing) is cls)
    links = [name for name, value in (attributes_of(one) or {}).items() if id(value) in ids]
    names = [named for name in links for named in (*slot_names(one, name), *anywhere(name, item=False))]
    return next((line for named in names for line in adding_lines(named, False, assigned=True)), None)


def made_suspect(line: Line | None, bytes_per_step: float) -> Suspect:
    """What nobody is known to hold: with the line that makes it, or else the recorder that is on."""
    frees = "free what this line makes; if that is an object of Python's, gc.get_referrers tells who has it"
    cure = holder_kinds.recorder() or (frees if line is not None else None)
    return Suspect(type="memory", bytes_per_step=bytes_per_step, kind="made", where="host", cure=cure)


def path_of(walk: ReachableGraph, position: int) -> str:
    """The path as people write it, from the user's object where only a library's or two lie between."""
    plain = walk.holder(position)
    owner, root = walk.owner(position), walk.label(position)
    module = (owner if isinstance(owner, type) else type(owner)).__module__.partition(".")[0]
    says_nothing = owner is not None and module in sys.stdlib_module_names  # which `WeakKeyDictionary` it is
    is_local = root.startswith("local ") and not walk.is_librarys_variable(position)
    is_users = root in user_modules(len(sys.modules)) or is_local
    return _users_path(walk.way(position)) or (walk.path(position) if says_nothing and is_users else plain)


def _users_path(way: Sequence[object]) -> str | None:
    """The path from the last object of a user's class; None if it has what grows itself, or is far away."""
    owners = [thing for thing in way[:-1] if isinstance(thing, type) or has_attributes(thing)][-3:]
    users = [is_user_class(thing if isinstance(thing, type) else type(thing)) for thing in owners]
    if True not in users[:-1] or users[-1]:
        return None
    last = owners[max(number for number, is_users in enumerate(users) if is_users)]
    first = next(at for at, thing in enumerate(way) if thing is last)
    return _PARTS.sub("", (last if isinstance(last, type) else type(last)).__name__ + write_path(way[first:]))


def _slots(container: object, values: Sequence[object], is_item: bool) -> str:
    held = list(dict.items(container if isinstance(container, dict) else getattr(container, "__dict__", {})))
    named = [name for name, value in held if isinstance(name, str) and any(value is one for one in values)]
    return f"[{named[0]!r}]" if named and is_item else f".{' and '.join(named)}" if named else ""


@dataclass(slots=True)
class Place:
    """The place of a holder's items; numbers and names only.

    Attributes:
        names: The paths to its containers, by their `id`; the first one stands for all.
        sort: What the items are, that it has more of; None where one gets longer.
    """

    names: dict[int, str]
    sort: tuple[str, int] | None

    @property
    def keys(self) -> set[tuple[object, ...]]:
        """What it is known by: a line was looked for that adds such items."""
        return {(*one, self.sort) for one in self.names.items()}

    def find(self, walk: ReachableGraph, over: bool) -> dict[int, object]:
        """What is there now, by `id`: when the training is `over`, only under its name."""
        ours = ((key, walk.position(key), name) for key, name in self.names.items())
        return {key: walk.nodes[at] for key, at, own in ours if at is not None and (not over or walk.holder(at) == own)}

    def measure(self, walk: ReachableGraph) -> Callable[[], float]:
        """What gives the bytes of such items that came since, or of the texts and arrays in it; it keeps the container.

        What else is put in may be taken out again: a line that adds as much of another sort does not make it longer.
        """
        own = next(iter(self.find(walk, over=False).values()), None)
        known, length, added = walk.ids(), length_of(own) or 0, 0.0

        def came() -> float:
            nonlocal length, added
            more, length = (length_of(own) or 0) - length, length_of(own) or 0
            new = newest(own, more) if more > 0 else ()
            added += sum(1 + deep_bytes(item, known, set()) for item in new if sort_of([item]) == self.sort)
            return added

        return came if self.sort is not None else partial(Sorts().own_bytes, own)


def sort_of(samples: Sequence[object]) -> tuple[str, int]:
    """The class of the largest part of the first one, and the power of two above its bytes: sizes may be uneven."""
    largest = max(inside(samples[:1]), key=big_bytes, default=None)
    return type(largest).__name__, big_bytes(largest).bit_length()
