"""The allow list, compared with what is installed."""

import importlib.util

import pytest
import transformers

from forgather_mem.config.policy import allowlist
from forgather_mem.config.policy.names import parse_name
from forgather_mem.config.policy.policy import Policy
from forgather_mem.errors import TemplateError
from tests.config.policy.uses import refusal, use


@pytest.mark.parametrize(
    "name",
    [
        "len", "items", "getitem", "forgather_mem.callbacks:TBMemoryLogger", "forgather_mem:Rule",
        "forgather_mem.actions.clear:ClearCache", "transformers:Trainer", "transformers:TrainingArguments",
        "transformers.models.gpt2.modeling_gpt2:GPT2LMHeadModel", "torch.optim:AdamW", "torch:optim.AdamW",
        "torch.optim.AdamW", "torch.utils.tensorboard:SummaryWriter", "torch:device", "pathlib:Path",
        "forgather.ml.tb_logger:TBLogger", "forgather.ml.trainer.callbacks:TrainerControlCallback",
    ],
)  # fmt: skip
def test_what_is_open_by_default(name):
    assert Policy().verdict(name).allowed
    Policy().check([use(name)])


@pytest.mark.parametrize(
    "name",
    [
        "os:system", "subprocess:run", "eval", "exec", "open", "getattr", "call", "type", "__import__", "print",
        "builtins:eval", "pathlib:Path.write_text", "pathlib:os.system", "torch:load", "torch:hub.load", "torch.load",
        "torch.hub:load", "torch:nn.Linear", "transformers:pipeline", "transformers:AutoModel.from_pretrained",
        "transformers:GPT2LMHeadModel.from_pretrained", "transformers:GPT2LMHeadModel.push_to_hub",
        "transformers.utils.import_utils:importlib", "transformers.dynamic_module_utils:get_class_from_dynamic_module",
        "forgather_mem:load_callbacks", "forgather_mem:ConfigEnvironment", "forgather_mem:Policy",
        "forgather_mem:attach",
        "forgather_mem.load:load_callbacks", "forgather_mem.config.policy.policy:Policy",
        "forgather_mem.reclaim.retry:retry_on_oom", "forgather_mem.loops.training_loop:TrainingLoop",
        "forgather_mem.cli.app:dispatch", "forgather_mem.engine.run:Run",
        "forgather.ml.trainer.callbacks.evil.deeper:X", "forgather.dynamic:dynamic_import", "collections:namedtuple",
        "torch.optim.lr_scheduler:torch.load", "numpy:load", "yaml:unsafe_load",
        "dict.fromkeys", "str.format", "list.append", "transformersx:Trainer", "torch.optimx:AdamW",
        "forgather_mem.callbacksx:A", "datetime:datetime.strptime", "collections.abc:Callable",
    ],
)  # fmt: skip
def test_what_is_refused_by_default(name):
    assert not Policy().verdict(name).allowed
    assert "nothing was imported" in refusal(Policy(), name)


@pytest.mark.parametrize("package", ["callbacks", "probes", "actions", "sinks"])
def test_every_public_name_of_our_packages_is_open(package):
    for name in importlib.import_module(f"forgather_mem.{package}").__all__:
        assert callable(Policy().load(use(f"forgather_mem.{package}:{name}")))


def test_every_exact_entry_exists():
    for entry in allowlist.EXACT:
        if entry.startswith("forgather_mem") and importlib.util.find_spec(parse_name(entry).module) is None:
            continue  # of a later issue
        assert callable(Policy().load(use(entry))), entry


def test_every_hard_name_that_is_installed_exists():
    roots = {"torch", "builtins", "numpy", "yaml", "accelerate"}
    if not transformers.__version__.startswith("4."):  # which lacks some
        roots.add("transformers")
    for dotted in sorted(name for name in allowlist.HARD if name.partition(".")[0] in roots):
        parts = dotted.split(".")
        found = importlib.import_module(parts[0])
        for i, part in enumerate(parts[1:], 2):
            try:
                found = getattr(found, part)
            except AttributeError:
                if importlib.util.find_spec(".".join(parts[:i])) is None:
                    older = ("transformers.commands", "torch.utils.bottleneck")
                    newer = ("torch.compiler.load_cache_artifacts", "torch.distributed.flight_recorder")  # than 2.6
                    assert dotted in (*older, *newer)
                break


def test_aliases_are_ours_and_open_the_same_class():
    import forgather_mem.callbacks as ours

    assert importlib.util.find_spec("forgather") is None, "these are for a machine without Forgather"
    for old, new in allowlist.ALIASES.items():
        assert old.startswith("forgather.ml.")
        name = parse_name(new)
        assert name.module == "forgather_mem.callbacks"
        if name.qualname in ours.__all__:
            assert Policy().load(use(old)) is getattr(ours, name.qualname)


def test_optimizers_and_schedulers_are_open_and_helpers_and_internals_of_open_packages_are_not():
    import torch

    for name in ("AdamW", "SGD", "lr_scheduler.CosineAnnealingLR", "lr_scheduler.ReduceLROnPlateau"):
        assert issubclass(Policy().load(use(f"torch.optim:{name}")), object)
    assert Policy().load(use("torch:optim.AdamW")) is torch.optim.AdamW
    for name in (
        "torch.optim.swa_utils:AveragedModel",
        "torch.optim.optimizer:defaultdict",
        "torch.optim:swa_utils",
        "torch.optim:os.system",
        "forgather_mem.callbacks.trainer.link:Link",
        "forgather_mem.callbacks:Path",
        "forgather_mem.sinks:importlib",
    ):
        with pytest.raises(TemplateError):
            Policy().load(use(name))


def test_of_transformers_only_the_named_families_are_open():
    for name in ("Trainer", "GPT2Config", "GPT2LMHeadModel", "EarlyStoppingCallback", "TrainingArguments"):
        assert Policy().load(use(f"transformers:{name}")).__module__.startswith("transformers")
    for name in ("HfArgumentParser", "TrainerState", "GenerationConfig"):
        with pytest.raises(TemplateError, match="not among the names that are open by default") as caught:
            Policy().load(use(f"transformers:{name}"))
        assert f"--allow transformers:{name}" in caught.value.hint
    for name in ("AutoModel", "AutoTokenizer", "GPT2TokenizerFast", "set_seed", "DataCollatorWithPadding"):
        assert not Policy().verdict(f"transformers:{name}").allowed
        assert Policy(allow=["transformers"]).load(use(f"transformers:{name}"))


def test_no_class_of_the_open_families_is_left_out_by_its_name():
    from transformers.models.auto import configuration_auto, modeling_auto

    names = {name for name in dir(transformers) if name.endswith(("Callback", "Trainer", "Config"))}
    names |= set(configuration_auto.CONFIG_MAPPING_NAMES.values())
    for key, mapping in vars(modeling_auto).items():
        if key.endswith("_MAPPING_NAMES"):
            names |= {name for name in mapping.values() if isinstance(name, str)}
    names = {name for name in names if not name.startswith("Auto") or name.startswith("Autoformer")}
    assert len(names) > 500
    refused = {name for name in names if not Policy().verdict(f"transformers:{name}").allowed}
    assert refused == set()
