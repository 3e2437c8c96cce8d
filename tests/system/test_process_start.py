"""A process is told from every other that had its number."""

import os
import socket
import time

from forgather_mem.system.process_start import is_process_running, process_start
from tests.programs import printed_by


def test_a_process_number_that_was_given_out_again_is_another_process() -> None:
    host, start = socket.gethostname(), process_start()
    boot, space, ticks = start.split()
    assert is_process_running(os.getpid(), host, start) is True
    assert is_process_running(os.getpid(), host, f"{boot} {space} {int(ticks) - 1}") is False
    assert is_process_running(os.getpid(), host, f"another {space} {ticks}") is False, "the machine was started anew"
    assert is_process_running(os.getpid(), host, f"{boot} pid:[1] {ticks}") is None, "a number of another container"
    assert is_process_running(os.getpid(), host, "") is None
    assert is_process_running(2**22 + 5, host, "") is False


def test_a_process_that_has_ended_and_was_not_waited_for_is_gone() -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert is_process_running(child, socket.gethostname(), process_start(child)) is False
    os.waitpid(child, 0)


def test_the_age_of_a_process_is_the_time_since_it_was_started() -> None:
    module = "forgather_mem.system.process_start"
    code = f"import time; time.sleep(0.3); from {module} import process_age_s; print(process_age_s())"
    began_s = time.monotonic()
    assert 0.3 <= float(printed_by(code)) <= time.monotonic() - began_s + 0.02
