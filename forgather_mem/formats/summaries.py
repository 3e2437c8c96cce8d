"""The TensorBoard messages that we write, as `Event` payloads: scalars, text, a chart layout, hyperparameters.

This module only handles tags and numbers; `sinks/` decides what they mean. Each message works with both of
TensorBoard's loaders (the fast one in Rust, and the one in Python).
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

PLUGIN_NAME, REPORT_TAG = "forgather_mem", "mem_report/json"
HParam = str | bool | int | float
_MAX_SHORT_STEP = (1 << 28) - 1  # capacity of four varint bytes
_LAYOUT_TAG, _LAYOUT_PLUGIN = "custom_scalars__config__", "custom_scalars"
_DATA_CLASS_SCALAR, _DATA_CLASS_TENSOR, _DT_STRING = 1, 2, 7


class ScalarRecord:
    """The payload of an `Event` with constant tags, rebuilt repeatedly with new numbers.

    The constant bytes are made once; then one `struct.pack` puts the numbers between them. Compared with refilling and
    serializing one message of TensorBoard's, this takes 2.6 instead of 3.8 us for 20 numbers in a loop, and in a real
    step, with cold caches, some 15 us less. The step is always written in four bytes, which the format allows: so one
    packer serves all steps.

    Args:
        tags: One per number; at least one.
        descriptions: Markdown by tag. TensorBoard expects it once, with a tag's first point.

    Attributes:
        descriptive: Whether the payload still includes descriptions.
    """

    def __init__(self, tags: Sequence[str], descriptions: Mapping[str, str]) -> None:
        self._tags = tags
        self._descriptions = descriptions
        self.descriptive = bool(descriptions)
        # A value without metadata ends with the four bytes of its number.
        heads = [nested(1, _scalar_value(tag, 0.0))[:-4] for tag in tags]
        num_bytes = sum(map(len, heads)) + 4 * len(heads)
        heads[:1] = [b"\x2a" + varint(num_bytes) + head for head in heads[:1]]
        self._pack = struct.Struct("<BdBI" + "".join(f"{len(head)}sf" for head in heads)).pack
        self._parts: list[object] = [None] * (2 * len(heads))
        self._parts[0::2] = heads

    def payload(
        self,
        step: int,
        time_s: float,
        values: Iterable[float],
        factors: Sequence[float],
        instead: Iterable[tuple[int, float]] = (),
    ) -> bytes:
        """The event with each value times its factor.

        Args:
            step: Optimizer steps done.
            time_s: Wall clock.
            values: Values of the tags, in order from the first.
            factors: One per value.
            instead: (index of a tag, number): numbers that replace these, or follow them.
        """
        parts = self._parts
        parts[1 : 2 * len(factors) : 2] = map(operator.mul, values, factors)
        for index, number in instead:
            parts[2 * index + 1] = number
        if self.descriptive or not 0 <= step <= _MAX_SHORT_STEP:
            return self._message(step, time_s)
        # Seven bits of the step per byte, with the high bit set in all but the last.
        short = step & 0x7F | (step & 0x3F80) << 1 | (step & 0x1FC000) << 2 | (step & 0xFE00000) << 3 | 0x808080
        try:
            return self._pack(9, time_s, 16, short, *parts)
        except OverflowError:  # beyond float32
            return self._message(step, time_s)

    def _message(self, step: int, time_s: float) -> bytes:
        """The payload built field by field: slower, but correct for everything."""
        values = []
        for tag, number in zip(self._tags, self._parts[1::2], strict=True):
            value = _scalar_value(tag, number)  # type: ignore[arg-type]  # every second part is a number
            if self.descriptive and tag in self._descriptions:
                # Without the data class the fast loader drops the description of a plain scalar.
                value += _metadata("scalars", text(3, self._descriptions[tag]), integer(4, _DATA_CLASS_SCALAR))
            values.append(value)
        return _payload(values, step, time_s)


def file_version_payload(time_s: float) -> bytes:
    """The first event of a file."""
    return double(1, time_s) + text(3, "brain.Event:2")


def text_payload(tag: str, markdown: str, step: int, time_s: float) -> bytes:
    """A text for the Text tab; Markdown with tables, HTML is shown literally."""
    return _payload([_string_value(tag, markdown.encode(), _metadata("text"))], step, time_s)


def report_payload(report: bytes, step: int, time_s: float) -> bytes:
    """A whole report as JSON, for our own tab; no other shows it."""
    metadata = _metadata(PLUGIN_NAME, integer(4, _DATA_CLASS_TENSOR))
    return _payload([_string_value(REPORT_TAG, report, metadata)], step, time_s)


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart of the Custom Scalars tab.

    Attributes:
        category: Its section.
        title: Its title.
        lines: Tags drawn as lines, each a regular expression.
        margin: Instead of lines: (value, lower, upper), drawn as a line with a band.
    """

    category: str
    title: str
    lines: tuple[str, ...] = ()
    margin: tuple[str, str, str] | None = None


