"""What `check` finds in the text of templates. The commands are tested in tests/cli."""

import time

from forgather_mem.cli.check import found_problems
from forgather_mem.config.check import refused
from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.policy.policy import Policy


def problems(folder, name="t.yaml", given="", **files):
    for file, text in files.items():
        (folder / f"{file}.yaml").write_text(text)
    environment = ConfigEnvironment(folder, policy=Policy(allow_files=[folder]))
    return found_problems(environment, name, dict.fromkeys(given, 1))[0]


def unused(folder, text, names):
    found = problems(folder, given=names, t=text)
    assert {problem.kind for problem in found} <= {"unused"}
    return [problem.error.message.split("'")[1] for problem in found]


def test_a_variable_is_used_in_any_tag_and_nowhere_else(tmp_path):
    text = "a: {{ b }} c\n-- if d\n{% set e = f | default(1) %}\nj: {{ e }}\n-- endif\n## {{ g }}\n"
    text += "h: !var { name: i, default: 1 }\n"
    assert unused(tmp_path, text, "abcdefghi") == ["a", "c", "g", "h"]


def test_very_many_opened_braces_are_read_once(tmp_path):
    begin = time.process_time()
    assert unused(tmp_path, "a: {{ x }}\n{#" + "{{ " * 9_000 + "b" * 3_900_000 + "#}\n", "x") == []
    assert time.process_time() - begin < 20


def found(folder, name="t.yaml", **files):
    return [(problem.kind, problem.error.line, problem.error.hint) for problem in problems(folder, name, **files)]


BASE = "callbacks: !dlist\n[inner]\n    gc: 1\n    clear: 2\n"


def test_a_child_that_overrides_a_key_of_its_parent_is_silent(tmp_path):
    child = "-- extends 'base.yaml'\n[inner]\n    == super()\n    gc: 3\n"
    assert found(tmp_path, base=BASE, t=child) == []
    assert found(tmp_path, base=BASE, t="x:\n    -- include 'part.yaml'\n    a: 2\n", part="    a: 1\n") == []
    grandchild = "-- extends 't.yaml'\n[inner]\n    == super()\n    gc: 4\n"
    assert found(tmp_path, "g.yaml", base=BASE, t=child, g=grandchild) == []


def test_so_is_one_with_its_parent_in_the_same_file(tmp_path):
    child = "-- extends 'mid'\n[inner]\n    == super()\n    gc: 4\n#---- mid ----\n"
    child += "-- extends 'base.yaml'\n[inner]\n    == super()\n    gc: 3\n"
    assert found(tmp_path, base=BASE, t=child) == []


def test_a_key_given_twice_in_one_template_and_a_parent_that_overrides_its_child_are_told(tmp_path):
    child = "-- extends 'base.yaml'\n[inner]\n    == super()\n    gc: 3\n    gc: 4\n"
    hint = "remove one, or rename it"
    assert found(tmp_path, base=BASE, t=child) == [("redeclared", 5, hint)]
    last = "callbacks: !dlist\n    [inner]\n    gc: 1\n    [after]\n    clear: 2\n"
    child = "-- extends 'base.yaml'\n[inner]\n    clear: 3\n"
    assert found(tmp_path, base=last, t=child) == [("redeclared", 5, hint)]
    part = "x:\n    a: 2\n    -- include 'part.yaml'\n"
    assert found(tmp_path, t=part, part="    a: 1\n") == [("redeclared", 1, hint)]


def test_a_document_without_its_only_colon_has_no_targets(tmp_path):
    hint = "is a ':' missing after 'callbacks'?"
    assert found(tmp_path, t="# mine\n\ncallbacks !list\n    - 1\n    - 2\n") == [("template", 3, hint)]
    assert found(tmp_path, t="# mine\n\ncallbacks !list\n    - !call:len [[]]\n") == [("template", 3, hint)]
    assert found(tmp_path, t="lr 3\n") == [("template", 1, "is a ':' missing after 'lr'?")]
    for text in ("'lr 3'", "just some words", "one", "- lr 3", "|\n  lr 3\n", "a: lr 3"):
        assert found(tmp_path, t=text) == []


def test_an_address_that_a_template_computes_is_among_what_can_be_allowed(tmp_path):
    text = "x: !singleton:forgather_mem.callbacks:TBLogger\n    logging_dir: !singleton:getitem [[s3://bucket/x], 0]\n"
    (tmp_path / "t.yaml").write_text(text)
    (problem,) = refused(ConfigEnvironment([tmp_path]).load("t.yaml"))
    assert problem.entries == ("s3://bucket/",)
