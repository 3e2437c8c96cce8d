"""The file for Prometheus, read back as its scraper reads it."""

import os
import re
from pathlib import Path

import pytest

from forgather_mem.sinks import PrometheusSink
from forgather_mem.telemetry.metrics import every_metric
from forgather_mem.telemetry.records import Sample
from tests.sinks.plain_run import PlainRun, begun
from tests.sinks.written import sample

LINE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{rank="(\d+)"\} ([-+.0-9eE]+)')


def read(path: Path) -> dict[str, tuple[str, float]]:
    """Type and value by name; as the exposition format asks for it: HELP and TYPE once, before the value."""
    types: dict[str, str] = {}
    found: dict[str, tuple[str, float]] = {}
    text = path.read_text()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in types
            types[name] = kind
        elif not line.startswith("# HELP "):
            told = LINE.fullmatch(line)
            assert told is not None, line
            found[told[1]] = types[told[1]], float(told[3])
    return found


def test_each_metric_has_type_help_and_its_last_value_and_what_is_added_is_a_counter(tmp_path: Path) -> None:
    sink = begun(PrometheusSink(tmp_path / "train.prom"))
    sink.write(sample(1, host__rss_bytes=2.0**30, step__time_s=0.5, gc__pause_s=0.25))
    sink.write(sample(2, host__rss_bytes=2.0**31, gc__pause_s=0.5, mine__odd_name=3.0))
    sink.end(PlainRun())
    assert read(tmp_path / "train.prom") == {
        "forgather_mem_host_rss_bytes": ("gauge", 2.0**31),
        "forgather_mem_step_time_seconds": ("gauge", 0.5),
        "forgather_mem_gc_pause_seconds_total": ("counter", 0.75),
        "forgather_mem_mine_odd_name": ("gauge", 3.0),
        "forgather_mem_step": ("gauge", 2.0),
    }
    assert (
        "# HELP forgather_mem_host_rss_bytes Resident memory of this process" in (tmp_path / "train.prom").read_text()
    )


def test_the_parser_of_prometheus_reads_every_metric_of_the_table_and_names_of_ones_own(tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    path = tmp_path / "train.prom"
    sink = begun(PrometheusSink(path, every_s=0.001))
    rows = list(every_metric())
    own = {"mine/a-b": 1.5, "mine/a_b": 2.5, "gr\u00f6\u00dfe": 1e300, "mine/2\n{x}": -0.0}
    values = {row.name: index + 0.5 for index, row in enumerate(rows)} | own
    sink.write(Sample(event="step_end", step=3, epoch=None, time_s=0.0, values=values))
    sink.end(PlainRun())
    families = list(parser.text_string_to_metric_families(path.read_text()))
    names = [family.name for family in families]
    assert len(set(names)) == len(names), "node exporter refuses a file with a metric twice"
    assert all(family.documentation and family.type in ("gauge", "counter") for family in families)
    found = {one.name: one.value for family in families for one in family.samples}
    assert [one.labels for family in families for one in family.samples] == [{"rank": "0"}] * len(found)
    assert len(found) == len(rows) + 1 + 3
    assert found["forgather_mem_host_rss_bytes"] == 0.5
    assert found["forgather_mem_mine_a_b"] == 1.5
    assert path.stat().st_mode & 0o444 == 0o444, "node exporter runs as another user"
    assert [file.name for file in tmp_path.iterdir()] == ["train.prom"]


def test_it_is_written_with_the_first_record_and_then_only_after_its_seconds(tmp_path: Path) -> None:
    sink = begun(PrometheusSink(tmp_path / "train.prom", every_s=3600), rank=1)
    sink.write(sample(1, host__rss_bytes=1.0))
    sink.write(sample(2, host__rss_bytes=2.0))
    path = tmp_path / "train.rank1.prom"
    assert read(path)["forgather_mem_step"] == ("gauge", 1.0)
    assert 'rank="1"' in path.read_text()
    sink.end(PlainRun(rank=1))
    assert read(path)["forgather_mem_step"] == ("gauge", 2.0)
    assert sink.problems() is None
    sink.begin(PlainRun(rank=1))
    sink.end(PlainRun(rank=1))
    assert read(path)["forgather_mem_step"] == ("gauge", 2.0), "a training without a record writes nothing"


def test_a_place_that_can_not_be_written_is_told_and_costs_no_training(tmp_path: Path) -> None:
    sink = begun(PrometheusSink(tmp_path / "no folder" / "train.prom"))
    sink.write(sample(1, host__rss_bytes=1.0))
    assert sink.problems() == f"Prometheus: {tmp_path}/no folder/train.prom: {os.strerror(2)}"


@pytest.mark.parametrize(
    ("path", "every_s", "told"), [("train.txt", 1.0, r"ends in \.prom"), ("a.prom", 0.0, "seconds above 0")]
)
def test_arguments_are_checked(path: str, every_s: float, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        PrometheusSink(path, every_s=every_s)
