"""Advice against simulated machines: what a run took is known there, so that a change can be tried."""

import json
import os
import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from forgather_mem.diagnose.oom.advice import Advice, advise
from forgather_mem.diagnose.oom.batch_headroom import room
from forgather_mem.diagnose.oom.context import RunSettings, StepUse, settings_of
from forgather_mem.diagnose.oom.explanation import explained
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.memory_in_use import memory_then
from forgather_mem.diagnose.oom.recognition import OutOfMemory, recognise
from forgather_mem.telemetry.report import Change, OomReport
from forgather_mem.telemetry.report_schema import to_dict
from forgather_mem.units import GIB, MIB
from tests.diagnose.oom.failures import failure_of, replace
from tests.diagnose.oom.oom_messages import LIBRARY_MESSAGES

MODEL_BYTES = 2 * GIB


@dataclass
class Machine:
    """A device with known costs: a batch takes per_token bytes a token and per_square bytes a pair of tokens."""

    capacity_bytes: float
    per_token: float = 1.0 * MIB
    per_square: float = 0.0
    noise_bytes: float = 0.0
    model_bytes: float = MODEL_BYTES

    def peaks(self, rows: int, length: int, step: int, arguments: dict[str, Any], rng: random.Random) -> dict[str, int]:
        """What each phase of a step takes."""
        model = self.model_bytes
        state = 2 * model if arguments["optim"] == "adamw_torch" else 0.01 * model
        held = model + (state if step > 1 else 0) + (model if arguments["gradient_accumulation_steps"] > 1 else 0)
        kept = 0.3 if arguments.get("gradient_checkpointing") else 1.0
        passes = kept * rows * length * (self.per_token + self.per_square * length) + abs(
            rng.gauss(0, self.noise_bytes)
        )
        return {
            "forward": int(held + passes),
            "backward": int(held + 1.05 * passes),
            "optimizer": int(2 * model + state),
        }

    def run(self, lengths: list[int], arguments: dict[str, Any], **script: Any) -> tuple[list[StepUse], Failure | None]:
        """Steps until memory runs out, or all of them."""
        rng = random.Random(1)
        uses: list[StepUse] = []
        rows = arguments["per_device_train_batch_size"]
        for step, length in enumerate(lengths, 1):
            length = min(length, script.get("max_length", length))
            phases = self.peaks(rows, length, step, arguments, rng)
            for phase, size in phases.items():
                if size > self.capacity_bytes:
                    return uses, self._failure(phase, step, rows, length, size, arguments)
            uses.append(StepUse(step=step, rows=rows, length=length, phases=phases))
        return uses, None

    def _failure(self, phase: str, step: int, rows: int, length: int, size: int, arguments: dict[str, Any]) -> Failure:
        free = int(0.01 * self.capacity_bytes)
        parts = {"parameters": int(self.model_bytes)}
        if step > 1:
            parts["optimizer"] = int(2 * self.model_bytes)
        if arguments["gradient_accumulation_steps"] > 1 or phase == "optimizer":
            parts["gradients"] = int(self.model_bytes)
        used = int(self.capacity_bytes) - free
        if phase != "optimizer":
            parts["activations"] = max(0, used - sum(parts.values()))
        return failure_of(
            where="device",
            phase=phase,
            step=step,
            used_bytes=used,
            free_bytes=free,
            requested_bytes=max(2 * free, (size - used) // 8),
            reserved_unused_bytes=0,
            rows=rows,
            length=length,
            parts=parts,
        )


def settings(model_bytes: float = MODEL_BYTES, **arguments: Any) -> RunSettings:
    defaults = {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": False,
        "optim": "adamw_torch",
    }
    numbers = int(model_bytes // 4)
    return RunSettings(
        arguments={**defaults, **arguments},
        can_checkpoint=True,
        trained_numbers=numbers,
        trained_bytes=int(model_bytes),
        largest_trained=numbers // 50,
        state_bytes={"adafactor": int(model_bytes // 100)},
    )


def texts(advice: Advice) -> list[str]:
    return [change.text for change in advice.changes]


# ---- advice that works ----


def test_an_unusually_long_batch_gets_the_batch_size_that_fits_it_and_the_length_that_fits_the_batch() -> None:
    machine = Machine(40 * GIB, noise_bytes=0.05 * GIB)
    rng = random.Random(0)
    lengths = [rng.randint(200, 2300) for _ in range(60)] + [5000]
    chosen = settings()
    uses, failure = machine.run(lengths, dict(chosen.arguments))
    assert failure is not None
    assert failure.length == 5000
    advice = advise(failure, chosen, uses)
    assert advice.fit is not None
    assert advice.fit.startswith("line fitted to 5")
    assert advice.fit.endswith("batch shapes; keeps 2 % free")
    first, second = advice.changes[:2]
    assert first.set == {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    true_bytes = machine.peaks(4, 5000, 9, {**chosen.arguments, **first.set}, random.Random(0))["backward"]
    assert first.predicted_bytes == pytest.approx(true_bytes, rel=0.03)
    assert first.binds == "backward"
    entries = [to_dict(change) for change in advice.changes]
    assert json.loads(json.dumps(entries)) == entries  # a report's reader compares them
    assert first.interval is not None
    assert first.interval[0] <= (40 * GIB - 4 * MODEL_BYTES) / (1.05 * 5000 * MIB) <= first.interval[1] + 1
    longest = (40 * GIB - 3 * MODEL_BYTES) / (1.05 * 8 * MIB)
    assert second.text == f"max length {second.in_script['max_length']:,} at batch 8"
    assert 0.94 * longest < second.in_script["max_length"] < longest
    assert texts(advice)[2] == "gradient_checkpointing=True"
    assert advice.changes[2].predicted_bytes is None
    assert advice.no_help == "empty_cache, expandable_segments (nothing to give back)."


def test_the_first_change_applied_as_it_is_lets_more_than_nine_in_ten_runs_finish() -> None:
    finished, tried = 0, 0
    for seed in range(300):
        rng = random.Random(seed)
        longest = rng.choice([128, 512, 2048])
        kinds = [[rng.randint(longest // 8, longest) for _ in range(60)], [longest] * 60]
        lengths = rng.choice([*kinds, [longest // 4] * 30 + [longest] * 30])
        model_bytes = rng.uniform(0.5, 10) * GIB
        rows = rng.choice([2, 4, 6, 8, 16, 32])
        chosen = settings(
            model_bytes, per_device_train_batch_size=rows, gradient_accumulation_steps=rng.choice([1, 1, 2, 4])
        )
        arguments = dict(chosen.arguments)
        machine = Machine(0, rng.uniform(0.2, 3) * MIB, rng.choice([0, 200.0]), 0.01 * GIB, model_bytes)
        need = max(machine.peaks(rows, longest, 2, arguments, rng).values())
        machine.capacity_bytes = max(4.3 * model_bytes, rng.uniform(0.4, 1.0) * need)
        uses, failure = machine.run(lengths, arguments)
        if failure is None:
            continue
        tried += 1
        change = advise(failure, chosen, uses).changes[0]
        _, again = machine.run(lengths, {**arguments, **change.set}, **change.in_script)
        finished += again is None
    assert tried > 100
    assert finished > 0.9 * tried, (finished, tried)


def test_without_data_nothing_is_predicted_and_it_says_so() -> None:
    advice = advise(failure_of(where="device", phase="forward", step=1, rows=8, length=512), settings())
    assert advice.fit == "not measured"
    assert texts(advice)[0] == "per_device_train_batch_size=2, gradient_accumulation_steps=4"
    assert [change.predicted_bytes for change in advice.changes] == [None] * len(advice.changes)


def test_at_batch_1_it_is_the_length_that_was_measured_or_checkpointing() -> None:
    machine, chosen = Machine(20 * GIB), settings(per_device_train_batch_size=1)
    uses, failure = machine.run([*range(1000, 8000, 100), 30_000], dict(chosen.arguments))
    assert failure is not None
    measured = advise(failure, chosen, uses).changes
    assert measured[0].in_script["max_length"] == pytest.approx(14 * GIB / (1.05 * MIB), rel=0.05)
    assert texts(advise(failure, chosen)) == ["gradient_checkpointing=True", "max length 7,496 at batch 1"]


def test_what_is_on_already_and_what_the_model_has_not_are_no_help() -> None:
    failure = failure_of(where="host", phase="backward", step=1, rows=4)
    on = advise(failure, settings(gradient_checkpointing=True))
    assert on.no_help is not None
    assert on.no_help.startswith(
        "gradient_checkpointing (it is on), empty_cache, expandable_segments (this is the host"
    )
    without = advise(failure, RunSettings(arguments={"per_device_train_batch_size": 4}))
    assert without.no_help is not None
    assert "gradient_checkpointing (this model has none)" in without.no_help


# ---- by what failed ----


def failed(phase: str, where: Any = "host", **known: Any) -> Failure:
    return failure_of(where=where, phase=phase, step=5, used_bytes=9 * GIB, free_bytes=GIB, **known)


def first(failure: Failure, chosen: RunSettings) -> dict[str, Any]:
    change = advise(failure, chosen).changes[0]
    return {**change.set, **change.in_script}


def test_one_sample_that_is_far_too_long_is_cut_and_a_small_state_is_not_made_smaller() -> None:
    chosen = settings(model_bytes=MIB, per_device_train_batch_size=2)
    uses = [StepUse(step=step, rows=2, length=300 + step % 3, phases={"forward": GIB}) for step in range(1, 60)]
    parts = {"activations": 2 * GIB, "optimizer": MIB, "gradients": MIB}
    failure = failed("forward", rows=2, length=300_000, requested_bytes=2 * GIB, parts=parts)
    failure = replace(failure, step=60, used_bytes=3 * GIB, free_bytes=GIB)
    cut, together, *_ = advise(failure, replace(chosen, can_checkpoint=False), uses).changes
    assert cut.in_script == {"max_length": 75_000}
    assert together.set == {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
    assert "optim" in advise(failure, replace(settings(), can_checkpoint=False), uses).changes[1].set


def test_of_a_loop_that_nobody_watched_an_eighth_is_guessed() -> None:
    failure = replace(failed("forward", rows=80_000), step=0)
    assert first(failure, RunSettings()) == {"per_device_train_batch_size": 10_000, "gradient_accumulation_steps": 8}


def test_a_leak_comes_before_all_else_and_fragmentation_only_where_it_gives_something() -> None:
    leaking = advise(failed("forward", rows=8, leak="keep less in Trainer.losses"), settings())
    assert texts(leaking)[0] == "keep less in Trainer.losses"
    pieces = failed("forward", "device", rows=8, requested_bytes=GIB, reserved_unused_bytes=3 * GIB)
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in texts(advise(pieces, settings()))
    few = failed("forward", "device", rows=8, requested_bytes=GIB, reserved_unused_bytes=MIB)
    assert not any("expandable" in text for text in texts(advise(few, settings())))
    assert "only 1.0 MiB to give back" in (advise(few, settings()).no_help or "")


# ---- room ----


def test_room_is_the_largest_batch_for_the_longest_samples_seen() -> None:
    machine, chosen = Machine(60 * GIB), settings()
    uses, failure = machine.run([200 + 40 * step % 2000 for step in range(100)], dict(chosen.arguments))
    assert failure is None
    found = room(chosen, uses, int(60 * GIB))
    assert found is not None
    count = found.set["per_device_train_batch_size"]
    assert found.text == f"batch {count} would still fit (now 8), limited by the backward pass"
    longest = max(use.length or 0 for use in uses)
    true_count = (0.98 * 60 * GIB - 3 * MODEL_BYTES) / (1.05 * longest * MIB)
    assert count == pytest.approx(true_count, abs=1.01)


def test_room_from_one_shape_needs_to_know_what_no_batch_changes() -> None:
    machine, chosen = Machine(60 * GIB), settings()
    uses, _ = machine.run([1000] * 30, dict(chosen.arguments))
    assert room(chosen, uses, int(60 * GIB)) is None
    found = room(chosen, uses, int(60 * GIB), held_bytes=3 * MODEL_BYTES)
    assert found is not None
    true_count = int((0.98 * 60 * GIB - 3 * MODEL_BYTES) / (1.05 * 1000 * MIB))
    assert found.set == {"per_device_train_batch_size": min(true_count, 32)}
    less = room(chosen, uses, int(60 * GIB), held_bytes=2 * MODEL_BYTES)
    assert less is not None
    assert less.set["per_device_train_batch_size"] <= found.set["per_device_train_batch_size"]


def test_room_is_silent_when_there_is_none_and_does_not_look_farther_than_four_times() -> None:
    machine, chosen = Machine(60 * GIB), settings()
    uses, _ = machine.run([200 + 40 * step % 2000 for step in range(100)], dict(chosen.arguments))
    assert room(chosen, uses, max(use.phases["backward"] for use in uses)) is None
    far = room(chosen, uses, int(6000 * GIB))
    assert far is not None
    assert far.text == "batch 32 or more would still fit (now 8), limited by the backward pass"


NAMED = {case.name: case.error for case in LIBRARY_MESSAGES}


def told(name: str, phase: str = "forward", unused_bytes: int = 0, **arguments: Any) -> tuple[OomReport, list[Change]]:
    found = recognise(NAMED[name])
    assert isinstance(found, OutOfMemory)
    memory = memory_then(found, phase)
    if unused_bytes:
        parts = {"used_bytes": 20 * GIB, "free_bytes": 4 * GIB, "reserved_unused_bytes": unused_bytes}
        memory = type(memory)(**parts, limit_bytes=24 * GIB, limit="GPU 0")  # type: ignore[arg-type]
    oom, changes = explained(
        Failure(found=found, phase=phase, memory=memory), settings=RunSettings(arguments=arguments)
    )
    return oom, list(changes)


def test_nccls_files_need_a_larger_dev_shm_not_a_smaller_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs("/dev/shm")
    shm = SimpleNamespace(f_frsize=4096, f_blocks=16384, f_bavail=1024, f_bfree=1024)
    monkeypatch.setattr(os, "statvfs", lambda path: shm if path == "/dev/shm" else real)
    oom, changes = told("NCCL, /dev/shm", phase="startup", per_device_train_batch_size=8)
    assert (oom.limit, oom.limit_bytes, oom.free_bytes) == ("/dev/shm", 64 * MIB, 4 * MIB)
    assert oom.in_use == {"files in /dev/shm": 60 * MIB}
    assert oom.why_now is not None
    assert oom.why_now.startswith("/dev/shm is full; NCCL")
    assert "--shm-size" in changes[0].text
    assert changes[1].in_script == {"NCCL_SHM_DISABLE": "1"}
    assert not any("batch" in change.text for change in changes)


def test_memory_that_cannot_be_page_locked_is_the_hosts_and_is_not_pinned() -> None:
    oom, changes = told("the thread that pins batches", phase="data", dataloader_pin_memory=True)
    assert oom.where == "host"
    assert "page-locked" in (oom.why_now or "")
    assert changes[0].set == {"dataloader_pin_memory": False}
    _, of_a_loop = told("a line that pins", phase="other")
    assert of_a_loop[0].set == {"dataloader_pin_memory": False}


def test_a_library_beside_torch_needs_what_torch_keeps() -> None:
    _, changes = told("cuDNN 9, the device's", unused_bytes=3 * GIB, per_device_train_batch_size=8)
    cache = next(change for change in changes if "memory_fraction" in change.in_script)
    assert "3.0 GiB are kept by torch, where cuDNN can't use them" in (cache.note or "")
    assert not any("expandable" in change.text for change in changes), "its pieces are no use to cuDNN"
    _, full = told("cuDNN 9, the device's", unused_bytes=MIB, per_device_train_batch_size=8)
    assert not any(change.in_script for change in full)


def test_private_pools_are_a_part_of_their_own_with_an_advice() -> None:
    oom, changes = told("private pools", phase="optimizer", torch_compile_mode="reduce-overhead")
    assert oom.in_use["private pools"] == int(46.22 * GIB)
    assert sum(oom.in_use.values()) == pytest.approx(47.51 * GIB, rel=0.01)
    graphs = next(change for change in changes if change.set.get("torch_compile_mode"))
    assert "46.2 GiB are in private pools" in (graphs.note or "")
    _, of_a_script = told("private pools", phase="optimizer")
    assert any("torch.compile(mode='default')" in change.text for change in of_a_script)


def test_in_a_container_the_neighbours_share_is_known() -> None:
    oom, _ = told("two in a container: only one can hold what torch has allocated")
    assert oom.others_bytes == pytest.approx(344 * MIB, abs=30 * MIB)


def test_the_allocators_settings_are_read_from_each_of_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTORCH_HIP_ALLOC_CONF", "max_split_size_mb:128")
    conf = settings_of(SimpleNamespace()).allocator_conf
    assert conf == "max_split_size_mb:128"
    found = OutOfMemory(kind="HIP allocator", where="device", error_type="", message="", requested_bytes=GIB)
    memory = memory_then(found, "forward")
    memory = type(memory)(used_bytes=20 * GIB, free_bytes=4 * GIB, reserved_unused_bytes=3 * GIB)
    _, changes = explained(
        Failure(found=found, phase="forward", memory=memory), settings=RunSettings(allocator_conf=conf)
    )
    value = "max_split_size_mb:128,expandable_segments:True"
    assert any(change.in_script == {"PYTORCH_HIP_ALLOC_CONF": value} for change in changes)
