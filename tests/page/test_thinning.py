"""Thinned rows keep every extreme, and packed numbers come back."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forgather_mem.page.data import kept_rows, packed
from tests.page.runs import numbers

SOME = st.integers(2, 400).flatmap(
    lambda rows: st.lists(
        arrays(np.float64, rows, elements=st.one_of(st.floats(-1e15, 1e15), st.just(np.nan))), min_size=1, max_size=4
    )
)


@given(SOME, st.integers(20, 100))
def test_each_column_keeps_its_highest_and_its_lowest(columns: list[np.ndarray], most: int) -> None:  # type: ignore[type-arg]
    num_rows = len(columns[0])
    rows = kept_rows(columns, num_rows, most)
    assert rows[0] == 0
    assert rows[-1] == num_rows - 1
    assert (np.diff(rows) > 0).all()
    assert len(rows) <= max(most, 2 + 2 * len(columns))
    for column in columns:
        if not np.isnan(column).all():
            assert np.nanmax(column[rows]) == np.nanmax(column)
            assert np.nanmin(column[rows]) == np.nanmin(column)


def test_in_any_stretch_that_a_reader_zooms_into_the_maximum_is_there() -> None:
    column = np.random.default_rng(0).random(100_000)
    rows = kept_rows([column], 100_000, 4000)
    for begin in range(0, 100_000, 10_000):
        inside = rows[(rows >= begin) & (rows < begin + 10_000)]
        assert column[inside].max() == column[begin : begin + 10_000].max()


@given(st.lists(st.one_of(st.none(), st.integers(-(2**50), 2**50))))
def test_packed_numbers_come_back(values: list[int | None]) -> None:
    column = np.array([np.nan if value is None else value * 1024.0 for value in values])
    found = packed(column, 1024.0)
    assert numbers(found) == [None if value is None else value * 1024 for value in values]
