"""Which TensorBoard messages do we write? Scalars, text, a chart layout and hyperparameters, as `Event`s.

Here are tags and numbers only; what they mean is decided in `sinks/`. Each function's message is shown by
both of TensorBoard's loaders (the fast one in Rust, and the one in Python).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as layout_metadata
from tensorboard.plugins.text import metadata as text_metadata

HParam = str | bool | int | float


class ScalarRecord:
    """One `Event` with the same tags every time, filled again and again with new numbers.

    Filling 20 numbers takes about 2 us; building a new message would take 8.

    Args:
        tags: One for each number.
        descriptions: Markdown by tag. TensorBoard wants it once, before or with a tag's first point.
    """

    def __init__(self, tags: Sequence[str], descriptions: Mapping[str, str]) -> None:
        self.event = Event()
        self._described = bool(descriptions)
        for tag in tags:
            value = self.event.summary.value.add(tag=tag, simple_value=0.0)
            if tag in descriptions:
                # Without the data class the fast loader drops the description of a plain scalar.
                value.metadata.plugin_data.plugin_name = "scalars"
                value.metadata.data_class = DATA_CLASS_SCALAR
                value.metadata.summary_description = descriptions[tag]
        self._cells = list(self.event.summary.value)

    def fill(self, step: int, time_s: float, numbers: Iterable[float]) -> Event:
        """The event with these numbers; the same object every time, so write it before the next call."""
        event = self.event
        event.step, event.wall_time = step, time_s
        for cell, number in zip(self._cells, numbers, strict=True):
            cell.simple_value = number
        return event

    def described(self) -> None:
        """The descriptions have been written: leave them out from now on."""
        if self._described:
            self._described = False
            for cell in self._cells:
                cell.ClearField("metadata")


def text_event(tag: str, markdown: str, step: int, time_s: float) -> Event:
    """A text for the Text tab; Markdown with tables, HTML is shown as it is written."""
    metadata = text_metadata.create_summary_metadata(display_name="", description="")
    return _event(_string_value(tag, markdown.encode(), metadata), step, time_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart of the Custom Scalars tab.

    Attributes:
        category: The section it stands in.
        title: Above the chart.
        lines: Tags drawn as lines, each a regular expression.
        margin: Instead of lines: (value, lower, upper), drawn as a line with a band.
    """

    category: str
    title: str
    lines: tuple[str, ...] = ()
    margin: tuple[str, str, str] | None = None


def layout_event(charts: Iterable[Chart], step: int, time_s: float) -> Event:
    """The Custom Scalars layout of a run; a later one replaces an earlier one."""
    layout = layout_pb2.Layout()
    categories: dict[str, layout_pb2.Category] = {}
    for chart in charts:
        if chart.category not in categories:
            categories[chart.category] = layout.category.add(title=chart.category)
        added = categories[chart.category].chart.add(title=chart.title)
        if chart.margin is not None:
            value, lower, upper = chart.margin
            added.margin.series.add(value=value, lower=lower, upper=upper)
        else:
            added.multiline.tag.extend(chart.lines)
    metadata = layout_metadata.create_summary_metadata()
    value = _string_value(layout_metadata.CONFIG_SUMMARY_TAG, layout.SerializeToString(), metadata)
    return _event(value, step, time_s)


def hparams_events(hparams: Mapping[str, HParam], metric_tags: Iterable[str], time_s: float) -> list[Event]:
    """Hyperparameters of this run, with live tags of the same run as their metrics."""
    from tensorboard.plugins.hparams import summary_v2  # loads numpy, 0.1 s

    config = summary_v2.hparams_config_pb(
        hparams=[summary_v2.HParam(name) for name in hparams],
        metrics=[summary_v2.Metric(tag) for tag in metric_tags],
        time_created_secs=time_s,
    )
    start = summary_v2.hparams_pb(dict(hparams), start_time_secs=time_s)
    return [Event(step=0, wall_time=time_s, summary=summary) for summary in (config, start)]


def hparams_end_event(time_s: float) -> Event:
    """The run that `hparams_events` began has ended."""
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2  # without TensorFlow, unlike its API

    ended = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS, end_time_secs=time_s)
    content = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_end_info=ended))
    value = Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=content, tensor=metadata.NULL_TENSOR)
    return _event(value, 0, time_s)


def _string_value(tag: str, content: bytes, metadata: SummaryMetadata) -> Summary.Value:
    tensor = TensorProto(dtype=DT_STRING, string_val=[content], tensor_shape={})
    return Summary.Value(tag=tag, metadata=metadata, tensor=tensor)


def _event(value: Summary.Value, step: int, time_s: float) -> Event:
    return Event(step=step, wall_time=time_s, summary=Summary(value=[value]))
