"""The allow list in the text of a pyproject.toml."""

import pytest

from forgather_mem.config.policy.pyproject import allowed_in, parsed, quoted, with_new_entries


@pytest.mark.parametrize("text", ["", "a = 1", "[tool.forgather_mem]\n", "[tool.forgather_mem]\nallow = ['x'] # why\n"])
def test_the_list_that_is_read_is_the_one_that_was_written(text):
    document = parsed(text)
    allowed = allowed_in(document)
    changed = with_new_entries(text, document, allowed, ["json:JSONDecoder", 'a "b"'])
    assert allowed_in(parsed(changed)) == [*allowed, "json:JSONDecoder", 'a "b"']
    assert document == parsed(text)  # what it was given stays as it was


@pytest.mark.parametrize("text", ["tool.forgather_mem.allow = []", "[tool]\nforgather_mem = {allow = []}"])
def test_what_would_change_more_is_not_written(text):
    assert with_new_entries(text, parsed(text), [], ["a"]) is None


def test_an_entry_is_quoted_so_that_toml_reads_it():
    for entry in ('"', "\\", "\n", "\x7f", "e\u0301"):
        assert parsed(f"a = {quoted(entry)}") == {"a": entry}
