"""Framing of event files, against tensorboard's own reader and checksum."""

import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forgather_mem.formats.event_file import EventFile, crc32c, frame, payloads
from tests.programs import printed_by


def framed(payload: bytes) -> bytes:
    return frame(payload, crc32c())


@settings(deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=5), st.data())
def test_a_file_cut_anywhere_gives_its_whole_records(records: list[bytes], data: st.DataObject) -> None:
    whole = [framed(record) for record in records]
    content = b"".join(whole)
    cut = data.draw(st.integers(0, len(content)))
    fitting = 0
    while fitting < len(whole) and sum(map(len, whole[: fitting + 1])) <= cut:
        fitting += 1
    assert [*payloads(io.BytesIO(content[:cut]))] == records[:fitting]


def test_a_wrong_payload_is_passed_over_and_a_wrong_length_ends_the_file() -> None:
    first, second, third = framed(b"first"), framed(b"second"), framed(b"third")
    damaged = second[:13] + b"X" + second[14:]
    assert [*payloads(io.BytesIO(first + damaged + third))] == [b"first", b"third"]
    damaged = b"\x07" + second[1:]
    assert [*payloads(io.BytesIO(first + damaged + third))] == [b"first"]
    assert [*payloads(io.BytesIO(first + bytes(4096)))] == [b"first"]


def test_two_files_of_one_process_and_second_have_names_of_their_own(tmp_path: Path) -> None:
    files = [EventFile(tmp_path, lambda: None) for _ in range(3)]
    assert all(file.ready() for file in files)
    for file in files:
        file.close()
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("missing", ["google_crc32c._crc32c", "google_crc32c"])
def test_a_checksum_in_python_is_refused_without_a_warning(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; sys.stderr = sys.stdout\n"
    code += "from forgather_mem.formats.event_file import crc32c\nprint(crc32c())"
    assert printed_by(code) == "None\n"
