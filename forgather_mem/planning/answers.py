"""What `forgather-mem plan` asks of a script's training, and the answer, both as plain values.

The largest size that fits is found by few plans: what rows need is nearly a line, so that two tell where the third is
to look. A search is a generator, which yields what it asks for and is sent its plan; several run side by side.
"""

from __future__ import annotations

import functools
import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict
from math import prod
from typing import NamedTuple, TypeAlias, TypeVar, cast

from forgather_mem.engine.settings import settings_of_training
from forgather_mem.errors import PlanError
from forgather_mem.planning.batches import PlannedShape, Trainer, Wanted
from forgather_mem.planning.card import CardPlan, CardUse, Most, card_text, context_of, use_of_card
from forgather_mem.planning.entry import begun_plan
from forgather_mem.planning.isolation.child import WaitsError
from forgather_mem.planning.loop.rounds import where_it_ends
from forgather_mem.planning.loop.script import NOT_HERE, Script
from forgather_mem.planning.model import AliveThings
from forgather_mem.planning.result import Plan
from forgather_mem.planning.trainer import ATTENTION, CHECKPOINTING

Answer = dict[str, object]
Found = TypeVar("Found")
Asked = TypeVar("Asked")
Search = Generator[Asked, Plan, Found]
Begin: TypeAlias = Callable[[Wanted], Callable[[], Plan]]
_MOST_ROWS, _MOST_LENGTH = _UNBOUNDED = 2**16, 2**17  # of a search, where nothing else bounds them
_MOST_PLANS = 10  # a search whose forecasts are all wrong ends with the best that it has found
_NEAR = 32  # a size that is larger by no more than one in so many is not looked for: a guess


