import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from forgather_mem.engine.run import Run
from forgather_mem.probes import PhaseProbe, phases
from forgather_mem.probes.phases import _Startup
from forgather_mem.telemetry.records import Work
from forgather_mem.testing.small_run import in_child
from forgather_mem.units import MIB
from tests.memory import open_descriptors, reset_kernel_mark, spike, status_bytes
from tests.phase_notes import PhaseNotes
from tests.simulated_device import SimulatedDevice

Read = Callable[..., dict[str, float]]
COUNTED = "tensors/activations_bytes"


@contextmanager
def phase(run: Run, name: str) -> Iterator[None]:
    run.phases.enter(name)
    yield
    run.phases.leave(name)


@pytest.fixture
def probe(run: Run) -> Work:
    return PhaseProbe(host_mark=True, budget_frac=1).begin(run)


def above_now(values: dict[str, float], name: str) -> float:
    return values[f"phase/host/{name}_peak_bytes"] - status_bytes("VmRSS")


def test_what_a_forward_pass_leaves_allocated_is_counted(probe: Work, run: Run, read: Read) -> None:
    weight = torch.ones(1000, 1000, requires_grad=True)
    kept: list[torch.Tensor] = []
    with phase(run, "forward"):  # libraries make their workspaces once
        (torch.ones(500, 1000) @ weight).exp().sum().backward()
    assert COUNTED not in read(probe), "the first step has what comes once"
    for rows in (500, 250):  # of a step's micro-batches the larger counts
        with phase(run, "forward"):
            torch.ones(4_000_000).sum()  # is gone again at its end
            kept.append((torch.ones(rows, 1000) @ weight).exp())
        with phase(run, "backward"):
            kept.pop().sum().backward()
    # The rows, and the result of exp; that of the product is not needed
    assert read(probe)[COUNTED] == pytest.approx(2 * 500 * 1000 * 4, abs=100_000)
    assert COUNTED not in read(probe)


def test_what_a_forward_pass_takes_the_place_of_counts_as_gone(probe: Work, run: Run, read: Read) -> None:
    weight = torch.ones(1000, 1000, requires_grad=True)
    outputs: dict[str, torch.Tensor] = {}
    for _ in range(3):
        with phase(run, "forward"):
            outputs = {"logits": torch.ones(500, 1000) @ weight}
            loss = outputs["logits"].exp().sum()
        loss.backward()
        counted = read(probe).get(COUNTED)
    assert counted == pytest.approx(3 * 500 * 1000 * 4, abs=100_000), "the rows, and the results of both"


def test_of_several_micro_batches_the_highest_counts(probe: Work, run: Run, read: Read) -> None:
    for mib in (8, 32, 2):
        with phase(run, "forward"):
            spike(mib)
    assert above_now(read(probe), "forward") == pytest.approx(32 * MIB, abs=MIB)


@pytest.mark.fresh
def test_each_call_starts_anew(probe: Work, run: Run, read: Read) -> None:
    with phase(run, "forward"):
        spike(32)
    read(probe)
    assert read(probe) == {}
    with phase(run, "forward"):
        spike(8)
    assert above_now(read(probe), "forward") == pytest.approx(8 * MIB, abs=MIB)


def test_a_phase_holds_the_peak_of_the_phases_inside_it(probe: Work, run: Run, read: Read) -> None:
    with phase(run, "optimizer"):
        spike(8)
        with phase(run, "save"):
            spike(64)
        with phase(run, "data"):
            spike(2)
    values = read(probe)
    assert above_now(values, "optimizer") == pytest.approx(64 * MIB, abs=MIB)
    assert above_now(values, "save") == pytest.approx(64 * MIB, abs=MIB)
    assert above_now(values, "data") == pytest.approx(2 * MIB, abs=MIB)


def test_a_phase_that_is_still_open_comes_with_a_later_call(probe: Work, run: Run, read: Read) -> None:
    run.phases.enter("evaluate")
    assert read(probe) == {}
    run.phases.leave("evaluate")
    assert set(read(probe)) == {"phase/host/evaluate_peak_bytes"}


def test_without_permission_the_mark_is_not_reset_and_only_a_rising_one_tells(run: Run, read: Read) -> None:
    reset_kernel_mark()
    probe = PhaseProbe().begin(run)
    with phase(run, "forward"):
        spike(64)
    mark = status_bytes("VmHWM")
    with phase(run, "backward"):
        spike(8)
    values = read(probe)
    assert status_bytes("VmHWM") >= mark
    assert set(values) - {COUNTED} == {"phase/host/forward_peak_bytes"}, "the highest peak of the run is in forward"
    assert above_now(values, "forward") == pytest.approx(64 * MIB, abs=MIB)


