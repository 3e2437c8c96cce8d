"""The report for an issue: short, whole, and without the folders of the machine."""

import os
import re

import pytest

from forgather_mem.reporting.markdown import report_markdown, without_folders
from tests.reporting.report_fixtures import all_well, killed, leaking, out_of_memory, parsed, text_of

VERSIONS = {"python": "3.11.7", "torch": "2.13.0", "forgather_mem": "0.1.0"}


@pytest.mark.parametrize("made", [all_well, killed, leaking, out_of_memory])
def test_it_is_the_report_in_a_block_with_versions_and_settings(made) -> None:
    report = made()
    report["run"] |= {
        "folder": None,
        "event_folder": None,
        "versions": VERSIONS,
        "settings": {"arguments.optim": "adafactor", "arguments.bf16": "False"},
    }
    text = report_markdown(parsed(report))
    assert text == "\n".join(
        ["```text", text_of(report), "forgather_mem 0.1.0, python 3.11.7, torch 2.13.0", "optim=adafactor", "```"]
    )


def test_nobody_learns_where_the_files_are() -> None:
    report = leaking()
    report["run"] |= {
        "script": "/home/ann/my secret project/train.py",
        "folder": "/home/ann/my secret project/out/forgather_mem/1",
        "event_folder": "/data/customer/runs/host7",
    }
    report["switched_off"] = ["a log could not be written: No space left on device: '/data/customer/x/memory.jsonl'"]
    report["leak"]["suspects"][0]["allocated_at"] = "/home/ann/my secret project/train.py:11"
    report["leak"]["suspects"][0]["source_line"] = "get('https://ann:pw@customer.example', 'hf_abcdefghijKLMNOPQR')"
    text = report_markdown(parsed(report))
    assert not re.search("ann|secret|customer/|host7|/home|/data|hf_|pw", text)
    assert "train.py:11" in text
    assert "'memory.jsonl'" in text


def test_it_stays_under_60_lines_whatever_the_settings_are() -> None:
    report = leaking()
    report["run"]["settings"] = {f"model.size_of_part_{number}": "x" * 30 for number in range(300)}
    lines = report_markdown(parsed(report)).splitlines()
    assert len(lines) < 60
    assert max(map(len, lines)) <= 80


def test_a_line_of_code_does_not_end_the_block() -> None:
    report = leaking()
    report["leak"]["suspects"][0]["source_line"] = 'rows.append("```")'
    lines = report_markdown(parsed(report)).splitlines()
    assert (lines[0], lines[-1]) == ("````text", "````")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/opt/env/lib/python3.12/site-packages/peft/tuners/lora.py:7", "peft/tuners/lora.py:7"),
        ("/usr/lib/python3.12/json/decoder.py", "python3.12/json/decoder.py"),
        ("in '/srv/a b/c.py'", "in 'a b/c.py'"),  # nobody can know where a path in a sentence ends
        ("~/work/train.py:3", "train.py:3"),
        (os.path.expanduser("~/work/train.py"), "train.py"),
        ("--data=/mnt/rows", "--data=rows"),
        ("1/2 of out/runs, see https://example.org/a/b", "1/2 of out/runs, see https://example.org/a/b"),
        ("/dev/shm is full, /proc/self/status", "/dev/shm is full, /proc/self/status"),
        ("1.5 GiB/s", "1.5 GiB/s"),
    ],
)
def test_of_a_path_its_file_is_left(text: str, left: str) -> None:
    assert without_folders(text) == left
