"""A plan for people."""

from __future__ import annotations

from forgather_mem.planning.text import plan_text

GIB = 2**30


def test_the_peak_comes_first_then_a_bar_for_each_part() -> None:
    text = plan_text(4 * GIB, "backward", 2, {"parameters": GIB, "activations": 3 * GIB}, "8 x 512", ["A note."])
    assert text.splitlines() == [
        "Peak 4.0 GiB of tensors, backward, step 2, batch 8 x 512.",
        "  activations      3.0 GiB  ##############################",
        "  parameters       1.0 GiB  ##########",
        "A note.",
    ]
