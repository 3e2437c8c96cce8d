"""What a tracker has kept of a run, read with its own reader.

readers.py TRACKER prints it as JSON: in a process of its own, since they take their folders when they are imported.
"""

import json
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Kept:
    """One run: its log lines in their order, each with the step it was logged at, and its summary."""

    lines: list[dict[str, float]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)


def wandb(folder: Path) -> Kept:
    """From the file of an offline run: W&B's own messages, in records of LevelDB's log."""
    from wandb.proto import wandb_internal_pb2

    kept = Kept()
    (file,) = folder.rglob("run-*.wandb")
    for data in _leveldb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            line = {_name(item): json.loads(item.value_json) for item in record.history.item}
            kept.steps.append(line["_step"])
            kept.lines.append({name: value for name, value in line.items() if not name.startswith("_")})
        elif record.HasField("summary"):
            kept.summary |= {_name(item): json.loads(item.value_json) for item in record.summary.update}
    return kept


def mlflow(folder: Path) -> Kept:
    import mlflow as module

    client = module.MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (run,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    kept = Kept()
    by_line: dict[tuple[int, int], dict[str, float]] = {}
    for name in run.data.metrics:
        for point in client.get_metric_history(run.info.run_id, name):
            if name.startswith("mem_run_"):
                kept.summary[name] = point.value
            else:
                by_line.setdefault((point.timestamp, point.step), {})[name] = point.value
    kept.steps = [step for _, step in sorted(by_line)]
    kept.lines = [by_line[key] for key in sorted(by_line)]
    kept.summary |= {name: text for name, text in run.data.tags.items() if name.startswith("mem_")}
    return kept


def comet_ml(folder: Path) -> Kept:
    """From the archive of an offline experiment, whose messages are lines of JSON."""
    kept = Kept()
    (archive,) = folder.rglob("*.zip")
    for text in zipfile.ZipFile(archive).read("messages.json").decode().splitlines():
        message = json.loads(text)
        payload = message["payload"]
        if message["type"] == "metric_msg":
            metric = payload["metric"]
            name, step = metric["metricName"], metric["step"]
            if name.startswith("sys."):
                continue
            line = kept.lines[-1] if kept.lines else {}
            # Names come sorted: an evaluation's begin a line
            if (
                not line
                or name in line
                or step != kept.steps[-1]
                or (name.startswith("eval/") and "train/epoch" in line)
            ):
                line = {}
                kept.lines.append(line)
                kept.steps.append(step)
            line[name] = metric["metricValue"]
        elif message["type"] == "log_other":
            kept.summary[payload["key"]] = payload["value"]
    return kept


def trackio(folder: Path) -> Kept:
    import trackio as module

    (project,) = module.SQLiteStorage.get_projects()
    (run,) = module.Api().runs(project)
    kept = Kept()
    for line in module.SQLiteStorage.get_logs(project, run.name):
        kept.steps.append(line.pop("step"))
        kept.lines.append({name: value for name, value in line.items() if name != "timestamp"})
    for alert in run.alerts():
        head, _, report = alert["text"].partition("\n\n")
        kept.summary |= dict(line.split(": ", 1) for line in head.splitlines())
        kept.summary |= {"mem_run_report": report, "title": alert["title"], "level": alert["level"]}
    return kept


def _name(item: Any) -> str:
    return item.key or ".".join(item.nested_key)


def _leveldb_records(data: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format, after W&B's header of 7 bytes; crc and length are not checked."""
    block, at, parts = 32_768, 7, b""
    while at + 7 <= len(data):
        left = block - at % block
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last of several
            yield parts
            parts = b""


if __name__ == "__main__":
    print(json.dumps(asdict(globals()[sys.argv[1]](Path.cwd()))))
