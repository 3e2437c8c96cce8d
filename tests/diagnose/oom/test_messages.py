"""The tables of messages: each row is of use for a message that somebody met."""

import re
from pathlib import Path

import pytest

from forgather_mem.diagnose.oom import messages
from forgather_mem.diagnose.oom.recognition import _number
from forgather_mem.heap.failed_frames import chain
from tests.diagnose.oom.oom_messages import LIBRARY_MESSAGES, OTHERS, OUT_OF_MEMORY, OutOfMemoryCase

MET = [str(error) for case in (*OUT_OF_MEMORY, *LIBRARY_MESSAGES) for error in chain(case.error)]
OF_OTHERS = [str(error) for error in OTHERS]
# As a data worker tells its error, and as NCCL does; where these words count is in `test_recognition`.
IN_OTHER_TESTS = ["numpy._core._exceptions._ArrayMemoryError: Unable to allocate 19.56 GiB for an array"]
NCCL_WITHOUT_A_REASON = "Error while creating shared memory segment /dev/shm/nccl-Le (size 9637888)"


@pytest.mark.parametrize("shape", messages.SHAPES, ids=lambda shape: f"{shape.kind}-{shape.pattern[:30]}")
def test_each_form_is_that_of_a_message_that_was_met(shape: messages.MessageShape) -> None:
    words = [*MET, *IN_OTHER_TESTS, NCCL_WITHOUT_A_REASON] + OF_OTHERS * shape.only_when_full
    firsts = [next((one for one in messages.SHAPES if re.search(one.pattern, said, re.M)), None) for said in words]
    assert any(first is shape for first in firsts), (
        "nobody has met it, or another row comes before it: add the message to messages.yaml, with its source"
    )


@pytest.mark.parametrize(
    ("name", "pattern"), [(name, pattern) for name, patterns in messages.NUMBERS.items() for pattern in patterns]
)
def test_each_number_stands_in_a_message_that_was_met(name: str, pattern: str) -> None:
    found = [match for said in MET if (match := re.search(pattern, said))]
    assert found
    for match in found:
        assert match[1].strip(".,").replace(".", "").replace(",", "").isdigit()
        assert match[2] in (None, "bytes", "B", "KB", "MB", "GB", "KiB", "MiB", "GiB", "TiB")
        for unit, size in {"bytes": 1, "B": 1, "kB": 2**10, "KB": 2**10, "MiB": 2**20, "TiB": 2**40}.items():
            other = f"{match.string[: match.start(1)]}8.0 {unit}{match.string[max(match.end(1), match.end(2)) :]}"
            assert _number(name, other) == 8 * size, "a number is read with its unit"


# Of no use: a share of another number, what others count, and sentences that were cut
UNREAD = re.compile(
    r"^ (?:is reserved by PyTorch but \.\.|current active)|^\)\.?$|\(total $|fraction\)\s+: $|so far: $"
)

# "GPU 3", "device ordinal 3", "cuda:3"; no size
NAMED = re.compile(
    r"\b(?:(?:[GNXH]PU|MUSA|MLU|SDAA|MTIA|GCU|device)[ :#=]{0,2}(?:[a-z]+[ :#=]{1,2}){0,2}|cuda[ :#]{0,2})"
    r"(\d+)\b(?!\.\d| ?(?:bytes|[KMGT]i?B))",
    re.I,
)


@pytest.mark.parametrize("case", [*OUT_OF_MEMORY, *LIBRARY_MESSAGES], ids=lambda case: case.name)
def test_no_size_and_no_device_of_a_message_goes_unread(case: OutOfMemoryCase) -> None:
    for said in map(str, chain(case.error)):
        patterns = [messages.PROCESSES, *(pattern for patterns in messages.NUMBERS.values() for pattern in patterns)]
        read = {match.start(1) for pattern in patterns for match in re.finditer(pattern, said)}
        for size in re.finditer(
            r"(?<![\w.])\d[\d.,]* ?(?:bytes|[KMGT]i?B)\b|(?<![\w.(])(?<!ocess )(?<!pid )(?<!pp:)\d{4,}\b", said
        ):
            beside = UNREAD.search(said[size.end() :]) or UNREAD.search(said[: size.start()])
            assert size.start() in read or beside, f"a row in NUMBERS for {size[0]}"
        devices = {match[match.lastindex or 0] for match in re.finditer(messages.DEVICE, said)}
        unread = {match[0] for match in NAMED.finditer(said) if match[1] not in devices}
        assert not unread or messages.PINNED in case.expected.values(), f"an alternative of DEVICE for {unread}"


def test_each_kind_is_named_where_users_read() -> None:
    page = (Path(__file__).parents[3] / "docs/oom.md").read_text(encoding="utf-8").partition("Every form of such")[2]
    kinds = {*(shape.kind for shape in messages.SHAPES), *(kind for kind, _ in messages.TYPES.values())}
    assert [kind for kind in kinds if kind.removesuffix(messages.OF_TORCH) not in page] == []


def test_kinds_that_other_modules_name_are_in_the_table() -> None:
    kinds = {shape.kind for shape in messages.SHAPES}
    assert {messages.PINNED, *messages.SHM_KINDS} <= kinds
    torchs = {f"{name} allocator" for name in ("CUDA", "HIP", "XPU", "MPS", "HPU", "CPU", "device")}
    assert {kind for kind in kinds if kind.endswith(messages.OF_TORCH)} == torchs
    assert {shape.where for shape in messages.SHAPES if shape.kind in messages.SHM_KINDS} == {"host"}


def test_words_that_have_other_causes_have_one_condition() -> None:
    assert [shape.kind for shape in messages.SHAPES if shape.only_when_full and shape.unless_room_in] == []
