"""What `forgather-mem plan` gets from a script's Trainer."""

import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer

import forgather_mem
from forgather_mem.errors import PlanError
from forgather_mem.planning.answers import Card, answer_to, card_plan
from forgather_mem.planning.batches import PlannedShape, Wanted
from forgather_mem.planning.card import CardPlan, card_text, context_of
from forgather_mem.planning.result import PhasePlan, Plan
from forgather_mem.planning.storage_log import Trace
from forgather_mem.units import GIB, MIB
from tests.training import make_trainer

pytestmark = [pytest.mark.plans, pytest.mark.alone(forked=True)]
CONTEXT = context_of(8 * GIB).high_bytes


def test_each_size_has_its_plan(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    answer = json.loads(json.dumps(answer_to({"sizes": [[None, None], [8, 32]], "card_bytes": None}, trainer)))
    assert [(plan["rows"], plan["length"]) for plan in answer["plans"]] == [(4, 16), (8, 32)]
    own = forgather_mem.plan(trainer)
    assert answer["plans"][0]["peak_bytes"] == own.peak_bytes
    assert answer["text"].startswith(own.text())
    assert answer["settings"]["arguments.per_device_train_batch_size"] == "4"


def test_what_can_not_be_planned_is_told(tmp_path: Path) -> None:
    class Asks(Trainer):
        def compute_loss(self, *arguments: Any, **keywords: Any) -> Any:
            loss = super().compute_loss(*arguments, **keywords)
            self.last = loss.detach()[None].long().bincount()
            return loss

    answer = answer_to({"sizes": [[None, None]], "card_bytes": None}, make_trainer(tmp_path, trainer_class=Asks))
    assert str(answer["problem"]).startswith("tests/planning/test_answers.py:")
    assert "bincount" in str(answer["problem"])


def plan_of(size: int, rows: int | None = None, length: int | None = None) -> Plan:
    row = PhasePlan(step=1, phase="forward", bytes=size, parts={})
    return Plan(
        peak_bytes=size, phase="forward", step=1, rows=rows, length=length, reserved_bytes=size, phases=(row,),
        trace=Trace(array("q", [0]), array("q", [size])),
    )  # fmt: skip


def planned_by_a_law(asked: Wanted) -> Plan:
    """A training of 4 GiB, and a MiB for each 8 tokens; half of that with checkpointing."""
    rows, length = asked.shape.rows or 8, asked.shape.length or 512
    size = 4 * GIB + rows * length * MIB // (16 if asked.changes.get("gradient_checkpointing") else 8)
    return plan_of(size, rows, length)


def cards_of(sizes: list[int], law: Any, card: Card) -> list[CardPlan]:
    """Of each size of one answer."""
    asked = [Wanted(PlannedShape(rows)) for rows in sizes]
    planned = tuple((one, plan_of(law(one), one.shape.rows)) for one in asked)
    card = card._replace(planned=planned)
    return [card_plan(plan, {}, one, lambda one: lambda: plan_of(law(one), 1), card) for one, plan in planned]


def bent(asked: Wanted) -> int:
    """What gradients take is there from the second batch of a step on."""
    rows = asked.shape.rows or 1
    return GIB + rows * MIB + 3 * max(0, rows - 200) * MIB // 2 + 9 * MIB * bool(asked.changes)


@pytest.mark.parametrize("sizes", [[220, 222, 224, 225, 226], [226, 220], [8, 226]])
def test_one_answer_has_one_largest_batch_and_none_that_fits_is_larger(sizes: list[int]) -> None:
    card = Card(GIB + 300 * MIB + CONTEXT)
    (largest_,) = {one.most_rows.size for one in cards_of(sizes, bent, card)}
    assert largest_ >= max(sizes)
    assert bent(Wanted(PlannedShape(largest_ + 1 + largest_ // 32))) > GIB + 300 * MIB


def test_beside_batches_that_fit_those_of_a_larger_step_are_told_as_what_they_are() -> None:
    card = Card(GIB + 300 * MIB + CONTEXT, may_split=True)
    fits, small, large = cards_of([236, 260, 300], bent, card)
    assert (fits.fits, small.fits) == (True, False)
    assert small.most_rows == large.most_rows
    assert bent(Wanted(PlannedShape(small.most_rows.size), changes={"a": 1})) <= 300 * MIB + GIB
    assert f"  largest batch   {small.most_rows.size}: " in card_text(small)
    assert [", of several in a step" in card_text(one) for one in (fits, small, large)] == [False, True, True]
    assert cards_of([300, 226], bent, card)[0].most_rows.size >= 226, "which fit with gradients as well"


def card_of(rows: int | None, card_bytes: int, **more: Any) -> CardPlan:
    asked = Wanted(PlannedShape(rows))
    other = planned_by_a_law(asked._replace(changes={"gradient_checkpointing": True}))
    instead = {"gradient_checkpointing=True": other, "bf16=True": PlanError("it can't be planned")}
    card = Card(card_bytes, may_split=True, **more)
    return card_plan(planned_by_a_law(asked), instead, asked, lambda one: lambda: planned_by_a_law(one), card)


def largest(card: CardPlan) -> list[tuple[int, bool] | None]:
    return [one and (one.size, one.is_all) for one in (card.most_rows, card.most_length)]


def test_of_a_card_it_says_what_fits_and_what_else_there_is() -> None:
    card = card_of(None, 6 * GIB + CONTEXT, longest=4096)
    assert card.fits
    assert largest(card) == [(32, False), (2048, False)]
    assert card.smaller is None
    ((name, use),) = card.instead
    assert name == "gradient_checkpointing=True"
    assert use.high_bytes == 4 * GIB + 256 * MIB + CONTEXT


def test_no_batch_is_larger_than_the_data_set() -> None:
    for there_are, most in ((20, (20, True)), (40, (32, False))):
        assert largest(card_of(None, 6 * GIB + CONTEXT, all_rows=there_are))[0] == most


def test_where_no_batch_fits_it_says_whether_others_could_be_planned() -> None:
    too_large = plan_of(GIB)
    for rows in (8, None):  # of a loop that has no rows there are no others
        card = card_plan(plan_of(GIB, rows), {}, Wanted(PlannedShape()), lambda _: lambda: too_large, Card(GIB))
        assert (card.most_rows, card.tried_rows) == (None, rows is not None)


def test_where_it_does_not_fit_smaller_batches_make_the_same_step() -> None:
    card = card_of(16, 4 * GIB + 400 * MIB + CONTEXT)
    assert not card.fits
    assert (card.smaller.size, card.smaller.accumulation) == (6, 3)


def test_a_batch_that_does_not_fit_is_none_of_those_that_do() -> None:
    asked, card = Wanted(PlannedShape(16)), Card(8 * GIB, may_split=True)
    said = card_plan(plan_of(9 * GIB, 16), {}, asked, lambda _: lambda: plan_of(MIB), card)
    assert (largest(said)[0], said.smaller[::3]) == ((15, False), (8, 2))


@pytest.mark.slow
def test_all_of_it_of_a_trainer(tmp_path: Path) -> None:
    asked = {"sizes": [[512, None]], "card_bytes": CONTEXT + 2**27}
    answer = json.loads(json.dumps(answer_to(asked, make_trainer(tmp_path))))
    (card,) = answer["card"]
    assert card["most_rows"][::2] == [32, True]
    assert "\nThe data set has 32 rows: no batch has more.\n" in f"{answer['text']}\n"
    size, (low, high), is_all, _ = card["most_length"]
    assert (size, is_all) == (64, True)
    assert low < high <= CONTEXT + 2**27
    first, *others = (name for name, _ in card["instead"])
    assert first in ("activation_checkpointing=True", "gradient_checkpointing=True")  # of transformers 5, and of 4
    assert others == ["optim=adafactor", "bf16=True"]
    assert answer["text"].startswith("Fits: ")
