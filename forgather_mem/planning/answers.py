"""What `forgather-mem plan` asks of a script's Trainer, and the answer, both as plain values."""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import isqrt
from typing import cast

from forgather_mem.engine.settings import settings_of_training
from forgather_mem.errors import PlanError
from forgather_mem.planning.batches import Trainer
from forgather_mem.planning.card import CardUse, use_of_card
from forgather_mem.planning.changes import ATTENTION
from forgather_mem.planning.entry import plan
from forgather_mem.planning.loop.script import NOT_HERE, Script
from forgather_mem.planning.result import Plan
from forgather_mem.planning.text import CardPlan, Most, card_text

Answer = dict[str, object]


@dataclass(frozen=True, slots=True)
class Searched:
    """How far the largest batch is looked for. Measured by benchmarks/plan_fits.py.

    Attributes:
        most_rows: Rows of a batch.
        most_length: Tokens of a row.
        most_steps: Of accumulation.
        most_plans: So many sizes are planned.
        exact_part: Of larger sizes the largest is found but for this part of it.
    """

    most_rows: int = 2**16
    most_length: int = 2**17
    most_steps: int = 4
    most_plans: int = 10
    exact_part: int = 32


_SEARCH = Searched()


def answer_to(request: Mapping[str, object], training: Trainer | Script) -> Answer | None:
    """The plans of this training that are asked for, in JSON's types; None where a script does not train here.

    Args:
        request: "sizes" is a list of pairs, rows and length of batches; None in place of one leaves it as it is.
            "card_bytes" is the size of a card, or None; "ranks" the number of processes, 1 without it.
        training: The script's Trainer, or its own loop.

    Returns:
        "plans" as dictionaries, "settings" as in a report, "card" where one was asked for, and "text" for people;
        or "problem": why there are none.
    """
    sizes = cast(Sequence[Sequence[int | None]], request["sizes"])
    card_bytes, ranks = cast(int | None, request["card_bytes"]), cast(int, request.get("ranks", 1))
    trainer: Trainer = None if isinstance(training, Script) else training
    planned = functools.partial(plan, training, on_device=card_bytes is not None, ranks=ranks)
    try:
        plans = [planned(rows=rows, length=length) for rows, length in sizes]
        texts = [one.text() for one in plans]
        settings = settings_of_training(trainer.args, trainer.model, trainer.optimizer) if trainer else {}
        answer: Answer = {"plans": [one.to_dict() for one in plans], "settings": settings}
        if card_bytes is not None:
            bounds = _longest(trainer), card_bytes, _rows(trainer, ranks)
            cards = [card_plan(one, planned, _ways(trainer) if trainer else None, *bounds) for one in plans]
            answer["card"] = [asdict(card) for card in cards]
            texts = [f"{text}\n{card_text(card)}" for text, card in zip(texts, cards, strict=True)]
    except PlanError as error:
        return None if str(error).startswith(NOT_HERE) else {"problem": str(error)}
    return {**answer, "text": "\n".join(texts)}


def use_of(plan: Plan) -> CardUse:
    """What a plan takes of a card."""
    return use_of_card(plan.peak_bytes, plan.reserved_bytes)


def _most_of_card(plan: Plan) -> int:
    return use_of(plan).high_bytes


