"""Where the demo can't begin; that it finds its leak is in `tests/test_installed.py`."""

from pathlib import Path


def test_a_file_in_the_place_of_its_folder_is_named(cli, own_folder: None) -> None:
    Path("out").touch()
    code, _, told = cli("demo")
    assert (code, told) == (1, "forgather-mem: demo: there is no place for its files: [Errno 17] File exists: 'out'\n")
