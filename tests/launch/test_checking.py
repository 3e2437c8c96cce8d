"""What the user asked for is looked at before the command begins, and quickly."""

import json
from pathlib import Path

from tests.launch.commands import ROOT, python, run

_CHECK = """
import json, sys
import os
from forgather_mem.launch.checking import read
codes = []
for words in json.loads(sys.argv[1]):
    codes.append((read([*words, "train.py"], os.open(os.devnull, os.O_WRONLY)), "torch" in sys.modules))
print(json.dumps(codes))
"""
MISTAKE = """-- extends "callbacks/memory.yaml"

[callback_list]
    == super()
    gc: !singleton:forgather_mem.callbacks:SimpleGarbageCollector
        collect_freq_epoc: 2
"""

VALUE = """-- extends "callbacks/watch.yaml"

[callback_list]
    == super()
    alert: !singleton:forgather_mem.callbacks:MemoryAlert
        above: { host/limit_used_fra: "90%" }
"""


def test_a_template_of_ours_is_checked_without_torch_and_a_mistake_in_one_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(MISTAKE)
    (tmp_path / "value.yaml").write_text(VALUE)
    shipped = sorted(path.name for path in (ROOT / "templates" / "callbacks").glob("*.yaml"))
    wordings = [["--template", f"callbacks/{name}"] for name in shipped]
    wordings += [
        ["--max-peak", "host=8GiB"],
        ["--max-peak", "host=lots"],
        ["--max-peak", "host=24"],
        ["--template", "mine.yaml"],
        ["--template", "value.yaml"],
    ]
    done = run(python("-c", _CHECK, json.dumps(wordings)), tmp_path)
    assert done.code == 0, done.err
    codes = json.loads(done.out)
    assert len(shipped) > 5
    assert codes[:-4] == [[0, False]] * (len(shipped) + 1)
    assert codes[-4:] == [[2, False], [2, False], [1, False], [1, False]], (
        "nor are those with a mistake looked at with torch"
    )
    assert "--max-peak '24': is that GiB? Write a unit, for example" in done.err
    assert "did you mean 'host/limit_used_frac'?" in done.err
    assert "did you mean 'collect_freq_epoch'?" in done.err


def test_an_entry_that_is_no_name_is_refused_before_the_command_begins(tmp_path: Path) -> None:
    wordings = [["--allow", "*"], ["--allow", "my_module"], ["--allow", "*", "--template", "callbacks/memory.yaml"]]
    done = run(python("-c", _CHECK, json.dumps(wordings)), tmp_path)
    assert [code for code, _ in json.loads(done.out)] == [2, 0, 2], done.err
    assert "run: " in done.err
    assert "'*'" in done.err


def test_with_settings_alone_the_template_is_ours_whatever_the_current_folder_has(tmp_path: Path) -> None:
    (tmp_path / "callbacks").mkdir()
    (tmp_path / "callbacks" / "watch.yaml").write_text("trainer_callbacks: !list [ !call:os:system [x] ]\n")
    wordings = [["--set", "logging_dir=logs"], ["--template", "callbacks/watch.yaml"]]
    done = run(python("-c", _CHECK, json.dumps(wordings)), tmp_path)
    assert [code for code, _ in json.loads(done.out)] == [0, 1], done.err
