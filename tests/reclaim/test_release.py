import gc
import logging
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from accelerate.utils import release_memory as accelerates_release_memory

from forgather_mem.reclaim.release import cleanup, cleanup_after, release_memory
from forgather_mem.units import MIB
from tests.memory import status_bytes
from tests.programs import no_collections, printed_by
from tests.reclaim.things import Thing, a_cycle
from tests.simulated_device import simulated_device

pytestmark = pytest.mark.alone(forked=True)

KEPT: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    yield
    KEPT.clear()


# ---- release_memory ----


@pytest.mark.slow
def test_the_contract_is_accelerates() -> None:
    model, optimizer = Thing(), Thing()
    assert accelerates_release_memory(model, optimizer) == release_memory(model, optimizer) == [None, None]
    assert release_memory() == []
    model, optimizer = release_memory(model, optimizer)  # type: ignore[assignment]
    assert model is None
    assert optimizer is None


def test_memory_is_given_back_inside_the_call_not_after_it() -> None:
    def resident() -> int:
        return status_bytes("RssAnon")

    before = resident()
    kept = {"block": torch.ones(64 * MIB, dtype=torch.uint8)}
    assert resident() - before > 60 * MIB
    watched = weakref.ref(kept["block"])
    seen: list[bool] = []
    gc.callbacks.append(lambda phase, info: seen.append(watched() is None))
    try:
        (kept["block"],) = release_memory(kept["block"])  # type: ignore[assignment]
    finally:
        gc.callbacks.pop()
    assert seen[0]  # gone before the collection began: accelerate's still holds it then
    assert resident() - before < 8 * MIB


class Holder:
    def run(self) -> list[weakref.ref[Thing]]:
        self.model = Thing()
        local = Thing()
        models = {"a": Thing()}
        watched = [weakref.ref(self.model), weakref.ref(local), weakref.ref(models["a"])]
        seen: list[int] = []
        alive = lambda: sum(ref() is not None for ref in watched)  # noqa: E731
        gc.callbacks.append(lambda phase, info: info["generation"] == 2 and seen.append(alive()))
        try:
            self.model, local, models["a"] = release_memory(self.model, local, models["a"])  # type: ignore[assignment]
        finally:
            gc.callbacks.pop()
        assert seen[0] == (sys.version_info >= (3, 14))  # there the assignment frees what a function's variable holds
        assert [ref() for ref in watched] == [None] * 3
        assert (self.model, local, models) == (None, None, {"a": None})
        return watched


def test_attributes_and_items_are_emptied_as_variables_are(capsys: pytest.CaptureFixture[str]) -> None:
    Holder().run()
    assert capsys.readouterr().err == ""


def test_it_is_freed_as_well_where_the_comma_is_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    model = Thing()
    watched = weakref.ref(model)
    model = release_memory(model)  # type: ignore[assignment]
    assert (watched(), model, capsys.readouterr().err) == (None, [None], "")


def test_other_variables_of_the_caller_stay_as_they_are() -> None:
    first, second, other = Thing(), Thing(), Thing()
    number = 5
    captured = lambda: other  # noqa: E731
    first, second = release_memory(first, second)  # type: ignore[assignment]
    assert captured() is other
    assert number == 5


def test_who_still_holds_is_said_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(512, 512, bias=False)
    KEPT["best"] = [model]
    backup = model
    (model,) = release_memory(model)  # type: ignore[assignment]
    text = capsys.readouterr().err
    assert text.startswith("forgather-mem: release_memory: Linear is still held, 1.0 MiB in 1 tensor, by\n")
    assert f"{__name__}.KEPT['best'][0]" in text
    assert "local 'backup' of test_who_still_holds_is_said_by_name (tests/reclaim/test_release.py)" in text
    assert "local 'model'" not in text  # that one is on its way to None
    assert backup is not None


@pytest.mark.slow
def test_a_model_whose_optimizer_keeps_the_parameters_is_gone_but_not_its_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters())
    (model,) = release_memory(model)  # type: ignore[assignment]
    text = capsys.readouterr().err
    assert "the memory of Linear is still held, 1.0 MiB in 2 tensors, by" in text
    assert "local 'optimizer' of test_a_model_whose_optimizer" in text
    assert text.endswith(".param_groups[0]['params']\n")
    (optimizer,) = release_memory(optimizer)  # type: ignore[assignment]
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_loss_whose_graph_keeps_the_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    KEPT["losses"] = [model(torch.ones(8, 256)).mean()]
    (model,) = release_memory(model)  # type: ignore[assignment]
    text = capsys.readouterr().err
    assert "the memory of Sequential is still held, 25" in text
    assert f"the graph of {__name__}.KEPT['losses'][0]: detach it" in text


