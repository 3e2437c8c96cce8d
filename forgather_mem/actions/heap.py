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
    is frozen or unfrozen here. Forked children get automatic collection back.

    Args:
        freeze: Freeze at all; otherwise only automatic collection is off.
    """

    def __init__(self, freeze: bool = True) -> None:
        self._freeze = freeze
        self._held = False
        self._was_enabled = False
        self._frozen = 0  # how many objects were frozen when we froze last
        self.foreign = False

    def take(self) -> None:
        """Automatic collection goes off. Idempotent."""
        if self._held:
            return
        self._held = True
        self._was_enabled = gc.isenabled()
        self._frozen = 0
        self.foreign = gc.get_freeze_count() > 0
        gc.disable()
        _holding.add(self)
        _restore_in_children()

    def renew(self, *, freeze_again: bool = True) -> dict[str, float]:
        """A full collection of everything, frozen objects too; afterwards all that lives is frozen again.

        Returns:
            What the collection came to, under the names of `Collect`.
        """
        ours = self._ours()
        if ours:
            gc.unfreeze()
            self._frozen = 0
        values = collect(2)
        if ours and freeze_again:
            gc.freeze()
            self._frozen = gc.get_freeze_count()
        return values

    def freeze_more(self) -> None:
        """Freeze what lives now, without unfreezing what is frozen already: no pause to speak of."""
        if self._freeze and not self.foreign:  # not `_ours`: counting what is frozen walks all of it
            self._frozen += len(gc.get_objects())
            gc.freeze()

    def give_back(self) -> None:
        """Everything as it was before `take`, but for what others have changed since. Idempotent."""
        if not self._held:
            return
        self._held = False
        _holding.discard(self)
        if self._frozen and self._ours():
            gc.unfreeze()
        self._frozen = 0
        if self._was_enabled:
            gc.enable()

    def _ours(self) -> bool:
        """Whether freezing is our business: asked for, and nobody else has frozen anything."""
        if gc.get_freeze_count() > self._frozen:  # fewer is normal: frozen objects die, too
            self.foreign = True
        return self._freeze and not self.foreign


@functools.cache
def _restore_in_children() -> None:
    """From now on a forked child, a data worker say, collects automatically when the parent did before."""
    os.register_at_fork(after_in_child=_child_begins)


def _child_begins() -> None:
    for hold in list(_holding):
        if hold._was_enabled:
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
