import mmap
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from forgather_mem.engine.run import Run
from forgather_mem.probes import HostProbe, host
from forgather_mem.system.peak_windows import host_peaks
from forgather_mem.telemetry.records import Work
from forgather_mem.testing.small_run import in_child
from forgather_mem.units import MIB
from tests.memory import open_descriptors, reset_kernel_mark, spike, status_bytes, touched

Read = Callable[..., dict[str, float]]


@pytest.fixture
def probe(run: Run) -> Work:
    return HostProbe().begin(run)


@pytest.mark.parametrize("mib", [1, 8, 64, 512])
def test_known_amounts_are_found_and_found_gone_within_one_mib(probe: Work, read: Read, mib: int) -> None:
    before = read(probe)
    block = touched(mib)
    held = read(probe)
    block.close()
    after = read(probe)
    for name in ("host/rss_bytes", "host/anon_bytes"):
        assert held[name] - before[name] == pytest.approx(mib * MIB, abs=MIB)
        assert after[name] - before[name] == pytest.approx(0, abs=MIB)
    assert after["host/rss_peak_bytes"] >= held["host/rss_bytes"]


def test_it_agrees_with_psutil_and_the_kernel(run: Run, read: Read) -> None:
    probe = HostProbe(slow_every_s=0.001).begin(run)
    time.sleep(0.01)
    process = psutil.Process()
    before = process.memory_full_info().pss
    values = read(probe)
    assert values["host/rss_bytes"] == pytest.approx(process.memory_info().rss, abs=MIB)
    assert values["host/anon_bytes"] == pytest.approx(status_bytes("RssAnon"), abs=MIB)
    assert values["host/vms_bytes"] == pytest.approx(process.memory_info().vms, abs=MIB)
    # Who shares pages with this process may come and go between two readings
    low, high = sorted((before, process.memory_full_info().pss))
    assert low - MIB <= values["host/pss_bytes"] <= high + MIB
    assert values["host/shmem_bytes"] == pytest.approx(status_bytes("RssShmem"), abs=MIB)
    assert values["host/swap_bytes"] == status_bytes("VmSwap")
    assert values["host/shm_bytes"] == pytest.approx(shutil.disk_usage("/dev/shm").used, abs=64 * MIB)
    assert 0 < values["host/limit_used_frac"] < 1
    assert 0 < values["host/available_bytes"] < psutil.virtual_memory().total


def test_a_mapped_file_moves_rss_but_not_anonymous_memory(probe: Work, read: Read, tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"x" * (32 * MIB))
    before = read(probe)
    with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        sum(mapped[offset] for offset in range(0, len(mapped), mmap.PAGESIZE))
        after = read(probe)
    assert after["host/rss_bytes"] - before["host/rss_bytes"] == pytest.approx(32 * MIB, abs=MIB)
    assert after["host/anon_bytes"] - before["host/anon_bytes"] == pytest.approx(0, abs=MIB)


def test_the_peak_holds_spikes_between_two_calls(run: Run, read: Read) -> None:
    reset_kernel_mark()  # otherwise an older peak of this test process may hide ours
    probe = HostProbe().begin(run)
    before = read(probe)["host/rss_bytes"]
    spike(64)
    assert read(probe)["host/rss_peak_bytes"] - before == pytest.approx(64 * MIB, abs=MIB)


def test_a_reset_of_the_mark_does_not_lower_the_run_s_peak(run: Run, read: Read) -> None:
    reset_kernel_mark()
    probe = HostProbe().begin(run)
    spike(64)
    peaks = host_peaks()
    with closing(peaks.open()):  # resets, as a phase does
        pass
    after_ours = read(probe)["host/rss_peak_bytes"]
    reset_kernel_mark()
    after_others = read(probe)["host/rss_peak_bytes"]
    assert after_ours == after_others >= status_bytes("VmRSS") + 60 * MIB


