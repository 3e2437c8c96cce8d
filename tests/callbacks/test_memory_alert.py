"""Alerts in real trainings: a memory that fills, limits that are crossed, checkpoints and stops in time."""

import os
import pickle
import re
import resource
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from forgather_mem import Every, Rule, load_callbacks
from forgather_mem.callbacks import MemoryAlert, MemoryCallback
from forgather_mem.callbacks.memory_alert import ABOVE, BELOW, Alert
from forgather_mem.diagnose.alerts.watch import USUAL
from forgather_mem.formats.ring_writer import NAMES
from forgather_mem.probes import probe_of
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.metrics import every_metric
from forgather_mem.telemetry.records import Moment, Sample
from tests.callbacks.test_leak_detector import Keeps
from tests.memory import load_blas
from tests.simulated_device import TOTAL_MIB, SimulatedDevice, simulated_devices
from tests.training import fingerprint, make_trainer


@pytest.mark.slow
@pytest.mark.fresh
def test_a_training_that_fills_its_memory_is_stopped_with_a_checkpoint_before_the_wall(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    alerts: list[Alert] = []
    trainer = make_trainer(
        tmp_path, [Keeps(8 << 20), MemoryAlert({}, {}, 60, call=alerts.append, save=True, stop=True, strict=True)],
        max_steps=200, rows=64, logging_steps=500,
    )  # fmt: skip
    load_blas()
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + 150 * (8 << 20), resource.RLIM_INFINITY))
    trainer.train()  # would raise a MemoryError near step 150
    assert len(alerts) == 1
    alert = alerts[0]
    assert (alert.name, alert.rank, trainer.state.global_step) == ("host", 0, alert.step)
    assert alert.value == pytest.approx(8 << 20, rel=0.1)
    assert alert.full_at_step == pytest.approx(150, rel=0.1)
    assert 1 <= alert.full_at_step - alert.step <= 60
    assert (tmp_path / f"checkpoint-{alert.step}" / "trainer_state.json").exists()
    lines = capfd.readouterr().err.splitlines()
    said = next(number for number, line in enumerate(lines) if line.startswith("forgather-mem: step"))
    assert "address space (RLIMIT_AS) is full near step" in " ".join(" ".join(lines[said : said + 3]).split())
    assert max(map(len, lines[said : said + 3])) <= 80


@pytest.mark.parametrize("name", [*ABOVE, *BELOW])
def test_each_usual_limit_is_read_here_and_explained(name: str) -> None:
    assert probe_of(name) is not None, "MemoryAlert alone has nobody who reads it: a row in probes/by_name.py"
    assert name in {metric.name for metric in every_metric()}
    assert name in (MemoryAlert.__doc__ or ""), "a usual limit is named in the docstring"
    assert name in USUAL, "what it is, for people: a row in USUAL of diagnose/alerts/watch.py"
    assert name in NAMES, "a killed run can't show it: the sizes of a black box are in formats/ring_writer.py"
    row = f"| `{name}` | {'above' if name in ABOVE else 'below'} {ABOVE.get(name) or BELOW[name]} | "
    page = (Path(__file__).parents[2] / "docs/alerts.md").read_text()
    assert re.search(re.escape(row) + r"(each|every|once) \w", page), f"docs/alerts.md: {row}how often it is read |"


@pytest.mark.slow
@pytest.mark.parametrize("template", ["", "callbacks/watch.yaml"], ids=["alone", "beside others"])
@pytest.mark.parametrize("name", [*ABOVE, *BELOW])
def test_each_usual_limit_is_told_at_its_first_reading_and_only_where_it_is_crossed(
    name: str, template: str, tmp_path: Path, device: SimulatedDevice
) -> None:
    extremes = ["0.001%", "100%"] if name.endswith("_frac") else [1, 2**60]
    told: dict[str, list[tuple[int, str]]] = {}
    device.hold(2000)
    for how, limit in zip(("crossed", "not reached"), extremes[:: 1 if name in ABOVE else -1], strict=True):
        alerts: list[Alert] = []
        limits = ({name: limit}, {}) if name in ABOVE else ({}, {name: limit})
        alert = MemoryAlert(*limits, call=alerts.append, strict=True)  # type: ignore[arg-type]
        make_trainer(tmp_path / how, [*(load_callbacks(template) if template else []), alert], max_steps=20).train()
        told[how] = [(one.step, one.name) for one in alerts]  # so a forecast is silent, too
    assert told == {"crossed": [(1, name)], "not reached": []}


