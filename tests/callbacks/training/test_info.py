"""What is said before a training, against numbers counted by hand."""

import re
from pathlib import Path

import pytest
import torch

from forgather_mem.callbacks import InfoCallback
from tests.training import make_trainer


def test_parameters_memory_settings_data_and_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callback = InfoCallback()
    trainer = make_trainer(tmp_path, [callback], gradient_accumulation_steps=2, learning_rate=3e-4)
    trainer.model.model.embed_tokens.requires_grad_(False)
    trainer.model.model.norm.to(torch.float64)
    trainer.model.lm_head.to(torch.float64)
    doubles = 16 + 16 * 64
    singles = sum(p.numel() for p in trainer.model.parameters()) - 64 * 16 - doubles
    trainer.train()
    said = capsys.readouterr()
    facts = callback.facts
    assert facts["model"]["class"] == "LlamaForCausalLM"
    assert facts["model"]["parameters"] == "4,656"
    assert facts["model"]["trainable"] == f"{singles + doubles:,} (float32 {singles:,}, float64 {doubles:,})"
    assert facts["model"]["frozen"] == "1,024 (float32 1,024)"
    assert facts["memory"]["gradients"] == f"{(4 * singles + 8 * doubles) / 1024:.1f} KiB"
    assert facts["training"]["learning_rate"] == "0.0003"
    assert facts["training"]["rows a step"] == "8 (4 x 2 micro-batches x 1 ranks)"
    assert facts["training"]["max_steps"] == "6"
    assert facts["training"]["optimizer"] == "AdamW"
    assert facts["data"] == {"train rows": "32", "train batches": "8", "train workers": "0"}
    assert facts["devices"]["model is on"] == "cpu"
    assert not said.out
    for section in facts.values():
        for name, value in section.items():
            assert f"{name} " in said.err
            assert value in said.err


def test_verbose_says_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer(tmp_path, [InfoCallback(verbose=True)], max_steps=1).train()
    said = capsys.readouterr().err
    assert "(embed_tokens): Embedding(64, 16)" in said
    assert "weight_decay: 0.0" in said  # the optimizer's own text
    assert "logging_steps" in said
    assert "LambdaLR" in said


def test_a_stream_of_data_and_a_loop_without_arguments_are_no_obstacle(capsys: pytest.CaptureFixture[str]) -> None:
    from forgather_mem.loops.training_loop import TrainingLoop

    model = torch.nn.Linear(4, 4)
    with TrainingLoop(model, callbacks=[InfoCallback(True)]).train():
        pass
    said = capsys.readouterr().err
    assert re.search(r"trainable +20 \(float32 20\)", said)
    assert re.search(r"processes +1\n", said)
