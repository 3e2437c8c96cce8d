"""The notebook extension: shows what is alive, and releases it by name. `%load_ext forgather_mem`

    %forgather_mem                      what holds 1 KiB or more: tensors, arrays, texts, numbers, also in containers
    %forgather_mem release model Out    lets go of a variable, of all remembered results; says who still holds
    %forgather_mem release error        empties the frames that the last error keeps
    %%forgather_mem                     as the first line of a cell: what it took, and who holds how much more or less

A notebook keeps more than its variables: every displayed result (`Out[3]`, `_3`, `_`), and the last error with all
frames of its traceback, which hold models and batches.
"""

from __future__ import annotations

import gc
import sys
from asyncio import _get_running_loop
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forgather_mem.errors import did_you_mean
from forgather_mem.heap.autograd import operations_of, saved_by
from forgather_mem.heap.failed_frames import chain, drop_frames, entries
from forgather_mem.heap.object_size import Accounts, atoms_of, big_bytes, deep_bytes, is_array_class, is_tensor
from forgather_mem.heap.reachable import MANY, MAX_NODES
from forgather_mem.heap.retained import WeakWatch, describe
from forgather_mem.probes.tensors import CONTAINERS, live_tensors, new_bytes, storages_in, tensors_in, values_of
from forgather_mem.reclaim.release import give_back, write_steps
from forgather_mem.sinks.console import at_next, print_line
from forgather_mem.source.frame_variables import frame_variables, is_function
from forgather_mem.source.source_lines import is_our_class, is_user_class
from forgather_mem.system.headroom import host_rooms
from forgather_mem.system.usage import UsageWindow, usage_now
from forgather_mem.units import KIB, format_bytes

if TYPE_CHECKING:
    import torch
    from IPython.core.interactiveshell import InteractiveShell

