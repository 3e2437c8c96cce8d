"""What is still to be done at the end: in which order, in whose process, and once."""

from tests.programs import printed_by

START = """
import os, sys
from forgather_mem.system.process_end import PROCESS_END

def say(text):
    return lambda: print(text, flush=True)
"""


def said(script: str) -> list[str]:
    """What a process prints that does this and ends."""
    return printed_by(START + script).split()


def test_the_last_that_was_asked_for_comes_first_and_what_was_withdrawn_does_not_come() -> None:
    script = """
first, second, third = say("first"), say("second"), say("third")
for call in (first, second, third):
    PROCESS_END.ask(call)
PROCESS_END.withdraw(second)
PROCESS_END.withdraw(second)
PROCESS_END.ask(first)  # again: from now on it is the latest
"""
    assert said(script) == ["first", "third"]


def test_one_that_fails_is_not_the_others() -> None:
    script = """
def fails():
    print("fails", flush=True)
    raise KeyboardInterrupt
for call in (say("first"), fails, say("last")):
    PROCESS_END.ask(call)
"""
    assert said(script) == ["last", "fails", "first"]


def test_a_forked_child_does_what_is_its_own_and_nothing_of_its_parents() -> None:
    script = """
PROCESS_END.ask(say("parent's"), in_child=say("forgotten"))
if not os.fork():
    PROCESS_END.ask(say("child's"))
    sys.exit()
os.wait()
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=lambda: PROCESS_END.ask(say("worker's")))
child.start()
child.join()
"""
    assert said(script) == ["forgotten", "child's", "forgotten", "worker's", "parent's"]
