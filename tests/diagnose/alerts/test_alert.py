"""What is told early reaches sinks and report."""

import ast
import re
from pathlib import Path

import pytest

from forgather_mem.callbacks import MemoryCallback
from forgather_mem.diagnose.alerts.alert import Alert, emit_alert
from forgather_mem.sinks import Capture
from forgather_mem.telemetry.records import FORETOLD, Moment, Sample
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import AtEvent
from tests.sinks.plain_run import PlainRun
from tests.training import make_trainer


def test_it_is_printed_and_in_the_records_and_in_the_report(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def tells(moment: Moment, sample: Sample) -> dict[str, float]:
        found = Alert(step=moment.step, name="evaluation", text="it will not fit", value=5, limit=3, full_at_step=9)
        emit_alert(moment.run, found, what=FORETOLD)
        return {}

    capture = Capture()
    callback = MemoryCallback([Rule(when=AtEvent("train_end"), do=[tells])], sinks=[capture])
    make_trainer(tmp_path, [callback]).train()
    (finding,) = [finding for finding in capture.findings if finding.kind == "alert"]
    assert (finding.data["name"], finding.data["value"], finding.data["limit"]) == ("evaluation", 5, 3)
    assert "forgather-mem: step 6: it will not fit" in capfd.readouterr().err
    report = next(finding for finding in capture.findings if finding.kind == "verdict")
    assert report.data["report"]["foretold"] == ["step 6: it will not fit"]
    assert "Foretold at step 6: it will not fit." in report.text


def test_another_rank_logs_it_with_control_characters_written_out(caplog: pytest.LogCaptureFixture) -> None:
    found = Alert(step=6, rank=1, name="evaluation", text="it will not fit in '\x1b[2J\u202e'", value=5)
    emit_alert(PlainRun(rank=1, world_size=2), found)
    assert caplog.messages == [r"rank 1, step 6: it will not fit in '\x1b[2J\u202e'"]


# What makes an alert: a test in which a training is told, and one in which others are not
HEARD = {
    "watch.py _look": ("is_told_at_its_first_reading_and_only_where_it_is_crossed", "only_where_it_is_crossed"),
    "watch.py _wall_alert": ("fills_its_memory_is_stopped_with_a_checkpoint", "only_where_it_is_crossed"),
    "planned.py _too_large": (
        "an_evaluation_that_keeps_too_much_is_told",
        "nothing_is_told_of_what_fits_or_never_comes",
    ),
}


def test_each_alert_is_heard_in_a_training_and_silent_in_another() -> None:
    root = Path(__file__).parents[3]
    makers = {
        f"{path.name} {function.name}"
        for path in (root / "forgather_mem/diagnose/alerts").glob("*.py")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef) and function.name != "told_by"
        if re.search(r"\bAlert\(", ast.unparse(function))
    }
    assert makers == HEARD.keys(), "a row in HEARD: its tests run beside other callbacks, with `watch.yaml` or more"
    places = [root / "tests/callbacks/test_memory_alert.py", *Path(__file__).parent.glob("test_*.py")]
    tests = re.findall(r"^def test_\w+", "".join(path.read_text(encoding="utf-8") for path in places), re.M)
    assert [name for both in HEARD.values() for name in both if name not in " ".join(tests)] == []
