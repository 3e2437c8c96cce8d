"""What `forgather-mem plan` gets from a script's Trainer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import Trainer

import forgather_mem
from forgather_mem.planning.answers import answer_to, card_plan, largest_plan
from forgather_mem.planning.card import CONTEXT_BYTES
from forgather_mem.planning.result import PhasePlan, Plan
from forgather_mem.units import GIB, MIB
from tests.training import make_trainer

pytestmark = pytest.mark.plans
pytestmark = pytest.mark.plans


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
    assert str(answer["problem"]).startswith("test_answers.py:")
    assert "bincount" in str(answer["problem"])


def planned_by_a_law(rows: int = 8, length: int = 512, **changes: object) -> Plan:
    """A training of 4 GiB, and a MiB for each 8 tokens; half of that with checkpointing."""
    size = 4 * GIB + rows * length * MIB // (16 if changes.get("gradient_checkpointing") else 8)
    row = PhasePlan(step=2, phase="backward", bytes=size, parts={})
    return Plan(peak_bytes=size, phase="backward", step=2, rows=rows, length=length, reserved_bytes=size, phases=(row,))


def test_of_a_card_it_says_what_fits_and_what_else_there_is() -> None:
    ways = [("gradient_checkpointing", True)]
    card = card_plan(planned_by_a_law(), planned_by_a_law, ways, 4096, 6 * GIB + CONTEXT_BYTES[1])
    assert card.fits
    assert card.most_rows is not None
    assert card.most_rows.size == 32
    assert card.most_length is not None
    assert 2048 - 2048 // 32 <= card.most_length.size <= 2048
    assert card.smaller is None
    ((name, use),) = card.instead
    assert name == "gradient_checkpointing=True"
    assert use.high_bytes == 4 * GIB + 256 * MIB + CONTEXT_BYTES[1]


def test_no_batch_is_larger_than_the_data_set() -> None:
    card = card_plan(planned_by_a_law(), planned_by_a_law, [], 4096, 6 * GIB + CONTEXT_BYTES[1], 20)
    assert card.most_rows is not None
    assert (card.most_rows.size, card.most_rows.is_all) == (20, True)
    card = card_plan(planned_by_a_law(), planned_by_a_law, [], 4096, 6 * GIB + CONTEXT_BYTES[1], 40)
    assert card.most_rows is not None
    assert (card.most_rows.size, card.most_rows.is_all) == (32, False)


def test_where_it_does_not_fit_smaller_batches_make_the_same_step() -> None:
    card = card_plan(planned_by_a_law(16), planned_by_a_law, [], 4096, 4 * GIB + 400 * MIB + CONTEXT_BYTES[1])
    assert not card.fits
    assert card.smaller is not None
    assert (card.smaller.size, card.smaller.accumulation) == (6, 3)


def test_all_of_it_of_a_trainer(tmp_path: Path) -> None:
    card_bytes = CONTEXT_BYTES[1] + 2**27
    answer = json.loads(
        json.dumps(answer_to({"sizes": [[512, None]], "card_bytes": card_bytes}, make_trainer(tmp_path)))
    )
    (card,) = answer["card"]
    assert card["most_rows"][::2] == [32, True]
    size, (low, high), is_all, _ = card["most_length"]
    assert (size, is_all) == (64, True)
    assert low < high <= card_bytes
    assert [name for name, _ in card["instead"]] == ["gradient_checkpointing=True", "optim=adafactor", "bf16=True"]
    assert "On a card of" in answer["text"]


def plan_of(size: int) -> Plan:
    row = PhasePlan(step=1, phase="forward", bytes=size, parts={})
    return Plan(peak_bytes=size, phase="forward", step=1, reserved_bytes=size, phases=(row,))


def found(law: Callable[[int], int], limit: int, first: int, most: int = 10**6) -> tuple[int | None, int]:
    """The answer, and how many plans it took."""
    asked = []

    def plan_at(size: int) -> Plan:
        asked.append(size)
        return plan_of(law(size))

    largest = largest_plan(plan_at, lambda plan: plan.peak_bytes, limit, first, most)
    return (largest[0] if largest is not None else None), len(asked)


@given(st.integers(0, 10**9), st.integers(1, 10**7), st.integers(1, 64), st.integers(0, 10**10))
def test_on_a_line_it_is_exact_but_for_a_32nd(base: int, slope: int, first: int, limit: int) -> None:
    size, plans = found(lambda rows: base + slope * rows, limit, first)
    expected = min(10**6, (limit - base) // slope)
    assert (size or 0) <= max(0, expected) <= (size or 0) + (size or 0) // 32
    assert plans <= 3


def test_on_a_curve_too() -> None:
    size, plans = found(lambda length: 500 + 3 * length + length**2, 10**6, 64)
    assert size is not None
    assert 998 - 998 // 32 <= size <= 998
    assert plans <= 10


def test_steps_of_the_allocator_lead_to_no_wrong_way() -> None:
    size, plans = found(lambda rows: 20 * (1 + rows * 7 // 20), 70_000, 8)
    assert size is not None
    assert 20 * (1 + size * 7 // 20) <= 70_000 < 20 * (1 + (size + size // 32) * 7 // 20)
    assert plans <= 10


def test_no_more_is_asked_than_is_allowed() -> None:
    assert found(lambda length: length, 10**6, 512, most=2048)[0] == 2048


@pytest.mark.parametrize("first", [1, 8])
def test_nothing_fits(first: int) -> None:
    assert found(lambda rows: 1000 + rows, 100, first)[0] is None
