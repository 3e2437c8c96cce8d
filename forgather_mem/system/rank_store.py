"""Lets ranks agree without a collective, through the key-value store that torch.distributed keeps anyway.

A collective in a callback deadlocks as soon as one rank skips it. Here one rank writes a value and the others read it.
The store is a server in one of the processes, and where that stands still, a question to it has no end. So a thread
puts the questions; the training waits for an answer for `ANSWER_S` at most, and not at all while an earlier question
has none.
"""

from __future__ import annotations

import _thread
import atexit
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from forgather_mem.errors import missing
from forgather_mem.system.forks import FORKS

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

logger = logging.getLogger(__name__)
T = TypeVar("T")

ANSWER_S = 0.5  # an answer takes 0.1 ms in one machine
_RETRY_S = 60.0
_IDLE_S = 1.0
_PREFIX = "forgather_mem/"
_NO_ANSWER = (
    "the store of torch.distributed does not answer (%s); the training goes on, but nothing new is agreed on between "
    "the ranks until it does"
)


def default_store() -> Store | None:
    """The store of the process group; None if torch.distributed is not initialised or not imported."""
    # Where torch has no ranks it is missing
    if not getattr(sys.modules.get("torch.distributed"), "is_initialized", bool)():
        return None
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    store: Store | None = getattr(c10d, "_get_default_store", lambda: None)()
    return store


@dataclass(eq=False)
class _Question(Generic[T]):
    """Something that is asked of the store, which it does not keep.

    Attributes:
        ask: Called with the store.
        answer: What came of it; None before it is `done`, and when it `failed`.
    """

    ask: Callable[[Store], T]
    answer: T | None = None
    failed: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class _Asker:
    """Puts questions to the store, one after the other, in a thread that ends when nobody asks any more.

    The thread is none of `threading.enumerate()`: a script that joins all of those waits for its own.
    """

    def __init__(self) -> None:
        self._begin_process()

    def _begin_process(self) -> None:
        self._forks = FORKS.number
        self._lock = threading.Lock()
        self._is_answering = False
        self._questions: queue.SimpleQueue[tuple[_Question[Any], Store]] = queue.SimpleQueue()
        self._open: dict[str, _Question[Any]] = {}  # those whose answer nobody has taken
        self._slow = False  # the last answer came late, or has not come
        self._gone = (0, 0.0)  # the store that has failed last, and when it is asked again

    def ask(self, key: str, ask: Callable[[Store], T], *, anew: bool, wait_s: float = ANSWER_S) -> _Question[T] | None:
        """The question, `done` or still under way; None without a store.

        Args:
            key: While a question under this key is under way, no other is put.
            ask: Called with the store, in the thread.
            anew: Whether a late answer counts for nothing.
            wait_s: How long to wait for the answer, while answers come in time. With 0 a question that has none yet
                does not count as one that was answered late.
        """
        if self._forks != FORKS.number:
            self._begin_process()  # in a forked child: the thread is the parent's
        question = self._open.get(key)
        if question is not None and question.done.is_set():
            del self._open[key]
            if not anew and question.answer is not None:
                return question
            question = None
        if question is None:
            store = default_store()
            if store is None or (id(store) == self._gone[0] and time.monotonic() < self._gone[1]):
                return None
            question = self._open[key] = _Question(ask)
            self._hand_over(question, store)
        if question.done.wait(0.0 if self._slow else wait_s):
            del self._open[key]
        elif wait_s:
            self._slow = True
        return question

    def _hand_over(self, question: _Question[T], store: Store) -> None:
        with self._lock:
            self._questions.put((question, store))
            if not self._is_answering:
                self._is_answering = True
                _thread.start_new_thread(self._answer, ())
                atexit.unregister(self._ends)
                atexit.register(self._ends)

    def _ends(self) -> None:
        """Wait for what is under way: a thread that comes back from the store after Python's end aborts the process."""
        if self._forks == FORKS.number:
            deadline_s = time.monotonic() + ANSWER_S
            for question in tuple(self._open.values()):
                question.done.wait(max(0.0, deadline_s - time.monotonic()))

    def _answer(self) -> None:
        """What the thread does."""
        while True:
            try:
                question, store = self._questions.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._questions.empty():
                        self._is_answering = False
                        return
                continue
            began_s = time.monotonic()
            try:
                question.answer = question.ask(store)
                self._slow = time.monotonic() - began_s > ANSWER_S
            except Exception as error:  # noqa: BLE001  # the store's server is gone; this is the thread's fence
                question.failed = True
                if not self._gone[0]:
                    logger.warning(_NO_ANSWER, str(error).partition("\n")[0])
                self._gone = (id(store), time.monotonic() + _RETRY_S)
            question.done.set()
            del question, store


