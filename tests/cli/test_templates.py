"""`forgather-mem ls`, `pp`, `graph`, `targets` and `trefs`: the templates that there are, and what they come to."""

import re

from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.source.search import library


def test_ls_lists_templates_with_their_first_comment(cli):
    code, out, _ = cli("ls")
    assert code == 0
    lines = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.splitlines())
    assert lines["base.yaml"] == "What all runs share"
    assert lines["callbacks/memory.yaml"]
    assert cli("ls", "--path") == (0, f"{library()}\n", "")


def test_pp_prints_the_rendered_text(cli):
    code, out, err = cli("pp", "train.yaml", "--set", "lr=2e-5")
    assert (code, err) == (0, "")
    text = ConfigEnvironment().preprocess("train.yaml", lr=2e-5)
    assert out == text.removesuffix("\n") + "\n"
    assert cli("render", "train.yaml", "--set", "lr=2e-5") == (code, out, err)


def test_pp_debug_shows_where_each_line_comes_from(cli):
    code, out, _ = cli("pp", "--debug", "train.yaml")
    assert code == 0
    origins = {line.partition("|")[2].strip(): line.partition("|")[0].strip() for line in out.splitlines()}
    assert origins["lr: 0.001"] == "base.yaml:3"
    assert origins["- !singleton:my_own.callbacks:Mine"] == "train.yaml:5"
    text = "\n".join(line.partition("| ")[2] for line in out.splitlines())
    assert text.split() == ConfigEnvironment().preprocess("train.yaml").split()


def test_pp_shows_values_of_several_lines_and_no_control_characters(cli, here):
    (here / "value.yaml").write_text("a: {{ value }}\nb: 2\n")
    value = '"one\\ntwo\\u001b[31m"'
    _, out, _ = cli("pp", "value.yaml", "--set", f"value={value}")
    assert out == "a: one\ntwo\\x1b[31m\nb: 2\n"
    _, out, _ = cli("pp", "--debug", "value.yaml", "--set", f"value={value}")
    assert [line.rstrip() for line in out.splitlines()] == [
        "value.yaml:1  | a: one", "              | two\\x1b[31m", "value.yaml:2  | b: 2",
    ]  # fmt: skip


def test_an_unknown_target_and_one_that_is_lost(cli, here):
    (here / "lost.yaml").write_text('-- extends "callbacks/memory.yaml"\n[callback_list]\n    mine: !singleton:a:B\n')
    code, _, err = cli("targets", "lost.yaml")
    assert (code, "is lost" in err) == (1, True)
    code, _, err = cli("graph", "base.yaml", "--target", "trainer_callback")
    assert code == 1
    assert "did you mean 'trainer_callbacks'?" in err


def test_graph_as_a_tree(cli):
    code, out, _ = cli("graph", "train.yaml")
    assert code == 0
    assert out.splitlines()[:3] == [
        "lr: 0.001", "trainer_callbacks: !list @trainer_callbacks", "    [0]: !singleton:collections:OrderedDict",
    ]  # fmt: skip
    _, part, _ = cli("graph", "train.yaml", "-t", "lr")
    assert part == "lr: 0.001\n"


def test_targets_with_their_places(cli):
    code, out, _ = cli("targets", "train.yaml")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["lr", "0.001", "base.yaml:3"],
        ["trainer_callbacks", "OrderedDict,", "Mine", "base.yaml:5"],
    ]


def test_trefs_is_a_tree_of_files(cli, here):
    code, out, _ = cli("trefs", "train.yaml")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [["train.yaml", "train.yaml"], ["base.yaml", "base.yaml"]]
    assert out.splitlines()[1].startswith("    base.yaml")


def test_trefs_says_which_template_is_missing(cli, here):
    (here / "child.yaml").write_text('-- include "base.yaml"\n-- include "bse.yaml"\n')
    code, out, err = cli("trefs", "child.yaml")
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()] == ["child.yaml", "base.yaml"]
    assert "child.yaml:2:1: template 'bse.yaml' not found" in err
