"""`JsonLogger`: keeps everything that a training logs in one JSON file."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.callbacks.training.info import arguments
from forgather_mem.callbacks.training.output_paths import event_folder
from forgather_mem.formats.json_array import JsonArrayFile
from forgather_mem.formats.jsonl import plain
from forgather_mem.telemetry.records import NOTHING, Moment, RunInfo, Sample
from forgather_mem.telemetry.redaction import redacted_value
from forgather_mem.telemetry.rule import EachRun, Rule
from forgather_mem.telemetry.triggers import AtEvent

logger = logging.getLogger(__name__)

FILE_NAME = "trainer_logs.json"
# Stored on the trainer's state, so that an evaluation after the training continues in its file.
_PATH_ATTRIBUTE = "_forgather_mem_json"
_EVENTS = ("train_begin", "epoch_end", "log", "evaluate", "save", "train_end")
# Longer descriptions of the experiment appear in full in the first record only.
_MAX_META_CHARS = 4_096


class JsonLogger(RuleCallback):
    """Writes log lines, evaluations, checkpoints, epochs, and the start and end of a training to `trainer_logs.json`.

    The file is a JSON array, valid after every record, also if the process is killed between two of them; a record torn
    by a kill is cut off by the training that continues the file. It is in the run's TensorBoard folder; a resumed
    training continues its file. Rank 0 only. A record is

        {"event": "on_log", "timestamp": "2024-01-01T12:00:00.000+00:00", "global_step": 100, "epoch": 0.5,
         "metrics": {"loss": 2.34, "learning_rate": 0.0001}, "meta": {"name": "My Experiment"}}

    and the record of `on_train_begin` also has the trainer's arguments and the model's configuration. Infinite numbers
    and NaN become null, since JSON has no form for them.

    Args:
        logging_dir: The folder, if it can't be found as for `TBMemoryLogger`.
        enabled: False makes it do nothing.
        strict: Let a failure of our own end the training instead of logging it once.
        **experiment_info: The "meta" of every record (`name`, `description`, `config`, ...). If it is longer than 4,096
            characters in total, only the first record of a training has the long parts.
    """

    outside: ClassVar[frozenset[str]] = frozenset({"log", "evaluate"})

    def __init__(
        self,
        *,
        logging_dir: str | Path | None = None,
        enabled: bool = True,
        strict: bool = False,
        **experiment_info: object,
    ) -> None:
        self.experiment_info = experiment_info
        self._paths: list[Path] = []  # of this training, or of the last one
        info = {name: redacted_value(value, name) for name, value in experiment_info.items()}
        writer = EachRun(_Writer, logging_dir, info, self._paths)
        super().__init__([Rule(AtEvent(*_EVENTS), [writer], "JsonLogger")], enabled=enabled, strict=strict)

    @property
    def path(self) -> Path | None:
        """The file of this training, or of the last one; None before the first record."""
        return next(iter(self._paths), None)


class _Writer:
    """The work in one training, or in an evaluation outside one."""

    def __init__(
        self, run: RunInfo, logging_dir: str | Path | None, info: Mapping[str, object], paths: list[Path]
    ) -> None:
        self._logging_dir, self._info, self._paths = logging_dir, info, paths
        self._short_info = _short(info)
        self._file: JsonArrayFile | None = None
        self._began_s = time.time()
        run.at_close(self._close)

    def _close(self) -> None:
        if self._file is not None and (problem := self._file.problem()):
            logger.warning("JsonLogger: %s", problem)
        self._file = None

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        if moment.is_main:
            if self._file is None:
                self._paths[:] = [self._place(moment)]
                self._file = JsonArrayFile(self._paths[0])
            self._file.append(self._record(moment))
        return NOTHING

    def _record(self, moment: Moment) -> dict[str, object]:
        begins = moment.event == "train_begin"
        metrics = moment.objects.get("logs" if moment.event == "log" else "metrics")
        record = {
            "event": f"on_{moment.event}",
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "global_step": moment.step,
            "epoch": moment.epoch,
            "metrics": dict(metrics or {}),
            "meta": self._info if begins else self._short_info,
        }
        if begins:
            config = getattr(moment.objects.get("model"), "config", None)
            record["arguments"] = arguments(moment.args)
            record["model"] = config.to_dict() if config is not None and hasattr(config, "to_dict") else None
        return record

    def _place(self, moment: Moment) -> Path:
        known: Path | None = getattr(moment.state, _PATH_ATTRIBUTE, None)
        if known is not None and self._logging_dir is None:
            return known
        path = self._find(moment)
        setattr(moment.state, _PATH_ATTRIBUTE, path)
        return path

    def _find(self, moment: Moment) -> Path:
        folder, output_dir = event_folder(moment, self._logging_dir, self._began_s), moment.run.output_dir
        if "://" in folder:
            path = (output_dir or Path()) / FILE_NAME
            logger.warning("JsonLogger: %s is remote; the log is written to %s", folder, path)
            return path
        path = Path(folder) / FILE_NAME
        resumes = moment.event == "train_begin" and moment.step > 0
        if resumes and not path.exists() and output_dir is not None:
            earlier = [log for log in (output_dir / "runs").rglob(FILE_NAME) if log.is_file()]
            return max(earlier, key=lambda log: log.stat().st_mtime, default=path)
        return path


def _short(info: Mapping[str, object]) -> Mapping[str, object]:
    if len(json.dumps(plain(info))) <= _MAX_META_CHARS:
        return info
    share = _MAX_META_CHARS // max(len(info), 1)
    return {name: value for name, value in info.items() if len(json.dumps(plain(value))) <= share}
