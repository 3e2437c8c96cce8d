"""`forgather-mem plan`: the peak of a script's training before it begins."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from forgather_mem.cli.app import complain
from forgather_mem.cli.command import FAILURE, command_of, with_hook
from forgather_mem.cli.output import json_text, print_text
from forgather_mem.cli.parser import CommandParser, size_bytes, whole_number
from forgather_mem.errors import ForgatherMemError, UsageError
from forgather_mem.planning.isolation.processes import end_processes
from forgather_mem.system.process_start import cpu_s
from forgather_mem.telemetry import run_session

_SIZES = ("batch", "length")
_Request = dict[str, object]
_Tell = Callable[[float, str], None]
# Trackers that can be told to track nothing, or nothing that others see
_QUIET = {
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_AUTO_LOG_DISABLE": "1",
    "COMET_START_ONLINE": "0",
    "DO_NOT_TRACK": "true",
    "DVCLIVE_TEST": "true",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
    "WANDB_MODE": "disabled",
}
_FOLDERS = "CLEARML_CACHE_DIR", "COMET_OFFLINE_DIRECTORY", "TMPDIR", "TRACKIO_DIR"  # for what goes with the plan


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--card", metavar="SIZE", type=size_bytes,
        help="Memory of the device that shall train: what fits, and what would.",
    )  # fmt: skip
    parser.add_argument(
        "--set", dest="settings", metavar="batch=8,16|length=512", action="append", default=[],
        help="Batches of these sizes instead. Repeatable.",
    )  # fmt: skip
    parser.add_argument(
        "--ranks", metavar="N", type=whole_number(1), default=1,
        help="So many processes train, each with its batches. Default: %(default)s.",
    )  # fmt: skip
    parser.add_argument("--json", dest="as_json", action="store_true", help="All numbers, as JSON.")
    parser.add_argument("--meta", action="store_true", help="Leave weights unread: for models larger than the machine.")
    parser.add_command("A script, or -m module, with its own options.")


def plan_script(
    command: list[str], card: int | None, settings: list[str], ranks: int, as_json: bool, meta: bool
) -> int:
    """Say what a script's training will take, without training.

    The script runs until it would train, without a device; it is planned there, and ends. Its output goes to
    stderr.
    """
    sizes = _sizes(settings)
    what = command_of(command)
    for name in [name for name in ("--card", "--meta", "--ranks") if name in what.arguments][:1]:
        complain(f"{name} stands behind {what.name}, which gets it; options of ours stand before it")
    request: _Request = {"sizes": sizes, "card_bytes": card, "meta": meta, "ranks": ranks}
    code, answer = answer_of_script(what.argv, request, math.inf, _progress(), stdout=sys.stderr)
    nothing = f"the command ended with {code} and has trained nothing that was noticed"
    problem, notes = (nothing, []) if answer is None else (answer.get("problem"), answer.pop("notes"))
    if as_json and problem is not None:
        print(json_text({"refused": problem, "notes": notes}, indent=1))
    if answer is None:
        complain(f"no plan: {nothing}")
        return code if code > 0 else FAILURE
    if problem is not None:
        raise ForgatherMemError("\n".join([f"this can't be planned: {problem}", *notes]))
    text = answer.pop("text")
    if as_json:
        print(json_text({"script": what.script, **answer, "notes": notes}, indent=1))
    else:
        print_text("\n".join([text, *notes]))
    return 0


plan = plan_script  # a command has its module's name, which is that of `forgather_mem.plan` as well


def _sizes(settings: list[str]) -> list[tuple[int | None, int | None]]:
    """Rows and length of each batch to plan.

    >>> _sizes(["batch=8,16", "length=512"])
    [(8, 512), (16, 512)]
    >>> _sizes([])
    [(None, None)]
    """
    asked: dict[str, list[int | None]] = {name: [None] for name in _SIZES}
    for setting in settings:
        name, _, values = setting.partition("=")
        numbers = [int(value) if value.strip().isdecimal() else 0 for value in values.split(",")]
        if name not in _SIZES or not all(numbers):
            raise UsageError(f"--set {setting!r}: write batch=8,16 or length=512")
        asked[name] = list(numbers)
    return list(itertools.product(*asked.values()))  # type: ignore[arg-type]


def answer_of_script(
    words: list[str], request: _Request, most_s: float = math.inf, tell: _Tell = lambda *_: None, /, **how: Any
) -> tuple[int, dict[str, Any] | None]:
    """Start a script that is planned as requested; its exit code, and the answer, if there is one. None of it goes on.

    Args:
        words: Its command line.
        request: What is asked.
        most_s: After so long it is ended, but not before it has computed so long, or has taken twice as long.
        tell: Called each second with the time that it has taken, and what is planned: "" before that.
        how: For `subprocess.Popen`.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / run_session.REQUEST).write_text(json.dumps(request), encoding="utf-8")
        process, began_s, doing = subprocess.Popen(words, env=_environment(folder), **how), time.monotonic(), ""
        try:
            while (took_s := time.monotonic() - began_s) < 2 * most_s and min(took_s, cpu_s(process.pid)) < most_s:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(min(1.0, 2 * most_s - took_s))
                    break
                with suppress(OSError):
                    doing = Path(folder, run_session.DOING).read_text(encoding="utf-8") or doing
                tell(took_s, doing)
        finally:  # after an interrupt, and of what the script's own threads have started when its plan was told
            end_processes(folder)
            process.wait()
        try:
            return process.returncode, dict(json.loads(Path(folder, run_session.ANSWER).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return process.returncode, None


def _progress() -> _Tell:
    """What says on stderr what is waited for: after five seconds, and of each thing once."""
    said = ""

    def tell(seconds: float, doing: str) -> None:
        nonlocal said
        what = doing or "the script runs up to its training"
        if seconds > 5 and said != (said := what.partition(",")[0]):
            print(f"forgather-mem: {what}, {seconds:.0f} s", file=sys.stderr, flush=True)

    return tell


def _environment(folder: str) -> dict[str, str]:
    """The variables of a process whose script is planned, as the request in this folder says."""
    environment = with_hook({name: value for name, value in os.environ.items() if name != run_session.FOLDER})
    environment[run_session.PLAN] = folder
    environment |= {**_QUIET, **dict.fromkeys(_FOLDERS, folder), "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    # No script shall find a device: none is needed, and its memory may be in use
    return {**environment, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": "none"}
