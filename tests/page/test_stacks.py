"""Parts that add up to what was measured, with the leak's holder among them."""

from typing import Any

import numpy as np
import pytest

from forgather_mem.page.data import page_data
from forgather_mem.page.readings import Readings
from forgather_mem.page.stacks import stacks
from forgather_mem.units import GIB, MIB
from tests.page.runs import on_a_gpu, parts_of, readings_of
from tests.reporting.report_fixtures import all_well, leaking, out_of_memory, parsed


def on_the_host(**more: float) -> Readings:
    rows: list[tuple[str, int, dict[str, float]]] = []
    for step in range(1, 101):
        grown = 400 * MIB + step * MIB
        values = {"host/rss_bytes": grown + 100.0 * MIB, "host/anon_bytes": float(grown), **more}
        if step == 10:
            values |= {"tensors/parameters_bytes": 50.0 * MIB, "tensors/optimizer_bytes": 100.0 * MIB}
        rows.append(("step_end", step, values))
    return readings_of(rows)


def leak_on_the_host(**suspect: Any) -> dict[str, Any]:
    report = leaking()
    report["device"], report["peaks"] = [], [{"where": "host", "bytes": 600 * MIB, "step": 100, "phase": "backward"}]
    report["host"]["rss_start_bytes"] = 350 * MIB
    report["leak"].update(where="tensors", bytes_per_step=MIB, since_step=20)
    report["leak"]["suspects"][0].update(bytes_per_step=MIB, bytes=90 * MIB, held_by="Trainer.kept", **suspect)
    return report


def test_the_parts_of_a_device_are_what_the_allocator_has_reserved() -> None:
    readings = on_a_gpu(300)
    (gpu, host) = stacks(parsed(leaking()), readings, 0)
    assert gpu.place == "gpu0"
    assert [key for key, _, _ in gpu.parts] == [
        "parameters", "optimizer", "leak1", "other", "gradients", "activations", "cached",
    ]  # fmt: skip
    reserved, held = readings.held("device/reserved_bytes"), readings.held("device/allocated_bytes")
    peak = readings.held("device/step_peak_bytes")
    steps = np.array([event == "step_end" for event in readings.events])
    assert gpu.total[steps] == pytest.approx(np.maximum(reserved, peak)[steps])
    below = sum(size for key, _, size in gpu.parts if key not in ("gradients", "activations", "cached"))
    assert below[steps] == pytest.approx(held[steps])
    assert [key for key, _, _ in host.parts] == ["python", "mapped", "activations"]


def test_the_parts_of_the_host_are_its_resident_memory_and_the_holder_has_its_name() -> None:
    data = page_data(parsed(leak_on_the_host()), on_the_host())
    parts = parts_of(data, "host")
    assert {key: round((values[-1] or 0) / MIB) for key, values in parts.items()} == {
        "python": 200, "mapped": 100, "parameters": 50, "optimizer": 100, "other": 60, "leak1": 90,
    }  # fmt: skip
    (stack,) = [stack for stack in data["stacks"] if stack["place"] == "host"]  # type: ignore[attr-defined]
    assert {part["key"]: part["label"] for part in stack["parts"]}["leak1"] == "Trainer.kept"
    assert stack["peak"]["reason"].startswith("Trainer.kept +90.0 MiB")
    assert parts["leak1"][0] == 0
    assert parts["leak1"][50] == pytest.approx(41 * MIB, abs=MIB)
    counted = on_the_host(**{"tensors/activations_bytes": 40.0 * MIB})
    parts = parts_of(page_data(parsed(leak_on_the_host()), counted), "host")
    assert [round((parts[key][-1] or 0) / MIB) for key in ("other", "activations")] == [20, 40], "as in the table"


def test_a_holder_whose_rate_misses_its_size_has_its_size_at_the_end() -> None:
    report = leak_on_the_host()
    report["leak"]["suspects"][0].update(bytes_per_step=MIB / 4, bytes=90 * MIB)
    parts = parts_of(page_data(parsed(report), on_the_host()), "host")
    assert parts["leak1"][-1] == pytest.approx(90 * MIB, rel=0.01)
    assert parts["leak1"][49] == pytest.approx(45 * MIB, rel=0.05)


def test_a_leak_of_data_workers_is_in_the_picture_although_they_were_not_read() -> None:
    report = leak_on_the_host()
    report["leak"]["where"] = "workers"
    report["leak"]["suspects"][0]["bytes"] = None
    parts = parts_of(page_data(parsed(report), on_the_host()), "host")
    assert parts["leak1"][-1] == 80 * MIB
    report["leak"]["suspects"] = []
    read = on_the_host(**{"workers/pss_bytes": 500.0 * MIB})
    data = page_data(parsed(report), read)
    assert parts_of(data, "host")["leak1"][-1] == 80 * MIB
    assert parts_of(data, "host")["workers"][-1] == 420 * MIB


