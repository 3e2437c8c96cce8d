"""The demo's data: real text on every machine, the same every time."""

import builtins
import io
import pickle
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch

from forgather_mem.demo import StdlibText


def library() -> bytes:
    return b"".join(file.read_bytes() for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))


def test_the_blocks_are_the_text_of_the_standard_library_byte_by_byte() -> None:
    text = StdlibText(num_bytes=100_000, block_size=128)
    assert len(text) == 100_000 // 128
    joined = bytes(token for item in text for token in item["input_ids"].tolist())
    assert joined == library()[: len(text) * 128]


def test_labels_are_the_inputs_themselves_as_a_causal_model_wants_them() -> None:
    item = StdlibText(num_bytes=1000, block_size=10)[3]
    assert set(item) == {"input_ids", "labels"}
    assert torch.equal(item["input_ids"], item["labels"])
    assert item["input_ids"].dtype == torch.int64
    assert int(item["input_ids"].max()) < 256


def test_an_evaluation_set_begins_where_the_training_set_ends() -> None:
    held_out = StdlibText(skip_bytes=100_000, num_bytes=2000, block_size=100)
    assert len(held_out) == 20
    assert bytes(held_out[0]["input_ids"].tolist()) == library()[100_000:100_100]


def test_a_text_longer_than_the_library_ends_with_the_library() -> None:
    text = StdlibText(num_bytes=10**9, block_size=1000)
    assert len(text) == len(library()) // 1000
    with pytest.raises(IndexError):
        text[len(text)]


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


def test_it_can_be_sent_to_a_data_worker() -> None:
    text = StdlibText(num_bytes=1000, block_size=100)
    copy = pickle.loads(pickle.dumps(text))
    assert torch.equal(copy[7]["input_ids"], text[7]["input_ids"])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"block_size": 1}, r"block_size=1"),
        ({"num_bytes": 100, "block_size": 128}, r"num_bytes=100.*128"),
        ({"skip_bytes": -1}, r"skip_bytes=-1"),
    ],
)
def test_sizes_that_make_no_block_are_refused_at_construction(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StdlibText(**sizes)


def test_a_python_without_sources_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        len(StdlibText())