@pytest.mark.slow
def test_a_result_that_is_thrown_away_releases_nothing_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    tensors = [torch.ones(1000)]
    release_memory(tensors)
    held = (
        f"the content of list is still held, 3.9 KiB in {len(tensors)} tensor, by\n      local 'tensors' of test_a_re"
    )
    assert held in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.fresh
@pytest.mark.usefixtures("unfrozen")
def test_an_error_that_somebody_kept_is_named_as_the_holder(capsys: pytest.CaptureFixture[str]) -> None:
    def train(model: Thing) -> None:
        raise ValueError

    model = Thing()
    try:
        train(model)
    except ValueError as error:
        KEPT["error"] = error.with_traceback(error.__traceback__.tb_next)  # type: ignore[union-attr]
    (model,) = release_memory(model)  # type: ignore[assignment]
    assert f"{__name__}.KEPT['error'].__traceback__, local 'model' of train (" in capsys.readouterr().err


def test_containers_and_plain_values_are_released_too() -> None:
    tensors = {"a": [torch.ones(1000)], "b": 5}
    watched = weakref.ref(tensors["a"][0])  # type: ignore[index]
    tensors, number, nothing = release_memory(tensors, 5, None)  # type: ignore[assignment]
    assert watched() is None
    assert (tensors, number, nothing) == (None, None, None)


# ---- with cleanup() ----


def train(watched: list[weakref.ref[Thing]]) -> None:
    """It fails, with a thing in its frame."""
    model = Thing()
    watched.append(weakref.ref(model))
    raise RuntimeError("diverged")


def test_an_error_that_leaves_the_job_keeps_no_frames(capsys: pytest.CaptureFixture[str]) -> None:
    watched: list[weakref.ref[Thing]] = []
    errors = []
    for _ in range(2):
        try:
            with cleanup("trial"):
                train(watched)
        except RuntimeError as error:
            errors.append(error)  # what a search does
    assert [ref() for ref in watched] == [None, None]
    assert [str(error) for error in errors] == ["diverged", "diverged"]
    assert errors[0].__traceback__ is not None
    assert "variables of 1 failed calls cleared" in capsys.readouterr().err


