"""What is run plainly and watched: scripts without torch, as short as can be."""

from pathlib import Path

import yaml

_TABLES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
TEXTS, BROKEN_TRANSFORMERS = _TABLES["scripts"], _TABLES["a transformers that fails"]


def script(folder: Path, name: str) -> str:
    path = folder / f"{name.replace(' ', '_')}.py"
    path.write_text(TEXTS[name])
    return path.name
