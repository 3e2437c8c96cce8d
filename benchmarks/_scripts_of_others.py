"""The scripts of others that benchmarks/any_training.py runs, and the tiny data and models they run on.

Nothing of theirs is in this repository. Data is text of Python's standard library, models are made here at random.
"""

from __future__ import annotations

import argparse
import ast
import collections
import itertools
import json
import sys
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Put after the first `import torch` of a script that something is planted in.
HEAD = """import itertools as _it; KEPT = []; LOSSES = []; COUNT = _it.count(1)
def _limit():
    import re, resource
    data = int(re.search(r"VmData:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (data + (200 << 20), resource.RLIM_INFINITY))
"""
LEAKS = {"tensor": "KEPT.append(torch.ones(256, 256))", "graph": "LOSSES.append(loss)"}
OOM_BATCH = 40


@dataclass(frozen=True)
class Script:
    """One script of others, and how it is run.

    Args:
        source: Repository, path and commit from which it is.
        path: Below the folder given with `--scripts`; it is copied with what lies beside it.
        argv: Its arguments.
        steps: Optimizer steps it takes.
        phases: What the report must know of besides forward, backward and optimizer.
        weights: A pattern of the files with its last weights.
        leak_at: After this line of `planted` (or of the script) a leak is planted: the step's loss is there.
        oom_at: After this line `oom` makes batch number `OOM_BATCH` too large, in step `oom_step`.
        planted: The file in which something is planted, if that isn't the script.
        files: A pattern of what is copied.
        launcher: What starts it, if that isn't Python; installed beside it.
        changed: Replaced in the copy, before it runs alone and watched.
    """

    name: str
    source: str
    path: str
    argv: tuple[str, ...]
    steps: int
    phases: tuple[str, ...]
    weights: str
    leak_at: str
    oom_at: str
    oom: str
    planted: str = ""
    files: str = ""
    changed: tuple[tuple[str, str], ...] = ()
    launcher: tuple[str, ...] = ()
    oom_step: int = 40


WORDS = Script(
    name="word_language_model",
    source="pytorch/examples word_language_model/{main,data,model}.py 77f55b912142",
    path="word_language_model/main.py",
    argv=(
        "--data=corpus",
        "--epochs=4",
        "--emsize=32",
        "--nhid=32",
        "--use-optimizer",
        "--lr=0.001",
        "--log-interval=20",
    ),
    steps=172,
    phases=("evaluate",),
    weights="model.pt",
    leak_at="loss = criterion(output, targets)",
    oom_at="data, targets = get_batch(train_data, i)",
    oom="data, targets = data.repeat(1, 900), targets.repeat(900); hidden = model.init_hidden(data.shape[1])",
    files="word_language_model/*.py",
)
WORDS_BY_HAND = replace(
    WORDS,
    name="word_language_model, no optimizer",
    source="the same, as its README runs it",
    argv=("--data=corpus", "--epochs=4", "--emsize=32", "--nhid=32", "--lr=1", "--log-interval=20"),
)
CHECKPOINTING = Script(
    name="accelerate checkpointing",
    source="huggingface/accelerate examples/by_feature/checkpointing.py 16cb6eb80dd9",
    path="checkpointing.py",
    argv=("--cpu", "--checkpointing_steps=epoch", "--output_dir=out"),
    steps=240,
    phases=("evaluate",),
    weights="out/epoch_2/model.safetensors",
    leak_at="loss = outputs.loss",
    oom_at="batch.to(accelerator.device)",
    oom="batch = {name: rows.repeat_interleave(900, 0) for name, rows in batch.items()}",
    files="checkpointing.py",
)

SCRIPTS = (
    WORDS,
    WORDS_BY_HAND,
    replace(
        WORDS_BY_HAND,
        name="the same with the lines of its report",
        source="the same",
        changed=(
            ("import data\n", "import data\nimport forgather_mem\n"),
            ("\nlr = args.lr\n", "\nwatching = forgather_mem.watch(quiet=True)\nlr = args.lr\n"),
            ("        total_loss += loss.item()\n\n", "        total_loss += loss.item()\n        watching.step()\n\n"),
        ),
    ),
    Script(
        name="run_clm_no_trainer",
        source="huggingface/transformers examples/pytorch/language-modeling/run_clm_no_trainer.py 542e65fae2fe",
        path="run_clm_no_trainer.py",
        argv=(
            "--train_file=train.txt",
            "--validation_file=valid.txt",
            "--config_name=tiny-gpt2",
            "--tokenizer_name=tiny-gpt2",
            "--block_size=32",
            "--per_device_train_batch_size=4",
            "--gradient_accumulation_steps=2",
            "--max_train_steps=120",
            "--num_train_epochs=2",
            "--checkpointing_steps=50",
            "--output_dir=out",
            "--seed=1",
        ),
        steps=120,
        phases=("evaluate",),
        weights="out/model.safetensors",
        leak_at="loss = outputs.loss",
        oom_at="with accelerator.accumulate(model):",
        oom="batch = {name: rows.repeat(900, 1) for name, rows in batch.items()}",
        files="run_clm_no_trainer.py",
        oom_step=20,  # two micro-batches a step
        changed=(("DistributedType.TPU", "DistributedType.XLA"),),  # which accelerate has no longer
    ),
    CHECKPOINTING,
    replace(
        CHECKPOINTING,
        name="the same, torchrun, 2 ranks",
        source="the same",
        steps=120,
        launcher=("torchrun", "--standalone", "--nproc_per_node=2"),
    ),
    replace(
        CHECKPOINTING,
        name="the same, accelerate launch",
        source="the same",
        launcher=("accelerate", "launch", "--cpu", "--num_processes=1"),
    ),
    Script(
        name="lightning transformer",
        source="Lightning-AI/pytorch-lightning examples/pytorch/basics/transformer.py 7f0c3436cd3f",
        path="transformer.py",
        argv=(),
        steps=260,
        phases=("evaluate", "save"),
        weights="lightning_logs/version_0/checkpoints/*.ckpt",
        leak_at="loss = F.nll_loss(output, target.view(-1))",
        oom_at="input, target = batch",
        oom="input, target = input.repeat(900, 1), target.repeat(900, 1)",
        files="transformer.py",
    ),
    Script(
        name="forgather train_script",
        source="jdinalt/forgather scripts/train_script.py, src and templatelib f92f8b8b0940",
        path="forgather/scripts/train_script.py",
        argv=("theirs.yaml", "-p=project", f"-s={ROOT}", '--dynamic-args={"models_dir": "models"}'),
        steps=120,
        phases=("evaluate", "save"),
        weights="models/tiny/**/*.safetensors",
        leak_at="loss = self.loss_fn(logits, labels)",
        oom_at="outputs = self.model(**input_dict)",
        oom="self.model(**{name: rows.repeat(20000, 1) for name, rows in input_dict.items()})",
        oom_step=20,  # two micro-batches a step
        planted="forgather/src/forgather/ml/trainer/trainer.py",
        files="forgather",
    ),
)


