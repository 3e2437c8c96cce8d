"""One's own templates are rendered in this process, a stranger's in one of its own."""

import logging
import resource
from pathlib import Path

import pytest

from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.policy.policy import Policy
from forgather_mem.errors import TemplateError


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    """A policy that allows a folder."""
    monkeypatch.chdir(tmp_path)
    Path("own").mkdir()
    for name in ("t.yaml", "own/t.yaml"):
        Path(name).write_text("-- set n = 1\na: {{ n }}\n")
    Path("own/uses.yaml").write_text("-- include 't.yaml'\n")
    Path("plain.yaml").write_text("a: 1\n")
    Path("child.yaml").write_text("-- extends 'callbacks/memory.yaml'\n")
    return Policy(allow_files=["own"])


def takes_a_process(name, policy, folder=".", **variables):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
    ConfigEnvironment(folder, policy=policy).load(name, **variables)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt > before


def test_only_a_strangers_template_that_needs_rendering_takes_a_process(own):
    for name in ("t.yaml", "own/t.yaml", "child.yaml"):
        assert takes_a_process(name, Policy())
        assert not takes_a_process(name, Policy.UNSAFE_ANY)
    for name in ("plain.yaml", "callbacks/memory.yaml"):
        assert not takes_a_process(name, Policy())
    assert not takes_a_process("plain.yaml", Policy(), x="given, and not used")
    with pytest.raises(TemplateError, match="variable 'x' is of type"):
        takes_a_process("plain.yaml", Policy(), x=object())
    assert takes_a_process("t.yaml", own)
    assert takes_a_process("own/uses.yaml", own)  # it uses one beside the folder
    assert not takes_a_process("own/t.yaml", own)
    assert not takes_a_process("uses.yaml", own, "own")


def test_a_link_into_an_allowed_folder_is_judged_by_what_it_leads_to(own):
    Path("link.yaml").symlink_to(Path("own/t.yaml").resolve())
    Path("own/out.yaml").symlink_to(Path("t.yaml").resolve())
    assert not takes_a_process("link.yaml", own)
    assert takes_a_process("own/out.yaml", own)


@pytest.mark.parametrize("policy", [Policy(), Policy(allow_files=["/"])], ids=["there", "here"])
def test_both_ways_give_the_same(tmp_path, policy, caplog):
    (tmp_path / "base.yaml").write_text("[one]\na: 1\n[two]\nb: {{ x }}\n")
    (tmp_path / "main.yaml").write_text(
        "-- extends 'base.yaml'\n[two]\n== super()\nc: !call:os:system []\n[other]\nd: 1\n"
    )
    environment = ConfigEnvironment(tmp_path, policy=policy)
    with caplog.at_level(logging.WARNING):
        config = [environment.load("main.yaml", x="a: 1") for _ in range(2)][1]
    assert config.text == "a: 1\n\nb: a: 1\n\nc: !call:os:system []\n"
    assert [record.args[0] for record in caplog.records] == [
        "main.yaml:5: no template that main.yaml extends has a block 'other', so it is not rendered"
    ]
    assert [use.at for use in config.names()] == ["main.yaml:4:4"]
    assert [name for _, name, _ in environment.find_referenced_templates("main.yaml", x=1)] == [
        "main.yaml",
        "base.yaml",
    ]
    found, error = environment.references("main.yaml")
    assert (len(found), error.message) == (2, "'x' is undefined")
    with pytest.raises(TemplateError, match=r"template 'none\.yaml' not found"):
        environment.load("none.yaml")
