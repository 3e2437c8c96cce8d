"""Finds each training in an unmodified script, without importing anything before the script does.

A finder waits for four modules, and for those of frameworks whose loops tell more than their optimizers do. When the
script has imported `transformers.trainer`, a class of ours is added to its list of default callbacks, from which every
Trainer, also of a subclass, creates new instances. Forgather's trainer gets one when it is made, a `TrainingLoop` the
same callbacks. With `torch.optim.optimizer`, a global hook of torch waits for the first step of a training without a
Trainer. Lightning's Trainer finds us itself, by an entry point.
"""

from __future__ import annotations

import itertools
import os
import sys
from _operator import call

from forgather_mem.system import forks  # noqa: F401  # before the script registers handlers of forks
from forgather_mem.telemetry import run_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

TRAINER_MODULE = "transformers.trainer"
FORGATHER_MODULE = "forgather.ml.trainer.base_trainer"
OPTIMIZER_MODULE = "torch.optim.optimizer"
LOOP_MODULE = "forgather_mem.loops.training_loop"
WITHOUT_TORCH = "jax", "sklearn"  # they train without it: their processes are looked at by time
# Methods of frameworks: module, class, name; and what a call is: a phase, an epoch, or what follows one or a step.
TOLD_BY = (
    ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter", "__init__", "workers"),
    ("transformers.trainer", "Trainer", "predict", "evaluate"),
    ("transformers.trainer", "Trainer", "evaluate", "evaluate"),
    ("transformers.trainer_utils", "EvalPrediction", "__init__", "metrics"),
    *((f"{of}.trainer.trainer", "Trainer", "predict", "predict") for of in ("lightning.pytorch", "pytorch_lightning")),
    ("transformers.generation.utils", "GenerationMixin", "generate", "generate"),
    ("stable_baselines3.common.on_policy_algorithm", "OnPolicyAlgorithm", "collect_rollouts", "generate"),
    ("stable_baselines3.common.off_policy_algorithm", "OffPolicyAlgorithm", "collect_rollouts", "generate"),
    ("keras.src.callbacks.callback_list", "CallbackList", "on_epoch_end", "epoch_end"),
    ("keras.src.callbacks.callback_list", "CallbackList", "on_train_batch_end", "step"),
    ("skorch.net", "NeuralNet", "on_epoch_end", "epoch_end"),
    ("fastai.learner", "Learner", "_do_epoch", "epoch"),
    ("ignite.engine.engine", "Engine", "_run_once_on_dataset_as_gen", "epoch"),
)


def install() -> None:
    """Wait for a Trainer, if this process belongs to a `forgather-mem run` that is not disabled, or to a `plan`."""
    if run_session.PLAN in os.environ:
        from forgather_mem.launch.planning import meetings

        sys.meta_path.insert(0, TrainingFinder(meetings()))
        return
    if run_session.FOLDER not in os.environ or run_session.is_off():
        return
    waits_for = {
        **{row[0]: _later("loops", "meet_methods", row[0]) for row in TOLD_BY},
        TRAINER_MODULE: _add_default_callback,
        FORGATHER_MODULE: _later("watching", "meet_trainers", FORGATHER_MODULE, "BaseTrainer"),
        OPTIMIZER_MODULE: _later("loops", "meet_optimizers"),
        LOOP_MODULE: _later("watching", "meet_trainers", LOOP_MODULE, "TrainingLoop"),
        **dict.fromkeys(WITHOUT_TORCH, _meet_others),
    }
    sys.meta_path.insert(0, TrainingFinder(waits_for))
    if "--multiprocessing-fork" not in sys.orig_argv:  # a pool worker's memory is in its parent's report
        from forgather_mem.launch.at_exit import watch_process

        watch_process()


class TrainingFinder:
    """Finds nothing itself; watches the imports until the modules are loaded that trainings need.

    Args:
        waits_for: Names of modules, each with what is to be called once it is imported.
    """

    def __init__(self, waits_for: Mapping[str, Callable[[], object]]) -> None:
        self._waits_for = dict(waits_for)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._waits_for:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                if spec.loader is not None:
                    from forgather_mem.telemetry.guard import FailureGuard

                    FailureGuard().call("run", _then, spec.loader, name, lambda: self.is_there(name))
                return spec
        return None

    def is_there(self, name: str) -> None:
        """This module has just been imported."""
        from forgather_mem.system.time_budget import PREPARATION
        from forgather_mem.telemetry.guard import FailureGuard

        meet = self._waits_for.pop(name, None)
        if not self._waits_for and self in sys.meta_path:
            sys.meta_path.remove(self)
        if meet is not None:
            with PREPARATION:
                FailureGuard().call("run", meet)


def _later(module: str, function: str, *arguments: object) -> Callable[[], object]:
    """Calls a function of a module beside this one, which is imported then."""

    def meet() -> object:
        from importlib import import_module

        return getattr(import_module(f"forgather_mem.launch.{module}"), function)(*arguments)

    return meet


def _meet_others() -> None:
    """Look at this process by time unless it imports torch soon; of a command at the first such one, no worker."""
    import _thread

    folder = run_session.folder()
    if "torch" not in sys.modules and folder is not None and not run_session.noted(folder, run_session.BY_TIME):
        run_session.note(run_session.BY_TIME)
        _thread.start_new_thread(_look_by_time, ())


def _look_by_time() -> None:
    import time

    from forgather_mem.launch.short_runs import SHORT_S
    from forgather_mem.telemetry.guard import FailureGuard

    time.sleep(SHORT_S)
    if "torch" not in sys.modules:
        FailureGuard().call("a process without torch", _later("watching", "ask_for_looks"))


def _add_default_callback() -> None:
    from forgather_mem.launch.watching import Watching

    defaults = sys.modules[TRAINER_MODULE].DEFAULT_CALLBACKS
    if Watching not in defaults:
        defaults.append(Watching)
    _later("loops", "meet_methods", TRAINER_MODULE)()
    if run_session.PLAN_FIRST in os.environ:
        from forgather_mem.launch.planning import plan_before_training

        plan_before_training(sys.modules[TRAINER_MODULE].Trainer)


def _then(loader: Loader, name: str, afterwards: Callable[[], object]) -> None:
    """Let this loader, which belongs to one module, call a function after executing the module.

    `exec_module` is not wrapped in a function: the traceback of a failing import shows each Python frame, and must look
    the same without us. Here execution and the call afterwards are steps of an iterator, and `exec_module(module)` is
    `next(steps, module)`: it looks for a step with a true value, and there is none.
    """
    from functools import partial

    execute = loader.exec_module

    def calls() -> Iterator[tuple[object, ...]]:
        yield execute, sys.modules[name]
        del loader.exec_module
        yield (afterwards,)

    loader.exec_module = partial(next, filter(None, itertools.starmap(call, calls())))  # type: ignore[method-assign]