def test_an_end_without_a_beginning_is_ignored(probe: Work, read: Read) -> None:
    probe.phase_end("forward")
    assert read(probe) == {}


def test_phases_left_open_by_an_exception_end_with_the_outer_one(probe: Work, run: Run, read: Read) -> None:
    run.phases.enter("data")
    run.phases.enter("forward")
    run.phases.leave("data")
    assert set(read(probe)) - {COUNTED} == {"phase/host/data_peak_bytes", "phase/host/forward_peak_bytes"}


def test_nothing_stays_open_after_a_run_that_broke_off_inside_a_phase(run: Run) -> None:
    before, one = open_descriptors(), Run(run.facts)
    PhaseProbe(host_mark=True, budget_frac=1).begin(one)
    one.phases.enter("forward")
    one.close()
    assert open_descriptors() == before


def test_waiting_for_a_processor_makes_no_phase_rarer(run: Run, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "host_peaks", lambda: time.sleep(0.01))  # what opens a window waits
    probe = PhaseProbe(budget_frac=0.5).begin(run)
    for _ in range(16):
        with phase(run, "optimizer"):
            pass
    read(probe)
    time.sleep(0.01)  # pays for 5 ms of the processor, not for 10 ms of waiting
    read(probe)
    assert probe.wants_begin  # type: ignore[attr-defined]


def test_a_spent_budget_leaves_steps_out_however_many_a_record_has_rare_phases_never_and_the_report_says_so(
    run: Run, read: Read
) -> None:
    class Counts(PhaseNotes):
        def phase_begin(self, phase: str) -> None:
            self.seen.append(probe.wants_begin)

    counts = Counts()
    run.watch_phases(counts)
    probe = PhaseProbe(host_mark=True, budget_frac=1e-9).begin(run)
    for step in range(160):
        with phase(run, "optimizer"):
            pass
        if step % 16 == 15:
            with phase(run, "save"):
                pass
            assert "phase/host/save_peak_bytes" in read(probe)
    assert sum(counts.seen) == 16
    run.close()
    (finding,) = run.summary.findings
    assert (finding.kind, finding.text.partition(" every")[0]) == ("backed_off", "phases: read")


def test_what_measuring_phases_takes_is_booked_as_our_own_time(run: Run) -> None:
    PhaseProbe(host_mark=True, budget_frac=1).begin(run)
    own = run.phases.own
    began_s, before_s = time.perf_counter(), own.spent_s + own.long_s
    for _ in range(50):
        with phase(run, "forward"):
            pass
    took_s, booked_s = time.perf_counter() - began_s, own.spent_s + own.long_s - before_s
    assert 0.1 * took_s < booked_s <= took_s


@pytest.mark.fresh
def test_the_startup_of_the_first_training_is_all_that_was_before_it(run: Run, read: Read) -> None:
    spike(300)
    highest = status_bytes("VmHWM")
    assert highest > status_bytes("VmRSS") + 250 * MIB
    probe = PhaseProbe(budget_frac=1)  # no mark is reset
    work = probe.begin(run)
    with phase(run, "startup"):
        pass
    values = read(work)
    assert values["phase/host/startup_peak_bytes"] == pytest.approx(highest, abs=MIB)
    assert values["step/startup_s"] > 0
    another = Run(run.facts)
    work = probe.begin(another)
    with phase(another, "startup"):
        pass
    assert read(work) == {}, "of this one the mark says nothing"


@pytest.mark.fresh
def test_the_startup_of_a_device_is_what_its_allocator_has_seen(run: Run, read: Read, device: SimulatedDevice) -> None:
    device.hold(300)
    device.spike(500)
    probe = PhaseProbe(reset_peaks=False, budget_frac=1).begin(run)
    with phase(run, "startup"):
        pass
    assert read(probe)["phase/device/startup_peak_bytes"] == 800 * MIB


class Training: ...


@pytest.fixture(autouse=True)
def nobody_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "ps1", raising=False)  # another test may have made a shell


def test_a_forked_process_has_a_startup_of_its_own() -> None:
    startup, first, second = _Startup(), Training(), Training()
    assert startup.was_before(first)
    assert in_child(lambda: str([startup.was_before(one) for one in (second, first)])) == "[True, False]"
    assert startup.was_before(first)


def test_where_somebody_types_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert not _Startup().was_before(Training())