@pytest.mark.parametrize("name", [*ABOVE, *BELOW])
def test_each_usual_limit_is_told_if_it_is_crossed_after_the_first_reading(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Rises(Keeps):
        def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            if state.global_step == 3:
                super().on_step_end(args, state, control)
                device.hold(TOTAL_MIB - 500)
            control.should_training_stop = name in [one.name for one in alerts]  # a slow reading puts the next one off

    alerts: list[Alert] = []
    for probe in ("host.LIMIT", "device.HEADROOM"):
        monkeypatch.setattr(f"forgather_mem.probes.{probe}_EVERY_S", 0.0)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    usual = resource.getrlimit(resource.RLIMIT_DATA)
    with simulated_devices(monkeypatch, 1) as (device,):
        device.hold(2000)
        resource.setrlimit(resource.RLIMIT_DATA, (2 * used, usual[1]))
        try:
            alert = MemoryAlert(full_within_steps=None, call=alerts.append)
            make_trainer(tmp_path, [alert, Rises(used * 9 // 10)], max_steps=2000, rows=64).train()
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, usual)
    assert name in [one.name for one in alerts if one.step > 1], "how it is made to rise in a training, in Rises"


@pytest.mark.slow
def test_a_limit_is_told_once_a_rise_to_console_records_and_trackers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, str]] = []
    active = types.SimpleNamespace(alert=lambda title, text: sent.append((title, text)))
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=active))
    capture = Capture()
    make_trainer(
        tmp_path,
        [
            MemoryAlert({"host/rss_bytes": "1MiB"}, {"host/rss_bytes": "1TiB"}, None, strict=True),
            MemoryCallback(sinks=[capture]),
        ],
    ).train()
    told = [finding for finding in capture.findings if finding.kind == "alert"]
    assert [(finding.step, finding.data["name"]) for finding in told] == [(1, "host/rss_bytes")] * 2
    assert [text for _, text in sent] == [finding.text for finding in told]
    said = capfd.readouterr().err
    assert said.count("host/rss_bytes is") == 2
    assert "above 1.0 MiB" in said
    assert "below 1.0 TiB" in said


@pytest.mark.slow
def test_a_value_that_wavers_about_its_limit_is_told_once_until_it_has_gone_back(tmp_path: Path) -> None:
    levels = [0.5, 0.91, 0.89, 0.92, 0.89, 0.91, 0.84, 0.91, 0.2, 0.99]  # armed again at 0.855

    def level(moment: Moment, sample: Sample) -> Mapping[str, float]:
        return {"mine/level_frac": levels[moment.step - 1], "mine/left_bytes": 1000 * (1 - levels[moment.step - 1])}

    alerts: list[Alert] = []
    readings = MemoryCallback([Rule(when=Every(steps=1), do=[level])])
    alert = MemoryAlert({"mine/level_frac": "90%"}, {"mine/left_bytes": 95}, None, call=alerts.append, strict=True)
    make_trainer(tmp_path, [readings, alert], max_steps=10).train()
    assert [(one.step, one.name) for one in alerts] == [
        (2, "mine/level_frac"), (2, "mine/left_bytes"), (4, "mine/left_bytes"), (6, "mine/left_bytes"),
        (8, "mine/level_frac"), (8, "mine/left_bytes"), (10, "mine/level_frac"), (10, "mine/left_bytes"),
    ]  # fmt: skip


@pytest.mark.slow
def test_what_others_read_in_steps_that_are_not_looked_at_counts(tmp_path: Path) -> None:
    def level(moment: Moment, sample: Sample) -> Mapping[str, float]:
        return {"mine/level_frac": 0.95} if moment.step == 3 else {}

    alerts: list[Alert] = []
    readings = MemoryCallback([Rule(when=Every(steps=1), do=[level])])
    alert = MemoryAlert({"mine/level_frac": "90%"}, {}, None, call=alerts.append, every_steps=4, strict=True)
    make_trainer(tmp_path, [readings, alert], max_steps=8).train()
    assert [one.step for one in alerts] == [4]


def test_a_tracker_that_fails_keeps_nobody_from_acting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(**alert: str) -> None:
        raise OSError("no network")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=types.SimpleNamespace(alert=unreachable)))
    alerts: list[Alert] = []
    trainer = make_trainer(tmp_path, [MemoryAlert({"host/rss_bytes": "1MiB"}, {}, call=alerts.append, stop=True)])
    trainer.train()
    assert (len(alerts), trainer.state.global_step) == (1, 1)


