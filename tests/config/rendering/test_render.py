"""Rendering: what text comes out."""

import concurrent.futures

from forgather_mem.config.rendering.render import Renderer
from forgather_mem.config.source.search import Searcher

# What templates print


def test_a_child_extends_a_block_by_what_the_parent_has_in_it(folder):
    folder.write(
        base="cbs: !dlist\n    [callback_list]\n    a: 1\n[end]\nlast: true\n",
        main="-- extends 'base.yaml'\n[callback_list]\n    == super()\n    b: 2\n",
    )
    assert folder.text() == "cbs: !dlist\n    a: 1\n\n    b: 2\n\nlast: true\n"


def test_statements_loops_macros_and_namespaces_work(folder):
    folder.write(
        tools="-- macro pair(key, value='none')\n== key ~ ': ' ~ value\n-- endmacro\n",
        main="""\
-- from 'tools.yaml' import pair
-- set ns = namespace(total=0)
-- for n in [1, 2, 3] if n != 2
    -- set ns.total = ns.total + n
n{{ loop.index }}of{{ loop.length }}: {{ n }}
-- endfor
total: {{ ns.total }}
{{ pair('x', value=5) }}{{ pair('y') -}}
-- import 'tools.yaml' as t
=> t.pair('z')
""",
    )
    assert folder.text() == "n1of2: 1\nn2of2: 3\ntotal: 4\nx: 5\ny: none\nz: none"


def test_a_trimmed_block_in_a_child_is_printed_once(folder):
    folder.write(base="a: 1\n[body]\nold: 1\n[end]\nz: 1\n", main="-- extends 'base.yaml'\n[body!]\n\n  new: 1\n\n")
    assert folder.text() == "a: 1\nnew: 1\nz: 1\n"


def test_a_trimmed_block_of_a_parent_trims_what_a_child_puts_there(folder):
    folder.write(base="[body!]\n\nold: 1\n\n", main="-- extends 'base.yaml'\n[body]\n\n  new: 1\n\n")
    assert folder.text("base.yaml") == "old: 1"
    assert folder.text() == "new: 1"


def test_renders_in_several_threads_do_not_mix():
    renderer = Renderer(Searcher(()))
    template = "-- for i in range(50)\nx{{ i }}: {{ x }}\n-- endfor\n"

    def shown(value):
        return renderer.render_string(template, {"x": value}).shown

    values = [f"value {number}" for number in range(40)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for value, result in zip(values, pool.map(shown, values), strict=True):
            assert result.count(value + "\n") == 50


# Any text


def test_an_undefined_block_of_a_child_is_an_error_when_misspelt_and_else_told(folder):
    folder.write(base="[callback_list]\na: 1\n", main="-- extends 'base.yaml'\n[callback_lst]\nb: 1\n")
    assert "did you mean 'callback_list'?" in str(folder.error())
    folder.write(main="-- extends 'base.yaml'\n[other]\nb: 1\n")
    assert [block.line for block in folder.renderer.render("main.yaml").unknown_blocks] == [2]
    folder.write(main="-- extends 'base.yaml'\n[callback_list]\n== self.part()\n{% block part %}b: 1{% endblock %}\n")
    assert folder.renderer.render("main.yaml").unknown_blocks == ()


def test_templates_that_are_used_are_listed_with_levels(folder):
    folder.write(
        base="-- include part ~ '.yaml'\n",
        part="a: 1",
        main="-- extends 'base.yaml'\n-- set part = 'part'\n#--- sub ---\n-- include 'b.yaml'\n",
    )
    assert [reference[:2] for reference in folder.renderer.render("main.yaml").references] == [
        (0, "main.yaml"), (1, "base.yaml"), (2, "part.yaml"),
    ]  # fmt: skip
    assert folder.renderer.render("main.yaml").references[1][2] == str(folder.path / "base.yaml")
