"""What a signal's handler raises while our code runs is the user's, and arrives."""

import ast
import gc
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import forgather_mem
from forgather_mem import Every, Rule, TrainingLoop
from forgather_mem.callbacks import MemoryCallback
from forgather_mem.probes import CleanupProbe, HostProbe, PythonProbe
from forgather_mem.sinks import BlackBoxSink, JsonlSink, TensorBoardSink

_SIGNALS = 60


class Preempted(Exception):
    """What a user's handler raises."""


def raising(kind: type[BaseException]) -> Callable[..., None]:
    def handler(*given: object) -> None:
        raise kind("from a handler")

    return handler


@pytest.mark.usefixtures("collector_of_its_own")
@pytest.mark.parametrize("kind", [Preempted, TimeoutError, KeyboardInterrupt])
def test_what_a_signals_handler_raises_while_our_code_runs_reaches_the_user(
    tmp_path: Path, kind: type[BaseException]
) -> None:
    """The steps do next to nothing, so that nearly all is our code or a collection; each signal comes elsewhere."""
    rules = [Rule(when=Every(steps=1), do=[HostProbe(), PythonProbe(), CleanupProbe()])]
    sinks = [JsonlSink(path=tmp_path / "log.jsonl"), TensorBoardSink(logging_dir=str(tmp_path)), BlackBoxSink()]
    callback = MemoryCallback(rules=rules, sinks=sinks)
    loop = TrainingLoop(args=SimpleNamespace(output_dir=str(tmp_path)), callbacks=[callback])
    chance, arrived, in_ours = random.Random(0), 0, 0
    before, thresholds = signal.signal(signal.SIGALRM, raising(kind)), gc.get_threshold()
    gc.set_threshold(50, 5, 1000)
    try:
        with loop.train():
            for _ in range(3):  # files are begun
                with loop.step():
                    pass
            for _ in range(_SIGNALS):
                deadline_s = time.monotonic() + 5.0
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, 2e-3))
                    while time.monotonic() < deadline_s:
                        with loop.step():
                            for _ in range(10):
                                in_a_cycle: list[object] = []
                                in_a_cycle.append(in_a_cycle)
                except kind as error:
                    arrived += 1
                    in_ours += any(
                        "forgather_mem/" in part.filename for part in traceback.extract_tb(error.__traceback__)
                    )
    finally:
        gc.set_threshold(*thresholds)
        signal.signal(signal.SIGALRM, before)
    assert arrived == _SIGNALS
    assert in_ours > _SIGNALS / 4
    assert callback.summary.switched_off == []


# What is called where the interpreter drops what is raised: each with the reason why no signal of a training is lost
_CALLED_BACK = {
    "actions/freeze.py: register_at_fork": "the child's pending signals are gone with the fork",
    "config/rendering/stranger.py: Popen": "a load, before a training; the process has been waited for",
    "cli/plan.py: Popen": "the parent that waits; the script has ended",
    "engine/run_of.py: WeakSet": "loops that watch() made, which live as long as the training",
    "launch/at_exit.py: register": "the script has ended",
    "page/server.py: WeakValueDictionary": "a server's process",
    "planning/loop/loaders.py: WeakKeyDictionary": "a child that plans",
    "planning/loop/ahead.py: WeakKeyDictionary": "a child that plans",
    "planning/loop/ahead.py: WeakSet": "a child that plans",
    "planning/loop/loaders.py: WeakSet": "a child that plans",
    "planning/loop/rounds.py: WeakKeyDictionary": "a child that plans",
    "planning/loop/rounds.py: WeakSet": "a child that plans",
    "planning/loop/ahead.py: finalize": "a child that plans",
    "planning/loop/script.py: WeakKeyDictionary": "a child that plans",
    "planning/loop/script.py: WeakSet": "a child that plans",
    "planning/loop/script.py: register": "a child that plans",
    "planning/pretending.py: finalize": "a child that plans",
    "planning/private_state.py: WeakSet": "a child that plans",
    "planning/storage_log.py: ref": "a child that plans",
    "probes/python.py: append": "a callable of C; its test sends a signal into a collection",
    "sinks/opentelemetry.py: Thread": "one for a training, whose end is told by then",
    "system/forks.py: register_at_fork": "a callable of C",
    "system/process_end.py: register": "the script has ended",
    "system/process_end.py: register_at_fork": "the child's pending signals are gone with the fork",
    "system/rank_store.py: register": "the script has ended",
    "telemetry/beside.py: ref": "a callable of C",
}
_WITH_FUNCTIONS = {"WeakSet", "WeakKeyDictionary", "WeakValueDictionary", "WeakMethod", "finalize", "Thread", "Popen"}
_CALLERS = {"ref": 2, "proxy": 2, "register_at_fork": 0, "CFUNCTYPE": 0, "PYFUNCTYPE": 0}


