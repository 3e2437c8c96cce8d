"""The table of events and phases: what follows from it elsewhere, and the numbers that stand in files."""

import re
from pathlib import Path

import pytest
from transformers import TrainerCallback

from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.diagnose.oom.explanation import _NO_BATCH
from forgather_mem.engine.recorder import OpenRecord
from forgather_mem.engine.run import Run
from forgather_mem.engine.schedule import EventSchedule
from forgather_mem.engine.summary import RunFacts
from forgather_mem.telemetry import events
from forgather_mem.telemetry.metrics import every_metric
from forgather_mem.telemetry.records import Moment
from tests.diagnose.oom.test_remedies import PLACES


def test_the_numbers_in_the_black_box_stay_what_they_were() -> None:
    """A black box may be read by another version: names are added at the end only."""
    assert events.EVENT_NUMBERS[:13] == (
        "other", "step_end", "evaluate", "predict", "save", "train_begin", "train_end", "epoch_begin", "epoch_end",
        "log", "prediction_step", "init_end", "push_begin",
    )  # fmt: skip
    assert events.PHASE_NUMBERS[:10] == (
        "other", "startup", "data", "forward", "backward", "optimizer", "evaluate", "save", "resume", "generate",
    )  # fmt: skip


def test_each_event_with_a_record_of_its_own_and_each_phase_has_a_number() -> None:
    assert set(events.EVENT_NUMBERS) - {"other"} == set(events.EVENTS) - events.EVENTS_INSIDE_A_STEP
    for rows, names in ((events._EVENT_ROWS, events.EVENT_NUMBERS), (events._PHASE_ROWS, events.PHASE_NUMBERS)):
        assert sorted(number for _, number, _ in rows if number) == [*range(1, len(names))], "the next, and once"


def test_the_page_about_callbacks_has_each_event() -> None:
    page = (Path(__file__).parents[2] / "docs/callbacks.md").read_text().split("## Events, in their order")[1]
    assert set(events.EVENTS) <= set(re.findall(r"[a-z_]+", page.split("\n## ")[0]))


@pytest.mark.parametrize("event", events.EVENTS)
def test_our_callbacks_handle_each_event(event: str) -> None:
    assert f"on_{event}" in vars(RuleCallback)


@pytest.mark.parametrize("phase", events.PHASES)
def test_each_phase_is_in_the_docs_and_somebody_enters_it(phase: str) -> None:
    root = Path(__file__).parents[2]
    told = (root / "docs/oom.md").read_text().partition("**Phases** are ")[2].partition(".")[0]
    assert phase in [*re.findall(r"\w+", told), "other"], "in docs/oom.md"
    assert f"| `{phase}` |" in (root / "docs/metrics.md").read_text(), "written by docs/generate_metrics.py"
    assert phase in {place for place, _, _ in PLACES}, "what helps then: diagnose/oom/remedies.py"
    assert phase in {*_NO_BATCH, *events.STEP_PHASES, "other"}, (
        "why a smaller batch is no help: diagnose/oom/explanation.py"
    )
    code = [path.read_text() for path in (root / "forgather_mem").rglob("*.py") if path.parent.name != "telemetry"]
    assert any(f'"{phase}"' in text for text in code), "who enters it, as callbacks/trainer/link.py does"


def test_the_trainers_own_events_are_all_known() -> None:
    theirs = {name.removeprefix("on_") for name in dir(TrainerCallback) if name.startswith("on_")}
    assert theirs <= set(events.EVENTS)


def test_a_step_that_is_not_counted_yet_is_the_one_that_its_events_belong_to() -> None:
    offsets = {event: EventSchedule(event, [], None).offset for event in events.EVENTS}
    assert {event for event, offset in offsets.items() if offset} == set(events.EVENTS_INSIDE_A_STEP)
    assert events.EVENTS_INSIDE_A_STEP <= events.EVENTS_THAT_BEGIN_A_RUN
    record = OpenRecord()
    record.begin(Moment("optimizer_step", 7, None, None, None, None, {}, Run(RunFacts())))
    assert {event for event in events.EVENTS if record.takes(event, 7)} == events.EVENTS_INSIDE_A_STEP | {"step_end"}
    assert not any(record.takes(event, 8) for event in events.EVENTS)


def test_a_phase_is_of_every_step_or_opaque_or_neither() -> None:
    assert not events.STEP_PHASES & events.OPAQUE_PHASES
    assert set(events.PHASES) - events.STEP_PHASES - events.OPAQUE_PHASES == {"startup", "other"}
    peaks = {metric.name for metric in every_metric() if metric.name.startswith("phase/host/")}
    assert peaks == {f"phase/host/{phase}_peak_bytes" for phase in events.PHASES}
