"""A rule says what is wrong when it is built."""

from typing import Any

from forgather_mem.probes import HostProbe
from forgather_mem.telemetry.rule import Rule, name_of
from forgather_mem.telemetry.triggers import AtEvent, Every


def nothing(moment: Any, sample: Any) -> dict[str, float]:
    return {}


def test_a_rule_without_a_name_is_called_by_what_it_does_and_when() -> None:
    assert Rule(Every(steps=5), [HostProbe(), nothing]).name == "HostProbe+nothing at step_end"
    assert Rule(AtEvent("save", "evaluate"), nothing).name == "nothing at save/evaluate"  # type: ignore[arg-type]
    assert Rule(Every(steps=5), [nothing], name="mine").name == "mine"
    assert name_of(nothing) == "nothing"


def test_a_rule_keeps_its_works_in_their_order_whatever_becomes_of_the_list() -> None:
    works = [nothing, print]
    rule = Rule(Every(steps=1), works)  # type: ignore[arg-type]
    works.clear()
    assert rule.do == (nothing, print)
