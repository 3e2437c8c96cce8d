"""Memory of the waiting parent in which the processes that it watches keep the states of their rings.

Storing a number takes no system call, of which each costs 15 us in a real step, and what is stored survives the
process: when that has ended, the parent writes it into the ring. Nor can a store fail: no one can truncate this memory,
whose size is sealed, and no disk is behind it.

Processes find it by the parent's entry under /proc, whatever launchers stand between them. Each has the slot of its
pid. Who gets none writes each state into its ring, as without a parent.

Almost nothing is imported here: the waiting parent of `forgather-mem run` has to stay small.
"""

from __future__ import annotations

import fcntl
import functools
import os
import struct

from forgather_mem.errors import missing
from forgather_mem.files import open_real, out_of_the_way
from forgather_mem.formats.ring_writer import CELL_BYTES, HEAD, STATE, STATE_AT, ring_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from forgather_mem.formats.ring_writer import LastState

PLACE = "FORGATHER_MEM_STATES"  # the parent's pid, its descriptor, and the memory's inode
_NUM_SLOTS, _SLOT_BYTES, _PAGE_BYTES = 4096, 64, os.sysconf("SC_PAGE_SIZE")
_SLOT = struct.Struct("<QIidq")  # pid, check of the ring's header, phase, time_s, step
# As in <linux/fcntl.h>, where Python has no names for them: no other seals, no other size
_ADD_SEALS, _GET_SEALS, _SEALS = 1033, 1034, 0x1 | 0x2 | 0x4
_READ_AND_WRITE, _SHARED = 0x1 | 0x2, 0x1  # of mmap


class StateMemory:
    """The parent's side.

    Attributes:
        place: What processes find it by, for `PLACE` in their environment; "" where the kernel gives none.
    """

    def __init__(self) -> None:
        self.place = ""
        with missing(OSError, AttributeError):
            self._file = out_of_the_way(os.memfd_create("forgather_mem", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            os.ftruncate(self._file, _NUM_SLOTS * _SLOT_BYTES)
            fcntl.fcntl(self._file, _ADD_SEALS, _SEALS)
            self.place = f"{os.getpid()}:{self._file}:{os.fstat(self._file).st_ino}"

    def settle(self, folders: Iterable[str]) -> None:
        """Write into the rings in these folders the last states of their processes, which have ended."""
        if not self.place:
            return
        data = os.pread(self._file, _NUM_SLOTS * _SLOT_BYTES, 0)
        slots = [_SLOT.unpack_from(data, at) for at in range(0, len(data), _SLOT_BYTES)]
        states = {check: (time_s, step, phase) for pid, check, phase, time_s, step in slots if pid}
        for folder in folders if states else ():
            with missing(OSError):  # then the ring tells what it can
                for name in os.listdir(folder):
                    if name.startswith(ring_name("")):
                        _settle(os.path.join(folder, name), states)


def own_state(header: bytes) -> LastState | None:
    """Where to store the states of the ring that begins with these bytes, until its `pid` is 0 again.

    None where no parent watches this process, or another training of it has the place.
    """
    with missing(OSError, ValueError, AttributeError):
        state = _state_of(os.environ.get(PLACE, ""), os.getpid())
        if not state.pid:
            state.check, state.pid = HEAD.unpack_from(header)[2], os.getpid()
            return state
    return None


@functools.cache  # it stays mapped: a thread may be in the middle of a store
def _state_of(place: str, pid: int) -> LastState:
    import ctypes

    class State(ctypes.Structure):
        _fields_ = (
            ("pid", ctypes.c_uint64), ("check", ctypes.c_uint32), ("phase", ctypes.c_int32),
            ("time_s", ctypes.c_double), ("step", ctypes.c_int64),
        )  # fmt: skip

    parent, number, inode = map(int, place.split(":"))
    at = pid % _NUM_SLOTS * _SLOT_BYTES
    file = os.open(f"/proc/{parent}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    try:
        # Where processes have numbers of their own, it may be anybody's file; most files can't be sealed at all
        if os.fstat(file).st_ino != inode or fcntl.fcntl(file, _GET_SEALS) != _SEALS:
            raise ValueError(f"{place}: this is another file")
        # Python's mmap would keep a descriptor, and close whatever has its number in the end
        map_pages = ctypes.CDLL(None, use_errno=True).mmap
        map_pages.restype = ctypes.c_void_p
        map_pages.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
        address = map_pages(None, _PAGE_BYTES, _READ_AND_WRITE, _SHARED, file, at // _PAGE_BYTES * _PAGE_BYTES)
    finally:
        os.close(file)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "no memory is left to map")
    return State.from_address(address + at % _PAGE_BYTES)


def _settle(path: str, states: dict[int, tuple[float, int, int]]) -> None:
    file = open_real(path, os.O_RDWR)
    try:
        state = states.get(HEAD.unpack(os.pread(file, HEAD.size, 0))[2])
        cells = [STATE.unpack(os.pread(file, STATE.size, STATE_AT + cell * CELL_BYTES)) for cell in (0, 1)]
        number, *_, end, _ = max(cell for cell in cells if cell[0] == cell[-1])
        if state is not None and not end:
            number += 1
            os.pwrite(file, STATE.pack(number, *state, end, number), STATE_AT + (number & 1) * CELL_BYTES)
    except (struct.error, ValueError):
        return  # it is no whole ring
    finally:
        os.close(file)
