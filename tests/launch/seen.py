"""Run by test_what_a_script_notices.py, alone and watched: `seen.py KIND FILE`.

It writes what it sees of its process when it begins, in step 20, and at its end, each thing by names. For the first
look nothing is imported that Python has not imported for itself.
"""

# ruff: noqa: SIM115

import sys

SEEN = []

HOOKS = "excepthook", "unraisablehook", "displayhook", "breakpointhook", "stdin", "stdout", "stderr"


def look():
    """What can be seen of this process now: of each thing, what it holds by name."""
    modules = dict.fromkeys(sys.modules, "")  # before this look imports what it needs
    import atexit
    import builtins
    import ctypes
    import faulthandler
    import gc
    import logging
    import os
    import resource
    import signal
    import threading
    import tracemalloc
    import types
    import warnings

    def kind(value):
        cls = type(value)
        return f"{cls.__module__}.{cls.__qualname__}"

    def names(values):
        return {getattr(value, "__qualname__", None) or kind(value): "" for value in values}

    def place(value):
        return f"{kind(value)} {value.__code__.co_filename}" if type(value) is types.FunctionType else kind(value)

    def attributes():
        """Where in all modules and their classes, ours aside, something of ours is: functions and objects."""
        found = {}
        for name, module in list(sys.modules.items()):
            if type(module) is types.ModuleType and not name.startswith(("forgather_mem", "sitecustomize")):
                for key, value in list(vars(module).items()):
                    if is_ours(value):
                        found[f"{name}.{key}"] = place(value)
                    if issubclass(type(value), type) and value.__module__ == name:
                        for inner, attribute in list(vars(value).items()):
                            if is_ours(attribute):
                                found[f"{name}.{key}.{inner}"] = place(attribute)
        return found

    kinds_of_ours = {}  # of each class, whether its name is ours: nearly all values are of a few

    def is_ours(value):
        cls = type(value)
        if cls is types.FunctionType:
            return "forgather_mem" in value.__code__.co_filename
        if issubclass(cls, type) and f"{value.__module__}".startswith("forgather_mem"):
            return True
        if cls not in kinds_of_ours:
            kinds_of_ours[cls] = "forgather_mem" in kind(value)
        return kinds_of_ours[cls]

    def descriptors():
        found = {}
        for number in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{number}")
            except OSError:
                continue  # the one that listed the folder
            name = target.rpartition("/")[2] if target.startswith("/") else target.partition(":")[0]
            found[name] = found.get(name, 0) + 1
        return found

    def mapped():
        rows = (line.split(None, 5) for line in open("/proc/self/maps"))
        return dict.fromkeys((row[5].strip().rpartition("/")[2] for row in rows if len(row) > 5), "")

    def status():
        wanted = "SigBlk SigIgn SigCgt Seccomp NoNewPrivs CapEff CapBnd Groups Uid Gid Threads"
        rows = (line.split(":", 1) for line in open("/proc/self/status"))
        return {name: value.split() for name, value in rows if name in wanted.split()}

    def children():
        found = {}
        for thread in os.listdir("/proc/self/task"):
            for pid in open(f"/proc/self/task/{thread}/children").read().split():
                found[open(f"/proc/{pid}/comm").read().strip()] = ""
        return found

    def handlers():
        loggers = {"root": logging.root, **logging.root.manager.loggerDict}
        return {
            name: [logger.level, logger.propagate, logger.disabled, [kind(one) for one in logger.handlers]]
            for name, logger in loggers.items()
            if isinstance(logger, logging.Logger) and (logger.handlers or logger.level or logger.disabled)
        }

    umask = os.umask(0)
    os.umask(umask)
    value, wakeup = ctypes.c_int(), signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    seen = {
        "sys.modules": modules,
        "threading.enumerate()": {thread.name: "" for thread in threading.enumerate()},
        "/proc/self/fd": descriptors(),
        "/proc/self/maps": mapped(),
        "gc.callbacks": names(gc.callbacks),
        "gc": {
            "get_threshold": gc.get_threshold(),
            "isenabled": gc.isenabled(),
            "get_debug": gc.get_debug(),
            "get_freeze_count": gc.get_freeze_count() > 0,
        },
        "warnings.filters": {str(row): "" for row in warnings.filters},
        "warnings": {name: place(getattr(warnings, name)) for name in ("showwarning", "formatwarning", "_showwarnmsg")},
        "sys.meta_path": names(sys.meta_path),
        "sys.path": dict.fromkeys(sys.path, ""),
        "sys.path_hooks": names(sys.path_hooks),
        "os.environ": dict(os.environ),
        "signal": {
            **{f"handler of {number}": str(signal.getsignal(number)) for number in signal.valid_signals()},
            "wakeup": wakeup,
            "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
            "timers": [signal.getitimer(timer) for timer in (0, 1, 2)],
        },
        "sys": {
            **{f"sys.{name}": place(getattr(sys, name)) for name in HOOKS},
            "threading.excepthook": place(threading.excepthook),
            **{
                f"sys.{name}": str(getattr(sys, name))
                for name in ("flags", "warnoptions", "_xoptions", "argv", "dont_write_bytecode", "pycache_prefix")
            },
            **{
                f"sys.{name}()": str(getattr(sys, name)())
                for name in ("gettrace", "getprofile", "getrecursionlimit", "getswitchinterval", "get_asyncgen_hooks")
            },
            "threading.gettrace()": str(threading.gettrace()),
            "threading.getprofile()": str(threading.getprofile()),
            "faulthandler": faulthandler.is_enabled(),
            "tracemalloc": tracemalloc.is_tracing(),
        },
        "sys.orig_argv": dict.fromkeys(sys.orig_argv, ""),
        "builtins": {name: place(value) for name, value in vars(builtins).items() if name != "_"},
        "__main__": dict.fromkeys(vars(sys.modules["__main__"]), ""),
        "vars": attributes(),
        "logging": handlers(),
        "atexit": {"_ncallbacks": atexit._ncallbacks()},
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if "RLIMIT_" in name},
        "children": children(),
        "process": {
            "umask": umask,
            "os.getcwd()": os.getcwd(),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "affinity": sorted(os.sched_getaffinity(0)),
            "comm": open("/proc/self/comm").read(),
            "oom_score_adj": open("/proc/self/oom_score_adj").read(),
            "tty": [os.isatty(number) for number in range(3)],
            "leads its group": os.getpgrp() == os.getpid(),
            "leads its session": os.getsid(0) == os.getpid(),
            "getppid": "run" in open(f"/proc/{os.getppid()}/cmdline").read().split("\0"),
            "prctl": [ctypes.CDLL(None).prctl(2, ctypes.byref(value), 0, 0, 0), value.value],
            **status(),
        },
    }
    if "torch" in sys.modules:
        seen["torch"] = of_torch(place)
    return seen


