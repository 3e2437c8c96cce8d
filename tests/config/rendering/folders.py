"""What templates are rendered to, and the errors about them, for the tests of this folder."""

import pytest
import yaml
from hypothesis import strategies as st

from forgather_mem.config.limits import DEFAULT_LIMITS, Limits
from forgather_mem.config.rendering.render import Renderer
from forgather_mem.config.source.search import Searcher
from forgather_mem.errors import TemplateError

RENDERER = Renderer(Searcher(()), Limits(), {"project": "a: &b !c"})
TEXT = st.text().filter(lambda text: not set(text) & set("\uf4c1\uf4c2\uf4c3\uf4c4"))


class Folder:
    """A folder of templates and the renderer of it."""

    def __init__(self, path):
        self.path = path
        self.renderer = Renderer(Searcher(path))

    def write(self, **files):
        for name, text in files.items():
            (self.path / f"{name}.yaml").write_text(text)

    def text(self, _name="main.yaml", **variables):
        return self.renderer.render(_name, variables).shown

    def error(self, _name="main.yaml", **variables):
        with pytest.raises(TemplateError) as caught:
            self.renderer.render(_name, variables)
        assert len(str(caught.value)) <= 2_000
        return caught.value


def text(template, **variables):
    return Renderer(Searcher(())).render_string(template, variables).shown


def error(template, budgets=DEFAULT_LIMITS, **variables):
    with pytest.raises(TemplateError) as caught:
        Renderer(Searcher(()), budgets).render_string(template, variables)
    return caught.value


def parsed(template, **variables):
    """The rendered text read by a YAML parser that knows nothing of us, the values put in place afterwards."""
    rendered = RENDERER.render_string(template, variables)

    def put_back(node):
        if isinstance(node, dict):
            return {put_back(key): put_back(value) for key, value in node.items()}
        if isinstance(node, list):
            return [put_back(value) for value in node]
        return rendered.put_back(node) if isinstance(node, str) else node

    return put_back(yaml.safe_load(rendered.text))
