"""Appends records to a file that may fail, without failing or slowing the training."""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from forgather_mem.errors import missing, ours
from forgather_mem.files import close_own, identity, make_real_folder, open_real, out_of_the_way, remove_real
from forgather_mem.system.forks import FORKS
from forgather_mem.units import format_duration

logger = logging.getLogger(__name__)

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class WriteLimits:
    """When a file that takes its time, or no records, is left alone.

    Attributes:
        first_retry_s: The first pause after a failure; each following one is twice as long.
        longest_pause_s: The last of them.
        slow_write_s: A write that takes longer is slow.
        slow_share: Of the time: what slow writes may take.
        slow_burst_s: What they may take at once: a single stall does not make a disk slow.
        queued_bytes: Of records that wait.
        link_check_s: How often it is looked whether the file is still there.
    """

    first_retry_s = 0.1
    longest_pause_s = 30.0
    slow_write_s = 0.01
    slow_share = 0.02
    slow_burst_s = 0.25
    queued_bytes = 256 * 1024
    link_check_s = 0.5


class Losses:
    """Records that could not be written, and when that is tried again: after pauses that double up to 30 s.

    Attributes:
        written, dropped: Number of records.
        retry_at: Before this moment of the monotonic clock nothing is tried.
        error: The last failure, in words.
    """

    def __init__(self) -> None:
        self.written = self.dropped = 0
        self.retry_at = 0.0
        self.error: str | None = None
        self._pause_s = WriteLimits.first_retry_s

    def took(self, num_records: int = 1) -> None:
        """So many records are written; none of them may be a preamble alone, which a full disk takes, too."""
        self.written += num_records
        if num_records:
            self._pause_s = WriteLimits.first_retry_s

    def note(self, error: Exception, where: object, num_lost: int = 1, *, pauses: bool = True) -> None:
        """This has failed, with so many records; said once. With `pauses` it is tried again after a while."""
        self.dropped += num_lost
        if pauses:
            self.retry_at = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, WriteLimits.longest_pause_s)
        text = (isinstance(error, OSError) and error.strerror) or str(error)
        if self.error is None:
            logger.warning("can't write %s: %s; records are dropped until it works again", where, text)
        self.error = text

    def problem(self, where: str = "") -> str | None:
        """A sentence for the report, or None if nothing was lost."""
        if not self.dropped:
            return None
        all_records = self.dropped + self.written
        return f"{self.dropped:,} of {all_records:,} records dropped ({self.error or 'too slow'}{where})"


