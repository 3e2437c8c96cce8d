"""What a person reads of a comparison."""

from dataclasses import replace
from typing import Any

from forgather_mem.comparing.comparison import comparison_of
from forgather_mem.comparing.side import Side
from forgather_mem.comparing.text import comparison_markdown, comparison_text, sentences
from forgather_mem.telemetry.report import Breakdown, RunReport
from tests.comparing.runs import compared, leaking, on_device, run

OLD = {"model.attn_implementation": "sdpa"}
NEW = {"model.attn_implementation": "eager"}


def test_the_verdict_stands_first_then_its_cause_then_the_table() -> None:
    found = compared(run(settings=OLD), run(580, settings=NEW, activations_peak=156))
    lines = comparison_text(found).splitlines()
    assert lines[:3] == [
        "b: activations +80.0 MiB. Of resident memory it takes 80.0 MiB more at the peak",
        "  (host).",
        "activations: model.attn_implementation eager instead of sdpa",
    ]
    assert [line.split() for line in lines if line.startswith(("peak", "parameters", "model."))] == [
        ["peak", "500.0", "MiB", "580.0", "MiB", "+80.0", "MiB"],
        ["parameters", "12.0", "MiB", "12.0", "MiB", "="],
        ["model.attn_implementation", "sdpa", "eager"],
    ]
    assert max(map(len, lines)) <= 80


def test_several_parts_are_named_with_their_sizes_and_leaks_with_holder_and_line() -> None:
    text = words(run(), run(720, leak=leaking(), optimizer=64, steps=90))
    assert text.startswith("b: a leak (Trainer.losses) +162.0 MiB, the optimizer's state +40.0 MiB. Of resident memory")
    assert "it takes 220.0 MiB more at the peak (host)" in text
    assert "new leak: 2.0 MiB a step from step 10 on, Trainer.losses, train.py:41" in text
    assert "steps: 100 and 90; what grows over steps differs for that alone" in text


def test_long_names_keep_to_80_columns_and_marks_of_markdown_are_text() -> None:
    long = {"environment.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True," * 8}
    found = comparison_of(Side("runs/" + "a" * 90, [run()]), Side("b|*x*", [run(600, settings={**OLD, **long})]))
    assert max(map(len, comparison_text(found).splitlines())) <= 100  # a word that is longer stays whole
    assert "\nenvironment.PYTORCH_CUDA_ALLOC_CONF  " in comparison_text(found), "values are cut first"
    page = comparison_markdown(found)
    assert "b\\|\\*x\\*" in page
    assert "| --- | ---: | ---: | ---: |" in page


def words(before: RunReport, after: RunReport) -> str:
    return " ".join(comparison_text(compared(before, after)).split())


def ended(steps: int, end: str | None, **changes: Any) -> RunReport:
    plain = run(steps=steps)
    return replace(plain, run=replace(plain.run, end=end, **changes))


def test_how_a_run_ended_that_did_not_finish_and_another_script_is_told() -> None:
    whole = ended(100, "finished")
    assert "b was killed after 14 steps" in words(whole, ended(14, "killed"))
    assert "a ran out of memory after 14 steps" in words(ended(14, "oom"), whole)
    assert "b ended with an exception after 1 step " in words(whole, ended(1, "exception")) + " "
    running = ended(14, None, script="train.py")
    assert "b has not recorded its end after 14 steps: it still runs, or was killed" in words(whole, running)
    assert "recorded" not in words(whole, ended(14, None)), "TensorBoard's tags don't tell it"
    assert "b has" not in words(whole, ended(100, "finished", exit_code=0))
    assert "ended" not in words(whole, whole)
    other = ended(100, "finished", script="a.py")
    assert "scripts: a.py and train.py" in words(other, running)
    assert "scripts" not in words(other, other) + words(other, whole)


def test_a_run_that_has_done_no_step_is_not_said_to_take_less() -> None:
    text = words(ended(100, "finished"), ended(0, "exception"))
    assert text.startswith("b: no step was done, so there is little to compare. b ended with an exception")
    assert words(ended(0, None), ended(0, None)).startswith("No difference"), "commands without a training have none"


def test_what_no_part_explains_is_told_as_a_number_and_what_would_tell_more() -> None:
    unknown = "b takes 100.0 MiB more at the peak (host); can't tell what it is: forgather-mem plan --json of both"
    for after in (replace(run(600), breakdown=Breakdown()), run(600, counted=False), run(600)):
        assert words(run(), after).startswith(unknown)
    some = words(run(), run(600, optimizer=64))
    assert some.startswith(
        "b: the optimizer's state +40.0 MiB. Of resident memory it takes 100.0 MiB more at the peak (host); can't tell "
        "what the rest is: forgather-mem plan --json of both, compared, says more."
    )
    assert "can't tell" not in words(run(), run(600, optimizer=84, activations_peak=116))


