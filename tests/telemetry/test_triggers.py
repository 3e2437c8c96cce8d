"""Triggers are values that refuse what can't be meant when they are built."""

import contextlib
import re
from typing import Any

import pytest

from forgather_mem.telemetry.triggers import Above, AtEvent, Every, Trigger
from forgather_mem.units import GIB


@pytest.mark.parametrize("wrong", ["1GB", "1GiB", "90%", "ninety", "2.5", None, True, 5, -1])
def test_what_an_error_about_a_limit_advises_is_accepted(wrong: Any) -> None:
    for name in ("host/rss_bytes", "host/limit_used_frac", "step/time_s", "host/major_faults"):
        with contextlib.suppress(ValueError):
            Above(name, wrong)
            continue
        with pytest.raises(ValueError, match=r"(write .*|is 0 or more)$") as refused:
            Above(name, wrong)
        advised = re.findall(r"'([^']+)'|\b(\d[\w.]*)\b(?! %)", str(refused.value).partition("write ")[2])
        assert all(Above(name, text or number) for text, number in advised)


def test_a_trigger_says_when_it_is_to_be_checked() -> None:
    def fields(trigger: Trigger) -> tuple[object, ...]:
        return trigger.events, trigger.every_steps, trigger.every_epochs, trigger.limit

    assert fields(Every(steps=3, at="on_optimizer_step")) == (("optimizer_step",), 3, 0, None)
    assert fields(Every(epochs=2)) == (("epoch_end",), 1, 2, None)
    assert fields(AtEvent("on_save", "evaluate")) == (("save", "evaluate"), 1, 0, None)
    above = Above("host/rss_bytes", "2GiB", at="save")
    assert (above.events, above.every_steps, above.every_epochs) == (("save",), 1, 0)
    assert above.limit.name == "host/rss_bytes"
    assert above.limit == Above("host/rss_bytes", 2 * GIB).limit != Above("host/rss_bytes", GIB).limit
    assert above.limit.rearm == pytest.approx(0.95 * 2 * GIB)
    assert Above("device/reserved_frac", "92%", rearm="80%").limit.rearm == 0.8