def test_a_peak_from_before_the_run_does_not_count(run: Run, read: Read) -> None:
    spike(64)
    probe = HostProbe().begin(run)
    values = read(probe)
    assert values["host/rss_peak_bytes"] < values["host/rss_bytes"] + 32 * MIB


def test_rare_readings_are_absent_in_between(probe: Work, read: Read) -> None:
    first, second = read(probe), read(probe)
    assert {"host/swap_bytes", "host/limit_used_frac"} <= first.keys()
    assert second.keys() == {"host/rss_bytes", "host/rss_peak_bytes", "host/anon_bytes"}


def test_pss_is_read_when_what_it_takes_fits_the_time_that_has_passed(run: Run, read: Read) -> None:
    probe = HostProbe(slow_every_s=3600.0, budget_frac=0.5).begin(run)
    assert "host/pss_bytes" in read_until(probe, read, "host/pss_bytes")
    assert "host/pss_bytes" not in read(probe)


def test_what_is_switched_off_is_absent(run: Run, read: Read) -> None:
    probe = HostProbe(limits=False, pss=False).begin(run)
    values = read(probe)
    assert "host/limit_used_frac" not in values
    assert "host/pss_bytes" not in values
    assert "host/swap_bytes" in values


def test_a_limit_of_a_control_group_is_what_percentages_are_of(run: Run, read: Read, tmp_path: Path) -> None:
    group = tmp_path / "job"
    group.mkdir()
    (group / "memory.max").write_text(str(400 * MIB))
    (group / "memory.current").write_text(str(300 * MIB))
    (group / "memory.stat").write_text(f"inactive_file {100 * MIB}\n")
    proc = tmp_path / "proc"
    proc.mkdir()
    for name in ("meminfo", "pressure"):
        (proc / name).symlink_to(Path("/proc") / name)
    (proc / "self").mkdir()
    for name in ("statm", "status", "smaps_rollup"):
        (proc / "self" / name).symlink_to(f"/proc/self/{name}")
    (proc / "self" / "cgroup").write_text("0::/job\n")
    probe = HostProbe(proc_root=str(proc), cgroup_root=str(tmp_path)).begin(run)
    values = read(probe)
    assert values["host/limit_used_frac"] == 0.5
    assert values["host/available_bytes"] == 200 * MIB


def test_pss_is_left_out_where_it_would_take_too_long_and_the_report_says_so(
    run: Run, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "PSS_MOST_S", 1e-6)
    probe = HostProbe(slow_every_s=0.001).begin(run)
    time.sleep(0.01)
    assert "host/pss_bytes" not in read(probe)
    run.close()
    texts = [finding.text for finding in run.summary.findings if finding.kind == "backed_off"]
    assert any(text.startswith("PSS: not read at") for text in texts)


def read_until(probe: Work, read: Read, name: str) -> dict[str, float]:
    """The first reading that has this one; the last of many tries when none has."""
    for _ in range(2_000):
        values = read(probe)
        if name in values:
            break
        time.sleep(0.005)
    return values


def test_a_forked_child_reads_its_own_memory(probe: Work, read: Read) -> None:
    parent = read(probe)["host/rss_bytes"]

    def child() -> str:
        with closing(touched(64)):
            values = read(probe)
            return f"{values['host/rss_bytes']} {values['host/rss_peak_bytes']} {psutil.Process().memory_info().rss}"

    rss, peak, of_psutil = map(float, str(in_child(child)).split())
    assert rss == pytest.approx(of_psutil, abs=2 * MIB)
    assert peak >= rss
    assert read(probe)["host/rss_bytes"] == pytest.approx(parent, abs=4 * MIB)


@pytest.mark.fresh
def test_nothing_stays_open_after_a_run_and_the_probe_serves_the_next_one(run: Run, read: Read) -> None:
    before, probe = open_descriptors(), HostProbe()
    for _ in range(2):
        one = Run(run.facts)
        read(probe.begin(one))
        assert open_descriptors() > before
        one.close()
        assert open_descriptors() == before
