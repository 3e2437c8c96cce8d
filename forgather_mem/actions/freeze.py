"""Hides Python's heap from the collector, and restores it exactly as it was."""

from __future__ import annotations

import functools
import gc
import os

from forgather_mem.actions.collect import collect
from forgather_mem.telemetry.beside import marked

_holding = marked()  # holds that have automatic collection off in this process


class HeapHold:
    """Automatic collection off and long-lived objects frozen, from `take` to `give_back`.

    `gc.freeze()` hides every live object from the collector, so that a full collection then visits only newer objects.
    The price: a frozen object dropped in a cycle stays until `renew` or `give_back`.

    Objects frozen by other code are respected: `gc.unfreeze()` is all or nothing, so then nothing is frozen or unfrozen
    here. When other code calls `gc.freeze()` meanwhile, ours and theirs can't be told apart from then on, and both stay
    frozen.

    Forked children get automatic collection back. Of several overlapping holds, the last one restores it.

    Args:
        freeze: Whether to freeze; otherwise only automatic collection is off.

    Attributes:
        held: Whether it is taken.
        foreign: Whether other code was found to have frozen objects.
    """

    def __init__(self, freeze: bool = True) -> None:
        self.foreign = False
        self._freeze = freeze
        self.held = False
        self._was_enabled = False
        self._frozen = False  # whether we have frozen
        self._marker: list[object] | None = None  # created after that, so that only a later freeze hides it

    def take(self) -> None:
        """Switch automatic collection off. Idempotent."""
        if self.held:
            return
        self.held = True
        self.foreign = gc.get_freeze_count() > 0
        self._was_enabled = gc.isenabled()
        _holding[self] = True
        _restore_in_children()
        gc.disable()

    def renew(self, *, freeze_again: bool = True) -> dict[str, float]:
        """A full collection of everything including frozen objects; then all live objects are frozen again.

        Returns:
            The results of the collection, under the names of `Collect`.
        """
        ours = self._is_ours()
        if ours:
            self._unfreeze()
        values = collect(2)
        if ours and freeze_again:
            self._freeze_all()
        return values

    def freeze_more(self) -> None:
        """Freeze all live objects without unfreezing any: practically no pause."""
        if self._is_ours():
            self._freeze_all()

    def give_back(self) -> None:
        """Restore everything as it was before `take`, except what others have changed since. Idempotent."""
        if not self.held:
            return
        if self._frozen and self._is_ours():
            self._unfreeze()
        _holding.discard(self)
        heir = next(iter(_holding), None)
        if heir is not None:
            heir._was_enabled |= self._was_enabled
        elif self._was_enabled:
            gc.enable()
        self.held = False  # last: after a Ctrl-C before this, the next call does the rest

    def _is_ours(self) -> bool:
        """Whether we may freeze: it is requested, and no other code has frozen anything."""
        if not self._frozen:
            self.foreign |= gc.get_freeze_count() > 0
        elif self._marker is not None:
            # Counting frozen objects walks all of them (0.1 s for 400 000). This walks the others: a marker that the
            # collector does not see was frozen by other code.
            self.foreign |= not gc.get_referrers(self._marker[0])
        return self._freeze and not self.foreign

    def _freeze_all(self) -> None:
        self._frozen, self._marker = True, None  # first: after a Ctrl-C in between, there is a record to undo
        gc.freeze()
        self._marker = [object()]

    def _unfreeze(self) -> None:
        gc.unfreeze()
        self._frozen, self._marker = False, None


@functools.cache
def _restore_in_children() -> None:
    """From now on a forked child, such as a data worker, collects automatically if the parent did before."""
    os.register_at_fork(after_in_child=_child_begins)


def _child_begins() -> None:
    if any(hold._was_enabled for hold in _holding):
        gc.enable()
    _holding.clear()
