"""Our fields, against google.protobuf."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event

from forgather_mem.formats.summaries import double, integer, nested, single, text


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), st.floats(), st.floats(), st.text(max_size=20), st.binary(max_size=200))
def test_fields_parse_to_what_was_written(step: int, time_s: float, number: float, name: str, content: bytes) -> None:
    value = nested(1, text(1, name), single(2, number))
    held = nested(1, nested(8, integer(1, 7), nested(8, content)))
    expected = Event(step=step, wall_time=time_s)
    expected.summary.value.add(tag=name, simple_value=number)
    expected.summary.value.add().tensor.string_val.append(content)
    expected.summary.value[1].tensor.dtype = 7
    found = Event.FromString(double(1, time_s) + integer(2, step) + nested(5, value, held))
    assert repr(found) == repr(expected)  # equal, also where a number is none
