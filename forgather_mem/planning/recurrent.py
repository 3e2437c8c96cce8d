"""Recurrent layers: what oneDNN keeps of an LSTM, and long loops over tokens made shorter.

| layer | on the host | planned |
|---|---|---|
| `LSTM` | `aten.mkldnn_rnn_layer`, which keeps a workspace that its meta kernel leaves empty | asked of the kernel for a few tokens; the rest is a line, within 1 % |
| `GRU`, `RNN` | some thirty operations a token | at most 64 tokens of more rows, which take the same within 1 % |
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import cast

import torch

from forgather_mem.units import MIB

OF_ONEDNN = torch.ops.aten.mkldnn_rnn_layer.default
_MOST_TOKENS = 64  # what one takes for itself is then too much by less than 1 %


def workspace_bytes(args: Sequence[object]) -> int:
    """What oneDNN keeps for the backward pass of a layer with these arguments: `OF_ONEDNN`'s last result.

    Its parts are multiples of a page, so that a few KiB would not tell the slope.
    """
    given = tuple((tuple(one.shape), one.dtype) for one in args if isinstance(one, torch.Tensor))
    return _workspace_bytes(given, (args[7], (), *args[9:]))


@functools.cache
def _workspace_bytes(given: tuple[tuple[tuple[int, ...], torch.dtype], ...], rest: tuple[object, ...]) -> int:
    (((tokens, *width), dtype), *weights) = given

    @functools.cache
    def of(count: int) -> int:
        shapes = [((count, *width), dtype), *weights]
        tensors = [torch.zeros(shape, dtype=of_dtype) for shape, of_dtype in shapes]
        return int(OF_ONEDNN(*tensors, *rest)[-1].untyped_storage().nbytes())

    count = 8
    while count < tokens and of(count) < MIB:
        count *= 2
    if count >= tokens:
        return of(tokens)
    return of(count) + (of(count) - of(count // 2)) * (tokens - count) // (count - count // 2)


def take_fewer_tokens() -> None:
    """From now on, in this process, layers that loop over tokens have more rows instead: they take as much memory."""
    for name in ("gru", "rnn_tanh", "rnn_relu"):
        setattr(torch._VF, name, _in_pieces(getattr(torch._VF, name)))  # type: ignore[attr-defined]


def _in_pieces(layer: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> Callable[..., object]:
    def in_pieces(rows: torch.Tensor, state: torch.Tensor, *rest: object) -> tuple[torch.Tensor, torch.Tensor]:
        if not isinstance(state, torch.Tensor):  # rows of many lengths, packed
            return layer(rows, state, *rest)
        at = int(cast(bool, rest[-1]))  # where rows have their tokens: 1 if the batch is first
        tokens, batch, width = rows.size(at), rows.size(1 - at), rows.size(2)
        near = -(-tokens // _MOST_TOKENS)
        pieces = next((number for number in range(near, 2 * near) if tokens % number == 0), near)
        short = tokens // pieces
        cut = rows.narrow(at, 0, short * pieces).reshape(*_ordered(at, short, batch * pieces), width)
        result, last = layer(cut, state.repeat(1, pieces, 1), *rest)
        result = result.reshape(*_ordered(at, short * pieces, batch), result.size(2))
        if short * pieces < tokens:
            result = torch.cat([result, result.narrow(at, 0, tokens - short * pieces)], at)
        return result, last[:, :batch]

    return in_pieces


def _ordered(at: int, tokens: int, batch: int) -> tuple[int, int]:
    return (batch, tokens) if at else (tokens, batch)
