"""The error about refused names, and the line in it that opens exactly these."""

import re

from forgather_mem.config.policy.policy import Policy
from tests.config.policy.uses import refusal, use


def test_a_refusal_names_the_line_that_allows_it():
    text = refusal(Policy(), "my_module.callbacks:MyCallback")
    assert text.splitlines()[0] == (
        "train.yaml:3:8: 'my_module.callbacks:MyCallback' is not on the allow list; nothing was imported"
    )
    assert text.endswith(
        '  if you wrote or trust my_module:  --allow my_module  |  ConfigEnvironment(..., allow=["my_module"])'
        '  |  [tool.forgather_mem] allow = ["my_module"]'
    )


def test_one_refusal_lists_all_names_and_one_line_opens_exactly_these():
    names = ["my_module.a:A", "torch.nn:Linear", "my_module.b:B", "getattr", "os:system", "torch.nn:ReLU"]
    text = refusal(Policy(), *names)
    assert all(name in text for name in names)
    order = [line.strip().partition(":")[0] for line in text.splitlines()]
    assert order.index("torch") > order.index("my_module")
    assert order.count("my_module") == 2
    options = text.splitlines()[-1].partition(":  ")[2].partition("  |  ")[0].split()
    policy = Policy(allow=[entry for entry in options if entry != "--allow"])
    policy.check([use(name) for name in names])
    assert not policy.verdict("torch.nn:Conv2d").allowed
    assert not policy.verdict("os:popen").allowed


def test_a_refusal_of_very_many_names_stays_readable():
    text = refusal(Policy(), *[f"package_{i}.module:Name" for i in range(500)])
    assert len(text) < 2_500
    assert "500 names are refused" in text
    assert re.search(r"\.\.\. and 4\d\d more", text)
    assert text.endswith("forgather-mem allow TEMPLATE  lists and opens them")


def test_the_same_name_twice_is_listed_once():
    text = refusal(Policy(), "my_module:A", "my_module:A")
    assert "names are refused" not in text
