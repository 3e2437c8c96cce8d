"""The error about refused names, and the line in it that opens exactly these."""

import re

import pytest

from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.policy.denied import similar_name
from forgather_mem.config.policy.policy import Policy
from forgather_mem.errors import TemplateError
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
    assert "names are refused" not in refusal(Policy(), "my_module:A", "my_module:A")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("forgather_mem.calbacks:TBMemoryLogger", "forgather_mem.callbacks:TBMemoryLogger"),
        ("forgather_mem.callback:PeakMemry", "forgather_mem.callbacks:PeakMemory"),
        ("forgather_mem:Evry", "forgather_mem:Every"),
        ("TBMemoryLogger", "forgather_mem.callbacks:TBMemoryLogger"),
        ("Every", "forgather_mem:Every"),
        ("datetime:timedleta", "datetime:timedelta"),
        ("torch.optm:AdamW", "torch.optim:AdamW"),
        ("transformer:TrainingArguments", "transformers:TrainingArguments"),
        ("sortd", "sorted"),
        ("forgather_mem:LeakDetecter", "forgather_mem.callbacks:LeakDetector"),
    ],
)
def test_the_error_about_a_misspelt_name_asks_for_the_one_that_is_open(written, meant):
    assert similar_name(written) == meant
    assert Policy().verdict(meant).allowed
    with pytest.raises(TemplateError) as refused:
        ConfigEnvironment(policy=Policy()).load_from_string(f"a: !singleton:{written} []").construct()
    assert refused.value.hint.startswith(f"did you mean {meant!r}? Otherwise, if you wrote or trust ")


@pytest.mark.parametrize(
    "name",
    ["print", "os:system", "my_module:Thing", "my_module.callbacks:PeakMemory", "x.py:f", "forgather_mem:attach",
             "forgather_mem.config:X", "json:JSONDecoder", "", ":", "a:b:c"],
)  # fmt: skip
def test_other_names_are_no_misspelling(name):
    assert similar_name(name) is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("forgather_mem.callbacks:TBMemoryLoger", "did you mean 'TBMemoryLogger'?"),
        ("transformers:TrainngArguments", "did you mean 'TrainingArguments'?"),  # among thousands, loaded on first use
        ("torch.optim:AdmaW", "did you mean 'AdamW'?"),
    ],
)
def test_a_misspelt_name_in_an_open_module_is_found(name, hint):
    [error] = ConfigEnvironment(policy=Policy()).load_from_string(f"a: !singleton:{name} []").misfits()
    assert error.hint == hint