def of_torch(place):
    import hashlib
    import pickle
    import random

    import numpy
    import torch

    def digest(value):
        return hashlib.sha256(pickle.dumps(value)).hexdigest()

    hooks = {
        f"{module.__name__}.{name}": len(value)
        for module in (torch.nn.modules.module, sys.modules["torch.optim.optimizer"])
        for name, value in vars(module).items()
        if name.startswith("_global_") and hasattr(value, "__len__")
    }
    return {
        **hooks,
        "modes of dispatch": torch._C._len_torch_dispatch_stack(),
        "modes of functions": torch._C._len_torch_function_stack(),
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.is_anomaly_enabled()": torch.is_anomaly_enabled(),
        "torch.get_default_dtype()": str(torch.get_default_dtype()),
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        "torch.get_rng_state()": digest(torch.get_rng_state().tolist()),
        "random.getstate()": digest(random.getstate()),
        "numpy.random.get_state()": digest([str(part) for part in numpy.random.get_state()]),
    }


def of_objects(model, optimizer, trainer=None):
    """The attributes, hooks and callbacks of what the script has made."""
    found = {f"the {name}": of_object(part) for name, part in model.named_modules(prefix="model")}
    found["the optimizer"] = of_object(optimizer)
    if trainer is not None:
        found["a Trainer"] = of_object(trainer)
        found["its callbacks"] = {type(one).__qualname__: "" for one in trainer.callback_handler.callbacks}
    return found


def of_object(thing):
    held = {
        key: len(value) if "hook" in key and hasattr(value, "__len__") else type(value).__qualname__
        for key, value in vars(thing).items()
    }
    return {**held, "__class__": str(type(thing))}


def seed():
    import random

    import numpy
    import torch

    for function in (random.seed, numpy.random.seed, torch.manual_seed):
        function(0)


SEEN.append(look())


def plain():
    import torch

    seed()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(1, 41):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        if step == 20:
            SEEN.append({**look(), **of_objects(model, optimizer)})
    SEEN.append({**look(), **of_objects(model, optimizer)})


def trainer(attached=False):
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def forward(self, x=None, labels=None):
            return {"loss": self.layer(x).square().mean()}

    class Looks(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 20:
                SEEN.append({**look(), **of_objects(model, made.optimizer.optimizer, made)})

    seed()
    model = Model()
    rows = [{"x": torch.randn(8), "labels": torch.zeros(())} for _ in range(64)]
    settings = TrainingArguments(
        "out", seed=0, max_steps=40, report_to=[], per_device_train_batch_size=2, save_strategy="no", disable_tqdm=True,
        logging_strategy="no", use_cpu=True,
    )  # fmt: skip
    made = Trainer(model, settings, train_dataset=rows, callbacks=[Looks()])
    if attached:
        from forgather_mem import attach

        attach(made)
    made.train()
    SEEN.append({**look(), **of_objects(model, made.optimizer.optimizer, made)})


if __name__ == "__main__":
    {"plain": plain, "trainer": trainer, "attached": lambda: trainer(attached=True)}[sys.argv[1]]()
    import json

    with open(sys.argv[2], "w") as file:
        json.dump(SEEN, file)
