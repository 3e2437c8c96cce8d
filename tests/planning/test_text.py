"""A plan for people."""

from typing import Any

from forgather_mem.planning.card import CardPlan, CardUse, Most, card_text
from forgather_mem.planning.loop.rounds import not_through, where_it_ends
from forgather_mem.planning.result import PhasePlan, Plan

GIB = 2**30
DOES_NOT = "Does not fit: 17.0 GiB to 19.0 GiB of 16.0 GiB"


def use(low: float, high: float) -> CardUse:
    return CardUse(int(low * GIB), int(high * GIB))


def test_the_peak_comes_first_then_a_bar_for_each_part() -> None:
    row = PhasePlan(step=2, phase="backward", bytes=4 * GIB, parts={"parameters": GIB, "activations": 3 * GIB})
    peak: dict[str, Any] = {"peak_bytes": row.bytes, "reserved_bytes": 0, "step": row.step, "phase": row.phase}
    plan = Plan(**peak, rows=8, length=512, phases=(row,), notes=("A note.",))
    assert plan.text().splitlines() == [
        "Peak 4.0 GiB of tensors, backward, a later step, batch 8 x 512.",
        "  activations      3.0 GiB  ##############################",
        "  parameters       1.0 GiB  ##########",
        "A note.",
    ]


def card_plan(card_gib: float, needs: CardUse, **more: Any) -> CardPlan:
    more = {**dict.fromkeys(("most_rows", "most_length", "smaller")), "tried_rows": True, "instead": (), **more}
    return CardPlan(card_bytes=int(card_gib * GIB), use=needs, context=use(0.5, 1), **more)


def test_of_a_card_it_says_first_whether_it_fits_and_that_it_is_computed() -> None:
    card = card_plan(
        24, use(17, 19), most_rows=Most(11, use(22, 24), is_all=True),
        most_length=Most(2048, use(20, 21), is_all=True),
        instead=(("bf16=True", use(10, 11)), ("optim=adafactor", use(12, 13))),
    )  # fmt: skip
    assert card_text(card).splitlines() == [
        "Fits: 17.0 GiB to 19.0 GiB of 24.0 GiB. Computed, not measured.",
        "  of it estimated 512.0 MiB to 1.0 GiB, the context and libraries' workspaces",
        "  largest batch   11: 22.0 GiB to 24.0 GiB, all rows of the data set",
        "  largest length  2,048: 20.0 GiB to 21.0 GiB, the model's configured length",
        "  the same batch with",
        "    bf16=True        10.0 GiB to 11.0 GiB",
        "    optim=adafactor  12.0 GiB to 13.0 GiB",
    ]


def test_a_plan_that_ends_early_fits_until_then() -> None:
    text = card_text(card_plan(24, use(17, 19)), where_it_ends([not_through("79 steps.")]))
    assert text.startswith("Fits, but the plan ends after 79 steps: until then 17.0 GiB to ")


def test_what_does_not_fit_has_a_smaller_batch() -> None:
    smaller = Most(2, use(14, 15.5), accumulation=4)
    card = card_plan(16, use(17, 19), smaller=smaller, instead=(("bf16=True", use(10, 11)),))
    assert card_text(card).splitlines()[:2] == [
        "Does not fit: 17.0 GiB to 19.0 GiB of 16.0 GiB; batch 2 with accumulation 4",
        "  fits. Computed, not measured.",
    ]


def test_or_another_way() -> None:
    others = (("optim=adafactor", use(16, 17)), ("bf16=True", use(10, 11)))
    for more, best in (({"instead": others}, "bf16=True"), ({"most_rows": Most(6, use(14, 15))}, "batch 6")):
        assert card_text(card_plan(16, use(17, 19), **more)).startswith(f"{DOES_NOT}; {best} fits. ")


def test_where_nothing_fits_it_says_so_above_what_was_tried() -> None:
    tried: list[dict[str, Any]] = [{"tried_rows": False}, {}, {"instead": (("bf16=True", use(16, 17)),)}]
    untried, none, said = (card_text(card_plan(16, use(17, 19), **more)) for more in tried)
    assert " ".join(untried.split()).startswith(f"{DOES_NOT}; no other batch or setting could be planned. ")
    for told in (none, said):
        assert " ".join(told.split()).startswith(f"{DOES_NOT}; nothing planned surely fits, not even a batch of 1. ")
    assert said.endswith("bf16=True  16.0 GiB to 17.0 GiB, may or may not fit")


def test_between_the_two_it_may_not_fit() -> None:
    assert card_text(card_plan(18, use(17, 19))).startswith("May or may not fit: 17.0 GiB to 19.0 GiB of 18.0 GiB; ")