def layout_payload(charts: Iterable[Chart], step: int, time_s: float) -> bytes:
    """The Custom Scalars layout of a run; a later one replaces an earlier one."""
    categories: dict[str, list[bytes]] = {}
    for chart in charts:
        if chart.margin is not None:
            series = nested(1, *map(text, (1, 2, 3), chart.margin))  # value, lower, upper
            content = nested(3, series)
        else:
            content = nested(2, *(text(1, tag) for tag in chart.lines))
        categories.setdefault(chart.category, []).append(nested(2, text(1, chart.title), content))
    layout = b"".join(nested(2, text(1, title), *inside) for title, inside in categories.items())
    return _payload([_string_value(_LAYOUT_TAG, layout, _metadata(_LAYOUT_PLUGIN))], step, time_s)


def hparams_payloads(hparams: Mapping[str, HParam], metric_tags: Iterable[str], time_s: float) -> list[bytes]:
    """Hyperparameters of this run, with live tags of the same run as their metrics."""
    from tensorboard.plugins.hparams import summary_v2  # loads numpy, 0.1 s

    config = summary_v2.hparams_config_pb(
        hparams=[summary_v2.HParam(name) for name in hparams],
        metrics=[summary_v2.Metric(tag) for tag in metric_tags],
        time_created_secs=time_s,
    )
    start = summary_v2.hparams_pb(dict(hparams), start_time_secs=time_s)
    return [_payload([summary.value[0].SerializeToString()], 0, time_s) for summary in (config, start)]


def hparams_end_payload(time_s: float) -> bytes:
    """Marks the run begun by `hparams_payloads` as finished."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2  # without TensorFlow, unlike its API

    ended = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS, end_time_secs=time_s)
    content = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_end_info=ended))
    value = Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=content, tensor=metadata.NULL_TENSOR)
    return _payload([value.SerializeToString()], 0, time_s)


# The numbers below are those of the fields in tensorboard/compat/proto: event, summary and tensor.


def _payload(values: Iterable[bytes], step: int, time_s: float) -> bytes:
    """An Event of these values."""
    return double(1, time_s) + integer(2, step) + nested(5, *(nested(1, value) for value in values))


def _scalar_value(tag: str, number: float) -> bytes:
    return text(1, tag) + single(2, number)


def _string_value(tag: str, content: bytes, metadata: bytes) -> bytes:
    # 2 is its shape: none
    return text(1, tag) + nested(8, integer(1, _DT_STRING), nested(2), nested(8, content)) + metadata


def _metadata(plugin_name: str, *fields: bytes) -> bytes:
    """What plugin shows a value, and further fields of its metadata."""
    return nested(9, nested(1, text(1, plugin_name)), *fields)


_VARINT, _EIGHT_BYTES, _LENGTH_FIRST, _FOUR_BYTES = 0, 1, 2, 5  # how the bytes of a value are delimited
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")


def varint(number: int) -> bytes:
    """An integer from 0, seven bits a byte."""
    found = []
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def integer(field: int, number: int) -> bytes:
    """An int32, int64 or enum; a negative one as its two's complement."""
    return _key(field, _VARINT) + varint(number % (1 << 64))


def double(field: int, number: float) -> bytes:
    """A number of 8 bytes."""
    return _key(field, _EIGHT_BYTES) + _DOUBLE.pack(number)


def single(field: int, number: float) -> bytes:
    """A number of 4 bytes, its last ones; infinite beyond their range."""
    try:
        packed = _FLOAT.pack(number)
    except OverflowError:
        packed = _FLOAT.pack(math.copysign(math.inf, number))
    return _key(field, _FOUR_BYTES) + packed


def text(field: int, content: str) -> bytes:
    """A string."""
    return nested(field, content.encode())


def nested(field: int, *parts: bytes) -> bytes:
    """A message of these fields; also plain bytes, which are written alike."""
    content = b"".join(parts)
    return _key(field, _LENGTH_FIRST) + varint(len(content)) + content


def _key(field: int, delimited: int) -> bytes:
    return varint(field << 3 | delimited)
