"""An error becomes the report's account and its advice, in a script that nobody watched and in a training."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from forgather_mem.diagnose.leaks.suspects import Suspect
from forgather_mem.diagnose.oom import explanation
from forgather_mem.diagnose.oom.batch_shapes import Batch
from forgather_mem.diagnose.oom.context import RunSettings, settings_of
from forgather_mem.diagnose.oom.explanation import explained, failure_outside
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.recognition import OutOfMemory, recognise
from forgather_mem.engine.settings import ARGUMENTS
from forgather_mem.heap.census import Holding
from forgather_mem.heap.failed_call import CallbackFailure
from forgather_mem.telemetry.events import PHASES
from forgather_mem.telemetry.report import NOT_JUDGED, LeakReport
from forgather_mem.telemetry.report_schema import to_dict
from forgather_mem.units import GIB, MIB

FOUND = OutOfMemory(kind="CPU allocator", where="host", error_type="RuntimeError", message="", requested_bytes=GIB)
DEVICE = replace(FOUND, kind="CUDA allocator", where="device", device=0)
MEMORY: dict[str, Any] = {
    "used_bytes": 8 * GIB, "free_bytes": GIB // 2, "limit_bytes": 9 * GIB, "limit": "container",
    "in_use": {"activations": 8 * GIB},
}  # fmt: skip
STORY = Failure(found=FOUND, phase="forward", step=200, **MEMORY, batch=Batch(8, 512), in_training=True)
LEAK = LeakReport(
    verdict="leak", where="tensors", bytes_per_step=10.0 * MIB, bytes_per_step_high=11.0 * MIB, since_step=100,
    suspects=(Suspect(type="list", bytes_per_step=MIB, count_per_step=1.0, held_by="Trainer.kept").reported(),),
)  # fmt: skip
OF_A_LOOP = RunSettings(is_trainers=False, has_metrics=True, can_checkpoint=True)
SETTINGS = RunSettings(arguments={"per_device_train_batch_size": 8}, can_checkpoint=True)


class TooLarge(torch.nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.empty(2**50)


def story_of(error: BaseException, rank: int = 0) -> Failure:
    return failure_outside(error, recognise(error), rank)


@pytest.mark.slow
def test_of_a_plain_script_the_place_the_batch_and_the_model_are_known() -> None:
    def script() -> None:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), TooLarge())
        batch = torch.zeros(6, 4)
        model(batch)

    with pytest.raises(RuntimeError) as raised:
        script()
    story = story_of(raised.value, rank=3)
    assert (story.found.kind, story.found.requested_bytes) == ("CPU allocator", 2**52)
    assert (story.phase, story.layer, story.batch, story.rank) == ("forward", "1 (TooLarge)", Batch(6, None, (4,)), 3)
    assert story.in_use["parameters"] == 4 * (16 + 4)
    oom, changes = explained(story)
    assert (oom.phase, oom.requested_bytes, oom.rank) == ("forward", 2**52, 3)
    assert oom.advice == tuple(change.text for change in changes)


def test_of_an_error_of_pythons_before_any_step_the_line_is_told_also_where_a_library_works_for_it() -> None:
    with pytest.raises(MemoryError) as raised:
        sorted([0], key=lambda _: [0] * 10**15)
    story = story_of(raised.value)
    assert str(explained(story)[0].why_now).endswith(": sorted([0], key=lambda _: [0] * 10**15)")
    assert explained(replace(story, steps_done=9))[0].why_now is None, "a training has more to tell"


def test_a_loss_that_no_module_computes_belongs_to_the_forward_pass() -> None:
    def script() -> None:
        model = torch.nn.Linear(4, 16)
        logits = model(torch.zeros(16, 4))
        loss = torch.empty(2**50) * logits
        loss.backward()  # type: ignore[no-untyped-call]

    with pytest.raises(RuntimeError) as raised:
        script()
    story = story_of(raised.value)
    assert (story.phase, story.batch) == ("forward", Batch(16, None))
    (change,) = explained(story)[1]
    assert change.text.startswith("less at once at tests/"), "no batch is small enough for that"


def test_the_account_and_the_advice_belong_together() -> None:
    oom, changes = explained(replace(STORY, settings=SETTINGS))
    assert (oom.where, oom.phase, oom.step, oom.in_use) == ("host", "forward", 200, {"activations": 8 * GIB})
    assert oom.advice == tuple(change.text for change in changes)
    assert "per_device_train_batch_size" in changes[0].set
    assert oom.fit is None, "nobody has planned it"
    assert not any(change.predicted_bytes for change in changes)
    assert "empty_cache" in (oom.no_help or "")


def test_where_a_leak_has_filled_memory_its_cure_comes_first() -> None:
    kept = Suspect(type="list", bytes_per_step=MIB, count_per_step=1.0, held_by="Trainer.kept", cure="detach it")
    leak = LeakReport(verdict="leak", where="tensors", bytes_per_step=20.0 * MIB, since_step=100, judged=True)
    for suspects, cure in (
        ((kept.reported(),), "detach it"),
        ((replace(kept, cure=None).reported(),), "keep less in Trainer.kept"),
        ((), "find what grows at each step"),
    ):
        oom, changes = explained(replace(STORY, settings=SETTINGS), replace(leak, suspects=suspects))
        assert (oom.why_now or "").startswith("a leak: 20.0 MiB a step since step 100")
        assert cure in changes[0].text
        assert oom.fit == "not planned: memory grows at each step"


def test_a_loop_of_its_own_is_told_of_its_batch_and_not_of_arguments_that_it_lacks() -> None:
    settings = settings_of(SimpleNamespace(output_dir="out"), torch.nn.Linear(4, 4))
    oom, changes = explained(replace(STORY, settings=settings))
    assert oom.advice[0] == changes[0].text == "batch size 2, gradients of 4 batches in each step"
    assert changes[0].in_script == {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    assert not any(change.set for change in changes)
    assert not any("per_device" in text for text in oom.advice)


def told(leak: LeakReport = NOT_JUDGED, **facts: Any) -> dict[str, Any]:
    return to_dict(explained(replace(STORY, **{"batch": None, **facts}), leak)[0])


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"batch": Batch(8, 512)}, "the first batch, 8 x 512 tokens; there was none before it."),
        (
            {"batch": Batch(8, 4096), "largest": Batch(8, 2310)},
            "the longest batch so far, 8 x 4,096 tokens; until then at most 8 x 2,310.",
        ),
        (
            {"batch": Batch(9, 512), "largest": Batch(8, 512)},
            "the largest batch so far, 9 x 512 tokens; until then at most 8 x 512.",
        ),
        ({"batch": Batch(8, 512), "largest": Batch(8, 512)}, None),
        ({"steps_done": 1, "in_use": {"optimizer": GIB}}, "the first pass beside the optimizer state, 1.0 GiB."),
        ({"phase": "optimizer", "is_first": True}, "the first optimizer step, which creates the optimizer state."),
        ({"phase": "optimizer"}, None),
        ({"phase": "generate", "is_first": True}, None),
        (
            {"phase": "generate", "batch": Batch(8, None), "each_prompt": ("num_beams", 4)},
            "8 rows: 2 prompts x num_beams 4.",
        ),
        ({"phase": "evaluate", "is_first": True}, "the first evaluation."),
        ({"phase": "evaluate", "is_first": True, "batch": Batch(8, 9)}, "the first evaluation, of 8 x 9 tokens."),
        ({"phase": "save", "is_first": True}, "the first checkpoint."),
        ({"phase": "save"}, None),
        ({"phase": "startup"}, "before the first step: it does not fit even without a batch."),
        ({"phase": "startup", "in_training": False}, None),
        ({"found": DEVICE, "others_bytes": 2 * GIB}, "other processes have 2.0 GiB of this device."),
        ({"others_bytes": 2 * GIB}, None),
        (
            {"found": replace(FOUND, kind="killed worker"), "phase": "data"},
            "a data worker was killed, most likely by the kernel, for memory.",
        ),
        ({"others_bytes": 6 * GIB}, "other processes have 6.0 GiB of this memory."),
    ],
)
def test_the_reason(facts: dict[str, Any], why: str | None) -> None:
    assert told(**facts)["why_now"] == why


def test_a_smaller_batch_may_help_an_optimizer_where_much_is_kept_of_batches() -> None:
    facts: dict[str, Any] = {"phase": "optimizer", "is_first": True}
    assert "its memory is free by then" in told(**facts)["no_help"]
    kept = Holding(name="`replay`", num_bytes=4 * GIB, collects=True)
    assert "its memory is free by then" not in told(**facts, census=[kept])["no_help"]


def test_a_loop_of_ones_own_is_told_no_arguments_of_a_trainer() -> None:
    changes = [change for phase in PHASES for change in explained(replace(STORY, phase=phase, settings=OF_A_LOOP))[1]]
    assert changes
    assert not any(change.set for change in changes)
    of_a_trainer = set(ARGUMENTS) - explanation._IN_WORDS.keys()
    assert not [change.text for change in changes if any(f"{name}=" in change.text for name in of_a_trainer)]


def test_a_leak_comes_first_and_is_told_by_itself() -> None:
    oom = told(LEAK, batch=Batch(9, 9), largest=Batch(1, 1))
    assert oom["why_now"] == "a leak: 10.0 MiB a step since step 100, held by Trainer.kept."
    assert len(oom["advice"]) == 1, "no batch is small enough for a leak, and nothing else is"
    assert told(replace(LEAK, bytes_per_step=1000.0), batch=Batch(9, 9))["why_now"].startswith("the first batch")
    assert told(LEAK, found=DEVICE)["why_now"] is None, "the host leaks, the device is full"
    oom = told(replace(LEAK, suspects=()), census=[Holding(name="a", num_bytes=9 * GIB, collects=True)], line="a.py:8")
    assert [oom["why_now"][-35:], *oom["advice"]] == ["0, held by a; it ran out at a.py:8.", "keep less in a"]


def test_what_it_was_not() -> None:
    calm = replace(LEAK, verdict="no leak", bytes_per_step_high=4096.0)
    assert told(calm)["not_because"] == ["Not a leak (under 4.0 KiB a step)"]
    assert told(replace(LEAK, verdict="not enough data"))["not_because"] == []
    unused = told(found=DEVICE, reserved_unused_bytes=100 * MIB)
    assert unused["not_because"] == ["Not fragmentation (100.0 MiB kept unused)"]
    assert told(found=DEVICE, reserved_unused_bytes=2 * GIB)["not_because"] == []


def test_free_memory_is_not_told_when_it_came_free_with_the_error() -> None:
    assert told()["free_bytes"] == GIB // 2
    assert told(free_bytes=3 * GIB, freed_bytes=2 * GIB)["free_bytes"] is None


def test_what_is_missing_is_compared_with_what_watching_takes() -> None:
    limit = {"limit": "data (RLIMIT_DATA)", "found": replace(FOUND, requested_bytes=20 * MIB)}
    told_so = "5.0 MiB were missing, and watching takes up to 20.0 MiB: alone it may end in another step."
    assert told(**limit, free_bytes=15 * MIB)["why_now"] == told_so
    assert told(**{**limit, "found": replace(FOUND, requested_bytes=36 * MIB)}, free_bytes=15 * MIB)["why_now"] is None
    assert told(**limit, free_bytes=25 * MIB)["why_now"] is None, "nothing says that it was freed"
    freed = told(**limit, free_bytes=25 * MIB, freed_bytes=5 * MIB)["why_now"]
    assert freed == told_so.replace("5.0 MiB", "At most 20.0 MiB", 1), "half of it, as likely as not"
    far = {"done_frac": 0.5, "in_use": {"activations": 60 * MIB}}
    passes = Holding(name="`total`", kind="earlier", num_bytes=90 * MIB, num_passes=6)
    copies = CallbackFailure(callback="main()", line="train.py:9", source="", copied_bytes=96 * MIB)
    to_come = (far, {"done_frac": 0.5}, {"phase": "backward", "trained_bytes": 40 * MIB}, {"callback": copies})
    for more in ({"limit": "container"}, {"phase": "generate"}, *to_come, {"census": [passes]}):
        assert "watching" not in (told(**{**limit, **more}, free_bytes=15 * MIB)["why_now"] or "")
    made = {"phase": "backward", "trained_bytes": 40 * MIB, "in_use": {"gradients": 20 * MIB}}
    assert told(**{**limit, **made}, free_bytes=15 * MIB)["why_now"] == told_so, "it was the last gradient"


def test_where_nothing_else_explains_it_what_holds_much_or_asks_for_much_is_told() -> None:
    asked = {"found": replace(FOUND, requested_bytes=20 * MIB), "used_bytes": GIB, "in_training": False}
    queue = Holding(name="`queue`", kind="earlier", num_bytes=300 * MIB)
    outputs = Holding(name="`outputs`", num_bytes=300 * MIB, collects=True)
    summed = Holding(name="`total`", kind="activations", num_bytes=300 * MIB, num_passes=3)
    for held, why in (
        (queue, "300.0 MiB are graphs of earlier steps in `queue`."),
        (outputs, "300.0 MiB are in `outputs`."),
        (replace(queue, kind="untrained"), "300.0 MiB are the graph of `queue`."),
        (replace(queue, kind="vain"), "300.0 MiB are gradients that no optimizer takes, of `queue`."),
        (summed, "`total` joins what uses each parameter 3 times before one backward pass."),
        (replace(queue, num_bytes=50 * MIB), None),
        (replace(outputs, collects=False), None),
    ):
        assert told(**asked, census=[held])["why_now"] == why
    few = {"free_bytes": 16 * MIB, "limit": "data (RLIMIT_DATA)", "in_use": {outputs.part: GIB, "other": 2**29}}
    why = told(**{**asked, **few}, census=[replace(outputs, num_bytes=GIB, collects=False)])["why_now"]
    assert why.startswith("1.0 GiB are in `outputs`. 4.0 MiB were missing"), "the largest part is a cause"
    large = {**asked, "found": replace(FOUND, requested_bytes=600 * MIB), "phase": "evaluate", "line": "train.py:4"}
    assert told(**large)["why_now"] == "train.py:4 asks for 600.0 MiB at once."
    assert told(**large)["advice"] == ["less at once at train.py:4: 600.0 MiB"]
    read = Holding(name="`images`", num_bytes=600 * MIB, is_read=True)
    between = {**large, "phase": "other", "functions": ["main"], "census": [read]}
    assert told(**between)["advice"] == ["less at once at train.py:4: 600.0 MiB"], (
        "what is read can't be deleted before"
    )
    grows = replace(read, is_read=False, collects=True, grows=True)
    assert told(**{**between, "census": [grows]})["advice"][0] == "keep less in `images`: 600.0 MiB", "it is being made"
