"""The report: schema 1 as promised, true numbers, and a text that a tired person can act on."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from forgather_mem.engine.summary import RunFacts, RunSummary
from forgather_mem.reporting.build import build_report, verdict, write_report
from forgather_mem.reporting.table import parts_table
from forgather_mem.telemetry.records import Sample
from forgather_mem.telemetry.report import Collector, OomReport
from forgather_mem.telemetry.report_part import RunHeader
from forgather_mem.telemetry.report_schema import to_dict
from forgather_mem.units import GIB, MIB
from tests.reporting.report_fixtures import built, text_of, written
from tests.reporting.summaries import cpu_run, gpu_run, read
from tests.test_promises import compare


def test_a_finished_run_on_a_gpu_reads_like_this() -> None:
    report = built(gpu_run())
    report["run"]["exit_code"] = 0  # its parent knows it
    compare("text_finished_on_a_gpu.txt", text_of(report) + "\n")


def test_an_interrupted_run_says_so_and_how_far_it_came() -> None:
    compare("text_interrupted_on_a_cpu.txt", text_of(built(cpu_run("interrupted"))) + "\n")


def test_a_run_found_free_of_leaks_has_the_tables_of_any_other() -> None:
    report = built(gpu_run())
    report["leak"].update(verdict="no leak", bytes_per_step_high=4096.0)
    report["run"]["exit_code"] = 0
    compare("text_no_leak.txt", text_of(report) + "\n")


def test_a_run_without_any_reading_claims_nothing() -> None:
    compare("text_nothing_read.txt", text_of(built(RunSummary())) + "\n")


def test_a_run_that_failed_in_its_first_step_has_what_was_read_before_it() -> None:
    header = RunHeader(script="train.py", started_s=1007.0, process_started_s=1000.0, startup=((5.0, 3 * GIB),))
    summary = RunSummary(RunFacts(header, wall_s=0.1, end="exception", error="ValueError: no row"))
    summary.begin(0, {"host/rss_bytes": 2.0 * GIB})
    text = text_of(built(summary))
    assert (
        "\n  host            2.00     -  3.00  startup\nSTARTUP   7.0 s up to the first step, peak host 3.0 GiB" in text
    )


@pytest.mark.parametrize("end", ["finished", "exception", "oom", "killed", "interrupted"])
def test_nothing_is_said_about_leaks_before_somebody_has_looked(end: str) -> None:
    assert "leak" not in text_of(built(cpu_run(end))).lower()


def test_a_report_of_a_run_that_goes_on_does_not_say_how_it_ended() -> None:
    report = built(cpu_run(None))
    assert report["run"]["end"] is None
    text = text_of(report)
    assert text.startswith("== forgather-mem == train.py == 60 steps in 21.0 s so far ===")
    assert "finish" not in text


def test_peaks_come_with_step_and_phase_and_the_highest_of_each_place_first() -> None:
    assert built(gpu_run())["peaks"] == [
        {"where": "host", "bytes": int(8.8 * GIB), "step": 500, "phase": "save"},
        {"where": "gpu0", "bytes": int(41.3 * GIB), "step": 1998, "phase": "backward"},
        {"where": "gpu0", "bytes": 40 * GIB, "step": 1998, "phase": "forward"},
    ]


def test_without_a_peak_of_the_allocator_the_highest_that_was_allocated_counts() -> None:
    summary = RunSummary(RunFacts(wall_s=1.0))
    summary.begin(0)
    for step, gib in enumerate((2, 5, 3), 1):
        read(summary, step, {"device/allocated_bytes": gib * GIB, "device/reserved_bytes": 6 * GIB}, device=0)
    report = built(summary)
    assert report["device"][0]["peak_allocated_bytes"] == 5 * GIB
    assert report["peaks"] == [{"where": "gpu0", "bytes": 5 * GIB, "step": 2, "phase": "other"}]


def test_on_the_host_the_parts_add_up_to_the_peak() -> None:
    parts = built(cpu_run())["breakdown"]
    # 800 at the backward peak, 620 at the end of that step, and the gradients had gone by then
    assert parts["activations_peak"] == (800 - 620 - 10) * MIB
    assert sum(parts.values()) == 800 * MIB


def test_on_the_host_the_text_has_the_activations_that_a_comparison_has() -> None:
    summary = cpu_run()
    assert "170.0 MiB rise in a step" in " ".join(text_of(report := built(summary)).split())
    read(summary, 160, {"tensors/activations_bytes": 120 * MIB})
    assert "120.0 MiB activations of modules (early steps)" in (text := " ".join(text_of(built(summary)).split()))
    assert report["breakdown"]["other"] == 590 * MIB
    assert "590.0 MiB there before the first step" in text
    assert "50.0 MiB other since the start" in text
    assert "; each at its own peak" in text


def test_on_a_device_activations_are_what_comes_on_top_of_what_stays_between_steps() -> None:
    parts = built(gpu_run())["breakdown"]
    # at 41.3 in the backward pass some of the gradients were there, at 40.0 in the forward pass none
    assert parts["activations_peak"] == (40 - 15) * GIB
    assert parts["cached"] == 37 * GIB


def test_with_micro_batches_the_gradients_are_there_in_the_forward_pass_too() -> None:
    summary = gpu_run()
    summary.facts.header = replace(summary.facts.header, micro_batches=4)
    assert built(summary)["breakdown"]["activations_peak"] == pytest.approx((41.3 - 15 - 5) * GIB, abs=1)


def test_what_is_kept_between_the_steps_and_is_no_part_of_the_model_is_other() -> None:
    summary = gpu_run()
    kept = {"device/allocated_bytes": 18.0 * GIB, "device/reserved_bytes": 52.0 * GIB}
    read(summary, 2000, kept, device=0)
    assert built(summary)["breakdown"]["other"] == 3 * GIB


def test_what_was_in_use_when_memory_ran_out_is_in_the_parts() -> None:
    summary, in_use = RunSummary(RunFacts(wall_s=1.0, end="oom")), {"parameters": 40 * MIB, "activations": 200 * MIB}
    read(summary, 1, {"host/rss_bytes": 600 * MIB})
    summary.told = replace(summary.told, oom=OomReport(where="host", step=1, phase="forward", rank=0, in_use=in_use))
    parts = built(summary)["breakdown"]
    assert (parts["parameters"], parts["activations_peak"], parts["other"]) == (40 * MIB, 200 * MIB, 360 * MIB)
    assert not parts_table(build_report(summary))[2]


def test_what_was_not_measured_is_zero_and_the_text_is_silent_about_it() -> None:
    summary = RunSummary(RunFacts(wall_s=1.0))
    summary.begin(0)
    read(summary, 1, {"host/rss_bytes": 600 * MIB})
    report = built(summary)
    assert report["breakdown"]["activations_peak"] == report["breakdown"]["parameters"] == 0
    assert "PARTS" not in text_of(report)
    assert "CLEAN-UP" not in text_of(report)


def test_the_text_for_the_tensorboard_page_does_not_tell_how_to_open_it() -> None:
    assert verdict(build_report(gpu_run()))[0] == text_of(built(gpu_run())).replace("\n\ntensorboard --logdir out", "")


def test_each_rank_has_its_own_file(tmp_path: Path) -> None:
    summary = cpu_run()
    summary.facts.header = replace(summary.facts.header, rank=3, world_size=4)
    assert written(built(summary), tmp_path).name == "report.rank3.json"


def test_a_report_is_not_written_through_links_that_somebody_planted(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("report.json", f".report.json.{os.getpid()}"):
        (folder / name).symlink_to(victim)
    path = written(built(cpu_run()), folder)
    assert victim.read_text() == "precious"
    assert json.loads(path.read_text())["schema"] == 1


def test_a_number_that_json_cannot_hold_leaves_the_old_file_as_it_was(tmp_path: Path) -> None:
    path = written(built(cpu_run()), tmp_path)
    before = path.read_text()
    bad = replace(build_report(cpu_run()), gc=Collector(pause_max_s=float("nan")))
    with pytest.raises(ValueError, match="JSON compliant"):
        write_report(bad, tmp_path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("script", "shown"),
    [("/home/me/train.py", "train.py"), ("/x/axolotl/cli/train/__main__.py", "train"), ("", "training"), ("-c", "-c")],
)
def test_a_run_is_named_after_its_script_or_package(script: str, shown: str) -> None:
    summary = cpu_run()
    summary.facts.header = replace(summary.facts.header, script=script)
    assert text_of(built(summary)).startswith(f"== forgather-mem == {shown} == ")


@pytest.mark.parametrize(("steps", "told"), [((1, 2, 3, 4), 4), ((1, 2, 19, 80), 80), ((1, 2, 19, 20), 20)])
def test_a_peak_is_told_at_the_step_that_is_known_to_have_it(steps: tuple[int, ...], told: int) -> None:
    summary = RunSummary()
    for step, size in zip(steps, (100.0, 100.0, 1658.0, 1670.0), strict=True):
        summary.add(Sample("step_end", step, 0.1, 0.0, {"host/rss_peak_bytes": size * MIB}))
    peak = built(summary)["peaks"][0]
    assert (peak["bytes"], peak["step"]) == (1670 * MIB, told)


def with_a_save_at(step: int, *, resets: bool) -> RunSummary:
    """400 steps whose forward pass takes 545 MiB; one checkpoint goes higher, after which no phase can be told, unless
    the mark is reset."""
    summary = RunSummary()
    for number in range(1, 401):
        values = {"host/rss_peak_bytes": (1331 if number >= step else 545) * MIB}
        if number <= step or resets:
            values["phase/host/forward_peak_bytes"] = 545 * MIB
        summary.add(Sample("step_end", number, 0.1, 0.0, values))
        if number == step:
            summary.add(Sample("save", number, 0.1, 0.0, {"phase/host/save_peak_bytes": 1331 * MIB}))
    return summary


def test_a_phase_that_a_higher_peak_has_hidden_is_marked_wherever_it_is_shown() -> None:
    report = build_report(with_a_save_at(28, resets=False))
    forward = next(peak for peak in report.peaks if peak.phase == "forward")
    assert (forward.bytes, forward.not_read_since) == (545 * MIB, 28)
    assert next(peak for peak in to_dict(report)["peaks"] if peak["phase"] == "forward")["not_read_since"] == 28
    assert all(peak.not_read_since is None for peak in report.peaks if peak.phase != "forward")


def test_a_phase_that_is_read_to_the_end_is_not_marked() -> None:
    for summary in (with_a_save_at(28, resets=True), with_a_save_at(395, resets=False)):
        assert not any("not_read_since" in peak for peak in built(summary)["peaks"])
