"""What a plan says beside its numbers, and what each sentence means for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias, cast

Bound: TypeAlias = Literal["exact", "at least", "at most"]


class Note(str):
    """A sentence for people, which says to other code what it means for the peak.

    Args:
        text: The sentence.
        bound: What the peak is for it.
        lengths_differ: Whether other batches take less than those that were planned.
    """

    bound: Bound
    lengths_differ: bool

    def __new__(cls, text: str, bound: Bound = "exact", lengths_differ: bool = False) -> Note:
        note = super().__new__(cls, text)
        note.bound, note.lengths_differ = bound, lengths_differ
        return note


def bound_of_notes(notes: Iterable[str]) -> Bound:
    """What the peak is for all of these: where something is not planned, it is at least that.

    >>> bound_of_notes(["A sentence.", Note("All of it is planned.", "at most")])
    'at most'
    """
    found = {note.bound for note in notes if isinstance(note, Note)}
    return cast(Bound, next((one for one in ("at least", "at most") if one in found), "exact"))
