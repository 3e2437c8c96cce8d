"""Blocks of a child that no parent has."""


def test_an_undefined_block_of_a_child_is_an_error_when_misspelt_and_else_told(folder):
    folder.write(base="[callback_list]\na: 1\n", main="-- extends 'base.yaml'\n[callback_lst]\nb: 1\n")
    assert "did you mean 'callback_list'?" in str(folder.error())
    folder.write(main="-- extends 'base.yaml'\n[other]\nb: 1\n")
    assert [block.line for block in folder.renderer.render("main.yaml").unknown_blocks] == [2]
    folder.write(main="-- extends 'base.yaml'\n[callback_list]\n== self.part()\n{% block part %}b: 1{% endblock %}\n")
    assert folder.renderer.render("main.yaml").unknown_blocks == ()
