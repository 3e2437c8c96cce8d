"""What is rewritten in a parsed template before it is compiled."""


def test_an_include_does_not_swallow_the_line_behind_it(folder):
    folder.write(part="b: 2\n", empty="-- set x = 1\n", main="-- include 'part.yaml'\nc: 3\n")
    assert folder.text() == "b: 2\nc: 3"
    folder.write(main="-- include 'part.yaml'\n\nc: 3\n")
    assert folder.text() == "b: 2\nc: 3"
    folder.write(main="-- include 'part.yaml'\n-- include 'empty.yaml'\n-- include 'part.yaml'\nc: 3\n")
    assert folder.text() == "b: 2\nb: 2\nc: 3"
    folder.write(main="a: {% include 'part.yaml' %}\n!\n")
    assert folder.text() == "a: b: 2!"


def test_an_include_in_a_loop_or_a_branch_does_not_swallow_the_line_behind_it(folder):
    folder.write(part="- {{ i }}\n", main="-- for i in [1, 2]\n-- include 'part.yaml'\n-- endfor\n- 3\n")
    assert folder.text() == "- 1\n- 2\n- 3"
    for start in ("if i", "if not i\n-- elif i", "if not i\n-- else"):
        folder.write(main=f"-- {start}\n-- include 'part.yaml'\n-- endif\n-- set x = 1\n- 3\n")
        assert folder.text(i=1) == "- 1\n- 3"
    folder.write(main="-- if i\n-- include 'part.yaml'\n-- endif\n\n- 3\n")
    assert folder.text(i=1) == "- 1\n- 3"
    folder.write(main="-- for i in [1, 2]\na:\n-- if i\n-- include 'part.yaml'\n-- endif\n-- endfor\n")
    assert folder.text() == "a:\n- 1\na:\n- 2\n"


def test_what_a_filter_makes_of_a_block_is_printed(folder):
    folder.write(main="-- with b = 1\nb: {{ b }}\n-- endwith\na: {% filter length %}xyz{% endfilter %}\n")
    assert folder.text() == "b: 1\na: 3"
