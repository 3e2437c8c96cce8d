"""Who holds what grows? Two looks some steps apart; then, where the source does not tell the line, a short window in
which new objects know where they were made."""

from __future__ import annotations

import tracemalloc
from typing import Any

from forgather_mem.diagnose.alike import as_one
from forgather_mem.diagnose.far import OWNERS_S, LibraryContainers, far_holder
from forgather_mem.diagnose.garbage import Mark, garbage_among
from forgather_mem.diagnose.growth import Grown, chains, grown, look, newest
from forgather_mem.diagnose.leak_sizes import native_bytes
from forgather_mem.diagnose.native_lines import NativeLines
from forgather_mem.diagnose.pieces import has_graph, keeps_frames
from forgather_mem.diagnose.suspects import MAX_SUSPECTS, Suspect, cycle_suspects, native_suspect, suspect_of, traced
from forgather_mem.diagnose.walk import Walk

LOOK_STEPS = 10
_FRAMES = 12
# Of all growth, what the things near must explain; else what was made lately is looked through.
_EXPLAINED_FRAC = 0.5
_LEAST_FRAC = 0.05
_SIZE_UNKNOWN = ("graph", "exceptions")  # a graph is C++'s, and an error's frames may hold one
_HELD_FRAC = 0.15  # of it, what a container must explain to be preferred to the pieces themselves


class CloserLook:
    """The first of two looks; `finish` is the second. Between them nothing of the user's is kept, only numbers."""

    def __init__(self, step: int, far: bool = False, owners_s: float = OWNERS_S) -> None:
        """Look for the first time.

        Args:
            step: The step that has just ended.
            far: Look at what libraries hold, too.
            owners_s: Seconds that the search for the holder of something far may take; `OWNERS_S` for a far look.
        """
        self.step = step
        self._owners_s = OWNERS_S if far else min(owners_s, OWNERS_S)
        walk = Walk()
        self._look = look(walk, step)
        self._far = LibraryContainers(walk.ids()) if far else None
        walk.forget()
        self._mark = Mark()
        # Holders that nobody names a line for; kept for some steps, for others hold them anyway
        self._lineless: list[tuple[Suspect, Any]] = []
        self._tracing = False
        self._native: NativeLines | None = None

    def finish(self, step: int, rate: float) -> list[Suspect]:
        """What has grown since, the most likely first.

        Args:
            step: The step that has just ended.
            rate: The growth that is to be explained, in bytes a step.
        """
        walk = Walk()
        try:
            found = [one for one in as_one(grown(self._look, walk, step), walk) if _tells(one, rate)]
            if not any(one.bytes_per_step > _HELD_FRAC * rate for one in found):  # else they are the pieces of those
                found += [one for one in chains(self._look, walk, step) if _tells(one, rate)]
                found.sort(key=lambda one: -one.bytes_per_step)
            found = found[:MAX_SUSPECTS]
            pairs = [(one, suspect_of(one, walk), walk.nodes[one.position]) for one in found]
            suspects = [suspect for _, suspect, _ in pairs]
            self._lineless = [
                (suspect, holder)
                for one, suspect, holder in pairs[:2]
                if not suspect.allocated_at and one.kind == "items"
            ]
            if sum(one.bytes_per_step for one in suspects) < _EXPLAINED_FRAC * rate and not _has_graph(suspects):
                suspects += self._among_the_young(walk.ids(), step, rate)
        finally:
            walk.forget()
            self._mark.drop()
        for one in suspects:
            if one.kind == "chain":  # whoever hangs on each other is counted once for each
                one.bytes_per_step = min(one.bytes_per_step, rate)
            if one.kind == "exceptions" and one.count:  # too rare to be counted in some steps
                one.count_per_step = max(one.count_per_step, one.count / step)
        _give_rest_to_graph(suspects, rate)
        suspects.sort(key=lambda one: -one.bytes_per_step)
        return [one for one in suspects if not _is_part(one, suspects)][:MAX_SUSPECTS]

    def open_window(self, nothing_found: bool) -> bool:
        """From now on new objects know their line; whether there is a line to be found.

        Args:
            nothing_found: Nobody holds what grows, as far as anybody knows: look for lines that take native memory.
        """
        if self._lineless and not tracemalloc.is_tracing():
            tracemalloc.start(_FRAMES)
            self._tracing = True
        if nothing_found and self._far is not None:
            lines = NativeLines(native_bytes)
            self._native = lines if lines.start() else None
        return bool(self._lineless) or self._native is not None

    def close_window(self, rate: float) -> list[Suspect]:
        """The suspects get the lines at which their newest pieces were made; more of them. Lets go of everything."""
        found = []
        if self._native is not None:
            self._native.stop()
            found = [native_suspect(code, line, rate) for code, line in filter(None, [self._native.found()])]
        for suspect, holder in self._lineless:
            trace = traced(newest(holder, 3))
            if trace:
                suspect.set_line(trace)
        self.drop()
        return found

    def window_told(self) -> bool:
        """Whether the window has seen what it was opened for."""
        return self._native is None and all(traced(newest(holder, 3)) for _, holder in self._lineless)

    def drop(self) -> None:
        """Let go of everything."""
        self._lineless = []
        self._far = None
        self._mark.drop()
        if self._native is not None:
            self._native.stop()
            self._native = None
        if self._tracing:
            self._tracing = False
            tracemalloc.stop()

    def _among_the_young(self, near: set[int], step: int, rate: float) -> list[Suspect]:
        """What was made since the first look and is near nobody: garbage, or held by something far away."""
        steps = max(1, step - self.step)
        if self._far is not None and (found := [one for one in self._far.grown(near, steps) if _tells(one, rate)]):
            return found
        young = self._mark.younger()
        if young is None:
            return []
        suspects = [one for one in cycle_suspects(garbage_among(young), steps) if _tells(one, rate)]
        return suspects or far_holder(young, near, steps, _LEAST_FRAC * rate, self._owners_s)


def _tells(one: Suspect | Grown, rate: float) -> bool:
    """Whether it is large enough to be the leak, or a part of it."""
    if one.kind == "graph":
        return True
    if one.bytes_per_step >= _LEAST_FRAC * rate:
        return True
    # Of some pieces only C++ knows how much they hold
    return (
        isinstance(one, Grown)
        and one.kind == "items"
        and (keeps_frames(one.samples) or (one.count_per_step >= 0.5 and has_graph(one.samples)))
    )


def _give_rest_to_graph(suspects: list[Suspect], rate: float) -> None:
    """Nobody can ask what a graph keeps: it is what the others do not explain."""
    graphs = [one for one in suspects if one.kind in _SIZE_UNKNOWN]
    rest = rate - sum(one.bytes_per_step for one in suspects)
    for one in graphs[:1]:
        one.bytes_per_step += max(0.0, rest)
        if one.count and one.count_per_step:
            one.bytes = round(one.count * one.bytes_per_step / one.count_per_step)


def _is_part(one: Suspect, suspects: list[Suspect]) -> bool:
    """Whether it is in a piece of another suspect, which tells more."""
    name = one.held_by or ""
    return any(other.held_by and name.startswith((f"{other.held_by}[", f"{other.held_by}.")) for other in suspects)


def _has_graph(suspects: list[Suspect]) -> bool:
    return any(one.kind in _SIZE_UNKNOWN for one in suspects)
