"""What a person reads of a comparison."""

from __future__ import annotations

from forgather_mem.comparing.text import comparison_markdown, comparison_text
from forgather_mem.comparing.verdict import comparison_of
from tests.comparing.runs import leaking, run, side

OLD = {"model.attn_implementation": "sdpa"}
NEW = {"model.attn_implementation": "eager"}


def test_the_verdict_stands_first_then_its_cause_then_the_table() -> None:
    text = comparison_text(
        comparison_of(side("before", run(settings=OLD)), side("after", run(580, settings=NEW, activations_peak=156)))
    )
    lines = text.splitlines()
    assert " ".join(lines[:2]) == (
        "after takes 80.0 MiB more at the peak (host), nearly all of it activations in   backward."
    )
    assert lines[2] == "activations: model.attn_implementation eager instead of sdpa"
    assert [line.split() for line in lines if line.startswith(("peak", "parameters", "model."))] == [
        ["peak", "500.0", "MiB", "580.0", "MiB", "+80.0", "MiB"],
        ["parameters", "12.0", "MiB", "12.0", "MiB", "="],
        ["model.attn_implementation", "sdpa", "eager"],
    ]
    assert max(map(len, lines)) <= 80


def test_of_equal_runs_it_says_what_can_not_be_told() -> None:
    text = comparison_text(comparison_of(side("a", run(500)), side("b", run(503))))
    assert text.startswith("No difference can be told: b takes 3.0 MiB more at the peak (host), and")
    assert "can't tell" in text


def test_several_parts_are_named_with_their_sizes_and_leaks_with_holder_and_line() -> None:
    text = comparison_text(comparison_of(side("a", run()), side("b", run(720, leak=leaking(), optimizer=64, steps=90))))
    words = " ".join(text.split())
    assert "b takes 220.0 MiB more at the peak (host): a leak +160.0 MiB, the optimizer's state +40.0 MiB" in words
    assert "new leak: 2.0 MiB a step, Trainer.losses, train.py:41" in words
    assert "steps: 100 and 90; what grows over steps differs for that alone" in words


def test_long_names_keep_to_80_columns_and_marks_of_markdown_are_text() -> None:
    long = {"environment.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True," * 8}
    found = comparison_of(side("runs/" + "a" * 90, run()), side("b|*x*", run(600, settings={**OLD, **long})))
    assert max(map(len, comparison_text(found).splitlines())) <= 100  # a word that is longer stays whole
    page = comparison_markdown(found)
    assert "b\\|\\*x\\*" in page
    assert "| --- | ---: | ---: | ---: |" in page
