"""What `check` finds in the text of templates. The commands are tested in tests/cli."""

import time

from forgather_mem.config.check import problems
from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.policy.policy import Policy


def unused(folder, text, *names):
    (folder / "t.yaml").write_text(text)
    found = problems(ConfigEnvironment(folder, policy=Policy()), "t.yaml", dict.fromkeys(names, 1))
    assert {problem.kind for problem in found} <= {"unused"}
    return [problem.error.message.split("'")[1] for problem in found]


def test_a_variable_is_used_in_any_tag_and_nowhere_else(tmp_path):
    text = "a: {{ b }} c\n-- if d\n{% set e = f | default(1) %}\nj: {{ e }}\n-- endif\n## {{ g }}\n"
    text += "h: !var { name: i, default: 1 }\n"
    assert unused(tmp_path, text, *"abcdefghi") == ["a", "c", "g", "h"]


def test_very_many_opened_braces_are_read_once(tmp_path):
    begin = time.process_time()
    assert unused(tmp_path, "a: {{ x }}\n{#" + "{{ " * 9_000 + "b" * 3_900_000 + "#}\n", "x") == []
    assert time.process_time() - begin < 20
