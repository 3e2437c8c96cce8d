"""What the user's code calls a container that the walk has reached, and the code that may call it so."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import CodeType, FrameType, FunctionType

from forgather_mem.heap.owner_paths import attributes_of, frame_name, has_attributes, suspended_frame, variable_of
from forgather_mem.heap.reachable import ReachableGraph
from forgather_mem.source.frame_variables import frame_variables, running_frames
from forgather_mem.source.source_lines import is_user_class, is_user_file, user_modules
from forgather_mem.source.syntax import Named, Region, class_regions, function_regions, regions_of_module


def names_of(walk: ReachableGraph, position: int, failed: Sequence[FrameType] = ()) -> list[Named]:
    """The nearest name on the way to this node that the user's code gives, best first; none if there is none.

    `failed` are the frames that the walk knows beside those that run.
    """
    way = walk.way(position)
    label = walk.label(position)
    below = 0  # containers between the name and the node
    for number in range(len(way) - 1, 0, -1):
        held, holder = way[number], way[number - 1]
        if type(holder) is FunctionType:
            return _of_code(holder.__code__, variable_of(holder, held), item=below > 0)
        if (frame := suspended_frame(holder)) is not None:
            name = next((name for name, value in frame_variables(frame).items() if value is held), None)
            return _of_code(frame.f_code, name, item=below > 0)
        instance = _instance_of(way, number - 1)
        if instance is not None:
            name = _attribute(instance, held)
            if name is not None:
                return slot_names(instance, name, item=below > 0) + anywhere(name, item=below > 0)
        elif number == 1 and type(holder) is dict and not label.startswith("local "):
            return module_names(label, holder, held, item=below > 0)
        else:
            below += 1
    return _of_frame(label, [*failed, *running_frames()], item=below > 0) if label.startswith("local ") else []


def slot_names(instance: object, name: str, *, item: bool = False) -> list[Named]:
    """The names of a value that is an attribute of this instance, or of an item of it."""
    bases = (instance if isinstance(instance, type) else type(instance)).__mro__
    return _named(name, class_regions([base for base in bases if is_user_class(base)]), attribute=True, item=item)


def anywhere(name: str, *, item: bool) -> list[Named]:
    """The attribute by its own name in all of the user's code: `optimizer.seen.append(x)`, `agent.memory[key] = x`."""
    around = (region for module in user_modules(len(sys.modules)) for region in regions_of_module(module, name))
    return _named(name, (replace(region, own=False) for region in around), attribute=True, item=item)


def _instance_of(way: list[object], number: int) -> object | None:
    """The instance or class whose attribute is named here: the node itself, or the one whose `__dict__` it is."""
    holder = way[number]
    if type(holder) is dict and number:
        above = way[number - 1]
        if attributes_of(above) is holder or (isinstance(above, type) and holder.keys() == vars(above).keys()):
            return above
        for module in way[max(0, number - 2) : number]:  # torch's keep their parts in a dictionary of their own
            if (attributes_of(module) or {}).get("_modules") is holder:
                return module
    return holder if isinstance(holder, type) or has_attributes(holder) else None


def _attribute(instance: object, held: object) -> str | None:
    names = dict(vars(instance)) if isinstance(instance, type) else attributes_of(instance) or {}
    modules = names.get("_modules")
    names = names | modules if isinstance(modules, dict) else names
    return next((name for name, value in list(names.items()) if value is held and isinstance(name, str)), None)


def module_names(module: str, namespace: dict[str, object], held: object, *, item: bool) -> list[Named]:
    """The names of a value that is a variable of this module, or of an item of it."""
    name = next((name for name, value in list(namespace.items()) if value is held), None)
    return _named(name, regions_of_module(module), item=item, of_module=True)


def _of_frame(label: str, frames: Sequence[FrameType], *, item: bool) -> list[Named]:
    """A variable of one of these; `label` as the walk writes it."""
    name, _, place = label.removeprefix("local '").partition("' of ")
    frame = next((frame for frame in frames if frame_name(frame) == place), None)
    return [] if frame is None else _of_code(frame.f_code, name, item=item)


def _of_code(code: CodeType, name: str | None, *, item: bool) -> list[Named]:
    return _named(name, function_regions(code, name) if name and is_user_file(code.co_filename) else (), item=item)


def _named(name: str | None, regions: Iterable[Region], **more: bool) -> list[Named]:
    """What has this name in any of these; nothing without both."""
    around = tuple(regions) if name is not None else ()
    return [Named(name=name, regions=around, **more)] if name is not None and around else []
