"""Which names are open by default, which only by an exact entry, which are old names of ours?

The one written table of the policy. It is text: reading it imports nothing that it names. A test compares it
with the installed packages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

VALUE_FUNCTIONS = ("items", "keys", "values", "getitem")
"""Names that are no built-ins of Python: methods of a mapping, and `x[key]`."""

BUILTINS = (
    "dict", "list", "tuple", "set", "frozenset", "int", "float", "str", "bool", "complex", "range", "slice",
    "len", "sum", "min", "max", "abs", "round", "sorted", "zip", "enumerate", "reversed",
)  # fmt: skip
"""Built-ins of Python that make values. `forgather_mem.config.values` has them with bounds."""

OPENABLE = ("call", "named_list", "named_tuple", "named_dict")
"""Further names of Forgather that are no built-ins of Python. `call` runs what it is given, so an exact entry
must open it; the `named_` three are what `!list:@name`, `!tuple:@name` and `!dict:@name` become."""

EXACT = frozenset(
    {
        "collections:OrderedDict",
        "datetime:date",
        "datetime:datetime",
        "datetime:timedelta",
        "pathlib:Path",
        "pathlib:PurePath",
        "pathlib:PurePosixPath",
        "random:Random",
        "torch.utils.tensorboard:SummaryWriter",
        "torch:Generator",
        "torch:device",
        "transformers:Seq2SeqTrainingArguments",
        "transformers:TrainingArguments",
        "transformers.training_args:TrainingArguments",
        "transformers.training_args_seq2seq:Seq2SeqTrainingArguments",
        "forgather_mem.engine:Rule",
        "forgather_mem.plan:Rule",
        "forgather_mem:Above",
        "forgather_mem:AtEvent",
        "forgather_mem:BatchMemoryProfiler",
        "forgather_mem:EpochMemoryMonitor",
        "forgather_mem:Every",
        "forgather_mem:MemoryMonitor",
        "forgather_mem:MemoryTracker",
        "forgather_mem:Rule",
        "forgather_mem:monitor_memory",
        "forgather_mem:track_memory",
    }
)
"""Exactly these names, not their attributes."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A family of names that is open by default.

    Attributes:
        modules: Pattern of the modules the name may be written with; only these are imported.
        defined_in: The namespace in which the object must be defined.
        bases: The class must derive from one of these, given as module:name.
        listed: The class or function must stand in the `__all__` of its module, or of `defined_in`; of a
            module without one, the classes are meant. With neither of the two any class will do.
        names: Pattern of the name, for what can be told before an import.
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
    *map(_ours, ("callbacks", "triggers", "probes", "actions", "sinks", "trackers", "demo")),
    Grant(_TRANSFORMERS, "transformers", _TRANSFORMERS_BASES, names=_TRANSFORMERS_NAMES),
    Grant(re.compile(r"torch\.optim(\.[a-z]\w*)?"), "torch.optim", _OPTIM_BASES, names=_CLASS),
    Grant(re.compile(r"forgather\.ml\.trainer\.callbacks(\.[a-z]\w*)?"), "forgather.ml.trainer.callbacks"),
)

HARD = frozenset(
    {
        # our own: what reads templates, widens the policy, or calls what it is given
        "forgather_mem.ConfigEnvironment", "forgather_mem.Policy", "forgather_mem.TrainingLoop",
        "forgather_mem.attach", "forgather_mem.cli", "forgather_mem.config", "forgather_mem.load",
        "forgather_mem.load_callbacks", "forgather_mem.loop", "forgather_mem.notebook",
        "forgather_mem.pytest_plugin", "forgather_mem.retry", "forgather_mem.retry_on_oom",
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
        # the standard library: whose one purpose is to run, fetch or unpack
        "builtins.breakpoint", "builtins.compile", "builtins.delattr", "builtins.eval", "builtins.exec",
        "builtins.getattr", "builtins.globals", "builtins.help", "builtins.input", "builtins.locals",
        "builtins.map", "builtins.open", "builtins.setattr", "builtins.type", "builtins.vars",
        "asyncio", "atexit", "cProfile", "code", "codeop", "concurrent", "ctypes", "functools", "importlib",
        "logging.config", "marshal", "multiprocessing", "nt", "operator", "os", "pdb", "pickle", "pkgutil", "posix",
        "profile", "pty", "pydoc", "runpy", "shelve", "shutil", "socket", "subprocess", "sys", "threading", "timeit",
        "trace", "types", "urllib", "webbrowser", "zipimport",
    }
)  # fmt: skip
"""Names, and everything below them, that only an exact entry opens; a namespace entry never does."""

HARD_LAST = frozenset({"from_pretrained", "load_from_checkpoint", "push_to_hub"})
"""Last parts of a name that only an exact entry opens, whoever defines them."""


def is_hard(dotted: str) -> bool:
    """Whether only an exact entry opens a name, given with dots alone.

    >>> is_hard("torch.load"), is_hard("torch.hub.load"), is_hard("torch.loads")
    (True, True, False)
    """
    parts = dotted.split(".")
    if parts[-1] in HARD_LAST:
        return True
    return any(".".join(parts[:end]) in HARD for end in range(1, len(parts) + 1))


_OURS = "forgather_mem.callbacks"
ALIASES = {
    "forgather.ml.default_callbacks:InfoCallback": f"{_OURS}:InfoCallback",
    "forgather.ml.default_callbacks:ProgressCallback": f"{_OURS}:ProgressCallback",
    "forgather.ml.grad_logger:GradLogger": f"{_OURS}:GradLogger",
    "forgather.ml.json_logger:JsonLogger": f"{_OURS}:JsonLogger",
    "forgather.ml.tb_logger:TBLogger": f"{_OURS}:TBLogger",
    "forgather.ml.textgen_callback:TextgenCallback": f"{_OURS}:TextgenCallback",
    "forgather.ml.trainer.callbacks.default_callbacks:InfoCallback": f"{_OURS}:InfoCallback",
    "forgather.ml.trainer.callbacks.default_callbacks:ProgressCallback": f"{_OURS}:ProgressCallback",
    "forgather.ml.trainer.callbacks.grad_logger:GradLogger": f"{_OURS}:GradLogger",
    "forgather.ml.trainer.callbacks.json_logger:JsonLogger": f"{_OURS}:JsonLogger",
    "forgather.ml.trainer.callbacks.peak_memory:PeakMemory": f"{_OURS}:PeakMemory",
    "forgather.ml.trainer.callbacks.tb_logger:TBLogger": f"{_OURS}:TBLogger",
    "forgather.ml.trainer.callbacks.textgen_callback:TextgenCallback": f"{_OURS}:TextgenCallback",
    "forgather.ml.trainer.callbacks:GradLogger": f"{_OURS}:GradLogger",
    "forgather.ml.trainer.callbacks:InfoCallback": f"{_OURS}:InfoCallback",
    "forgather.ml.trainer.callbacks:JsonLogger": f"{_OURS}:JsonLogger",
    "forgather.ml.trainer.callbacks:PeakMemory": f"{_OURS}:PeakMemory",
    "forgather.ml.trainer.callbacks:ProgressCallback": f"{_OURS}:ProgressCallback",
    "forgather.ml.trainer.callbacks:TBLogger": f"{_OURS}:TBLogger",
    "forgather.ml.trainer.callbacks:TextgenCallback": f"{_OURS}:TextgenCallback",
}
"""Names of Forgather, of the seeds' time and of today, and ours for when Forgather's does not import."""