def test_in_a_notebook_its_report_is_on_stdout(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", type("OutStream", (type(sys.stderr),), {"__module__": "ipykernel.iostream"})())
    with cleanup("mine"):
        pass
    assert "forgather-mem: cleanup mine: " in capsys.readouterr().out


def test_an_error_caught_and_kept_inside_the_job_keeps_no_frames_either() -> None:
    watched: list[weakref.ref[Thing]] = []
    with cleanup(report=False) as job:
        try:
            train(watched)
        except RuntimeError as error:
            KEPT["failed"] = error
        assert watched[0]() is not None
    assert watched[0]() is None
    assert job.report.num_frames == 1


def test_an_error_that_was_there_before_the_job_is_left_alone() -> None:
    watched: list[weakref.ref[Thing]] = []
    try:
        train(watched)
    except RuntimeError as error:
        KEPT["earlier"] = error
    with cleanup(report=False):
        pass
    assert watched[0]() is not None


@pytest.mark.slow
def test_the_report_has_memory_at_the_start_the_end_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    with cleanup("load") as job:
        blocks = [torch.ones(MIB // 4) for _ in range(64)]
        del blocks[1:]
    text = capsys.readouterr().err
    assert text.startswith("forgather-mem: cleanup load: host ")
    assert text.count(" -> ") == 2
    assert job.report.kept_bytes == MIB
    assert "left behind: 1.0 MiB in tensors" in text
    assert "Tensor [262144] float32, 1.0 MiB, held by local 'blocks' of test_the_report_has_memory" in text


# ---- cleanup_after ----


def cycles_alive(cycles: list[weakref.ref[Thing]]) -> int:
    return sum(ref() is not None for ref in cycles)


@pytest.mark.usefixtures("uncollected")
def test_after_every_third_call_garbage_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    cycles: list[weakref.ref[Thing]] = []

    @cleanup_after(every=3)
    def handle(request: int) -> int:
        cycles.append(a_cycle())
        return request * 2

    alive = []
    with caplog.at_level(logging.INFO):
        for request in range(7):
            assert handle(request) == request * 2
            alive.append(cycles_alive(cycles))
    assert alive == [1, 2, 0, 1, 2, 0, 1]
    assert len(caplog.records) == 2
    assert "handle, call 3: host " in caplog.records[0].getMessage()


@pytest.mark.usefixtures("uncollected")
def test_a_handler_that_fails_counts_and_its_error_passes() -> None:
    cycles: list[weakref.ref[Thing]] = []

    @cleanup_after(every=2)
    def handle() -> None:
        cycles.append(a_cycle())
        raise KeyError("bad request")

    for _ in range(2):
        with pytest.raises(KeyError, match="bad request"):
            handle()
    assert cycles_alive(cycles) == 0


@pytest.mark.usefixtures("uncollected")
def test_above_a_size_it_cleans_up_and_not_again_before_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    cycles: list[weakref.ref[Thing]] = []
    with simulated_device(monkeypatch) as device:
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        host_mib = status_bytes("RssAnon") // MIB

        @cleanup_after(above=f"{host_mib + 1000}MiB")
        def handle(allocated: float) -> int:
            device.hold(host_mib + allocated)
            cycles.append(a_cycle())
            return 0

        alive = []
        for allocated in (0, 900, 1100, 1100, 1100, 1100 + (host_mib + 1100) * 0.2):
            handle(allocated)
            alive.append(cycles_alive(cycles))
    assert alive == [1, 2, 0, 1, 2, 0]  # it stays above the limit, and a clean-up brought nothing


def test_threads_count_together_and_one_cleans_up_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    @cleanup_after(every=5)
    def handle() -> None:
        pass

    with caplog.at_level(logging.INFO), ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(lambda: [handle() for _ in range(10)])
    assert 1 <= len(caplog.records) <= 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, 'give every=100, above="2GiB", or both'),
        ({"every": 0}, "every=0"),
        ({"every": 1.5}, "every=1.5"),
        ({"above": "2GB"}, "unknown unit 'GB'; write 2GiB"),
    ],
)
def test_what_can_not_work_is_refused_when_it_is_decorated(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cleanup_after(**arguments)


@pytest.mark.parametrize(
    "imports",
    [
        "from forgather_mem import cleanup",
        "import forgather_mem.reclaim.release; from forgather_mem import cleanup",
        "from forgather_mem import release_memory, cleanup",
        "import forgather_mem; cleanup = forgather_mem.cleanup",
    ],
)
def test_the_name_can_be_called_however_it_was_imported(imports: str) -> None:
    code = f"{imports}\nwith cleanup('job', report=False) as job: pass\nprint(job.report.num_frames)"
    assert printed_by(code) == "0\n"


# ---- collect, clear and trim, one after the other ----


def test_garbage_in_cycles_is_collected_and_tensors_from_before_are_no_leftover() -> None:
    kept = torch.ones(MIB)
    with no_collections(), cleanup(report=False) as job:
        cycle = a_cycle()
        assert cycle() is not None
    assert cycle() is None
    assert job.report.num_objects >= 1
    assert (job.report.kept_bytes, job.report.kept) == (0, ())
    assert kept.numel() == MIB


def test_what_a_job_made_is_gone_when_the_host_is_trimmed() -> None:
    with cleanup(report=False) as job:
        model = torch.nn.Linear(2048, 2048)
        watched = weakref.ref(model.weight)
        model.owner = [model]
        del model
    assert watched() is None
    assert job.report.end.host_bytes - job.report.after.host_bytes > 12 * MIB


def test_the_devices_cache_is_emptied_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_device(monkeypatch) as device:
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: setattr(device, "reserved", device.allocated))
        device.hold(100)
        with cleanup(report=False) as job:
            device.spike(400)
    steps = [step.reserved_bytes for step in (job.report.start, job.report.end, job.report.after)]
    assert steps == [100 * MIB, 500 * MIB, 100 * MIB]
    assert "GPU reserved 100.0 MiB -> 500.0 MiB -> 100.0 MiB" in str(job.report)
