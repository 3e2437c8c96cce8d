"""What is a name, and what is none."""

import pytest

from forgather_mem.config.policy.allow_entries import parse_entry
from forgather_mem.config.policy.names import parse_name
from forgather_mem.config.policy.policy import Policy
from tests.config.policy.uses import refusal


@pytest.mark.parametrize(
    "name",
    [
        "", ":", "a:", ":b", "a:b:c", "os:system:", "a b:c", "a:b c", "a\nb:c", "os:_exit", "_os:x", "os:path._x",
        "a..b:c", ".a:b", "a.:b", "a:b.", "a-b:c", "\uff4f\uff53:system", "o\u0455:system", "os\u200b:system",
        "os:system()", "a:b[0]", "a/b:c", "..:x", "a.py:", "a.py:b:c", "a\0.py:b", "./x.py:__import__", "x" * 501,
        "a.py:\uff4f\uff53", "os:system ", " os:system", "os :system", "1a:b", "a:1b", "\u0000", "a:*", "*",
    ],
)  # fmt: skip
def test_what_is_no_name_can_not_be_opened(name):
    verdict = Policy(allow=["os", "a"], allow_files=["/"]).verdict(name)
    assert not verdict.allowed
    assert verdict.entry == ""
    assert len(refusal(Policy(), name)) < 2_000


@pytest.mark.parametrize("entry", ["*", "os.*", "", " ", "a b", "a:b:c", "_private", "a:_b", "torch.", "my module"])
def test_an_entry_that_is_no_name_is_an_error_at_once(entry):
    with pytest.raises(ValueError, match="allow="):
        Policy(allow=[entry])


def test_entries_are_namespaces_or_exact_names():
    assert parse_entry("my_module.sub") == "my_module.sub"
    assert parse_entry("len") == parse_name("len")
    assert str(parse_entry("dict.fromkeys")) == "dict.fromkeys"
