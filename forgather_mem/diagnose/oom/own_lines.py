"""Less at once at a line of the user's own, and how many rows of its tensors would have fitted."""

from __future__ import annotations

from forgather_mem.diagnose.oom.context import FailureContext
from forgather_mem.telemetry.report import Change
from forgather_mem.units import MIB, format_bytes

NOT_MEASURED = "not measured"
# What a part takes beside what was asked for: its operands' copies, and what follows from it. An estimate.
_AROUND = 10.0
_MAKES_DATA = ("startup", "data", "resume")
_FEWEST_ROWS = 8  # fewer are no rows, but the sides of something


def less_at_once(failure: FailureContext, why: str = "") -> Change | None:
    """A change that does less at once in the user's own line; None without a line."""
    if failure.line is None:
        return None
    kind = f" than {failure.array_type}" if failure.array_type is not None else ""
    named = failure.operation.named if failure.operation is not None else ""
    notes = (
        f"in parts, with what follows from it, or of a smaller type{kind}",
        f"it works on {named}" if named else "",
        why,
        NOT_MEASURED,
    )
    text = f"make less at once at {failure.line}{_chunks(failure)}: "
    text += f"{format_bytes(failure.requested_bytes or 0)} are asked for there"
    return Change(text=text, note="; ".join(filter(None, notes)))


def _chunks(failure: FailureContext) -> str:
    """How many rows would have fitted, and of what; "" if that is not known, or if the whole stays as data."""
    if failure.phase in _MAKES_DATA or failure.array_type is not None:
        return ""
    operands = failure.operation.operands if failure.operation is not None else ()
    wanted, free = failure.requested_bytes, failure.free_bytes
    by_rows = [(name, shape[0]) for name, shape in operands if shape[0] >= _FEWEST_ROWS]
    if not by_rows or not wanted or free is None or wanted < MIB:
        return ""
    # The result has the rows of an index or of labels, where the line has some, not those of what they choose from
    alone = [(name, shape[0]) for name, shape in operands if len(shape) == 1 and shape[0] >= _FEWEST_ROWS]
    name, rows = max(alone or by_rows, key=lambda one: one[1])
    fit = min(int(rows * free / (_AROUND * wanted)), rows // 2)
    return f" (chunks of {_round_down(max(1, fit)):,} rows of `{name}`)"


def _round_down(number: int) -> int:
    """To one digit.

    >>> _round_down(1234), _round_down(7)
    (1000, 7)
    """
    unit: int = 10 ** (len(str(number)) - 1)
    return number // unit * unit
