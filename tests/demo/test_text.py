"""The demo's data: real text on every machine, the same every time."""

import builtins
import io
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from forgather_mem.demo import StdlibText


def library() -> bytes:
    return b"".join(file.read_bytes() for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))


def test_the_blocks_are_the_text_of_the_standard_library_byte_by_byte() -> None:
    text = StdlibText(num_bytes=100_000, block_size=128)
    assert len(text) == 100_000 // 128
    joined = bytes(token for item in text for token in item["input_ids"].tolist())
    assert joined == library()[: len(text) * 128]


def test_an_evaluation_set_begins_where_the_training_set_ends() -> None:
    held_out = StdlibText(skip_bytes=100_000, num_bytes=2000, block_size=100)
    assert len(held_out) == 20
    assert bytes(held_out[0]["input_ids"].tolist()) == library()[100_000:100_100]


def test_nothing_is_read_before_the_first_item_and_no_more_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    plain_open = io.open

    def watched(file: Any, *arguments: Any, **keywords: Any) -> Any:
        opened.append(str(file))
        return plain_open(file, *arguments, **keywords)

    monkeypatch.setattr(io, "open", watched)
    monkeypatch.setattr(builtins, "open", watched)
    first = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[0]
    text = StdlibText(num_bytes=500, block_size=100)
    assert opened == []
    assert len(text) == 5
    assert opened == [str(first)]


def test_a_python_without_sources_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        len(StdlibText())