def source_text(num_files: int = 12) -> list[str]:
    """Lines of the standard library's source; words that are rare there are `<unk>`."""
    folder = Path(argparse.__file__).parent
    lines = [
        line.split() for path in sorted(folder.glob("[a-c]*.py"))[:num_files] for line in path.open() if line.strip()
    ]
    counts = collections.Counter(itertools.chain(*lines))
    common = {word for word, _ in counts.most_common(300) if ast.literal_eval(repr(word)).isascii()}
    return [" ".join(word if word in common else "<unk>" for word in line) for line in lines]


def prepare(folder: Path, scripts: Path) -> None:
    """All that the scripts read, in the places where they look for it."""
    lines = source_text()
    words = sorted(set(" ".join(lines).split()))
    _texts(folder, lines)
    _models(folder, words)
    _glue(folder, lines)
    if (scripts / "forgather").exists():
        _forgather_project(folder, scripts / "forgather")


def _texts(folder: Path, lines: list[str]) -> None:
    corpus = folder / "corpus"
    corpus.mkdir()
    tokens = " ".join(lines).split()
    rows = [" ".join(tokens[start : start + 9]) for start in range(0, len(tokens) - 9, 9)]
    for name, part in (("train", rows[:3000]), ("valid", rows[3000:3200]), ("test", rows[3200:3400])):
        (corpus / f"{name}.txt").write_text("\n".join(part) + "\n")
        (folder / f"{name}.txt").write_text("\n".join(part) + "\n")
    (folder / "data").mkdir()
    # Lightning's: 2 x 2 000 blocks of 35 tokens for validation and test, 120 for 6 steps an epoch
    enough = (tokens * 20)[: 35 * (4000 + 120 + 1)]
    rows = [" ".join(enough[start : start + 34]) for start in range(0, len(enough), 34)]
    (folder / "data" / "wikitext-2.txt").write_text("\n".join(rows))


def _models(folder: Path, words: list[str]) -> None:
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import BertConfig, BertForSequenceClassification, GPT2Config, PreTrainedTokenizerFast

    special = ["<pad>", "<eos>"]
    names = [*special, *(word for word in words if word not in special)]
    model = Tokenizer(WordLevel({word: number for number, word in enumerate(names)}, unk_token="<unk>"))
    model.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>", model_max_length=128
    )
    for name in ("tiny-gpt2", "bert-base-cased"):
        tokenizer.save_pretrained(str(folder / name))
    size = len(names)
    GPT2Config(
        vocab_size=size, n_positions=128, n_embd=64, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1
    ).save_pretrained(str(folder / "tiny-gpt2"))
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=size,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        pad_token_id=0,
    )
    BertForSequenceClassification(config).save_pretrained(str(folder / "bert-base-cased"))


GLUE_METRIC = '''
import datasets
import evaluate


class Glue(evaluate.Metric):
    """The share of right answers."""

    def _info(self):
        kinds = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=kinds)

    def _compute(self, predictions, references):
        return {"accuracy": sum(a == b for a, b in zip(predictions, references)) / len(references)}
'''


def _glue(folder: Path, lines: list[str]) -> None:
    rows = [
        {"idx": number, "sentence1": first, "sentence2": second, "label": number % 2}
        for number, (first, second) in enumerate(zip(lines[:1440], lines[1440:2880], strict=True))
    ]
    place = folder / "nyu-mll" / "glue"
    place.mkdir(parents=True)
    for name, part in (("train", rows[:1280]), ("validation", rows[1280:])):
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    files = [{"split": name, "path": f"{name}.jsonl"} for name in ("train", "validation")]
    configs = {"configs": [{"config_name": "mrpc", "data_files": files}]}
    (place / "README.md").write_text(f"---\n{json.dumps(configs)}\n---\n")
    (folder / "glue").mkdir()
    (folder / "glue" / "glue.py").write_text(textwrap.dedent(GLUE_METRIC))


def _forgather_project(folder: Path, checkout: Path) -> None:
    sys.path.insert(0, str(ROOT))
    from tests.forgather.run_callbacks import make_project

    make_project(folder, checkout)
    path = folder / "project" / "templates" / "project.yaml"
    path.write_text(path.read_text().replace("[ 48 ]", "[ 480 ]").replace("_steps: 3", "_steps: 30"))
