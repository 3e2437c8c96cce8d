"""How is Python's heap put out of the collector's way, and given back exactly as it was?"""

from __future__ import annotations

import functools
import gc
import os
import weakref

from forgather_mem.actions.collect import collect

_holding: weakref.WeakSet[HeapHold] = weakref.WeakSet()  # who has automatic collection off in this process


class HeapHold:
    """Automatic collection off and long-lived objects frozen, from `take` to `give_back`.

    `gc.freeze()` puts every object that is alive out of the collector's sight, so that a full collection
    then looks only at what came since. Its price: a frozen object that is dropped in a cycle stays until
    `renew` or `give_back`.

    Objects that somebody else has frozen are respected: `gc.unfreeze()` is all or nothing, so then nothing
    is frozen or unfrozen here. Forked children get automatic collection back. Of several holds that overlap
    the last one to go restores it.

    Args:
        freeze: Freeze at all; otherwise only automatic collection is off.

    Attributes:
        foreign: Whether somebody else was found to have frozen objects.
    """

    def __init__(self, freeze: bool = True) -> None:
        self.foreign = False
        self._freeze = freeze
        self._held = False
        self._was_enabled = False
        self._frozen = False  # whether we have frozen
        self._marker: list[object] | None = None  # made after that, so that only a later freeze hides it

    def take(self) -> None:
        """Automatic collection goes off. Idempotent."""
        if self._held:
            return
        self._held = True
        self.foreign = gc.get_freeze_count() > 0
        self._was_enabled = gc.isenabled()
        _holding.add(self)
        _restore_in_children()
        gc.disable()

    def renew(self, *, freeze_again: bool = True) -> dict[str, float]:
        """A full collection of everything, frozen objects too; afterwards all that lives is frozen again.

        Returns:
            What the collection came to, under the names of `Collect`.
        """
        ours = self._is_ours()
        if ours:
            self._unfreeze()
        values = collect(2)
        if ours and freeze_again:
            self._freeze_all()
        return values

    def freeze_more(self) -> None:
        """Freeze what lives now, without unfreezing what is frozen already: no pause to speak of."""
        if self._is_ours():
            self._freeze_all()

    def give_back(self) -> None:
        """Everything as it was before `take`, but for what others have changed since. Idempotent."""
        if not self._held:
            return
        if self._frozen and self._is_ours():
            self._unfreeze()
        _holding.discard(self)
        heir = next(iter(_holding), None)
        if heir is not None:
            heir._was_enabled |= self._was_enabled
        elif self._was_enabled:
            gc.enable()
        self._held = False  # last: a Ctrl-C before this leaves the rest to the next call

    def _is_ours(self) -> bool:
        """Whether freezing is our business: asked for, and nobody else has frozen anything."""
        if not self._frozen:
            self.foreign |= gc.get_freeze_count() > 0
        elif self._marker is not None:
            # Counting what is frozen walks all of it (0.1 s for 400 000 objects). This walks what is not: a marker
            # that the collector does not see was frozen by somebody else.
            self.foreign |= not gc.get_referrers(self._marker[0])
        return self._freeze and not self.foreign

    def _freeze_all(self) -> None:
        self._frozen, self._marker = True, None  # first: a Ctrl-C in between finds what there is to undo
        gc.freeze()
        self._marker = [object()]

    def _unfreeze(self) -> None:
        gc.unfreeze()
        self._frozen, self._marker = False, None


@functools.cache
def _restore_in_children() -> None:
    """From now on a forked child, a data worker say, collects automatically when the parent did before."""
    os.register_at_fork(after_in_child=_child_begins)


def _child_begins() -> None:
    if any(hold._was_enabled for hold in _holding):
        gc.enable()
    _holding.clear()


def frees_aged_cycles(generation: int) -> bool:
    """Whether `gc.collect(generation)` of this interpreter frees a cycle that has survived such a collection.

    Up to Python 3.13 only generation 2 does: with less, aged cycles pile up for ever. Some versions of 3.14
    give `collect(1)` another meaning, so this tries it.
    """

    class Node:
        pass

    node = Node()
    node.self = node  # type: ignore[attr-defined]
    alive = weakref.ref(node)
    for _ in range(2):
        gc.collect(generation)
    del node
    gc.collect(generation)
    return alive() is None
