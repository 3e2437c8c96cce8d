"""Every kind of ending of a script, after each kind of training: alone, under `run`, and under `plan`.

Watched, a script ends as it does alone: exit code, stdout, its own stderr, its files. Planned, none of its code runs
after the plan: nothing stands in its folder that was not there before the training.
"""

import re
from pathlib import Path

import pytest
import yaml

from tests.launch.commands import JUDGED, Result, python, run, taken_apart

pytestmark = pytest.mark.soak

HEAD, TRAININGS, ENDINGS = yaml.safe_load(Path(__file__).with_name("endings.yaml").read_text(encoding="utf-8")).values()
# What differs from run to run by itself
_VARIES = re.compile(
    r"0x[0-9a-f]+|\d+[.:]\d+|<Thread\(.*?\)>|^.*(?:Warning|warnings?\.warn).*\n(?:  .*\n)?", re.MULTILINE
)


def script(folder: Path, training: str, ending: str) -> str:
    folder.mkdir()
    (folder / "train.py").write_text(f"{HEAD}{TRAININGS[training]}{ENDINGS[ending]}\n", encoding="utf-8")
    return "train.py"


def seen(result: Result, folder: Path) -> dict[str, object]:
    """What somebody has of a run: its files without ours, code and streams."""
    left = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not {"forgather_mem", "runs"} & set(path.relative_to(folder).parts)
    }
    err = _VARIES.sub("", result.err.replace(str(folder), "."))
    return {"code": result.code, "out": result.out, "err": err.strip(), "files": left}


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_ends_as_without_us(tmp_path: Path, training: str, ending: str) -> None:
    alone, with_us = tmp_path / "alone", tmp_path / "watched"
    plain = run(python(script(alone, training, ending)), alone)
    found = taken_apart(run([*JUDGED, script(with_us, training, ending)], with_us))
    assert seen(found.plain, with_us) == seen(plain, alone)


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("ending", [name for name in ENDINGS if "train" in ENDINGS[name]])
def test_a_planned_script_runs_nothing_after_its_plan(tmp_path: Path, training: str, ending: str) -> None:
    folder = tmp_path / "planned"
    name = script(folder, training, ending)
    result = run(python("-m", "forgather_mem", "plan", name), folder)
    assert not (folder / "after.txt").exists(), result
    assert result.code in (0, 1), "planned, or refused with a sentence"
    assert "Peak " in result.out or "forgather-mem: " in result.err, result
