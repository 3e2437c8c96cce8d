"""Scalars as events, against TensorBoard's own messages."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR, Summary

from forgather_mem.formats.summaries import ScalarRecord


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
