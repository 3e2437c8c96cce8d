"""Recurrent layers: what oneDNN keeps of an LSTM, and long loops over tokens made shorter.

An `LSTM` on the host is one operation of oneDNN, which keeps a workspace that torch's meta kernel leaves empty: the
kernel is asked for it with a few tokens, and the rest is a line. A `GRU` or an `RNN` are some thirty operations for
each token: its tokens become rows, which take the same, where their number has a factor for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch.utils._python_dispatch import _disable_current_modes

from forgather_mem.planning.private_state import surround
from forgather_mem.units import MIB

Tensors = tuple[torch.Tensor, ...]
OF_ONEDNN = torch.ops.aten.mkldnn_rnn_layer.default
PACKS = torch.ops.aten._pack_padded_sequence.default
_MOST_TOKENS = 64  # what one takes for itself is then too much by less than 2 %


def workspace_bytes(args: Sequence[object]) -> int:
    """What oneDNN keeps for the backward pass of a layer with these arguments: `OF_ONEDNN`'s last result.

    Its parts are multiples of a page, so that a few KiB would not tell the slope.
    """
    given = tuple((tuple(one.shape), one.dtype) for one in args if isinstance(one, torch.Tensor))
    return _workspace_bytes(given, (args[7], (), *args[9:]))


@functools.cache
def _workspace_bytes(given: tuple[tuple[tuple[int, ...], torch.dtype], ...], rest: tuple[object, ...]) -> int:
    (((tokens, *width), dtype), *weights) = given

    def of(count: int) -> int:
        tensors = [torch.zeros(shape, dtype=kind) for shape, kind in (((count, *width), dtype), *weights)]
        kept = OF_ONEDNN(*tensors, *rest)[-1]  # None where nothing will be backward
        return 0 if kept is None else int(kept.untyped_storage().nbytes())

    count = 8
    while count < tokens and of(count) < MIB:
        count *= 2
    if count >= tokens:
        return of(tokens)
    return of(count) + (of(count) - of(count // 2)) * (tokens - count) // (count // 2)


def packed_rows(rows: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What `PACKS` makes of rows without values, whose lengths are known; called in fake mode."""
    with _disable_current_modes():
        narrow, of_steps = PACKS(torch.empty((*rows.shape[:2], 1)), lengths, batch_first)
    return rows.new_empty((narrow.size(0), *rows.shape[2:])), of_steps


def take_fewer_tokens(notes: list[str]) -> None:
    """From now on, in this process, layers that loop over tokens have more rows instead: they take as much memory."""
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        surround(f"torch:_VF.{name}", _in_pieces, notes)


def _in_pieces(layer: Callable[..., Tensors], rows: torch.Tensor, state: Any, *rest: object) -> Tensors:
    if not isinstance(rest[0], list) or not isinstance(state, torch.Tensor):
        return layer(rows, state, *rest)  # of many lengths, or an LSTM, which is one operation
    at = int(cast(bool, rest[-1]))  # where rows have their tokens: 1 if the batch is first
    near = -(-rows.size(at) // _MOST_TOKENS)
    pieces = next((number for number in range(near, 2 * near) if rows.size(at) % number == 0), 1)
    cut = list(rows.shape)
    cut[at], cut[1 - at] = cut[at] // pieces, cut[1 - at] * pieces
    result, last = layer(rows.reshape(cut), state.repeat(1, pieces, 1), *rest)
    return result.reshape(*rows.shape[:2], -1), last[:, : rows.size(1 - at)]
