"""A plan as text of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from forgather_mem.planning.card import CardUse
from forgather_mem.units import format_bytes


def bars(parts: Mapping[str, int], peak_bytes: int) -> Iterator[str]:
    """A bar for each part of the peak."""
    width = max(12, *map(len, parts)) if parts else 12
    for name, size in sorted(parts.items(), key=lambda row: -row[1]):
        bar = "#" * round(40 * size / max(1, peak_bytes))
        yield f"  {name:<{width}} {format_bytes(size):>11}  {bar}".rstrip()


class Most(NamedTuple):
    """The largest size that fits, rows or their length, with its use of the card."""

    size: int
    use: CardUse
    is_all: bool = False  # no larger one is possible
    accumulation: int = 0  # batches in a step


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlan:
    """What is said of a card: each use is an interval, least and most bytes.

    Attributes:
        card_bytes: The card's memory.
        use: What the training takes.
        context: What of it is an estimate: what a context and libraries take beside tensors.
        most_rows: The largest batch that fits; None if there is none.
        most_length: The greatest length that fits; the same.
        smaller: Where the training does not fit, the batches that do, with as many rows in a step.
        instead: Other ways to train the same batch.
    """

    card_bytes: int
    use: CardUse
    context: CardUse
    most_rows: Most | None
    most_length: Most | None
    smaller: Most | None
    instead: tuple[tuple[str, CardUse], ...]

    @property
    def fits(self) -> bool:
        """Whether it fits for certain."""
        return self.use.high_bytes <= self.card_bytes


def card_text(card: CardPlan) -> str:
    """Whether it fits and what would, then what is the most that does, and what else there is."""
    lines = textwrap.wrap(f"{_verdict(card)} Computed, not measured.", 80, subsequent_indent="  ")
    lines.append(f"  of it estimated {_interval(card.context)}, the context and libraries' workspaces")
    for name, found, all_of in (
        ("largest batch", card.most_rows, "all rows of the data set"),
        ("largest length", card.most_length, "the most that the model takes"),
    ):
        if found is not None:
            bound = f", {all_of}" if found.is_all else ""
            lines.append(f"  {name:<14}  {found.size:,}: {_interval(found.use)}{bound}")
    if card.instead:
        lines.append("  the same batch with")
        width = max(len(name) for name, _ in card.instead)
        for name, use in card.instead:
            lines.append(f"    {name:<{width}}  {_interval(use)}{'' if card.fits else f', {_word(use, card)}'}")
    return "\n".join(lines)


def _verdict(card: CardPlan) -> str:
    of_card = f"{_interval(card.use)} of {format_bytes(card.card_bytes)}"
    if card.fits:
        return f"Fits: {of_card}."
    others = [name for name, use in card.instead if use.high_bytes <= card.card_bytes]
    if card.smaller is not None:
        others.insert(0, f"batch {card.smaller.size:,} with accumulation {card.smaller.accumulation}")
    elif card.most_rows is not None:  # in a loop of the script's own
        others.append(f"batch {card.most_rows.size:,}")
    nothing = "nothing planned surely fits, not even a batch of 1"
    others.append(nothing if card.instead else "no other batch or setting could be planned")
    best = f"; {others[0]}{' fits' * (len(others) > 1)}"
    return f"{_word(card.use, card).capitalize()}: {of_card}{best}."


def _word(use: CardUse, card: CardPlan) -> str:
    sure = "does not fit" if use.low_bytes > card.card_bytes else "may or may not fit"
    return sure if use.high_bytes > card.card_bytes else "fits"


def _interval(use: CardUse) -> str:
    return f"{format_bytes(use.low_bytes)} to {format_bytes(use.high_bytes)}"
