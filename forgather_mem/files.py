"""Files that others may rely on, or may have planted: replaced in one step, and read only when they are files.

Both halves of the package use this, and so does the waiting parent of `run`: next to nothing is imported.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
# Beside it nothing can be made, or it is mounted alone: a file that is there can still be written over.
_IN_PLACE_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
_MAX_NAME_BYTES = 200  # of 255: the draft's name is longer


def replace_file(path: str | os.PathLike[str], content: bytes, *, sync: bool = False) -> None:
    """Write a file so that its name always means the old content or the new one, whole.

    The content goes to a new file of a random name beside it, which takes over mode and owner of the old one. No link
    is followed: one that has this name is itself replaced.

    Args:
        path: The file.
        content: What it shall hold.
        sync: Wait until the content is on the disk, so that it outlives a machine that crashes.

    Raises:
        OSError: when it can't be written; the old file is as it was.
    """
    folder, name = os.path.split(os.fspath(path))
    short = os.fsdecode(os.fsencode(name)[:_MAX_NAME_BYTES])
    draft = os.path.join(folder, f".{short}.{os.urandom(8).hex()}")
    old = _status_of_regular(path)
    file = os.open(draft, _NEW, 0o666 if old is None else 0o600)
    try:
        try:
            if old is not None:
                _take_over(file, old)
            _write(file, content)
            if sync:
                os.fsync(file)
        finally:
            os.close(file)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def new_file(path: str | os.PathLike[str]) -> BinaryIO:
    """A new file, open for writing, in the place of what has its name: a link is not followed.

    Raises:
        OSError: when it can't be made.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return open(os.open(path, _NEW, 0o666), "wb")


def write_chosen_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write to a path that the person who calls has given: links are followed, and it may be a pipe or a terminal.

    Raises:
        OSError: when it can't be written.
    """
    real = os.path.realpath(path)
    if os.path.isfile(real) or not os.path.exists(real):
        try:
            return replace_file(real, content)
        except OSError as error:
            if error.errno not in _IN_PLACE_ONLY or not os.path.exists(real):
                raise
    with open(path, "wb") as file:
        file.write(content)


def read_file(path: str | os.PathLike[str], max_bytes: int, *, follow: bool = True) -> bytes:
    """The content of a regular file.

    A pipe, a device or a socket of that name is refused without waiting for it.

    Args:
        path: The file.
        max_bytes: How large it may be.
        follow: Whether the name may be a link.

    Raises:
        OSError: when it can't be read, or is no regular file.
        ValueError: when it is larger.
    """
    with open_regular(path, follow=follow) as opened:
        content = opened.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    return content


def read_regular(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """All of a file that has at most so many bytes, and that a stranger may have put there: no link is followed.

    Raises:
        OSError: as `open_regular`, and for a file that is larger.
    """
    try:
        return read_file(path, max_bytes, follow=False)
    except ValueError as error:
        raise OSError(errno.EFBIG, str(error), os.fspath(path)) from error


def open_regular(path: str | os.PathLike[str], *, follow: bool = False) -> BinaryIO:
    """The file, open for reading; a pipe, a device or a folder in its place is refused, and a link unless it may be.

    Raises:
        OSError: when it is no regular file, or can't be read.
    """
    try:
        _check_regular(path, os.stat(path, follow_symlinks=follow))  # opening a device may do something
        file = os.open(path, _READ | (0 if follow else getattr(os, "O_NOFOLLOW", 0)))
    except ValueError as error:  # a name with a NUL in it
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path)) from error
    try:
        _check_regular(path, os.fstat(file))  # it may be another one by now
    except OSError:
        os.close(file)
        raise
    return open(file, "rb")


def _check_regular(path: str | os.PathLike[str], status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "it is a link", os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))


def _status_of_regular(path: str | os.PathLike[str]) -> os.stat_result | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _take_over(file: int, old: os.stat_result) -> None:
    """Owner and mode of the old file, as far as that is allowed."""
    with contextlib.suppress(OSError):
        os.fchown(file, old.st_uid, old.st_gid)
    with contextlib.suppress(OSError):
        os.fchmod(file, stat.S_IMODE(old.st_mode))  # after the owner: a change of owner takes bits off


def _write(file: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]
