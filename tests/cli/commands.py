"""Templates that the commands are tried on, and a command in a process of its own."""

import json
import os
import subprocess
import sys

BASE = """\
# What all runs share
[head]
lr: {{ lr | default(1e-3) }}
[callbacks]
trainer_callbacks: &trainer_callbacks !list:@trainer_callbacks
    - !singleton:collections:OrderedDict [[[a, 1]]]
"""
TRAIN = """\
# A run
-- extends 'base.yaml'
[callbacks]
    == super()
    - !singleton:my_own.callbacks:Mine
        save_dir: out
        metric: !var metric
"""
PLAIN = """\
# A run with nothing to render, which takes no process
trainer_callbacks:
    - !singleton:collections:OrderedDict
    - !singleton:forgather_mem.callbacks:PeakMemory
    - !singleton:my_own.callbacks:Mine
        save_dir: out
        metric: !var metric
"""
MINE = """\
from json import JSONDecoder
open("imported", "w").close()
class Mine:
    on_init_end = None
    def __init__(self, save_dir, metric=None):
        raise AssertionError("check builds nothing")
"""


def environment():
    ours = ("FORGATHER_MEM", "COLUMNS", "NO_COLOR")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def in_a_process(*argv, cwd, **kwargs):
    command = [sys.executable, "-m", "forgather_mem", *map(str, argv)]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=120, **kwargs)


def findings(cli, *argv):
    code, out, _ = cli("check", *argv, "--json")
    found = json.loads(out)
    assert found["ok"] == (code == 0)
    return code, [(finding["kind"], finding["line"], finding["message"]) for finding in found["findings"]], found
