"""An error becomes the report's account and its advice, in a script that nobody watched and in a training."""

from dataclasses import replace
from types import SimpleNamespace

import torch

from forgather_mem.diagnose.leaks.suspects import Suspect
from forgather_mem.diagnose.oom.batch_shapes import Batch
from forgather_mem.diagnose.oom.context import RunSettings, settings_of
from forgather_mem.diagnose.oom.explanation import explained, failure_outside
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.memory_in_use import MemoryThen
from forgather_mem.diagnose.oom.recognition import OutOfMemory, recognise
from forgather_mem.telemetry.report import LeakReport
from forgather_mem.units import GIB, MIB

FOUND = OutOfMemory(kind="CPU allocator", where="host", error_type="RuntimeError", message="", requested_bytes=GIB)
MEMORY = MemoryThen(used_bytes=8 * GIB, free_bytes=GIB // 2, limit_bytes=9 * GIB, in_use={"activations": 8 * GIB})
STORY = Failure(found=FOUND, phase="forward", step=200, memory=MEMORY, batch=Batch(8, 512), in_training=True)
SETTINGS = RunSettings(arguments={"per_device_train_batch_size": 8}, can_checkpoint=True)


class TooLarge(torch.nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.empty(2**50)


def story_of(error: BaseException, rank: int = 0) -> Failure:
    found = recognise(error)
    assert found is not None
    return failure_outside(error, found, rank)


def test_of_a_plain_script_the_place_the_batch_and_the_model_are_known() -> None:
    def script() -> None:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), TooLarge())
        batch = torch.zeros(6, 4)
        model(batch)

    try:
        script()
    except RuntimeError as error:
        story = story_of(error, rank=3)
    assert (story.found.kind, story.found.requested_bytes) == ("CPU allocator", 2**52)
    assert (story.phase, story.layer, story.batch, story.rank) == ("forward", "1 (TooLarge)", Batch(6, None, (4,)), 3)
    assert story.memory.in_use["parameters"] == 4 * (16 + 4)
    oom, changes = explained(story)
    assert (oom.phase, oom.requested_bytes, oom.rank) == ("forward", 2**52, 3)
    assert oom.advice == tuple(change.text for change in changes)


def test_a_loss_that_no_module_computes_belongs_to_the_forward_pass() -> None:
    def script() -> None:
        model = torch.nn.Linear(4, 16)
        logits = model(torch.zeros(16, 4))
        loss = torch.empty(2**50) * logits
        loss.backward()  # type: ignore[no-untyped-call]

    try:
        script()
    except RuntimeError as error:
        story = story_of(error)
    assert (story.phase, story.batch) == ("forward", Batch(16, None))
    assert explained(story)[1][0].text == "batch size 4, gradients of 4 batches in each step"


def test_the_account_and_the_advice_belong_together() -> None:
    oom, changes = explained(STORY, settings=SETTINGS)
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
        oom, changes = explained(STORY, replace(leak, suspects=suspects), SETTINGS)
        assert (oom.why_now or "").startswith("a leak: 20.0 MiB a step since step 100")
        assert cure in changes[0].text
        assert oom.fit == "not planned: memory grows at each step"


def test_a_loop_of_its_own_is_told_of_its_batch_and_not_of_arguments_that_it_lacks() -> None:
    settings = settings_of(SimpleNamespace(output_dir="out"), torch.nn.Linear(4, 4))
    oom, changes = explained(STORY, settings=settings)
    assert oom.advice[0] == changes[0].text == "batch size 2, gradients of 4 batches in each step"
    assert changes[0].in_script == {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    assert not any(change.set for change in changes)
    assert not any("per_device" in text for text in oom.advice)
