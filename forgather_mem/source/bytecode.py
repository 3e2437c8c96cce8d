"""What a function has done and may still do, from the instruction at which it stands: read from its bytecode.

A position is the offset of an instruction, as `frame.f_lasti` and `traceback.tb_lasti` have it. No source is needed.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator
from types import CodeType

_VARIABLES = re.compile("FAST|NAME|GLOBAL|DEREF|CLOSURE")
_VERBS = re.compile("LOAD|STORE|DELETE")  # Python 3.13 has pairs of them in one instruction
_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_JUMPS = re.compile("JUMP(_FORWARD|_BACKWARD|_ABSOLUTE)?(_NO_INTERRUPT)?")


def uses_again(code: CodeType, position: int, name: str) -> bool:
    """Whether the variable may be read before it gets another value, also by a function inside this one."""
    if name in code.co_cellvars or any(name in inner.co_names for inner in inner_codes(code)):
        return True
    return any(("LOAD", name) in _accesses(step) for step in _ahead(code, position, until=name))


def inner_codes(code: CodeType) -> Iterator[CodeType]:
    """The functions and classes that are made in this code, and in those."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from inner_codes(constant)


def names_on_line(code: CodeType, position: int) -> set[str]:
    """The variables that the lines of the expression that runs read."""
    places = list(code.co_positions())
    first, last = places[max(0, position) // 2][:2]
    lines = range(first or 1, (last or 0) + 1)
    steps = [one for one in dis.get_instructions(code) if places[one.offset // 2][0] in lines]
    return {name for step in steps for verb, name in _accesses(step) if verb == "LOAD"}


def is_in_loop(code: CodeType, position: int) -> bool:
    """Whether it may come to this instruction again."""
    here = max(step.offset for step in dis.get_instructions(code) if step.offset <= max(0, position))
    return any(step.offset == here for step in _ahead(code, position))


def _ahead(code: CodeType, position: int, until: str = "") -> Iterator[dis.Instruction]:
    """The instructions that may still run, by its jumps and its handlers.

    Args:
        code, position: Where it stands.
        until: A variable; what sets it is not followed further.
    """
    steps = list(dis.get_instructions(code))
    places = {step.offset: number for number, step in enumerate(steps)}
    handlers = [entry.target for entry in getattr(dis.Bytecode(code), "exception_entries", ()) if entry.end > position]
    done = sum(step.offset <= max(0, position) for step in steps)  # the position may be in the middle of one
    todo = [done, *(places[target] for target in handlers)]
    seen: set[int] = set()
    while todo:
        number = todo.pop()
        if number in seen or number >= len(steps):
            continue
        seen.add(number)
        step = steps[number]
        yield step
        is_set = any(verb != "LOAD" and name == until for verb, name in _accesses(step))
        if is_set or step.opname in _ENDS:
            continue
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            todo.append(places[step.argval])
        if not _JUMPS.fullmatch(step.opname):
            todo.append(number + 1)


def _accesses(step: dis.Instruction) -> list[tuple[str, str]]:
    """What it does with variables, in order: ("LOAD", "x")."""
    if not _VARIABLES.search(step.opname):
        return []
    names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
    return list(zip(_VERBS.findall(step.opname), map(str, names), strict=False))