def test_a_peak_that_can_not_be_told_is_not_said_to_be_the_same() -> None:
    for mib in (500.5, 510):
        assert words(run(), run(mib, optimizer=30, activations_peak=75.5)).startswith(
            "b: the optimizer's state +6.0 MiB; whether the peak (host) differs can't be told. memory a b difference "
            f"peak 500.0 MiB {mib:.1f} MiB can't tell parameters 12.0 MiB 12.0 MiB = gradients 12.0 MiB 12.0 MiB = "
            "optimizer 24.0 MiB 30.0 MiB +6.0 MiB activations 76.0 MiB 75.5 MiB can't tell"
        )


def test_the_only_setting_that_differs_explains_all_that_plans_differ_by() -> None:
    old, new = ({"backward": {"activations": 90.0, "gradients": of}} for of in (1.0, 9.0))
    on = {"arguments.gradient_checkpointing": "True", "arguments.activation_checkpointing": "True"}
    off = dict.fromkeys(on, "False")
    new["backward"]["activations"] = 5.0
    text = words(run(planned=old, settings=off), run(planned=new, settings=on))
    assert "activations, gradients: gradient_checkpointing True instead of False" in text


def test_what_is_counted_stands_before_resident_memory_that_differs_by_more() -> None:
    leak = leaking("kept", mib_per_step=6.5 / 90)  # in the steps since
    text = words(run(held=100), run(540, held=105.9, leak=leak))
    assert text.startswith("b: a leak (kept) +6.6 MiB. Of resident memory it takes 40.0 MiB more at the peak (host);")
    assert "new leak: 74.0 KiB a step from step 10 on, kept, train.py:41" in text
    assert words(run(held=100), run(540, held=105.9, leak=replace(leak, suspects=()))).startswith("b: a leak +6.6 MiB.")
    told = words(run(held=100), run(540, held=105.9))
    assert told.startswith("b: held memory +5.9 MiB. Of resident memory it takes 40.0 MiB more at the peak (host);")


def test_a_device_counts_its_peak_itself_so_it_stands_first() -> None:
    text = words(on_device(1000), on_device(1200))
    assert text.startswith("b takes 200.0 MiB more at the peak (device); can't tell what it is:")


def test_beside_plans_that_are_equal_the_leak_stands_first() -> None:
    parts = {"forward": {"parameters": 14.0, "activations": 80.0}}
    text = words(run(planned=parts), run(540, planned=parts, leak=leaking("kept", mib_per_step=0.1)))
    assert text.startswith("b: a leak (kept) +9.1 MiB; it takes as much at the planned peak, to the byte. new leak:")
    assert "resident: 40.0 MiB more" in text


def test_what_is_held_has_one_name_in_the_sentence_and_the_table() -> None:
    text = words(run(held=100), run(510, held=114))
    assert text.startswith("b: held memory +14.0 MiB; whether the peak (host) differs can't be told.")
    assert "held 100.0 MiB 114.0 MiB +14.0 MiB" in text


def test_what_is_not_set_is_called_so_in_the_sentence_and_the_table() -> None:
    on = {"model.dtype": "float32", "model.gradient_checkpointing": "True"}
    text = words(run(settings=on), run(580, activations_peak=156))
    assert "activations: model.gradient_checkpointing not set instead of True" in text
    assert text.endswith("setting a b model.gradient_checkpointing True not set")


def test_several_runs_take_and_one_takes() -> None:
    several = comparison_of(Side("a and 1 more", [run(), run()]), Side("b and 1 more", [run(800), ended(1, "oom")]))
    first, *others = sentences(several)
    assert "b and 1 more take 150.0 MiB more at the peak (host)" in first
    assert "one of b and 1 more ran out of memory after 1 step" in others
    assert sentences(comparison_of(Side("a", [run()]), Side("b and 1 more", [run(), run()])))[0].startswith(
        "No difference can be told: b and 1 more take as much at the peak"
    )


def test_large_numbers_have_separators_in_the_sentence_and_the_table() -> None:
    old, new = {"model.parameters": "212480", "threads": "2"}, {"model.parameters": "1274240", "threads": "4"}
    text = words(run(settings=old), run(settings=new, parameters=40))
    assert "parameters: model.parameters 1,274,240 instead of 212,480; threads 4 instead of 2" in text
    assert "model.parameters 212,480 1,274,240" in text


def test_a_run_that_has_read_nothing_is_not_taken_for_one_that_takes_nothing() -> None:
    first, *_ = sentences(compared(run(0, parameters=0), run()))
    assert first == "a: no reading of memory (host), so there is nothing to compare."
