"""The allow list: names a template may use by default, names that need an exact entry, and old names of ours.

The policy's only table. It is plain text: reading it imports none of the names in it. A test compares it with the
installed packages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

VALUE_FUNCTIONS = ("items", "keys", "values", "getitem")
"""Names that are not Python built-ins: methods of a mapping, and `x[key]`."""

BUILTINS = (
    "dict", "list", "tuple", "set", "frozenset", "int", "float", "str", "bool", "complex", "range", "slice",
    "len", "sum", "min", "max", "abs", "round", "sorted", "zip", "enumerate", "reversed",
)  # fmt: skip
"""Python built-ins that make values; `config.construction.value_builtins` holds bounded versions of them."""

OPENABLE = ("call", "named_list", "named_tuple", "named_dict")
"""Further names of Forgather that are not Python built-ins. `call` runs what it is given, so only an exact entry opens
it; the `named_` three are what `!list:@name`, `!tuple:@name` and `!dict:@name` become."""


def _names(by_module: dict[str, str]) -> list[str]:
    return [f"{module}:{name}" for module, names in by_module.items() for name in names.split()]


EXACT = frozenset(
    _names(
        {
            "collections": "OrderedDict",
            "datetime": "date datetime timedelta",
            "pathlib": "Path PurePath PurePosixPath",
            "random": "Random",
            "torch": "Generator device",
            "torch.utils.tensorboard": "SummaryWriter",
            "transformers": "Seq2SeqTrainingArguments TrainingArguments",
            "transformers.training_args": "TrainingArguments",
            "transformers.training_args_seq2seq": "Seq2SeqTrainingArguments",
            "forgather_mem": "Above AtEvent BatchMemoryProfiler Below EpochMemoryMonitor Every MemoryMonitor "
            "MemoryTracker Rule monitor_memory track_memory",
            "forgather_mem.engine.schedule": "Rule",
            "forgather_mem.telemetry.rule": "Rule",
        }
    )
)
"""Exactly these names, not their attributes."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A family of names that is open by default.

    Attributes:
        modules: Pattern of the modules the name may be written with; only these are imported.
        defined_in: The namespace in which the object must be defined.
        bases: The class must derive from one of these, given as module:name.
        listed: The class or function must be in the `__all__` of its module, or of `defined_in`; for a module without
            one, its classes count. With neither `bases` nor `listed`, any class is open.
        names: Pattern of the name, for what can be decided before an import.
    """

    modules: re.Pattern[str]
    defined_in: str
    bases: frozenset[str] = frozenset()
    listed: bool = False
    names: re.Pattern[str] = re.compile(r"[A-Za-z]\w*")


def _ours(package: str) -> Grant:
    return Grant(re.compile(rf"forgather_mem\.{package}(\.[a-z]\w*)*"), f"forgather_mem.{package}", listed=True)


_TRANSFORMERS = re.compile(
    r"transformers(\.(trainer\w*|integrations(\.\w+)*|configuration_utils|modeling_utils"
    r"|models\.\w+(\.(configuration|modeling)_\w+)?))?"
)
_TRANSFORMERS_BASES = frozenset(
    {
        "transformers.configuration_utils:PreTrainedConfig",
        "transformers.configuration_utils:PretrainedConfig",
        "transformers.modeling_utils:PreTrainedModel",
        "transformers.trainer:Trainer",
        "transformers.trainer_callback:TrainerCallback",
    }
)
_TRANSFORMERS_NAMES = re.compile(
    r"(?!Auto[A-Z]|DataCollator)(?!\w*(Tokenizer|Processor|FeatureExtractor)(Fast)?\Z)x?[A-Z]\w*"
)
_CLASS = re.compile(r"[A-Z]\w*")
_OPTIM_BASES = frozenset(
    {
        "torch.optim.lr_scheduler:LRScheduler",
        "torch.optim.lr_scheduler:ReduceLROnPlateau",
        "torch.optim.optimizer:Optimizer",
    }
)
GRANTS = (
    *map(_ours, ("callbacks", "probes", "actions", "sinks", "trackers", "demo")),
    Grant(re.compile(r"forgather_mem\.(telemetry\.)?triggers"), "forgather_mem.telemetry.triggers", listed=True),
    Grant(_TRANSFORMERS, "transformers", _TRANSFORMERS_BASES, names=_TRANSFORMERS_NAMES),
    Grant(re.compile(r"torch\.optim(\.[a-z]\w*)?"), "torch.optim", _OPTIM_BASES, names=_CLASS),
    Grant(re.compile(r"forgather\.ml\.trainer\.callbacks(\.[a-z]\w*)?"), "forgather.ml.trainer.callbacks"),
)

HARD = frozenset(
    {
        # our own: code that reads templates, widens the policy, or calls what it is given
        "forgather_mem.ConfigEnvironment", "forgather_mem.Policy", "forgather_mem.TrainingLoop",
        "forgather_mem.attach", "forgather_mem.cli", "forgather_mem.config", "forgather_mem.load",
        "forgather_mem.load_callbacks", "forgather_mem.loops", "forgather_mem.notebook",
        "forgather_mem.reclaim", "forgather_mem.retry_on_oom", "forgather_mem.testing",
        # Forgather's: the same
        "forgather.codegen", "forgather.config", "forgather.dynamic", "forgather.from_project",
        "forgather.latent", "forgather.ml.construct", "forgather.preprocess", "forgather.project",
        # torch: code in files, code in strings, processes
        "torch.backends.xeon", "torch.compiler.load_cache_artifacts", "torch.cuda.jiterator",
        "torch.distributed.checkpoint", "torch.distributed.elastic", "torch.distributed.flight_recorder",
        "torch.distributed.launch", "torch.distributed.nn", "torch.distributed.rpc", "torch.distributed.run",
        "torch.export.load", "torch.export.pt2_archive", "torch.fx", "torch.hub", "torch.jit", "torch.load",
        "torch.multiprocessing", "torch.ops", "torch.package", "torch.serialization",
        "torch.utils.benchmark", "torch.utils.bottleneck", "torch.utils.collect_env",
        "torch.utils.cpp_extension", "torch.utils.data.datapipes", "torch.utils.hipify", "torch.utils.model_zoo",
        # transformers and its neighbours: code and weights from elsewhere
        "accelerate.checkpointing", "accelerate.commands", "accelerate.launchers", "accelerate.utils.load",
        "accelerate.utils.other.load", "datasets.load_dataset", "huggingface_hub", "joblib.load", "numpy.f2py",
        "numpy.load", "pandas.eval", "pandas.read_pickle",
        "transformers.RagRetriever", "transformers.cli", "transformers.commands",
        "transformers.dynamic_module_utils", "transformers.integrations.hub_kernels",
        "transformers.modeling_utils.load_state_dict", "transformers.models.rag.retrieval_rag",
        "transformers.pipeline", "transformers.pipelines",
        "transformers.utils.import_utils.direct_transformers_import", "yaml",
        # the standard library: anything whose only purpose is to run, fetch or unpack something
        "builtins.breakpoint", "builtins.compile", "builtins.delattr", "builtins.eval", "builtins.exec",
        "builtins.getattr", "builtins.globals", "builtins.help", "builtins.input", "builtins.locals",
        "builtins.map", "builtins.open", "builtins.setattr", "builtins.type", "builtins.vars",
        "asyncio", "atexit", "cProfile", "code", "codeop", "concurrent", "ctypes", "functools", "importlib",
        "logging.config", "marshal", "multiprocessing", "nt", "operator", "os", "pdb", "pickle", "pkgutil", "posix",
        "profile", "pty", "pydoc", "runpy", "shelve", "shutil", "socket", "subprocess", "sys", "threading", "timeit",
        "trace", "types", "urllib", "webbrowser", "zipimport",
    }
)  # fmt: skip
"""Names that only an exact entry opens, together with everything below them; a namespace entry never does."""

HARD_LAST = frozenset({"from_pretrained", "load_from_checkpoint", "push_to_hub"})
"""Last parts of names that only an exact entry opens, whichever module defines them."""


def is_hard(dotted: str) -> bool:
    """Whether only an exact entry opens a name, given in dotted form.

    >>> is_hard("torch.load"), is_hard("torch.hub.load"), is_hard("torch.loads")
    (True, True, False)
    """
    parts = dotted.split(".")
    if parts[-1] in HARD_LAST:
        return True
    return any(".".join(parts[:end]) in HARD for end in range(1, len(parts) + 1))


_OF_FORGATHER = {
    "forgather.ml.default_callbacks": "InfoCallback ProgressCallback",
    "forgather.ml.grad_logger": "GradLogger",
    "forgather.ml.json_logger": "JsonLogger",
    "forgather.ml.tb_logger": "TBLogger",
    "forgather.ml.textgen_callback": "TextgenCallback",
    "forgather.ml.trainer.callbacks": "GradLogger InfoCallback JsonLogger PeakMemory ProgressCallback TBLogger "
    "TextgenCallback",
    "forgather.ml.trainer.callbacks.default_callbacks": "InfoCallback ProgressCallback",
    "forgather.ml.trainer.callbacks.grad_logger": "GradLogger",
    "forgather.ml.trainer.callbacks.json_logger": "JsonLogger",
    "forgather.ml.trainer.callbacks.peak_memory": "PeakMemory",
    "forgather.ml.trainer.callbacks.tb_logger": "TBLogger",
    "forgather.ml.trainer.callbacks.textgen_callback": "TextgenCallback",
}
ALIASES = {name: f"forgather_mem.callbacks:{name.partition(':')[2]}" for name in _names(_OF_FORGATHER)}
"""Old and current names of Forgather, and our replacement where Forgather's can't be imported."""
