"""Rows of a long run thinned out so that every extreme stays, and numbers packed as differences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MAX_ROWS = 16_000


def kept_rows(columns: Sequence[NDArray[np.float64]], num_rows: int, most: int = MAX_ROWS) -> NDArray[np.int64]:
    """Which rows to keep, in order: all if they are few, else of each stretch those with an extreme of any column.

    Whole rows are kept, so that what was read at one step stays together and a stack of columns keeps its true height.

    >>> spike = np.where(np.arange(10_000) == 1234, 5.0, 1.0)
    >>> rows = kept_rows([spike, np.ones(10_000)], 10_000, most=100)
    >>> len(rows) <= 100, 1234 in rows, int(rows[0]), int(rows[-1])
    (True, True, 0, 9999)
    """
    if num_rows <= most:
        return np.arange(num_rows)
    length = -(-num_rows // max(1, most // 4))
    while True:
        rows = _extremes(columns, num_rows, length)
        if len(rows) <= most or length >= num_rows:
            return rows
        length *= 2


def _extremes(columns: Sequence[NDArray[np.float64]], num_rows: int, length: int) -> NDArray[np.int64]:
    starts = np.arange(0, num_rows, length)
    kept = [starts[:1], np.array([num_rows - 1])]
    padded = np.full(len(starts) * length, np.nan)
    for column in columns:
        padded[:num_rows] = column
        blocks = padded.reshape(-1, length)
        known = ~np.isnan(blocks).all(axis=1)
        if known.any():
            kept += [starts[known] + np.nanargmax(blocks[known], axis=1)]
            kept += [starts[known] + np.nanargmin(blocks[known], axis=1)]
    return np.unique(np.concatenate(kept))


def packed(values: NDArray[np.float64], unit: float) -> list[int | None]:
    """Numbers in whole units, each as the difference to the one before it; None where there is none.

    >>> packed(np.array([10.0, 30.0, np.nan, 20.0]), 10.0)
    [1, 2, None, -1]
    """
    whole = np.round(values / unit)
    known = ~np.isnan(whole)
    differences = np.diff(whole[known], prepend=0.0).astype(np.int64)
    found: list[int | None] = differences.tolist()
    if known.all():
        return found
    spread: list[int | None] = [None] * len(values)
    for row, difference in zip(np.flatnonzero(known).tolist(), found, strict=True):
        spread[row] = difference
    return spread
