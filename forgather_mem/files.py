"""Files that others may rely on, or may have planted: replaced in one step, and read only when they are files.

Where a training writes, the links of a path are resolved when it begins. Later a link on this path is one that somebody
has put there since, and what is opened with `through_links=False`, or by `open_real`, is not opened through it.

Both halves of the package use this, and so does the waiting parent of `run`: next to nothing is imported.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat

from forgather_mem.errors import missing, ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", 0)  # found, not read
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
# Beside it nothing can be made, or it is mounted alone: a file that is there can still be written over.
_IN_PLACE_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)


def replace_file(path: str | os.PathLike[str], data: bytes, *, sync: bool = False, through_links: bool = True) -> None:
    """Write a file so that its name always means the old data or the new one, whole.

    The data goes to a new file of a random name beside it, which takes over mode and owner of the old one. No link
    is followed: one that has this name is itself replaced.

    Args:
        path: The file.
        data: What it shall hold.
        sync: Wait until the data is on the disk, so that it outlives a machine that crashes.
        through_links: Whether folders on the way may be links.

    Raises:
        OSError: when it can't be written; the old file is as it was.
    """
    with _place(path, through_links) as (at, path):
        draft = os.path.join(os.path.dirname(path), f".forgather_mem.{os.urandom(8).hex()}")
        old = _status_of_regular(path, at)
        file = os.open(draft, _NEW, 0o666 if old is None else 0o600, dir_fd=at)
        try:
            try:
                if old is not None:
                    _take_over(file, old)
                _write(file, data)
                if sync:
                    os.fsync(file)
            finally:
                os.close(file)
            os.replace(draft, path, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            with missing(OSError):
                os.unlink(draft, dir_fd=at)
            raise


def new_file(path: str | os.PathLike[str], *, through_links: bool = True) -> BinaryIO:
    """A new file, open for writing, in the place of what has its name: a link is not followed.

    Args:
        path: The file.
        through_links: Whether folders on the way may be links.

    Raises:
        OSError: when it can't be made.
    """
    with _place(path, through_links) as (at, path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path, dir_fd=at)
        return open(os.open(path, _NEW, 0o666, dir_fd=at), "wb")


def open_real(path: str | os.PathLike[str], flags: int) -> int:
    """A descriptor of a file, as `os.open` gives it, if neither the file nor a folder on the way is a link.

    Raises:
        OSError: when one is, and as `os.open`.
    """
    with _place(path, through_links=False) as (at, name):
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=at)


def remove_real(path: str | os.PathLike[str]) -> None:
    """Remove a file, or a link in its place, if no folder on the way is a link.

    Raises:
        OSError: when one is, and as `os.unlink`.
    """
    with _place(path, through_links=False) as (at, name):
        os.unlink(name, dir_fd=at)


def rename_real(path: str | os.PathLike[str], name: str) -> None:
    """Give a file another name in its folder, over one that has it, if no folder on the way is a link.

    Raises:
        OSError: when one is, and as `os.replace`.
    """
    with _place(path, through_links=False) as (at, old):
        os.replace(old, name, src_dir_fd=at, dst_dir_fd=at)


def make_real_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder and those above it, as far as they are missing, if none of them is a link.

    Raises:
        OSError: when one is, or none can be made.
    """
    os.close(_open_folder(os.fspath(path), make=True))


def is_real_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is there, and neither it nor one above it is a link."""
    try:
        os.close(_open_folder(os.fspath(path)))
    except ours(OSError):
        return False
    return True


def write_chosen_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write to a path that the person who calls has given: links are followed, and it may be a pipe or a terminal.

    Raises:
        OSError: when it can't be written.
    """
    real = os.path.realpath(path)
    if os.path.isfile(real) or not os.path.exists(path):
        try:
            return replace_file(real, content)
        except ours(OSError) as error:
            if error.errno not in _IN_PLACE_ONLY or not os.path.exists(real):
                raise
    with open(path, "wb") as file:
        file.write(content)


def read_regular(path: str | os.PathLike[str], max_bytes: int, *, follow: bool = False) -> bytes:
    """All of a file that has at most so many bytes, and that a stranger may have put there: no link is followed.

    A pipe, a device or a socket of that name is refused without waiting for it.

    Args:
        path: The file.
        max_bytes: How large it may be.
        follow: Whether the name may be a link: a person has typed it.

    Raises:
        OSError: as `open_regular`, and for a file that is larger.
    """
    with open_regular(path, follow=follow) as opened:
        size = os.fstat(opened.fileno()).st_size  # a buffer for all that it may be would be taken at once
        content = opened.read(min(max_bytes, size) + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes:,} bytes", os.fspath(path))
    return content


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


@contextlib.contextmanager
def _place(path: str | os.PathLike[str], through_links: bool) -> Iterator[tuple[int | None, str]]:
    """What the functions of `os` take: the descriptor of a folder, if links are not followed, and the path from it."""
    whole = os.fspath(path)
    if through_links:
        yield None, whole
        return
    folder, name = os.path.split(whole)
    at = _open_folder(folder)
    try:
        yield at, name
    except OSError as error:
        if error.filename is not None:
            error.filename = whole
        raise
    finally:
        os.close(at)


def _open_folder(path: str, *, make: bool = False) -> int:
    """The folder, reached from the root through no link."""
    found, way = os.open(os.sep, _FOLDER), ""
    try:
        for name in filter(None, os.path.abspath(path).split(os.sep)):
            above, way = found, f"{way}{os.sep}{name}"
            try:
                found = _step_into(name, above, make)
            except OSError as error:
                error.filename = way
                raise
            os.close(above)
    except BaseException:
        os.close(found)
        raise
    return found


def _step_into(name: str, above: int, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=above)
    except FileNotFoundError:
        if not make:
            raise
    except NotADirectoryError:
        if stat.S_ISLNK(os.lstat(name, dir_fd=above).st_mode):
            raise OSError(errno.ELOOP, "it has become a link") from None
        raise
    with contextlib.suppress(FileExistsError):  # somebody was quicker
        os.mkdir(name, dir_fd=above)
    return os.open(name, _FOLDER, dir_fd=above)


def _check_regular(path: str | os.PathLike[str], status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "it is a link", os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))


def _status_of_regular(path: str, at: int | None) -> os.stat_result | None:
    try:
        status = os.lstat(path, dir_fd=at)
    except ours(OSError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _take_over(file: int, old: os.stat_result) -> None:
    """Owner and mode of the old file, as far as that is allowed."""
    with missing(OSError):
        os.fchown(file, old.st_uid, old.st_gid)
    with missing(OSError):
        os.fchmod(file, stat.S_IMODE(old.st_mode))  # after the owner: a change of owner takes bits off


def _write(file: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]


_LOWEST = 900  # below the usual limit of 1024; a program rarely has as many files open


def identity(file: int) -> tuple[int, int] | None:
    """Which file is open under this number (1 us); None where somebody has closed it.

    A script may close all files from 3 on, as daemons do, and its next ones then get our numbers.
    """
    try:
        status = os.fstat(file)
    except ours(OSError):
        return None
    return status.st_dev, status.st_ino


def close_own(file: int, known: tuple[int, int] | None) -> None:
    """Close a file, if this number still is the one that had this identity.

    Raises:
        OSError: what the server of the file has not accepted by now is lost.
    """
    if file >= 0 and identity(file) == known:
        os.close(file)


def out_of_the_way(file: int) -> int:
    """The same open file under a high number, or under its own where the limit is lower. Costs 2 us."""
    try:
        high = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _LOWEST)
    except ours(OSError):
        return file
    os.close(file)
    return high
