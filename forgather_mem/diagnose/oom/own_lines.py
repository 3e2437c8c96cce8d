"""Less at once at a line of the user's own."""

from __future__ import annotations

from forgather_mem.diagnose.oom.context import FailureContext
from forgather_mem.telemetry.report import Change
from forgather_mem.units import format_bytes

NOT_MEASURED = "not measured"


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
    text = f"make less at once at {failure.line}: "
    text += f"{format_bytes(failure.requested_bytes or 0)} are asked for there"
    return Change(text=text, note="; ".join(filter(None, notes)))
