"""TensorBoard's tab "Memory": the page of each run with `mem_*` tags, from what TensorBoard has read.

TensorBoard knows rank 0 alone. Nothing else is read: an event file may be anybody's, and so may the folder it names.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import parse_qs

import numpy as np
from tensorboard import context as tensorboard_context
from tensorboard import plugin_util
from tensorboard.data.provider import RunTagFilter
from tensorboard.plugins import base_plugin

from forgather_mem.errors import escape_controls
from forgather_mem.formats.event_file import ScalarSeries
from forgather_mem.formats.summaries import PLUGIN_NAME, REPORT_TAG
from forgather_mem.page.data import Json, page_data
from forgather_mem.page.html import ASSETS, asset
from forgather_mem.page.readings import readings_of
from forgather_mem.page.tables import BADGES, headline
from forgather_mem.reporting.from_events import report_of_samples, samples_of_tags
from forgather_mem.telemetry.report import RunReport
from forgather_mem.telemetry.report_schema import checked_report

_SCALARS = "scalars"
_MOST = 1_000_000  # points of a tag; TensorBoard itself has kept 1000 of them unless told otherwise
_ALONE = "Rank 0 alone (of all: forgather-mem report): "
_NO_REPORT = "TensorBoard has curves of this run, but no report: it is running, or was ended without one."

Untyped: TypeAlias = Any  # TensorBoard has no types
Environ = dict[str, Untyped]
Answer = Callable[[Environ, Callable[..., Untyped]], Iterable[bytes]]


class MemoryTab(base_plugin.TBPlugin):  # type: ignore[misc]
    """The tab, with the same page module as `report --html`.

    Args:
        context: TensorBoard's `TBContext`.
    """

    plugin_name = PLUGIN_NAME

    def __init__(self, context: Untyped) -> None:
        self._provider = context.data_provider
        assert self._provider is not None, "no data provider"

    def get_plugin_apps(self) -> dict[str, Answer]:
        """An application for each route below /data/plugin/forgather_mem."""
        files = {f"/{name}": _answer(partial(lambda name, _: asset(name), name), kind) for name, kind in ASSETS.items()}
        ours = (("/runs", self._runs), ("/data", self._data))
        return {**{route: _answer(text_of, "application/json") for route, text_of in ours}, **files}

    def is_active(self) -> bool:
        """Whether any run has our tags."""
        return bool(self._tags(tensorboard_context.RequestContext(), ""))

    def frontend_metadata(self) -> Untyped:
        return base_plugin.FrontendMetadata(es_module_path="/follow.js", tab_name="Memory")

    def _runs(self, environ: Environ) -> str:
        runs = sorted(self._tags(plugin_util.context(environ), plugin_util.experiment_id(environ)))
        return json.dumps({"live": False, "runs": [{"id": run, "name": run} for run in runs]})

    def _data(self, environ: Environ) -> str | None:
        context, experiment = plugin_util.context(environ), plugin_util.experiment_id(environ)
        run = parse_qs(environ.get("QUERY_STRING", "")).get("run", [""])[0]
        tags = self._tags(context, experiment).get(run)
        return None if not tags else json.dumps(self._page(context, experiment, run, tags), allow_nan=False)

    def _tags(self, context: Untyped, experiment: str) -> dict[str, list[str]]:
        """Our tags of each run that has any."""
        found = self._provider.list_scalars(context, experiment_id=experiment, plugin_name=_SCALARS) or {}
        ours = {run: [tag for tag in tags if tag.startswith("mem_")] for run, tags in found.items()}
        return {run: tags for run, tags in ours.items() if tags}

    def _page(self, context: Untyped, experiment: str, run: str, tags: list[str]) -> Json:
        def read(how: Callable[..., Untyped], plugin: str, tags: list[str]) -> Mapping[str, Untyped]:
            wanted = RunTagFilter(runs=[run], tags=tags)
            found = how(context, experiment_id=experiment, plugin_name=plugin, downsample=_MOST, run_tag_filter=wanted)
            return dict((found or {}).get(run, {}))

        scalars = {tag: _series(points) for tag, points in read(self._provider.read_scalars, _SCALARS, tags).items()}
        told = read(self._provider.read_tensors, PLUGIN_NAME, [REPORT_TAG]).get(REPORT_TAG, ())
        report = None
        with contextlib.suppress(ValueError, RecursionError):  # the event file may be anybody's
            report = checked_report(json.loads(told[-1].numpy.item())) if told else None
        readings = readings_of(samples_of_tags(scalars))
        if report is not None:
            return page_data(report, readings, name=run) | _one_of_several_ranks(report)
        data = page_data(report_of_samples(samples_of_tags(scalars)), readings, name=run)
        return data | {"script": run, "verdict": _NO_REPORT, "text": _NO_REPORT}


def _one_of_several_ranks(report: RunReport) -> Json:
    """What the page says instead of one rank's verdict on a run of several."""
    kind, verdict, _ = headline(report)
    if report.run.world_size == 1 or report.ranks is not None:
        return {}
    kind = "unknown" if kind == "well" else kind
    return {"kind": kind, "badge": BADGES[kind], "verdict": escape_controls(_ALONE + verdict)}


def _series(points: Sequence[Untyped]) -> ScalarSeries:
    return ScalarSeries(
        steps=np.array([point.step for point in points], dtype=np.int64),
        wall_times_s=np.array([point.wall_time for point in points]),
        values=np.array([point.value for point in points]),
    )


def _answer(content: Callable[[Environ], str | None], kind: str) -> Answer:
    """An application that answers with this text; None is not found."""

    def application(environ: Environ, start_response: Callable[..., Untyped]) -> Iterable[bytes]:
        found = content(environ) if environ["REQUEST_METHOD"] in ("GET", "HEAD") else None
        headers = [("Content-Type", f"{kind}; charset=utf-8"), ("X-Content-Type-Options", "nosniff")]
        start_response("200 OK" if found is not None else "404 Not Found", [*headers, ("Cache-Control", "no-cache")])
        return [(found or "").encode()]

    return application
