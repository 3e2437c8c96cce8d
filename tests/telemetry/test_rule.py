"""A rule says what is wrong when it is built."""

from typing import Any

import pytest

from forgather_mem.probes import HostProbe
from forgather_mem.telemetry.rule import Rule, name_of
from forgather_mem.telemetry.triggers import AtEvent, Every


def nothing(moment: Any, sample: Any) -> dict[str, float]:
    return {}


@pytest.mark.parametrize(
    ("when", "budget_frac", "message"),
    [
        (Every(steps=1), 0, "give a share above 0"),
        (Every(steps=1), 1.5, "give a share above 0"),
        (AtEvent("save"), 0.01, "a budget stretches Every"),
        (Every(epochs=1), 0.01, "a budget stretches Every"),
    ],
)
def test_a_budget_is_a_share_and_belongs_to_steps(when: Any, budget_frac: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rule(when=when, do=[nothing], budget_frac=budget_frac)


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
