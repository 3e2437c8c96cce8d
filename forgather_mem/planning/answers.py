"""What `forgather-mem plan` asks of a script's Trainer, and the answer, both as plain values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import asdict
from typing import cast

from forgather_mem.engine.settings import settings_of_training
from forgather_mem.errors import PlanError
from forgather_mem.planning.card import CardUse, use_of_card
from forgather_mem.planning.changes import ATTENTION
from forgather_mem.planning.entry import plan
from forgather_mem.planning.fits import largest_plan
from forgather_mem.planning.result import Plan
from forgather_mem.planning.text import CardPlan, Most, card_text
from forgather_mem.planning.trainer import Trainer

Answer = dict[str, object]
_MOST_ROWS, _MOST_LENGTH, _MOST_STEPS = 2**16, 2**17, 4


def answer_to(request: Mapping[str, object], trainer: Trainer) -> Answer:
    """The plans of this trainer that are asked for, in JSON's types.

    Args:
        request: "sizes" is a list of pairs, rows and length of batches; None in place of one leaves it as it is.
            "card_bytes" is the size of a card, or None; "ranks" the number of processes, 1 without it.
        trainer: The script's.

    Returns:
        "plans" as dictionaries, "settings" as in a report, "card" where one was asked for, and "text" for people;
        or "problem": why there are none.
    """
    sizes = cast(Sequence[Sequence[int | None]], request["sizes"])
    card_bytes = cast(int | None, request["card_bytes"])
    planned = functools.partial(
        plan, trainer, on_device=card_bytes is not None, ranks=cast(int, request.get("ranks", 1))
    )
    try:
        plans = [planned(rows=rows, length=length) for rows, length in sizes]
        texts = [one.text() for one in plans]
        settings = settings_of_training(trainer.args, trainer.model, trainer.optimizer)
        answer: Answer = {"plans": [one.to_dict() for one in plans], "settings": settings}
        if card_bytes is not None:
            bounds = _longest(trainer), card_bytes, _rows(trainer, cast(int, request.get("ranks", 1)))
            cards = [card_plan(one, planned, _ways(trainer), *bounds) for one in plans]
            answer["card"] = [asdict(card) for card in cards]
            texts = [f"{text}\n{card_text(card)}" for text, card in zip(texts, cards, strict=True)]
    except PlanError as error:
        return {"problem": str(error)}
    return {**answer, "text": "\n".join(texts)}


def use_of(plan: Plan) -> CardUse:
    """What a plan takes of a card."""
    return use_of_card(plan.peak_bytes, plan.reserved_bytes)


def _most_of_card(plan: Plan) -> int:
    return use_of(plan).high_bytes


def card_plan(
    own: Plan,
    planned: Callable[..., Plan],
    ways: Iterable[tuple[str, object]],
    longest: int,
    card_bytes: int,
    all_rows: int | None = None,
) -> CardPlan:
    """Whether a plan fits on a card, what is the most that does, and what else there is, all of it planned.

    Args:
        own: The plan.
        planned: Makes the plan of other rows, another length, other arguments.
        ways: Arguments to try instead, by name and value.
        longest: The most that rows may have.
        card_bytes: The card's memory.
        all_rows: Of the data set, which no batch has more than; None if that is not known.
    """

    rows, length = own.joined or own.rows or 0, 0 if own.joined else own.length or 0
    of_rows = None if own.joined else own.length

    def most(first: int, last: int | None, at: Callable[[int], Plan], in_a_step: int = 0) -> Most | None:
        limit = _MOST_ROWS if last is None else last
        found = largest_plan(at, _most_of_card, card_bytes, first, limit) if first and limit else None
        if found is None:
            return None
        return Most(found[0], use_of(found[1]), found[0] == last, -(-in_a_step // found[0]))

    def of(rows: int | None, length: int | None) -> Plan:
        is_own = (rows, length) == (own.joined or own.rows, of_rows)
        return own if is_own else planned(rows=rows, length=length)

    def smaller(rows: int) -> Plan:
        # More batches in a step add nothing but themselves, and would take long to plan
        steps = min(_MOST_STEPS, -(-in_a_step // rows))
        return planned(rows=rows, length=of_rows, gradient_accumulation_steps=steps)

    in_a_step = rows * own.accumulation
    fits = use_of(own).high_bytes <= card_bytes
    return CardPlan(
        card_bytes=card_bytes,
        use=use_of(own),
        most_rows=most(rows, all_rows, lambda rows: of(rows, of_rows)),
        most_length=most(length, longest, lambda length: of(own.rows, length)),
        smaller=None if fits else most(rows, rows - 1, smaller, in_a_step),
        instead=tuple(_instead(lambda **way: planned(rows=own.joined or own.rows, length=of_rows, **way), ways)),
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
    config = getattr(trainer.model, "config", None)
    return int(getattr(config, "max_position_embeddings", None) or _MOST_LENGTH)


def _rows(trainer: Trainer, ranks: int) -> int | None:
    """Those of the data set that one of the ranks has."""
    dataset = trainer.train_dataset
    return min(-(-len(dataset) // ranks), _MOST_ROWS) if isinstance(dataset, Sized) else None