MAX_ROWS = 15
_ERROR, _OUT = "error", "Out"
_USAGE = "write %forgather_mem, or %forgather_mem release NAME... (a variable, Out, error)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """One name that holds memory.

    Attributes:
        name: The name to release it by.
        what: Its type, or for a tensor shape and dtype.
        num_bytes: Size of the tensors, arrays and texts in it that no earlier name has, each storage once, and of what
            their graphs keep that no name has. Of more than 400 items without an array some stand for the others.
    """

    name: str
    what: str
    num_bytes: int


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Called by `%load_ext`."""

    def forgather_mem(line: str, cell: str | None = None) -> None:
        print_line(run_magic(shell, line) if cell is None else measure_cell(shell, cell, line))

    forgather_mem.__doc__ = __doc__
    shell.magics_manager.register_function(forgather_mem, magic_kind="line_cell", magic_name="forgather_mem")


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Called by `%unload_ext`."""
    for magics in shell.magics_manager.magics.values():
        magics.pop("forgather_mem", None)


def run_magic(shell: InteractiveShell, line: str) -> str:
    """Run `%forgather_mem LINE`; returns the text to print."""
    words = line.split()
    if not words:
        return _table(shell)
    if words[0] == "release" and len(words) > 1:
        return "\n".join(_release(shell, list(dict.fromkeys(words[1:]))))
    return f"%forgather_mem {line}: {_USAGE}"


def measure_cell(shell: InteractiveShell, cell: str, line: str) -> str:
    """Run a cell; returns what it took, and the names that hold more or less. With words above it is not run.

    Nor is one that awaits: the loop that it needs runs the notebook.
    """
    if line.strip():
        return f"%%forgather_mem {line}: the cell was not run; write %%forgather_mem alone. In another cell {_USAGE}"
    if _get_running_loop() and shell.should_run_async(cell, transformed_cell=cell):
        return "%%forgather_mem: the cell was not run; one that awaits can't be measured so"
    before, window = what_is_alive(shell), UsageWindow()
    # Later versions have counted up by now. The cell's lines get the number that is read before this event, its results
    # what the display hook makes of the one after it
    count, shell.execution_count = shell.execution_count, shell.displayhook.prompt_count
    at_next(shell, "pre_run_cell", lambda: setattr(shell, "execution_count", count))
    # The line of the magic itself counts, too, as it does in errors of other cells
    shell.run_cell(cell if cell.startswith("%%") else f"#\n{cell}")  # type: ignore[no-untyped-call]
    span = window.close()
    sizes = [
        f"{place} {format_bytes(one.start_bytes)} -> {format_bytes(one.end_bytes)}, peak {format_bytes(one.peak_bytes)}"
        for place, one in (("host", span.host), ("GPU", span.device))
        if one is not None
    ]
    parts = [*what_is_alive(shell), *(replace(row, num_bytes=-row.num_bytes) for row in before)]
    more = {row.name: sum(part.num_bytes for part in parts if part.name == row.name) for row in parts}
    rows = [replace(row, num_bytes=more.pop(row.name)) for row in parts if abs(more.get(row.name, 0)) >= KIB]
    rows.sort(key=lambda row: -abs(row.num_bytes))
    return "\n".join([f"forgather_mem: {'; '.join(sizes)}", *_rows(rows, "+")])


def what_is_alive(shell: InteractiveShell) -> list[Alive]:
    """Variables, their attributes, results and the last error's frames that hold 1 KiB or more, largest first."""
    seen: set[object] = {id(shell), id(shell.user_ns)}  # an error's frames lead to these, and they to all
    kept = [(name, describe(value), value) for name, value in _kept(shell)]
    if (error := getattr(sys, "last_value", None)) is not None:
        frames = [part.tb_frame for link in chain(error, suppressed=True) for part in entries(link.__traceback__)]
        held = [value for frame in filter(is_function, frames) for value in frame_variables(frame).values()]
        kept.append((_ERROR, type(error).__name__, held))
    found: list[tuple[object, list[torch.Tensor], list[object]]] = [(value, [], []) for *_, value in kept]
    sizes = [_new_bytes([value], seen, tensors, left) for value, tensors, left in found]
    accounts, operations = Accounts(), set[object]()
    # What has no name of its own is theirs who lead to it; an attribute says more than the variable that has it
    for place in sorted(range(len(kept)), key=lambda place: "." not in kept[place][0]):
        _, tensors, left = found[place]
        for thing in left:
            account = accounts[type(thing)] if len(left) < MAX_NODES else None
            sizes[place] += _new_bytes(account[1](thing) if account is not None else [], seen, tensors, left)
    # What graphs keep is theirs who hold these, but for what has a name
    for place, (_, tensors, _) in enumerate(found):
        nodes = [node for one in tensors for node in operations_of(one.grad_fn, operations)]
        # Parameters, also of a model that is gone, and what operations have saved
        sizes[place] += new_bytes(storages_in([getattr(node, "variable", None) for node in nodes]), seen)
        sizes[place] += new_bytes(dict(pair for node in nodes for pair in saved_by(node)), seen)
    rows = [Alive(name=name, what=what, num_bytes=sizes[place]) for place, (name, what, _) in enumerate(kept)]
    return sorted((row for row in rows if row.num_bytes >= KIB), key=lambda row: -row.num_bytes)


def _table(shell: InteractiveShell) -> str:
    rows = what_is_alive(shell)
    room = next(iter(host_rooms()), None)
    limit = "" if room is None else f" ({format_bytes(room.free_bytes)} free, {room.limit})"
    lines = [f"forgather_mem: {write_steps(usage_now())}{limit}", *_rows(rows)]
    live = live_tensors() if "torch" in sys.modules else ()
    lines.append(f"  all live tensors: {format_bytes(sum(row.num_bytes for row in live))}")
    lines += [f"  release by name: %forgather_mem release {row.name}" for row in rows[:1]]
    return "\n".join(lines)


def _rows(rows: list[Alive], sign: str = "") -> Iterator[str]:
    width = max((len(row.name) for row in rows), default=0)
    for row in rows[:MAX_ROWS]:
        yield f"  {row.name:<{width}}  {format_bytes(row.num_bytes, sign):>10}  {row.what}"
    if len(rows) > MAX_ROWS:
        yield f"  {len(rows) - MAX_ROWS} more  {format_bytes(sum(row.num_bytes for row in rows[MAX_ROWS:]), sign)}"