@pytest.mark.slow
def test_nothing_is_changed_or_said_when_nothing_is_near(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain, watched = make_trainer(tmp_path / "plain"), make_trainer(tmp_path / "watched", [MemoryAlert(strict=True)])
    plain.train()
    watched.train()
    assert fingerprint(watched) == fingerprint(plain)
    assert caplog.messages == [], "a usual limit is on what this training can't have"
    make_trainer(tmp_path / "asked", [MemoryAlert({"mine/queue": 1})]).train()
    assert "'mine/queue' was never measured" in caplog.text


def test_what_a_users_function_raises_is_logged_and_ends_no_training(tmp_path: Path) -> None:
    def raises(alert: Alert) -> None:
        raise RuntimeError("the pager is down")

    alert = MemoryAlert({"host/rss_bytes": "1MiB"}, {}, None, call=raises, stop=True)
    trainer = make_trainer(tmp_path, [alert])
    trainer.train()
    assert trainer.state.global_step == 1, "it has stopped all the same"


@pytest.mark.slow
def test_from_a_template(tmp_path: Path) -> None:
    template = tmp_path / "alert.yaml"
    template.write_text(
        "trainer_callbacks: !list:@trainer_callbacks\n"
        "    - !singleton:forgather_mem.callbacks:MemoryAlert\n"
        '        above: { host/limit_used_frac: "95%" }\n'
        "        below: { device/headroom_bytes: 2GiB }\n"
        "        full_within_steps: 100\n"
        "        save: true\n"
    )
    (alert,) = load_callbacks("alert.yaml", searchpath=tmp_path)
    copy = pickle.loads(pickle.dumps(alert))
    make_trainer(tmp_path, [copy]).train()
    assert copy.summary.steps == 6
    assert copy.summary.switched_off == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"above": {"host/limit_used_frc": "90%"}}, "no sample named 'host/limit_used_frc'; did you mean"),
        ({"above": {"hots/rss_bytes": "1GiB"}}, "no sample named 'hots/rss_bytes'; did you mean 'host/rss_bytes'"),
        ({"above": {"rss": "90%"}}, "'rss' is no sample name; write one such as"),
        ({"above": {"device1/reservd_frac": "90%"}}, "there is no sample named 'device1/reservd_frac'"),
        ({"below": {"gpu/headroom_bytes": "1GiB"}}, "did you mean 'device/headroom_bytes'"),
        ({"below": {"device/headroom_bytes": "1GB"}}, "unknown unit 'GB'; write 1GiB"),
        ({"below": "1GiB"}, r"MemoryAlert\(below='1GiB'\): give sample names and limits"),
        ({"above": {"host/rss_bytes": -5}}, "a limit is 0 or more"),
        ({"above": {}, "below": {}, "full_within_steps": None}, "nothing is left to watch"),
        ({"call": "print"}, "give a function that takes an Alert"),
    ],
)
def test_a_wrong_argument_is_named_at_construction(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MemoryAlert(**arguments)


class FillsDevice(TrainerCallback):
    """Keeps 40 MiB more at each of 140 steps on one device; then goes on until both alerts came.

    A slow reading of what is left puts the next one off, so it is not known in which step it comes.
    """

    def __init__(self, device: SimulatedDevice, alerts: list[Alert]) -> None:
        self.device = device
        self.alerts = alerts

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self.device.hold(2000 + 40 * min(state.global_step, 140))
        control.should_training_stop = state.global_step >= 140 and len(self.alerts) == 2


@pytest.mark.slow
def test_the_second_device_of_a_process_is_watched_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alerts: list[Alert] = []
    with simulated_devices(monkeypatch, 3) as devices:
        devices[0].hold(500)
        devices[1].hold(2000)
        alert = MemoryAlert(full_within_steps=30, call=alerts.append, strict=True)
        monkeypatch.setattr("forgather_mem.probes.device.HEADROOM_EVERY_S", 0.0)
        trainer = make_trainer(tmp_path, [FillsDevice(devices[1], alerts), alert], max_steps=2000, rows=64)
        trainer.train()
        assert not devices[2].woken
    assert [alert.name for alert in alerts] == ["device1", "device1/headroom_bytes"]
    forecast, limit = alerts
    assert forecast.full_at_step == pytest.approx((TOTAL_MIB - 2000) / 40, abs=1.5)
    assert forecast.text.startswith("GPU 1 is full near step ")
    assert limit.text.startswith("device1/headroom_bytes is ")


def test_a_limit_may_name_another_device() -> None:
    assert MemoryAlert(above={"device1/reserved_frac": "90%"}) is not None
