"""The verdict in a sentence, and the tables."""

from typing import Any

import pytest

from forgather_mem.page.tables import headline, tables
from tests.reporting.report_fixtures import all_well, killed, leaking, out_of_memory, parsed, report_of


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (leaking, "leak", "Trainer.kept_logits keeps 3.1 MiB a step, since step 60, made at train.py:41."),
        (out_of_memory, "oom", "GPU 0, step 1,204, forward, in model.lm_head."),
        (killed, "oom", "KILLED BY THE KERNEL: the container's memory limit, 64.0 GiB, was reached"),
        (all_well, "well", "Peak GPU 0 41.3 of 79.6 GiB at step 1,998, backward; host 8.8 of"),
    ],
)  # fmt: skip
def test_the_verdict_is_a_sentence(make: Any, kind: str, said: str) -> None:
    found = headline(parsed(make()))
    assert found[0] == kind
    assert found[1].startswith(said)


def test_data_workers_stand_beside_the_peak_of_the_host() -> None:
    report = all_well()
    report["host"]["workers_peak_bytes"] = 300 * 2**20
    assert headline(parsed(report))[1].endswith(", and 300.0 MiB in data workers at their own peak.")


def test_a_signal_is_not_said_twice() -> None:
    report = killed()
    report["killed"].update(signal=15, oom_kill_after=report["killed"]["oom_kill_before"])
    assert headline(parsed(report))[1].startswith("BY SIGTERM, signal 15 (terminated). Last sign of life")
    report["killed"]["signal"], report["peaks"] = 2, all_well()["peaks"]
    _, said, more = headline(parsed(report))
    assert (said[:21], more[:5]) == ("INTERRUPTED (Ctrl-C) ", "Peak "), "it has nothing else to say"


def test_after_a_kill_for_memory_the_leak_comes_first() -> None:
    kind, said, more = headline(parsed(killed() | {"leak": leaking()["leak"]}))
    assert (kind, said[:40], more[:22]) == ("oom", "Trainer.kept_logits keeps 3.1 MiB a step", "KILLED BY THE KERNEL: ")


def test_a_leak_without_a_holder_says_what_grows() -> None:
    report = leaking()
    report["leak"]["suspects"] = []
    assert headline(parsed(report))[1].startswith("GPU 0 grows 3.1 MiB a step, since step 60.")


@pytest.mark.parametrize(
    ("end", "said"), [("exception", "Ended by an exception."), ("interrupted", "Ended early."), (None, "")]
)
def test_a_run_that_did_not_finish_says_how_it_ended(end: str | None, said: str) -> None:
    assert headline(parsed(report_of("train.py", 12, 3.0, end)))[1].startswith(said)


def test_the_holder_has_its_code_line_and_its_cure() -> None:
    found = {title: (header, rows) for title, header, rows in tables(parsed(leaking()))}
    header, (row,) = found["Who holds what grows"]
    assert dict(zip(header, row, strict=True)) == {
        "held by": "Trainer.kept_logits",
        "a step": "3.1 MiB",
        "holds": "1,940 items, 5.9 GiB",
        "at": "train.py:41",
        "the line": "self.kept_logits.append(outputs.logits.detach())",
        "each is": "Tensor [8, 128, 800] float32 on cuda:0",
        "try": "keep less, and off the GPU: outputs.logits.argmax(-1).cpu()",
    }
    assert found["Peaks"][1][1] == ("GPU 0", "41.3 GiB", "1,998", "backward")
    assert found["Clean-up calls"][1][0][:4] == ("gc.collect", "train.py:77", "user", "400")


def test_a_peak_that_others_have_hidden_says_so() -> None:
    report = all_well()
    report["peaks"][1]["not_read_since"] = 28
    (rows,) = (rows for title, _, rows in tables(parsed(report)) if title == "Peaks")
    assert rows[1][3] == "backward (since step 28 hidden by a higher peak)"


@pytest.mark.parametrize("make", [all_well, leaking, out_of_memory, killed])
def test_each_row_has_a_cell_for_each_column(make: Any) -> None:
    for _, header, rows in tables(parsed(make())):
        assert {len(row) for row in rows} == {len(header)}
