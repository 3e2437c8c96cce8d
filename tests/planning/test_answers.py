"""What `forgather-mem plan` gets from a script's Trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import Trainer

import forgather_mem
from forgather_mem.planning.answers import answer_to
from tests.training import make_trainer


def test_each_size_has_its_plan(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    answer = json.loads(json.dumps(answer_to({"sizes": [[None, None], [8, 32]], "card_bytes": None}, trainer)))
    assert [(plan["rows"], plan["length"]) for plan in answer["plans"]] == [(4, 16), (8, 32)]
    own = forgather_mem.plan(trainer)
    assert answer["plans"][0]["peak_bytes"] == own.peak_bytes
    assert answer["text"].startswith(own.text())


def test_what_can_not_be_planned_is_told(tmp_path: Path) -> None:
    class Asks(Trainer):
        def compute_loss(self, *arguments: Any, **keywords: Any) -> Any:
            loss = super().compute_loss(*arguments, **keywords)
            self.last = loss.item()
            return loss

    answer = answer_to({"sizes": [[None, None]], "card_bytes": None}, make_trainer(tmp_path, trainer_class=Asks))
    assert str(answer["problem"]).startswith("test_answers.py:")
    assert "self.last = loss.item()" in str(answer["problem"])
