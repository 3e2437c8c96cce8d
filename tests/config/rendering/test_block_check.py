"""Blocks of a child that no parent has."""

import logging


def test_an_undefined_block_of_a_child_is_an_error_when_misspelt_and_else_told_once(folder, caplog):
    folder.write(base="[callback_list]\na: 1\n", main="-- extends 'base.yaml'\n[callback_lst]\nb: 1\n")
    assert "did you mean 'callback_list'?" in str(folder.error())
    folder.write(main="-- extends 'base.yaml'\n[other]\nb: 1\n")
    with caplog.at_level(logging.WARNING):
        rendered = [folder.renderer.render("main.yaml") for _ in range(2)]
    assert [str(block.line) for block in rendered[1].unknown_blocks] == ["2"]
    assert len(caplog.records) == 1
    folder.write(main="-- extends 'base.yaml'\n[callback_list]\n== self.part()\n{% block part %}b: 1{% endblock %}\n")
    assert folder.renderer.render("main.yaml").unknown_blocks == ()