@pytest.mark.slow
def test_no_function_of_python_is_called_where_what_it_raises_is_dropped() -> None:
    """By a finalizer, a weak reference, the collector or the end of the process: a pending handler runs there."""
    found = {f"{path}: {name}" for path, tree in sources() for node in ast.walk(tree) for name in called_back(node)}
    assert found == set(_CALLED_BACK)


def called_back(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef) and node.name == "__del__":
        yield "__del__"
    if isinstance(node, ast.ImportFrom) and node.module in ("weakref", "threading", "subprocess"):
        yield from {name.name for name in node.names} & _WITH_FUNCTIONS
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner, name = ast.unparse(node.func.value), node.func.attr
        if (
            (owner, name) in (("gc.callbacks", "append"), ("atexit", "register"))
            or (owner in ("weakref", "threading", "subprocess") and name in _WITH_FUNCTIONS)
            or len(node.args) >= _CALLERS.get(name, 9)
        ):
            yield name


# Errors that a handler of the user's may raise, too
_RAISED = {"Exception", "BaseException", "OSError", "RuntimeError", "TimeoutError", "EnvironmentError", "IOError"}
_LET = {
    "config/rendering/child.py": "a process of its own, without the script's handlers",
    "config/source/search.py": "a list of templates, for a command or a message",
    "engine/closing.py": "handed on when all is closed",
    "system/call_wrapping.py": "handed on to a generator",
    "system/rank_store.py": "a thread, where no handler runs",
}
_OUR_PROCESSES = ("cli/", "comparing/", "demo/", "launch/", "page/", "planning/", "testing/")


def test_no_handler_of_errors_takes_what_a_signals_handler_has_raised() -> None:
    """It says `except ours(OSError)`, asks the fence, or raises it again; where a training runs."""
    taken = [
        f"{path}:{node.lineno}"
        for path, tree in sources()
        if not path.startswith(_OUR_PROCESSES) and path not in _LET
        for node in ast.walk(tree)
        if (isinstance(node, ast.ExceptHandler) and is_taken(node)) or drops(node)
    ]
    assert taken == []


def is_taken(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    asks = any(
        isinstance(node, ast.Attribute) and node.attr in ("keeps", "kept", "strike", "struck")
        for node in ast.walk(handler)
    )
    raises = any(isinstance(node, ast.Raise) for node in handler.body)
    return any(getattr(kind, "id", None) in _RAISED for kind in kinds) and not asks and not raises


def drops(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    names = {getattr(one, "id", "") for one in node.args}
    called = ast.unparse(node.func)
    return called == "os.walk" or (called.endswith("suppress") and bool(names & _RAISED))


def sources() -> Iterator[tuple[str, ast.Module]]:
    root = Path(forgather_mem.__file__).parent
    for path in sorted(root.rglob("*.py")):
        yield path.relative_to(root).as_posix(), ast.parse(path.read_text(encoding="utf-8"))
