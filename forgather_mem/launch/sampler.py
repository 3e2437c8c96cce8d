"""What the waiting parent sees of the command from outside, for what no training tells: a script without a Trainer."""

from __future__ import annotations

import os

from forgather_mem.errors import missing
from forgather_mem.formats.ring_writer import RingWriter
from forgather_mem.system.cgroups import kill_counter, shared_bytes
from forgather_mem.system.process_start import process_header
from forgather_mem.telemetry import run_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from forgather_mem.cli.command import Command
    from forgather_mem.launch.waiting import Ended


class Sampler:
    """Looks at the child, once a second, and keeps a ring of it.

    Args:
        folder: Where its ring lies until a training has one of its own; None for no ring.
        pid: The process to look at.
        command: What it runs.

    Attributes:
        kills: The kernel's count of them at the start.
        header: What is known of the process, for the report where nothing else of it is left.
        first_bytes: How large it was at the first look, 0 before that.
        last_bytes: How large it was at the last look.
        shared_bytes: Of its control group at the last look or when it had ended, whichever is more, beyond what there
            was before: what it has started has that, as data workers do, which end some seconds later or were killed.
    """

    def __init__(self, folder: str | None, pid: int, command: Command) -> None:
        self.first_bytes = self.last_bytes = 0
        self._statm, self._page_bytes = f"/proc/{pid}/statm", os.sysconf("SC_PAGE_SIZE")
        self._peak_bytes = 0
        self._ring: RingWriter | None = None
        self.kills, self._before, self.shared_bytes = kill_counter(), shared_bytes(), 0
        self.header = {**process_header(pid, command.script, command.arguments), "kills": self.kills}
        if folder is not None:
            with missing(OSError):  # no space: then the report has the kernel's numbers
                self._ring = RingWriter(os.path.join(folder, run_session.WAITING_RING), self.header)

    def look(self) -> None:
        """Record the current size."""
        resident = shared = 0
        self.shared_bytes = max(0, shared_bytes() - self._before)
        with missing(OSError, ValueError), open(self._statm, "rb") as file:  # it may have just exited
            _, resident, shared, *_ = map(int, file.read().split())
        rss_bytes = resident * self._page_bytes
        if not rss_bytes:
            return
        self.first_bytes, self.last_bytes = self.first_bytes or rss_bytes, rss_bytes
        self._peak_bytes = max(self._peak_bytes, rss_bytes)
        if self._ring is None:
            return
        values = {
            "host/rss_bytes": float(rss_bytes),
            "host/rss_peak_bytes": float(self._peak_bytes),
            "host/anon_bytes": float(rss_bytes - shared * self._page_bytes),
        }
        self._ring.sample(0, values, event="other")

    def end(self, ended: Ended) -> None:
        """Record the kernel's peak, what is left, and, if no signal ended the process, that nothing is missing."""
        self.shared_bytes = max(self.shared_bytes, shared_bytes() - self._before)
        if self._ring is not None:
            values = {"host/rss_peak_bytes": float(max(self._peak_bytes, ended.peak_bytes))}
            self._ring.sample(0, values, event="other")
            if ended.signal is None:
                self._ring.state(0, "other", "finished")
            self._ring.close()