def card_plan(
    own: Plan,
    planned: Callable[..., Plan],
    ways: Iterable[tuple[str, object]] | None,
    longest: int,
    card_bytes: int,
    all_rows: int | None = None,
) -> CardPlan:
    """Whether a plan fits on a card, what is the most that does, and what else there is, all of it planned.

    Args:
        own: The plan.
        planned: Makes the plan of other rows, another length, other arguments.
        ways: Arguments to try instead, by name and value; None where a training has none.
        longest: The most that rows may have.
        card_bytes: The card's memory.
        all_rows: Of the data set, which no batch has more than; None if that is not known.
    """

    rows, length = own.joined or own.rows or 0, 0 if own.joined else own.length or 0
    of_rows = None if own.joined else own.length

    def most(first: int, last: int | None, at: Callable[[int], Plan], in_a_step: int = 0) -> Most | None:
        limit = _SEARCH.most_rows if last is None else last
        try:
            found = largest_plan(at, _most_of_card, card_bytes, first, limit) if first and limit else None
        except PlanError:  # other sizes can't be planned
            return None
        if found is None:
            return None
        return Most(found[0], use_of(found[1]), found[0] == last, -(-in_a_step // found[0]))

    def of(rows: int | None, length: int | None) -> Plan:
        is_own = (rows, length) == (own.joined or own.rows, of_rows)
        return own if is_own else planned(rows=rows, length=length)

    def smaller(rows: int) -> Plan:
        # More batches in a step add nothing but themselves, and would take long to plan
        steps = min(_SEARCH.most_steps, -(-in_a_step // rows))
        return planned(rows=rows, length=of_rows, gradient_accumulation_steps=steps)

    in_a_step = rows * own.accumulation
    fits = use_of(own).high_bytes <= card_bytes
    return CardPlan(
        card_bytes=card_bytes,
        use=use_of(own),
        most_rows=most(rows, all_rows, lambda rows: of(rows, of_rows)),
        most_length=most(length, longest, lambda length: of(own.rows, length)),
        smaller=None if fits or ways is None else most(rows, rows - 1, smaller, in_a_step),
        instead=tuple(_instead(lambda **way: planned(rows=own.joined or own.rows, length=of_rows, **way), ways or ())),
    )


def _instead(planned: Callable[..., Plan], ways: Iterable[tuple[str, object]]) -> Iterator[tuple[str, CardUse]]:
    """Each other way to train the same batch, with what it takes; what can't be planned is left out."""
    for name, value in ways:
        try:
            yield f"{name}={value}", use_of(planned(**{name: value}))
        except PlanError:
            continue


def _ways(trainer: Trainer) -> Iterator[tuple[str, object]]:
    arguments, config = trainer.args, getattr(trainer.model, "config", None)
    if not arguments.gradient_checkpointing and getattr(trainer.model, "supports_gradient_checkpointing", False):
        yield "gradient_checkpointing", True
    if getattr(config, "_attn_implementation", "") == "eager":
        yield ATTENTION, "sdpa"
    if trainer.optimizer is None and "adafactor" not in arguments.optim:
        yield "optim", "adafactor"
    if not arguments.bf16 and not arguments.fp16:
        yield "bf16", True


def _longest(trainer: Trainer) -> int:
    config = getattr(getattr(trainer, "model", None), "config", None)
    return int(getattr(config, "max_position_embeddings", None) or _SEARCH.most_length)


def _rows(trainer: Trainer, ranks: int) -> int | None:
    """Those of the data set that one of the ranks has."""
    dataset = getattr(trainer, "train_dataset", None)
    return min(-(-len(dataset) // ranks), _SEARCH.most_rows) if isinstance(dataset, Sized) else None


def largest_plan(
    plan_at: Callable[[int], Plan], need: Callable[[Plan], int], limit_bytes: int, first: int, most: int
) -> tuple[int, Plan] | None:
    """The largest size whose plan needs no more than the limit, and the plan; None where not even 1 does.

    Where a curve through the sizes so far meets the limit is planned next, until one fits that needs what the curve has
    said, or until the next one does not fit. Of sizes above 32 it is the largest but for a 32nd part.

    Args:
        plan_at: The plan of a size.
        need: The bytes that a plan needs.
        limit_bytes: The limit.
        first: The size to begin with.
        most: No larger one is asked for.
    """
    plans: dict[int, Plan] = {}

    def need_at(size: int) -> int:
        if size not in plans:
            plans[size] = plan_at(size)
        return need(plans[size])

    first = min(first, most)
    need_at(min(2 * first, most) if need_at(first) <= limit_bytes else max(1, first // 2))
    was_wide = 0
    while len(plans) < _SEARCH.most_plans:
        low = max((size for size in plans if need_at(size) <= limit_bytes), default=0)
        high = min((size for size in plans if need_at(size) > limit_bytes), default=most + 1)
        margin = max(1, low // _SEARCH.exact_part)
        if high - low <= margin:
            break
        curve = _curve({size: need_at(size) for size in plans}, limit_bytes)
        is_slow = 2 * (high - low) > was_wide > 0
        was_wide = high - low
        met = low + bisect_left(range(low + 1, high), True, key=lambda size: curve(size) > limit_bytes)
        at = isqrt(max(1, low) * high) if is_slow else met
        at = max(low + margin, min(high - margin, at)) if high in plans else max(low + 1, min(most, at))
        more = curve(at + max(1, at // _SEARCH.exact_part)) - curve(at)
        if need_at(at) <= limit_bytes < need_at(at) + more and 2 * abs(need_at(at) - curve(at)) < more:
            break
    best = max((size for size in plans if need_at(size) <= limit_bytes), default=None)
    return None if best is None else (best, plans[best])


def _curve(needs: Mapping[int, int], limit_bytes: int) -> Callable[[int], Fraction]:
    """The need by size, through the three sizes nearest to the limit, or two.

    Memory is linear in the rows of a batch; in their length it has a square where attention keeps its weights. A curve
    that bends down comes from the allocator's steps: a line takes its place.
    """
    near = sorted(sorted(needs, key=lambda size: abs(needs[size] - limit_bytes))[:3])
    slopes = [Fraction(needs[b] - needs[a], b - a) for a, b in itertools.pairwise(near)]
    bend = (slopes[1] - slopes[0]) / (near[2] - near[0]) if len(slopes) == 2 else Fraction(0)
    if bend < 0:
        slopes, bend = [Fraction(needs[near[-1]] - needs[near[0]], near[-1] - near[0])], Fraction(0)
    slope = slopes[0] if slopes else Fraction(0)
    return lambda size: needs[near[0]] + (slope + bend * (size - near[1] if bend else 0)) * (size - near[0])