def test_between_readings_of_a_phase_its_last_rise_is_taken_as_far_as_there_is_room() -> None:
    rows: list[tuple[str, int, dict[str, float]]] = [
        ("step_end", 1, {"host/rss_bytes": 100.0 * MIB, "phase/host/backward_peak_bytes": 150.0 * MIB}),
        ("step_end", 2, {"host/rss_bytes": 120.0 * MIB}),
        ("evaluate", 2, {"phase/host/evaluate_peak_bytes": 400.0 * MIB}),
        ("step_end", 3, {"host/rss_bytes": 380.0 * MIB}),
        ("step_end", 4, {"host/rss_bytes": 100.0 * MIB}),
    ]
    report = all_well()
    report["device"] = []
    parts = parts_of(page_data(parsed(report), readings_of(rows)), "host")
    assert [round((size or 0) / MIB) for size in parts["activations"]] == [50, 30, 30, 280, 50, 20, 50]


def test_a_run_that_ran_out_of_memory_ends_in_a_block_of_what_was_in_use_and_wanted() -> None:
    data = page_data(parsed(out_of_memory()), on_a_gpu(100))
    parts = parts_of(data, "gpu0")
    for key, size in (("activations", 46.2), ("optimizer", 15.0), ("wanted", 3.91), ("cached", 0.0)):
        assert [round((value or 0) / GIB, 2) for value in parts[key][-2:]] == [size, size]
    assert all(not value for value in parts["wanted"][:-2])
    (stack,) = [stack for stack in data["stacks"] if stack["place"] == "gpu0"]  # type: ignore[attr-defined]
    assert stack["peak"]["text"] == "out of memory: 82.3 GiB, step 1,204, forward"
    assert stack["peak"]["reason"] == "3.9 GiB more wanted, 1.2 GiB free"


def test_where_the_host_ran_out_what_imports_took_is_still_there_and_the_leak_has_its_own_name() -> None:
    report = out_of_memory()
    in_use = {"Python and libraries": 350 * MIB, "other": 250 * MIB, "activations": 50 * MIB, "`Trainer.kept`": 9 * MIB}
    limit = {"limit_bytes": 660 * MIB, "limit": "data (RLIMIT_DATA)"}
    report["oom"] |= {"where": "host", "in_use": in_use, "requested_bytes": 4 * MIB, **limit}
    report |= {"device": [], **{part: leak_on_the_host()[part] for part in ("host", "leak")}}
    report["leak"]["suspects"][0]["held_by"] = "Trainer.kept[...]"
    parts = parts_of(page_data(parsed(report), on_the_host()), "host")
    assert [(parts[key][-1] or 0) / MIB for key in ("python", "other", "wanted", "leak1")] == [350, 250, 4, 9]
    in_use |= {f"`part{number}`": number * MIB for number in range(1, 9)}
    parts = parts_of(page_data(parsed(report), on_the_host()), "host")
    assert [(parts[f"more{number}"][-1] or 0) / MIB for number in range(1, 7)] == [8, 7, 6, 5, 4, 3]
    assert (parts["other"][-1] or 0) / MIB == 253, "no two have one colour: the smallest are among the rest"
    assert "mapped" not in parts, "this limit counts no files"


def test_a_plan_is_a_line_above_what_was_there_before_it() -> None:
    report = leak_on_the_host()
    report["planned"] = {"planned_bytes": 130 * MIB, "measured_bytes": None, "phase": "backward", "parts": []}
    data = page_data(parsed(report), on_the_host())
    assert data["stacks"][0]["planned"]["bytes"] == (200 + 100 + 130) * MIB  # type: ignore[index]


def test_with_several_devices_the_model_is_not_taken_for_that_of_one() -> None:
    report = leaking()
    report["device"].append({**report["device"][0], "index": 1})
    readings = on_a_gpu(30)
    readings.add(
        "step_end", 31, 1100.0, [("device1/allocated_bytes", 5.0 * GIB), ("device1/reserved_bytes", 6.0 * GIB)]
    )
    data = page_data(parsed(report), readings)
    first, second = parts_of(data, "gpu0"), parts_of(data, "gpu1")
    assert list(first) == ["leak1", "other", "activations", "cached"]
    assert {key: sizes[-1] for key, sizes in second.items()} == {"other": 5 * GIB, "cached": GIB}


def test_shared_memory_that_leaks_is_not_mapped_files() -> None:
    report = leak_on_the_host()
    report["leak"].update(where="shared", suspects=[])
    data = page_data(parsed(report), on_the_host(**{"host/shmem_bytes": 90.0 * MIB}))
    ends = {key: round((sizes[-1] or 0) / MIB) for key, sizes in parts_of(data, "host").items()}
    assert (ends["mapped"], ends["shared"], ends["leak1"]) == (10, 10, 80)


def test_the_leak_of_another_rank_is_not_in_the_picture_of_this_one() -> None:
    report = out_of_memory()
    report["leak"] = {**leaking()["leak"], "rank": 5}
    data = page_data(parsed(report), on_a_gpu(30))
    assert "leak1" not in parts_of(data, "gpu0")
    assert "leak" not in {mark["kind"] for mark in data["marks"]}  # type: ignore[attr-defined]


def test_without_readings_there_is_nothing() -> None:
    assert list(stacks(parsed(leaking()), Readings(), 0)) == []
    assert page_data(parsed(leaking()), Readings())["stacks"] == []
