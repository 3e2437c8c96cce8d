"""Names that a person may have meant."""

import pytest

from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.policy.policy import Policy
from forgather_mem.config.policy.similar import similar_name
from forgather_mem.errors import TemplateError


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
        ("torch.optim.lbfg:LBFGS", "did you mean 'torch.optim.lbfgs'?"),
    ],
)
def test_a_misspelt_name_in_an_open_module_is_found(name, hint):
    [error] = ConfigEnvironment(policy=Policy()).load_from_string(f"a: !singleton:{name} []").misfits()
    assert error.hint == hint
