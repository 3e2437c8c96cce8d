"""Is explicit cleanup needed? Each scenario twice, without and with it, and what was left in memory.

    python examples/when_to_clean_up.py [WORD...]     only the scenarios with one of these words

One model is 16 MiB. Figures are MiB of resident memory more than before.
"""

import contextlib
import io
import sys
import tempfile

import psutil
import torch

from forgather_mem import cleanup, release_memory

KEPT = []


def build():
    return torch.nn.Linear(2048, 2048, bias=False)


def models_one_after_the_other(clean):
    model = None
    for _ in range(4):
        model = build()
        if clean:
            (model,) = release_memory(model)


class Service:
    """Its model's hook is a method of it: a reference cycle, as in most code with hooks, parents or callbacks."""

    def __init__(self):
        self.model = build()
        self.model.register_forward_hook(self.log)

    def log(self, module, inputs, output):
        pass


def services_rebuilt(clean):
    for _ in range(4):
        with cleaning(clean):
            Service().model(torch.ones(1, 2048))


def small_pieces(clean):
    pieces = [bytes(2000) for _ in range(100_000)]
    KEPT.extend(pieces[::100])  # between the holes, so that glibc keeps all of it
    del pieces
    if clean:
        release_memory()


def diverge(model):
    raise RuntimeError(f"diverged: {model}")


def failed_jobs(clean):
    for _ in range(4):
        try:
            with cleaning(clean):
                diverge(build())
        except RuntimeError as error:
            KEPT.append(error)  # for a summary at the end; it keeps the variables of diverge


def trainings(clean):
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    sizes = {"vocab_size": 2048, "hidden_size": 1024, "intermediate_size": 64, "num_hidden_layers": 1}
    rows = [{"input_ids": torch.arange(4), "labels": torch.arange(4)}] * 8
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder, cleaning(clean):
            args = TrainingArguments(folder, max_steps=1, use_cpu=True, disable_tqdm=True, save_strategy="no")
            args.report_to = []
            model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))
            Trainer(model=model, args=args, train_dataset=rows).train()
            del model


def cleaning(clean):
    return cleanup(report=False) if clean else contextlib.nullcontext()


SCENARIOS = {
    "4 models, one after the other": models_one_after_the_other,
    "4 services rebuilt, with cycles": services_rebuilt,
    "200 MB of small pieces, 1 % kept": small_pieces,
    "4 failed jobs, their errors kept": failed_jobs,
    "2 trainings with transformers.Trainer": trainings,
}


def left_by(scenario, clean):
    KEPT.clear()
    release_memory()
    before = psutil.Process().memory_info().rss
    with contextlib.redirect_stdout(io.StringIO()):
        scenario(clean)
    return (psutil.Process().memory_info().rss - before) / 2**20


def main(words):
    print(f"{'':38}{'without':>9}{'with':>9}   clean up?")
    for name in (name for name in SCENARIOS if not words or any(word in name for word in words)):
        without, with_it = (left_by(SCENARIOS[name], clean) for clean in (False, True))
        print(f"{name:<38}{round(without):>+9d}{round(with_it):>+9d}   {'yes' if without - with_it > 40 else 'no'}")


if __name__ == "__main__":
    main(sys.argv[1:])
