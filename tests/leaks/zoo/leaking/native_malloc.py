"""Memory of the C library, never freed."""

# held: none
# leaks: ctypes.memset(block, 1, 40_000)
# mended: ctypes.memset(block, 1, 40_000), libc.free(ctypes.c_void_p(block))
# bytes: 40000

import ctypes

from harness import make, train
from transformers import TrainerCallback

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p


class Native(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        block = libc.malloc(ctypes.c_size_t(40_000))
        ctypes.memset(block, 1, 40_000)


train(make([Native()]))
