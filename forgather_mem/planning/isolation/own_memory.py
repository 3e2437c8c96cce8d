"""Memory that a forked process shares with others becomes its own: files that are mapped to be written, locks, tensors.

`fork()` copies a process's memory, but for what was mapped to be shared.
"""

from __future__ import annotations

import ctypes
import mmap

from forgather_mem.units import MIB

_OF_DEVICES = ("/dev/", "/proc/", "/sys/")
_OF_MEMORY = ("/dev/shm/", "/dev/zero")
_MAP_FIXED = 0x10  # as in <sys/mman.h>: in place of what is there
_MOST_COPIED_BYTES = 64 * MIB  # locks and counters have a page


def have_own_memory() -> None:
    """From now on nobody else sees what this process writes into memory that it shares; it sees what stood there.

    What is small is copied. What is large can only be read: who writes there dies. What belongs to a device stays as
    it is.

    Raises:
        OSError: if there is no memory left for it.
    """
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    with open("/proc/self/maps") as maps:
        rows = [row.split(None, 5) for row in maps]
    for addresses, rights, _, _, _, *named in rows:
        path = named[0] if named else ""
        of_memory = path.startswith("/") and (path.startswith(_OF_MEMORY) or not path.startswith(_OF_DEVICES))
        if rights[1] == "w" and rights[3] == "s" and of_memory:
            begin, end = (int(address, 16) for address in addresses.split("-"))
            if not _made_private(library, begin, end - begin):
                raise OSError(ctypes.get_errno(), "memory that is shared can't be made this process's own")


def _made_private(library: ctypes.CDLL, begin: int, num_bytes: int) -> bool:
    place, size = ctypes.c_void_p(begin), ctypes.c_size_t(num_bytes)
    if num_bytes > _MOST_COPIED_BYTES:
        return library.mprotect(place, size, mmap.PROT_READ) == 0  # type: ignore[no-any-return]
    copied, flags = ctypes.string_at(begin, num_bytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    found = library.mmap(place, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, ctypes.c_long(0))
    if found == begin:
        ctypes.memmove(place, copied, len(copied))
    return found == begin  # type: ignore[no-any-return]
