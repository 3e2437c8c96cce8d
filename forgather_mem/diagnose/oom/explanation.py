"""The report's account of a failure, in a watched training or in a script without one.

Nothing here imports torch or a sink: it runs at the end of every process of a watched command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forgather_mem.diagnose.oom.advice import advise
from forgather_mem.diagnose.oom.context import FailureContext, RunSettings
from forgather_mem.diagnose.oom.memory_in_use import memory_then
from forgather_mem.diagnose.oom.place import batch_on_the_way, is_before_any_training, place_of, trained_by
from forgather_mem.diagnose.oom.recognition import recognise
from forgather_mem.diagnose.oom.step_use import StepUse
from forgather_mem.diagnose.oom.story import Story, as_dict


def story_outside(error: BaseException, rank: int = 0, reserve_bytes: int = 0) -> Story | None:
    """What can be known about an error outside any training; None if it is not about memory."""
    found = recognise(error)
    if found is None:
        return None
    place = place_of(error)
    model, optimizer = trained_by(error)
    phase = place.phase or ("startup" if is_before_any_training(error) else "other")
    return Story(
        found=found,
        phase=phase,
        rank=rank,
        layer=place.layer,
        functions=place.functions,
        batch=batch_on_the_way(error),
        memory=memory_then(found, phase, model, optimizer, reserve_bytes=reserve_bytes),
    )


def explained(
    story: Story,
    leak: Mapping[str, Any] | None = None,
    settings: RunSettings | None = None,
    uses: Sequence[StepUse] = (),
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The report's `oom` and `advice`."""
    oom = as_dict(story, leak)
    memory, leaks = story.memory, oom["why_now"] is not None and oom["why_now"].startswith("a leak")
    failure = FailureContext(
        where=story.found.where,
        phase=story.phase,
        step=story.step,
        used_bytes=memory.used_bytes,
        free_bytes=memory.free_bytes,
        requested_bytes=story.found.requested_bytes,
        reserved_unused_bytes=memory.reserved_unused_bytes,
        rows=story.batch.rows if story.batch is not None else None,
        length=story.batch.length if story.batch is not None else None,
        parts=memory.in_use,
        frames=story.functions,
        predictions=story.predictions,
        workers_bytes=memory.in_use.get("data workers"),
        leak=_cure(leak) if leaks and leak is not None else None,
        first_optimizer_step=story.phase == "optimizer" and story.is_first,
    )
    advice = advise(failure, settings or RunSettings(), uses)
    entries = advice.as_dicts()
    oom |= {"advice": [entry["text"] for entry in entries], "fit": advice.fit, "no_help": advice.no_help}
    return oom, entries


def _cure(leak: Mapping[str, Any]) -> str:
    suspect = next(iter(leak["suspects"]), None)
    if suspect is None:
        return "find what grows at each step"
    return suspect["cure"] or f"keep less in {suspect['held_by']}"
