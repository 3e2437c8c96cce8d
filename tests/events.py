"""What stands in event files, by TensorBoard's own reader."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ALL = {"scalars": 0, "tensors": 0}


def event_folders(folder: Path) -> list[Path]:
    return sorted({path.parent for path in folder.rglob("*tfevents*")})


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Points by tag, of all files of all runs below the folder."""
    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.rglob("*tfevents*")):
        reader = EventAccumulator(str(path), size_guidance=ALL).Reload()
        for tag in reader.Tags()["scalars"]:
            found.setdefault(tag, []).extend((point.step, point.value) for point in reader.Scalars(tag))
    return found


def texts(folder: Path) -> dict[str, list[tuple[int, str]]]:
    """Texts by tag."""
    found: dict[str, list[tuple[int, str]]] = {}
    for path in sorted(folder.rglob("*tfevents*")):
        reader = EventAccumulator(str(path), size_guidance=ALL).Reload()
        for tag in reader.Tags()["tensors"]:
            if reader.SummaryMetadata(tag).plugin_data.plugin_name == "text":
                points = [(point.step, point.tensor_proto.string_val[0].decode()) for point in reader.Tensors(tag)]
                found.setdefault(tag.removesuffix("/text_summary"), []).extend(points)
    return found
