"""The demo's training data: the source of Python's standard library, byte by byte, present on every machine."""

from __future__ import annotations

import functools
import sysconfig
from pathlib import Path

import torch
from torch.utils.data import Dataset

from forgather_mem.errors import check_whole

__all__ = ["StdlibText"]


class StdlibText(Dataset[dict[str, torch.Tensor]]):
    """Blocks of the source text of the standard library, for training a causal language model on bytes.

    The files are read in the order of their names, so that the same Python gives the same blocks; an incomplete last
    block is dropped. Nothing is read before the first item is requested, and no more than `num_bytes`.

    Args:
        num_bytes: Maximum amount of text; the top-level modules of the library hold about 5 MB.
        block_size: Bytes per item.
        skip_bytes: Text to skip at the start, so that an evaluation set begins where a training set of that size ends.

    Raises:
        ValueError: for sizes that don't fill one block.
        FileNotFoundError: if this Python has no source files of its library (at the first item).

    >>> text = StdlibText(num_bytes=1000, block_size=64)
    >>> len(text), text[0]["input_ids"].shape
    (15, torch.Size([64]))
    """

    def __init__(self, num_bytes: int = 1_000_000, block_size: int = 128, skip_bytes: int = 0) -> None:
        check_whole("StdlibText", 2, block_size=block_size)
        check_whole("StdlibText", 0, skip_bytes=skip_bytes)
        if num_bytes < block_size:
            raise ValueError(f"StdlibText(num_bytes={num_bytes}): give room for one block of {block_size} or more")
        self.num_bytes = num_bytes
        self.block_size = block_size
        self.skip_bytes = skip_bytes

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """One block as `input_ids` and, equal to them, `labels` (the model shifts them itself)."""
        block = self._blocks[index].long()
        return {"input_ids": block, "labels": block}

    @functools.cached_property
    def _blocks(self) -> torch.Tensor:
        text = _read_library(self.skip_bytes + self.num_bytes)[self.skip_bytes :]
        num_blocks = len(text) // self.block_size
        used = bytearray(text[: num_blocks * self.block_size])
        return torch.frombuffer(used, dtype=torch.uint8).view(num_blocks, self.block_size)


def _read_library(num_bytes: int) -> bytes:
    folder = Path(sysconfig.get_path("stdlib"))
    text = b""
    for file in sorted(folder.glob("*.py")):
        if len(text) >= num_bytes:
            break
        with file.open("rb") as source:
            text += source.read(num_bytes - len(text))
    if not text:
        raise FileNotFoundError(f"StdlibText: {folder} holds no .py file; the demo reads Python's own library")
    return text
