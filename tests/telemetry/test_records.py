"""Records and findings are plain data: they can be kept, and not changed."""

from dataclasses import FrozenInstanceError

import pytest

from forgather_mem.telemetry.records import Finding, Outcome, Sample

SAMPLE = Sample("step_end", 3, 0.5, 1.7e9, {"host/rss_bytes": 5.0}, 0)
FINDING = Finding(kind="leak", step=3, text="it grows", data={"what": "list"})
OUTCOME = Outcome(step=3, time_s=0.1, next_step_excess_s=-0.01, freed_bytes=5.0, retaken_bytes=0.0)


@pytest.mark.parametrize(("value", "name"), [(SAMPLE, "step"), (FINDING, "text"), (OUTCOME, "freed_bytes")])
def test_a_record_is_not_changed_after_it_was_made(value: object, name: str) -> None:
    with pytest.raises((AttributeError, FrozenInstanceError)):
        setattr(value, name, 7)