class AppendFile:
    """An append-only file of whole records: one `write(2)` each, never torn in the middle, never raising.

    A record that can't be written is dropped and counted, and writing is tried again after a pause that
    doubles up to 30 s. What a short write left behind is cut off again; where that fails, and after every
    error but a full disk, the next try opens a new file. When slow writes (10 ms or more) take over 2 % of
    the time, records wait in memory, at most 256 KiB, and go out together. There is no fsync: a record that
    is not waiting survives the death of the process, not that of the machine. A write that never returns (a
    hung network mount) can't be helped. After a fork the child writes nothing. One thread at a time.

    Args:
        open_next: Gives the path of the next file to open and the bytes that it begins with. The links of the path are
            resolved: one that is met on it has been put there since, and is not followed.
        always_new: Refuse a path that exists already, and ask for another; else append to it.
    """

    def __init__(self, open_next: Callable[[], tuple[Path, bytes]], *, always_new: bool) -> None:
        self._open_next = open_next
        self._always_new = always_new
        self._forks = FORKS.number
        self._fd = -1
        self._inode = (0, 0)
        self.losses = Losses()
        self._fine_until = self._rest_until = 0.0
        self._slow_credit_s, self._last_slow = WriteLimits.slow_burst_s, time.monotonic()
        self._queue: list[bytes] = []
        self._queued_bytes = 0
        self._checked = 0  # of those written, so many are in a file that was there at the last look
        self._longest_s = 0.0
        self.path: Path | None = None
        self.end = 0  # end of the last good record
        self.slow_writes = self.rests = 0

    def ready(self) -> bool:
        """Whether a record is worth building now; if not, counts it as dropped. Opens the file when due."""
        if self._forks != FORKS.number:
            return False
        now = time.monotonic()
        if now < self._fine_until:
            return True
        ready = now >= self.losses.retry_at and ((self._fd >= 0 and self._still_there(now)) or self._open(now))
        self.losses.dropped += not ready
        return ready

    def append(self, data: bytes, num_records: int = 1) -> bool:
        """Write one record, or several at once, after `ready()` returned True.

        Returns:
            Whether it is in the file, or buffered for it.
        """
        began, done = time.monotonic(), 0
        if self._queue or began < self._rest_until:
            return self._wait_with(data)
        if identity(self._fd) != self._inode:  # closed by somebody: another file may have the number now
            self._fd = -1
            if not self._open(began):
                self.losses.dropped += num_records
                return False
        try:
            done = os.write(self._fd, data)
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except ours(OSError) as error:
            # A torn record is cut off; the file is abandoned if that fails or the error may have left more damage
            if error.errno not in _DISK_FULL or (done and not self._cut_back(self.end + done)):
                self._let_go()
            self._pause(error, num_records)
            return False
        self.end += done
        self.losses.took(num_records)
        now = time.monotonic()
        if now - began >= WriteLimits.slow_write_s:
            self._slow(now, now - began)
        return True

    def close(self) -> None:
        """Write what is buffered and close the file; the next `ready()` opens the next one."""
        if self._forks == FORKS.number and self._fd >= 0 and self._still_there(time.monotonic()):
            self._flush()
        self._let_go()

    def problem(self) -> str | None:
        """A sentence for the report, or None if all went well."""
        parts = [self.losses.problem(f"; {self.path}" if self.path else "")]
        if self.rests:
            longest = format_duration(self._longest_s)
            parts.append(f"{self.slow_writes:,} slow writes, the longest {longest}; records were written in batches")
        return "; ".join(filter(None, parts)) or None

    def _open(self, now: float) -> bool:
        # Without O_NONBLOCK, opening a pipe without a reader would block forever.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK
        flags |= os.O_EXCL if self._always_new else 0
        try:
            path, preamble = self._open_next()
            self.path = path
            make_real_folder(path.parent)
            while self._fd < 0:
                try:
                    self._fd = out_of_the_way(open_real(path, flags))
                except FileExistsError:  # somebody was quicker
                    taken, (path, preamble) = path, self._open_next()
                    if path == taken:
                        raise
            os.set_blocking(self._fd, True)
            status = os.fstat(self._fd)
            self.path, self.end, self._inode = path, status.st_size, (status.st_dev, status.st_ino)
        except ours(OSError) as error:
            self._pause(error, 0)
            return False
        self._rest_until = 0.0  # another file may be faster
        if not self.append(preamble, num_records=0):
            self._let_go()
            if self._always_new:
                with missing(OSError):  # else an empty file stays
                    remove_real(path)
            return False
        self._fine_until, self._checked = now + WriteLimits.link_check_s, self.losses.written
        return True

    def _wait_with(self, record: bytes) -> bool:
        fits = self._queued_bytes + len(record) <= WriteLimits.queued_bytes
        if fits:
            self._queue.append(record)
            self._queued_bytes += len(record)
        else:
            self.losses.dropped += 1
        return (time.monotonic() < self._rest_until or self._flush()) and fits

    def _flush(self) -> bool:
        waiting, self._queue, self._queued_bytes, self._rest_until = self._queue, [], 0, 0.0
        return not waiting or self.append(b"".join(waiting), len(waiting))

    def _slow(self, now: float, took_s: float) -> None:
        self.slow_writes += 1
        self._longest_s = max(self._longest_s, took_s)
        earned_s = (now - self._last_slow) * WriteLimits.slow_share
        self._slow_credit_s = min(self._slow_credit_s + earned_s, WriteLimits.slow_burst_s) - took_s
        self._last_slow = now
        if self._slow_credit_s < 0:
            self.rests += 1
            self._rest_until = now + min(-self._slow_credit_s / WriteLimits.slow_share, WriteLimits.longest_pause_s)

    def _cut_back(self, torn_end: int) -> bool:
        with missing(OSError):
            # Records of another writer after ours must stay.
            if os.fstat(self._fd).st_size == torn_end:
                os.ftruncate(self._fd, self.end)
                return True
        return False

    def _still_there(self, now: float) -> bool:
        """Writes to a deleted file succeed and are lost: check the link count, twice a second."""
        there = False
        with missing(OSError):
            status = os.fstat(self._fd)
            is_named = status.st_nlink > 0 or not stat.S_ISREG(status.st_mode)
            # Where somebody has closed it, another file may have the number now
            there = is_named and (status.st_dev, status.st_ino) == self._inode
        if not there:
            lost, self.losses.written = self.losses.written - self._checked, self._checked
            self._let_go()
            self.losses.note(FileNotFoundError(errno.ENOENT, "the file was deleted"), self.path, lost, pauses=False)
        self._fine_until, self._checked = (now + WriteLimits.link_check_s if there else 0.0), self.losses.written
        return there

    def _pause(self, error: OSError, num_lost: int) -> None:
        self.losses.note(error, error.filename or self.path, num_lost)
        self._fine_until = 0.0

    def _let_go(self) -> None:
        with missing(OSError):
            close_own(self._fd, self._inode)
        self._fd, self._fine_until = -1, 0.0
        self.losses.dropped += len(self._queue)
        self._queue, self._queued_bytes = [], 0
