"""What stands on the terminal."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from forgather_mem.sinks import ConsoleSink
from forgather_mem.sinks.console import print_line
from forgather_mem.telemetry.records import Finding
from tests.sinks.plain_run import begun
from tests.sinks.written import sample

GIB = 2.0**30


def test_a_record_is_one_line_every_so_many_steps() -> None:
    stream = io.StringIO()
    sink = ConsoleSink(every_steps=2, stream=stream)
    for step in range(1, 5):
        sink.write(sample(step, host__rss_bytes=6.2 * GIB, device__step_peak_bytes=41.3 * GIB))
    sink.write(sample(4, event="evaluate", host__rss_bytes=1.0))
    sink.write(sample(6, mine__queue=3.0))
    assert stream.getvalue().splitlines() == [
        "forgather-mem: step 2: host 6.2 GiB, peak 41.3 GiB",
        "forgather-mem: step 4: host 6.2 GiB, peak 41.3 GiB",
        "forgather-mem: step 6: mine/queue 3",
    ]


def test_findings_are_printed_on_stderr_and_stdout_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    sink = ConsoleSink()
    sink.write(sample(1, host__rss_bytes=1.0))
    sink.tell(Finding(kind="leak", step=140, text="GPU 0 grows 3.1 MiB a step,\nfull near step 14,600."))
    sink.tell(Finding(kind="verdict", step=140, text="printed by the report"))
    sink.tell(Finding(kind="backed_off", step=140, text="PSS: told by the report"))
    sink.say("as it is")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "forgather-mem: step 140: GPU 0 grows 3.1 MiB a step,", "               full near step 14,600.", "as it is",
    ]  # fmt: skip


def test_a_name_in_a_line_neither_moves_the_cursor_nor_turns_text_around() -> None:
    stream = io.StringIO()
    sink = ConsoleSink(stream=stream)
    sink.say("forgather-mem: step 3: kept in 'a\r\x1b[2J\u202e'\n\t1\xa0GiB")
    sink.tell(Finding(kind="oom", step=3, text="in '\x07\x9b'\nmore"))
    print_line("\x1b]0;title\x07", stream)
    assert stream.getvalue().splitlines() == [
        r"forgather-mem: step 3: kept in 'a\r\x1b[2J\u202e'",
        "\t1\xa0GiB",
        r"forgather-mem: step 3: in '\x07\x9b'",
        "               more",
        r"\x1b]0;title\x07",
    ]


def test_only_rank_0_prints_except_for_a_rank_that_fails() -> None:
    stream = io.StringIO()
    sink = begun(ConsoleSink(every_steps=1, stream=stream), rank=3, world_size=4)
    sink.write(sample(1, host__rss_bytes=1.0))
    sink.tell(Finding(kind="leak", step=1, text="It grows."))
    sink.say("a line")
    assert stream.getvalue() == ""
    sink.tell(Finding(kind="oom", step=7, text="Out of memory."))
    assert stream.getvalue() == "forgather-mem: rank 3, step 7: Out of memory.\n"


def test_a_progress_bar_stays_whole() -> None:
    # tqdm clears the bar before the line and draws it again after: the line begins at column 0.
    code = (
        "import sys\n"
        "from tqdm import tqdm\n"
        "from forgather_mem.sinks import ConsoleSink\n"
        "sink = ConsoleSink()\n"
        "bar = tqdm(total=10, mininterval=0, miniters=1, ascii=True)\n"
        "for i in range(3):\n"
        "    bar.update()\n"
        "    sink.say(f'line {i}')\n"
        "bar.close()\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=root, check=True)
    screen = _screen(done.stderr.decode())
    assert [line for line in screen if line.startswith("line")] == ["line 0", "line 1", "line 2"]
    assert sum("%|" in line for line in screen) == 1
    assert done.stdout == b""


def _screen(written: str) -> list[str]:
    """The lines of a terminal after this was written to it: a carriage return overwrites from column 0."""
    lines = [""]
    column = 0
    for character in written:
        if character == "\n":
            lines.append("")
            column = 0
        elif character == "\r":
            column = 0
        else:
            lines[-1] = lines[-1][:column] + character + lines[-1][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


def test_a_closed_stream_and_a_character_it_cannot_show_are_no_error() -> None:
    stream = io.StringIO()
    sink = ConsoleSink(stream=stream)
    stream.close()
    sink.say("nobody reads this")
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    ConsoleSink(stream=ascii_only).say("\u00e4")
