"""Open files of ours stand where no program closes or opens its own."""

import os
import resource
from pathlib import Path

import pytest

from forgather_mem.files import out_of_the_way


@pytest.fixture
def file(tmp_path: Path) -> int:
    path = tmp_path / "file"
    path.write_bytes(b"text")
    return os.open(path, os.O_RDONLY)


def test_the_file_is_the_same_under_a_high_number_and_its_low_one_is_free(file: int) -> None:
    inode = os.fstat(file).st_ino
    high = out_of_the_way(file)
    assert high >= 900
    assert (os.fstat(high).st_ino, os.read(high, 9)) == (inode, b"text")
    assert not os.get_inheritable(high), "a program that is started does not get it"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
    os.close(high)


def test_where_numbers_end_below_it_stays_as_it_is(file: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 800), hard))
    try:
        assert out_of_the_way(file) == file
        assert os.read(file, 9) == b"text"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(file)
