"""Templates that a template uses: found, compiled once, and not without end."""

import re
import time

import jinja2
import pytest

from forgather_mem.config.rendering.render import Renderer
from forgather_mem.config.source.search import Searcher


@pytest.mark.parametrize("text", ["", "\n", "a", "a\n", "a\n\n", "\na", "{ %\n", "}} %}\n#}", "é\u2028\x85\n"])
def test_a_text_without_jinja_is_what_jinja_reads_too(text):
    assert Renderer(Searcher(())).render_string(text).text == jinja2.Environment().from_string(text).render()
    commented = "".join(f"{line} ## {{{{ x }}}}\n" for line in text.splitlines())
    assert Renderer(Searcher(())).render_string(commented).text.split() == text.split()


def test_the_first_template_of_a_list_that_exists_is_included(folder):
    folder.write(part="b: 2", main="-- include ['none.yaml', name]\n")
    assert folder.text(name="part.yaml") == "b: 2"
    folder.write(main="a: 1\n-- include 'none.yaml' ignore missing\nb: 2\n")
    assert folder.text() == "a: 1\nb: 2"


def test_a_sub_template_is_seen_by_what_its_file_uses_and_by_files_that_extend_it(folder):
    folder.write(
        base="-- include 'project.part'\n\n-- include 'base.part'\n#--- base.part ---\nbase: 1\n",
        main="-- extends 'base.yaml'\n#--- project.part ---\nmain: 1\n-- include 'base.part'\n",
    )
    assert folder.text() == "main: 1\nbase: 1\nbase: 1"


def test_a_sub_template_goes_before_a_file_and_does_not_leak_into_other_loads(folder):
    folder.write(
        part="file: 1", main="-- include 'part.yaml'\n#--- part.yaml ---\nsub: 1\n", other="-- include 'part.yaml'"
    )
    assert folder.text() == "sub: 1"
    assert folder.text("other.yaml") == "file: 1"


def test_a_sub_template_does_not_leak_into_files_beside(folder):
    folder.write(
        one="#\n#--- mine ---\nx: 1\n", two="-- include 'mine'\n", main="-- include 'one.yaml'\n-- include 'two.yaml'\n"
    )
    assert folder.error().template == "two.yaml"


def test_a_changed_file_is_rendered_anew(folder):
    folder.write(main="-- include 'part.yaml'", part="a: 1")
    assert folder.text() == "a: 1"
    folder.write(part="a: changed")
    assert folder.text() == "a: changed"


def test_of_texts_that_were_rendered_only_the_last_is_kept():
    renderer = Renderer(Searcher(()))
    for number in range(3):
        assert renderer.render_string(f"a: {{{{ {number} }}}}").text == f"a: {number}"
        assert renderer.render_string("b: {{ x }}", {"x": number}).text == f"b: {number}"
    assert [one.source.lines for one in renderer._compiler._compiled.values()] == [["b: {{ x }}"]]


def test_a_module_that_is_imported_is_run_for_each_render(folder):
    folder.write(m="-- set t = now().isoformat()\n", main="-- import 'm.yaml' as m\nt: {{ m.t }}")
    first = folder.text()
    time.sleep(0.002)
    assert folder.text() != first


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"main": "-- extends 'main.yaml'\n"}, "extends itself: main.yaml -> main.yaml"),
        ({"main": "-- extends 'a.yaml'\n", "a": "-- extends 'main.yaml'\n"}, "extends itself"),
        ({"main": "-- include 'main.yaml'\n"}, "loads more than 300 templates|nest too deeply"),
        ({"main": "-- include 's'\n#--- s ---\n-- include 's'\n"}, "loads more than 300 templates|nest too deeply"),
        ({"main": "-- macro f()\n== f()\n-- endmacro\n== f()\n"}, "nest too deeply"),
        ({"main": "[a]\n== self.a()\n"}, "nest too deeply"),
        ({"main": "{{ " + "(" * 400 + "1" + ")" * 400 + " }}"}, "nest too deeply"),
        ({"main": "{% for i in [1] %}" * 60 + "{% endfor %}" * 60}, "too many statically nested|nest too deeply"),
        ({"main": "#\n#--- a ---\n\n#--- a ---\nx\n"}, "another sub-template 'a'"),
    ],
)  # fmt: skip
def test_endless_templates_end_in_an_error(folder, files, message):
    folder.write(**files)
    assert re.search(message, folder.error().message)


def test_a_long_chain_of_extends_works_and_a_longer_one_is_an_error(folder):
    folder.write(**{f"t{n}": f"-- extends 't{n + 1}.yaml'\n" for n in range(1_100)})
    folder.write(t100="a: 1")
    assert folder.text("t0.yaml") == "a: 1"
    folder.write(t100="-- extends 't101.yaml'\n")
    assert re.search("more than 1,000 templates|nest too deeply|CPU time", folder.error("t0.yaml").message)
