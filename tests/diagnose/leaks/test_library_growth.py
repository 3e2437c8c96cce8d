"""Growth in a library's modules, far from the user's variables."""

import pytest

from forgather_mem.diagnose.leaks.library_growth import LibraryContainers


def test_what_a_librarys_module_holds_is_found_and_called_the_librarys() -> None:
    import shlex

    shlex.cache = {"kept": b""}  # type: ignore[attr-defined]
    try:
        look_far = LibraryContainers(set())
        for number in range(10):
            shlex.cache[number] = bytes(5000)  # type: ignore[attr-defined]
        (top,) = [one for one in look_far.grown(set(), 10) if one.bytes_per_step > 2000]
    finally:
        del shlex.cache  # type: ignore[attr-defined]
    assert (top.held_by, top.whose, top.count) == ("shlex.cache", "library", 11)
    assert top.bytes_per_step == pytest.approx(5000, rel=0.1)