def _release(shell: InteractiveShell, names: list[str]) -> Iterator[str]:
    before = usage_now()
    known = {_OUT, *(name for name, _ in _kept(shell))}
    if getattr(sys, "last_value", None) is not None:
        known.add(_ERROR)
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            yield f"forgather_mem: there is no {name!r}" + (f"; {hint}" if hint else "")
    names = [name for name in names if name in known]
    if not names:
        return
    gone = [(f"{name} ({describe(thing)})", thing) for name in names for thing in _let_go(shell, name)]
    watched = WeakWatch([thing for _, thing in gone], [label for label, _ in gone])
    gone.clear()
    given = give_back()
    freed = f"{write_steps(before, given.after)}, {given.num_objects:,} objects collected"
    yield f"forgather_mem: {freed}; let go of {', '.join(names)}"
    yield from map(str, watched.held())


def _let_go(shell: InteractiveShell, name: str) -> list[object]:
    """Remove a name and everything else the notebook keeps of the same object; returns the objects, to watch them."""
    if name == _ERROR:
        drop_frames(*filter(None, [getattr(sys, "last_value", None)]))
    if name == _OUT:
        gone = list(_results(shell).values())
    elif name in shell.user_ns:
        gone = [shell.user_ns.pop(name)]
    else:  # already gone if the same object was named before
        gone = [value for known, value in _kept(shell) if name == known]
        owner, dot, attribute = name.partition(".")
        if dot and gone:
            delattr(shell.user_ns[owner], attribute)
    _forget_results(shell, gone)
    return [thing for thing in gone if not is_our_class(type(thing))]


def _forget_results(shell: InteractiveShell, gone: list[object]) -> None:
    places = {id(thing) for thing in gone}
    for number, value in _results(shell).items():
        if id(value) in places:
            del shell.user_ns[_OUT][number]
    for names in (shell.user_ns, shell.user_ns_hidden, vars(shell.displayhook)):
        for name, value in list(names.items()):
            if name.startswith("_") and id(value) in places:
                if name[1:].isdecimal():
                    del names[name]
                else:
                    names[name] = ""  # what IPython has in _, __ and ___ before the first result
    last = getattr(shell, "last_execution_result", None)
    if last is not None and id(last.result) in places:
        last.result = None


def _kept(shell: InteractiveShell) -> list[tuple[str, object]]:
    """Variables and results, then what an object, or the user's class, in a variable has by an attribute: a Trainer's
    list."""
    hidden = shell.user_ns_hidden
    variables = [
        (name, value)
        for name, value in list(shell.user_ns.items())
        if not name.startswith("_") and not (name in hidden and hidden[name] is value)
    ]
    kept = [*variables, *((f"{_OUT}[{number}]", value) for number, value in _results(shell).items())]
    for name, value in variables:
        own = getattr(value, "__dict__", None)
        is_listed = is_user_class(value) if isinstance(value, type) else not is_array_class(type(value))
        if is_listed and isinstance(own, Mapping) and "__name__" not in own:  # a module's has that
            kept += [(f"{name}.{attribute}", part) for attribute, part in list(own.items())]
    return kept


def _results(shell: InteractiveShell) -> dict[int, object]:
    return dict(shell.user_ns.get(_OUT) or {})


def _new_bytes(values: list[object], seen: set[object], tensors: list[torch.Tensor], left: list[object]) -> int:
    """Bytes of what these hold that was not seen. Tensors are added to `tensors`, what may lead to more to `left`."""
    new = [tensor for tensor in tensors_in(values, gradients=True) if id(tensor) not in seen]
    total = new_bytes(storages_in(new), seen)
    seen.update(map(id, new))
    tensors += new
    todo = list(values)
    for thing in todo:
        if is_tensor(thing) or id(thing) in seen:
            continue
        part = values_of(thing) if isinstance(thing, Mapping) else [*thing] if isinstance(thing, CONTAINERS) else thing
        if isinstance(part, list) and (len(part) <= MANY or any(map(is_array_class, {*map(type, part)}))):
            atoms_bytes, rest = atoms_of(part, MAX_NODES // len(todo))
            total += sys.getsizeof(thing) + int(atoms_bytes)
            todo += rest
        elif isinstance(part, list) or is_array_class(type(part)):  # of many some stand for the others
            part = None  # a list of them is one holder more
            total += int(deep_bytes(thing, seen, seen))
        else:
            total += big_bytes(part)
            left += [part] if gc.is_tracked(part) else []
        seen.add(id(thing))
    return total
