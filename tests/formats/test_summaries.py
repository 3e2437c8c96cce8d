"""Scalars as events, against TensorBoard's own messages."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR, DATA_CLASS_TENSOR, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as layout_metadata
from tensorboard.plugins.text import metadata as text_metadata

from forgather_mem.formats.summaries import (
    Chart,
    ScalarRecord,
    file_version_payload,
    layout_payload,
    report_payload,
    text_payload,
)


@settings(deadline=None)
@given(
    st.lists(st.text(max_size=20), min_size=1, max_size=8),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(0, 2e9),
    st.lists(st.floats(), min_size=8, max_size=8),
    st.booleans(),
)
def test_a_payload_parses_to_the_event_that_tensorboards_messages_make(
    tags: list[str], step: int, time_s: float, numbers: list[float], described: bool
) -> None:
    record = ScalarRecord(tags, dict.fromkeys(tags, "d") if described else {})
    doubled = [number * 2 for number in numbers]
    found = Event.FromString(record.payload(step, time_s, numbers, [2.0] * len(tags)))
    expected = Event(step=step, wall_time=time_s, summary=Summary())
    for tag, number in zip(tags, doubled, strict=False):
        value = expected.summary.value.add(tag=tag, simple_value=number)
        if described:
            value.metadata.summary_description = "d"
            value.metadata.plugin_data.plugin_name = "scalars"
            value.metadata.data_class = DATA_CLASS_SCALAR
    assert repr(found) == repr(expected)  # equal, also where a number is none
    record.descriptive = False
    for value in expected.summary.value:
        value.ClearField("metadata")
    found = Event.FromString(record.payload(step, time_s, numbers, [2.0] * len(tags)))
    assert repr(found) == repr(expected)


def event_of(tag: str, content: bytes, metadata: SummaryMetadata) -> Event:
    """An event with one string, at step 7, as TensorBoard's messages make it."""
    tensor = TensorProto(dtype=DT_STRING, string_val=[content], tensor_shape={})
    value = Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
    return Event(step=7, wall_time=1.5, summary=Summary(value=[value]))


def test_texts_and_reports_parse_to_tensorboards_messages() -> None:
    markdown = "# a table\n| \u00e9 |\n"
    expected = event_of("notes", markdown.encode(), text_metadata.create_summary_metadata("", ""))
    assert Event.FromString(text_payload("notes", markdown, 7, 1.5)) == expected
    plugin = SummaryMetadata.PluginData(plugin_name="forgather_mem")
    metadata = SummaryMetadata(data_class=DATA_CLASS_TENSOR, plugin_data=plugin)
    assert Event.FromString(report_payload(b"{}", 7, 1.5)) == event_of("mem_report/json", b"{}", metadata)
    assert Event.FromString(file_version_payload(1.5)) == Event(wall_time=1.5, file_version="brain.Event:2")


def test_a_layout_parses_to_tensorboards_messages() -> None:
    charts = [
        Chart(category="host", title="process", lines=("rss", "peak.*")),
        Chart(category="ranks", title="spread", margin=("mean", "min", "max")),
        Chart(category="host", title="limit", lines=()),
    ]
    layout = layout_pb2.Layout()
    host, ranks = layout.category.add(title="host"), layout.category.add(title="ranks")
    host.chart.add(title="process").multiline.tag.extend(["rss", "peak.*"])
    host.chart.add(title="limit").multiline.SetInParent()
    ranks.chart.add(title="spread").margin.series.add(value="mean", lower="min", upper="max")
    found = Event.FromString(layout_payload(charts, 7, 1.5))
    content = found.summary.value[0].tensor.string_val[0]
    assert layout_pb2.Layout.FromString(content) == layout
    metadata = layout_metadata.create_summary_metadata()
    assert found == event_of(layout_metadata.CONFIG_SUMMARY_TAG, content, metadata)
