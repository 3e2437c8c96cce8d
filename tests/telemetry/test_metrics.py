"""The table of metrics: a tag for each name, which nothing else has, and a refusal of names that are not there."""

from collections import Counter

import pytest

from forgather_mem.telemetry.metrics import METRICS, Metric, check_name, every_metric, metric_of
from forgather_mem.units import GIB


def test_no_two_metrics_share_a_name_or_a_tag() -> None:
    rows = list(every_metric())
    tags = [tag for row in rows for tag in (row.tag, row.extreme_tag) if tag]
    for values in ([row.name for row in rows], tags):
        assert [value for value, times in Counter(values).items() if times > 1] == []


@pytest.mark.parametrize("row", METRICS, ids=lambda row: row.name)
def test_the_factor_of_a_metric_is_what_its_name_and_its_unit_say(row: Metric) -> None:
    factors = {"_bytes": {"GiB": 1 / GIB}, "_frac": {"%": 100.0}, "_s": {"ms": 1e3, "s": 1.0, "us": 1e6}}
    of_a_count = {"count": 1.0, "thousand": 1e-3}
    units = next((units for suffix, units in factors.items() if row.name.endswith(suffix)), of_a_count)
    assert row.factor == pytest.approx(units[row.unit])
    assert row.meaning.endswith(".")


def test_a_tag_has_one_slash_since_tensorboard_groups_by_the_first_part() -> None:
    tags = [row.tag for row in every_metric()] + [metric_of(name).tag for name in ("a/b/c_bytes", "alone", "a/b_s")]
    assert [tag for tag in tags if tag.count("/") != 1] == []


@pytest.mark.parametrize(
    ("name", "tag", "unit"),
    [
        ("q/a_bytes", "q/a_gib", "GiB"),
        ("q/b_frac", "q/b_pct", "%"),
        ("q/c_s", "q/c_ms", "ms"),
        ("q/d", "q/d", "count"),
        ("phase/host/save_peak_bytes", "phase_host/save_gib", "GiB"),
    ],
)
def test_a_name_that_is_not_in_the_table_is_shown_by_its_suffix(name: str, tag: str, unit: str) -> None:
    row = metric_of(name)
    assert (row.name, row.tag, row.unit) == (name, tag, unit)


def test_a_misspelt_name_of_ours_is_refused_and_a_users_own_passes() -> None:
    for row in every_metric():
        check_name(row.name)
    check_name("mine/whatever")
    with pytest.raises(ValueError, match=r"no sample named 'host/rss_byts'; did you mean 'host/rss_bytes'\?"):
        check_name("host/rss_byts")
    with pytest.raises(ValueError, match="workers/ has: workers/own_bytes, "):
        check_name("workers/zzzzzzzz")