# One, because a process has one default store.
_ASKER = _Asker()


def put(key: str, value: str | bytes, *, wait_s: float = ANSWER_S) -> bool:
    """Write a value for the other ranks; whether it is on its way. False without a store, or when it is gone."""

    def write(store: Store) -> None:
        store.set(_PREFIX + key, value)  # type: ignore[arg-type]  # takes bytes, too

    question = _ASKER.ask(f"put {key}", write, anew=True, wait_s=wait_s)
    return question is not None and not question.failed


def count(key: str) -> int | None:
    """How often this was asked before with this key, by any rank; None where the store does not answer in time."""
    question = _ASKER.ask(f"count {key}", lambda store: int(store.add(_PREFIX + key, 1)) - 1, anew=True)
    return question.answer if question is not None else None


def get(key: str) -> bytes | None:
    """What somebody has put there; None when nobody has, or the store does not answer in time."""
    full = _PREFIX + key

    def read(store: Store) -> bytes | None:
        return bytes(store.get(full)) if store.check([full]) else None

    question = _ASKER.ask(f"get {full}", read, anew=False)
    return question.answer if question is not None else None


def read_ahead(keys: Sequence[str]) -> list[bytes | None] | None:
    """What stood under each of the keys when this was asked for the last time, and asks anew; None without an answer.

    It never waits, and asks for nothing that is not there: ranks may have died.
    """
    full = [_PREFIX + key for key in keys]

    def read(store: Store) -> list[bytes | None]:
        there = full if store.check(full) else [key for key in full if store.check([key])]
        found = dict(zip(there, store.multi_get(there) if there else (), strict=True))
        return [bytes(found[key]) if key in found else None for key in full]

    asked = f"read {full[0]} and {len(full) - 1} others"
    question = _ASKER.ask(asked, read, anew=False, wait_s=0.0)
    if question is None or not question.done.is_set():
        return None
    _ASKER.ask(asked, read, anew=True, wait_s=0.0)
    return question.answer


def share_text(key: str, text: str, *, rank: int, wait_s: float = 5.0) -> str:
    """Rank 0's `text` on every rank; this rank's own if there is no store or rank 0 does not write.

    Args:
        key: Unique to the decision, the same on all ranks.
        text: What this rank would choose alone.
        rank: This process's rank.
        wait_s: Maximum waiting time of ranks other than 0, in seconds.
    """
    if rank == 0:
        put(key, text)
        return text

    def wait(store: Store) -> bytes | None:
        with missing(RuntimeError):  # torch.distributed.DistStoreError: rank 0 did not get here in time
            store.wait([_PREFIX + key], timedelta(seconds=wait_s))
            return bytes(store.get(_PREFIX + key))
        return None

    question = _ASKER.ask(f"wait {key}", wait, anew=True, wait_s=wait_s + ANSWER_S)
    return question.answer.decode() if question is not None and question.answer is not None else text


class RankAgreement:
    """One text that rank 0 may change, and that every rank adopts at the same step.

    Rank 0 proposes "from step N on"; the others look into the store whenever they ask for the current text.
    All ranks must ask at the same steps, at least once between the proposal and N. Nobody waits longer than `ANSWER_S`,
    once: a rank that hears of a proposal after its step N, because the store's server stood still, follows from the
    step at which it hears, and follows each proposal once. With several ranks and no store, or one that no longer
    answers, the text stays as it is.

    >>> agreement = RankAgreement("period", "10", rank=0, world_size=1)
    >>> agreement.propose("20", from_step=8)
    >>> agreement.at(7), agreement.at(8)
    ('10', '20')

    Args:
        key: The same on all ranks, unique among all agreements of a process.
        text: The initial text.
        rank: This process's rank among `world_size`.
        world_size: Number of processes in the training.
    """

    def __init__(self, key: str, text: str, *, rank: int, world_size: int) -> None:
        self._key = key
        self._text = text
        self._rank = rank
        self._world_size = world_size
        self._number = 0
        self._next: tuple[int, str] | None = None

    def propose(self, text: str, from_step: int) -> None:
        """Rank 0 only: use this text from this step on. Ignored while an earlier proposal is pending."""
        if self._rank != 0 or self._next is not None or text == self._text:
            return
        if self._world_size > 1 and not put(f"{self._key}/{self._number}", f"{from_step} {text}"):
            return
        self._next = (from_step, text)

    def at(self, step: int) -> str:
        """The text that is valid at this step."""
        if self._next is None and self._rank != 0:
            said = get(f"{self._key}/{self._number}")
            if said is not None:
                from_step, _, text = said.decode().partition(" ")
                self._next = (int(from_step), text)
        if self._next is not None and step >= self._next[0]:
            self._text, self._next = self._next[1], None
            self._number += 1
        return self._text