class Card(NamedTuple):
    """A card, and what is tried on it.

    Attributes:
        bytes: Its memory.
        may_split: Whether batches that do not fit can be split into several of a step.
        longest: The most that rows may have.
        all_rows: Of the data set, which no batch has more than.
        planned: All sizes that are asked for, with their plans. Where only the rows differ, or the length, the searches
            begin with the same of them, so that they find the same, and nothing smaller than what fits.
    """

    bytes: int
    may_split: bool = False
    longest: int = _MOST_LENGTH
    all_rows: int = _MOST_ROWS
    planned: tuple[tuple[Wanted, Plan], ...] = ()


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
    sizes = cast(Sequence[tuple[int | None, int | None]], request["sizes"])
    card_bytes, ranks = cast(int | None, request["card_bytes"]), cast(int, request.get("ranks", 1))
    trainer: Trainer = None if isinstance(training, Script) else training
    begin = functools.partial(begun_plan, training, alive=AliveThings())
    asked = [Wanted(PlannedShape(*size), card_bytes is not None, ranks) for size in sizes]
    ways = {f"{name}={value}": {name: value} for name, value in _ways(trainer)} if trainer and card_bytes else {}
    tried = [one._replace(changes=changes) for one in asked for changes in ({}, *ways.values())]
    try:
        made = side_by_side([_once(one) for one in tried], begin)
        each = [made[at : at + 1 + len(ways)] for at in range(0, len(made), 1 + len(ways))]
        if failed := [own for own, *_ in each if isinstance(own, PlanError)]:
            raise failed[0]
        plans = [cast(Plan, own) for own, *_ in each]
        texts = [one.text() for one in plans]
        settings = settings_of_training(trainer.args, trainer.model, trainer.optimizer) if trainer else {}
        answer: Answer = {"plans": [one.to_dict() for one in plans], "settings": settings}
        if card_bytes is not None:
            all_rows = -(-plans[0].all_rows // ranks) or _MOST_ROWS
            card = Card(card_bytes, bool(trainer), _longest(trainer), all_rows, tuple(zip(asked, plans, strict=True)))
            instead = [dict(zip(ways, others, strict=True)) for _, *others in each]
            cards = [card_plan(*row, begin, card) for row in zip(plans, instead, asked, strict=True)]
            answer["card"] = [asdict(one) for one in cards]
            told = zip(cards, plans, strict=True)
            texts = [f"{card_text(one, where_it_ends(plan.notes))}\n{plan.text()}" for one, plan in told]
    except PlanError as error:
        may_go_on = isinstance(training, Script) and not training.is_late and isinstance(error, WaitsError)
        return None if may_go_on or str(error).startswith(NOT_HERE) else {"problem": str(error)}
    return {**answer, "text": "\n".join(texts)}


def card_plan(own: Plan, instead: Mapping[str, Plan | PlanError], asked: Wanted, begin: Begin, card: Card) -> CardPlan:
    """Whether a plan fits on a card, what is the most that does, and what else there is, all of it planned.

    Args:
        own: The plan.
        instead: Those with other arguments; what can't be planned is left out.
        asked: What it is of.
        begin: Begins another, and returns what waits for it.
        card: The card.
    """
    alike, rows, shape = ((asked, own), *card.planned), _sizes(own)[0], asked.shape
    context = context_of(card.bytes, asked.ranks)

    def use_of(plan: Plan) -> CardUse:
        return use_of_card(plan.peak_bytes, plan.reserved_bytes, plan.trace, card.bytes, context)

    # What does not fit is to have as many rows in a step, so that gradients are there while the later ones are computed
    is_split = use_of(own).high_bytes > card.bytes and card.may_split
    changes = {"gradient_accumulation_steps": 2} if is_split and own.accumulation == 1 else asked.changes

    by_rows = {_sizes(plan)[0]: plan for other, plan in alike if other.shape.length == shape.length}
    by_length = {_sizes(plan)[1]: plan for other, plan in alike if other.shape.rows == shape.rows}
    most = functools.partial(_most, use_of, card.bytes)
    of_rows = most(
        by_rows, card.all_rows, lambda rows: asked._replace(shape=shape._replace(rows=rows), changes=changes), is_split
    )
    of_length = most(by_length, card.longest, lambda length: asked._replace(shape=shape._replace(length=length)))
    # Other sizes of a script's own batches can't always be planned
    found = side_by_side([of_rows, of_length], begin)
    most_rows, most_length = (None if isinstance(one, PlanError) else one for one in found)
    smaller = None
    if is_split and most_rows is not None:
        steps = -(-rows * own.accumulation // most_rows.size)  # and no more rows in a step than there are
        smaller = most_rows._replace(size=-(-rows * own.accumulation // steps), accumulation=steps)
    return CardPlan(
        card_bytes=card.bytes,
        use=use_of(own),
        context=context,
        most_rows=most_rows,
        tried_rows=rows > 0 and not isinstance(found[0], PlanError),
        most_length=most_length,
        smaller=smaller,
        instead=tuple((name, use_of(one)) for name, one in instead.items() if isinstance(one, Plan)),
    )


def _most(
    use_of: Callable[[Plan], CardUse], room: int, known: Mapping[int, Plan], all_of: int, at: Callable[[int], Wanted],
    split: bool = False,
) -> Search[Wanted, Most | None]:  # fmt: skip
    """The search for the largest size, from the largest of the known ones that fits on. If `split`, others are searched
    for below those that don't fit: batches of another training, of which none is known.
    """
    needs = {size: use_of(plan).high_bytes for size, plan in known.items()}
    fit = {size for size in needs if needs[size] <= room}
    first = max(fit, default=min(known))
    last, begun = (min(all_of, min(known.keys() - fit) - 1), None) if split else (all_of, known[first])
    if not first or not last:
        return None
    found = yield from largest_plan(at, lambda plan: use_of(plan).high_bytes, room, first, last, begun)
    return Most(found[0], use_of(found[1]), found[0] == all_of not in _UNBOUNDED) if found else None


def side_by_side(
    searches: Sequence[Search[Asked, Found]], begin: Callable[[Asked], Callable[[], Plan]]
) -> list[Found | PlanError]:
    """What each comes to, or why it could not be planned; as many plans are made at once as there are processors.

    Args:
        searches: Each yields what it asks for.
        begin: Begins a plan; what it returns waits for it.
    """
    found: dict[int, Found | PlanError] = {}
    told: deque[tuple[int, Plan | None]] = deque((number, None) for number in range(len(searches)))
    begun: deque[tuple[int, Callable[[], Plan]]] = deque()
    while told or begun:
        try:
            if told and len(begun) < len(os.sched_getaffinity(0)):
                number, plan = told.popleft()
                begun.append((number, begin(searches[number].send(plan))))  # type: ignore[arg-type]
            else:
                number, wait = begun.popleft()
                told.appendleft((number, wait()))  # before what has not begun: its way is longer
        except StopIteration as end:
            found[number] = end.value
        except PlanError as error:
            found[number] = error
    return [found[number] for number in range(len(searches))]


def largest_plan(
    at: Callable[[int], Asked], need: Callable[[Plan], int], room: int, first: int, most: int, own: Plan | None = None
) -> Search[Asked, tuple[int, Plan] | None]:
    """The largest size that fits, within 3 %, and its plan; None where not even 1 does.

    Args:
        at: What to ask for, for the plan of a size.
        need: The bytes that a plan needs; a larger size needs no less.
        room: What there is of them.
        first: The size to begin with.
        most: No larger one is asked for.
        own: The plan of the first, if there is one.
    """
    needs, best = dict[int, int](), None
    size, low, high = min(first, most), 0, most + 1
    while low < size < high and len(needs) < _MOST_PLANS:
        plan = own if own is not None and size == first else (yield at(size))
        needs[size] = need(plan)
        if needs[size] <= room:
            low, best = size, (size, plan)
        else:
            high = size
        size = _foretold(needs, room, low, high) if len(needs) > 1 else min(2 * size, most) if low else size // 2
        # No forecast ends it, only a plan that does not fit
        size = max(size, min(low + 1 + low // _NEAR, high))
    return best


def _sizes(plan: Plan) -> tuple[int, int]:
    """Rows and length of its batches; 0 where no other can be asked for."""
    return plan.joined or plan.rows or 0, 0 if plan.joined else plan.length or 0


def _once(asked: Wanted) -> Search[Wanted, Plan]:
    return (yield asked)


def _ways(trainer: Trainer) -> Iterator[tuple[str, object]]:
    arguments, config = trainer.args, getattr(trainer.model, "config", None)
    can_checkpoint = getattr(trainer.model, "supports_gradient_checkpointing", False)
    if can_checkpoint and not any(getattr(arguments, name, False) for name in CHECKPOINTING):
        yield next(name for name in CHECKPOINTING if hasattr(arguments, name)), True
    if getattr(config, "_attn_implementation", "") == "eager":
        yield ATTENTION, "sdpa"
    if trainer.optimizer is None and "adafactor" not in arguments.optim:
        yield "optim", "adafactor"
    if not arguments.bf16 and not arguments.fp16:
        yield "bf16", True


def _longest(trainer: Trainer) -> int:
    config = getattr(getattr(trainer, "model", None), "config", None)
    return int(getattr(config, "max_position_embeddings", None) or _MOST_LENGTH)


def _foretold(needs: Mapping[int, int], room: int, low: int, high: int) -> int:
    """The largest size from the one to below the other that is to fit, by the curve through three needs: the smallest
    that is too much and the nearest two, as long as all fit by the line through two.

    Attention that keeps its weights needs the square of a length.
    """
    near = sorted(needs, key=lambda size: (size != high, abs(size - (low or high))))[: 2 + (high in needs)]

    def at(size: int) -> float:
        return sum(needs[one] * prod((size - other) / (one - other) for other in near if other != one) for one in near)

    return low + bisect_left(range(low + 1, high), True, key=lambda size: at(size) > room)
