"""Why just then? From what is known of a failure."""

from dataclasses import replace
from typing import Any

import pytest

from forgather_mem.diagnose.leaks.suspects import Suspect
from forgather_mem.diagnose.oom.batch_shapes import Batch
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.memory_in_use import MemoryThen
from forgather_mem.diagnose.oom.recognition import OutOfMemory
from forgather_mem.diagnose.oom.story import oom_of
from forgather_mem.telemetry.report import NOT_JUDGED, LeakReport
from forgather_mem.telemetry.report_schema import to_dict
from forgather_mem.units import GIB, MIB

HOST = OutOfMemory(kind="CPU allocator", where="host", error_type="RuntimeError", message="", requested_bytes=GIB)
DEVICE = replace(HOST, kind="CUDA allocator", where="device", device=0)
LEAK = LeakReport(
    verdict="leak",
    where="tensors",
    bytes_per_step=10.0 * MIB,
    bytes_per_step_high=11.0 * MIB,
    since_step=100,
    suspects=(Suspect(type="list", bytes_per_step=MIB, count_per_step=1.0, held_by="Trainer.kept").reported(),),
)
MEMORY = MemoryThen(
    used_bytes=8 * GIB, free_bytes=GIB // 2, limit_bytes=9 * GIB, limit="container", in_use={"activations": 8 * GIB}
)


def told(leak: LeakReport = NOT_JUDGED, **facts: Any) -> dict[str, Any]:
    story: dict[str, Any] = {"found": HOST, "phase": "forward", "step": 200, "memory": MEMORY, "in_training": True}
    return to_dict(oom_of(Failure(**{**story, **facts}), leak))


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"batch": Batch(8, 512)}, "the first batch, 8 x 512 tokens; there was none before it."),
        (
            {"batch": Batch(8, 4096), "largest": Batch(8, 2310), "largest_bytes": 6 * GIB},
            "the longest batch so far, 8 x 4,096 tokens; until then at most 8 x 2,310, peak 6.0 GiB.",
        ),
        (
            {"batch": Batch(9, 512), "largest": Batch(8, 512)},
            "the largest batch so far, 9 x 512 tokens; until then at most 8 x 512.",
        ),
        ({"batch": Batch(8, 512), "largest": Batch(8, 512)}, None),
        (
            {"phase": "optimizer", "is_first": True},
            "the first optimizer step, which creates the optimizer state.",
        ),
        ({"phase": "optimizer"}, None),
        ({"phase": "evaluate", "is_first": True, "predictions": 12}, "the first evaluation, in its batch 13."),
        ({"phase": "save", "is_first": True}, "the first checkpoint."),
        ({"phase": "save"}, None),
        ({"phase": "startup"}, "before the first step: it does not fit even without a batch."),
        ({"phase": "startup", "in_training": False}, None),
        (
            {"found": DEVICE, "memory": replace(MEMORY, others_bytes=2 * GIB)},
            "other processes have 2.0 GiB of this device.",
        ),
        ({"memory": replace(MEMORY, others_bytes=2 * GIB)}, None),
        (
            {"found": replace(HOST, kind="killed worker"), "phase": "data"},
            "a data worker was killed, most likely by the kernel, for memory.",
        ),
        ({"memory": replace(MEMORY, others_bytes=6 * GIB)}, "other processes have 6.0 GiB of this memory."),
    ],
)
def test_the_reason(facts: dict[str, Any], why: str | None) -> None:
    assert told(**facts)["why_now"] == why


def test_a_leak_comes_first_and_is_told_by_itself() -> None:
    oom = told(LEAK, batch=Batch(9, 9), largest=Batch(1, 1))
    assert oom["why_now"] == "a leak: 10.0 MiB a step since step 100, held by Trainer.kept."
    assert oom["in_use"] == {"activations": 8 * GIB - 1000 * MIB, "the leak": 1000 * MIB}
    assert told(replace(LEAK, bytes_per_step=1000.0), batch=Batch(9, 9))["why_now"].startswith("the first batch")
    assert told(LEAK, found=DEVICE)["why_now"] is None, "the host leaks, the device is full"


def test_what_it_was_not() -> None:
    calm = replace(LEAK, verdict="no leak", bytes_per_step_high=4096.0)
    assert told(calm)["not_because"] == ["Not a leak (under 4.0 KiB a step)"]
    assert told(replace(LEAK, verdict="not enough data"))["not_because"] == []
    unused = replace(MEMORY, reserved_unused_bytes=100 * MIB)
    assert told(found=DEVICE, memory=unused)["not_because"] == ["Not fragmentation (100.0 MiB kept unused)"]
    assert told(found=DEVICE, memory=replace(unused, reserved_unused_bytes=2 * GIB))["not_because"] == []


def test_free_memory_is_not_told_when_it_came_free_with_the_error() -> None:
    assert told()["free_bytes"] == GIB // 2
    assert told(memory=replace(MEMORY, free_bytes=3 * GIB, freed_bytes=2 * GIB))["free_bytes"] is None
