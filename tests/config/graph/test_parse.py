"""Rendered text to graph: documents, what is not valid YAML, and any text at all."""

import contextlib
import gc

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.config.graph.composer import Composer
from forgather_mem.errors import TemplateError
from tests.config.graph.graphs import MERGES, build_the_same, graph, plain, refused, root

# Documents


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "~", "--- null\n..."])
def test_an_empty_document_is_none(text):
    assert (root(text), graph(text).targets) == (None, ())


def test_a_root_may_be_anything_and_has_targets_only_as_a_plain_mapping():
    assert root("5") == 5
    assert plain(root("[1]")) == [1]
    assert graph("!dict {a: 1}").targets == ()
    assert graph("{a: 1, 2: b, .c: 3}").targets == ("a",)


# Errors


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("text", ["a: 1", "a: [", "a: *b"])
def test_the_garbage_collector_is_left_as_it_was(enabled, text):
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with contextlib.suppress(TemplateError):
            graph(text)
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_the_pure_parser_gives_the_same_graph(monkeypatch):
    texts = [MERGES, "a: &x !singleton:f@n {args: [1, 'two'], kwargs: {b: 1e-4}}\nb: *x\n"]
    expected = [graph(text) for text in texts]
    monkeypatch.setattr("forgather_mem.config.graph.parse._Loader", yaml.SafeLoader)
    assert all(map(build_the_same, [graph(text) for text in texts], expected))
    assert refused("a: [1\nb: 2").line == 1


# Laws

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.floats(allow_nan=False), st.text(max_size=12)
)
KEYS = SCALARS.filter(lambda key: not isinstance(key, float) or abs(key) < 2**60)
DATA = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)


@given(DATA)
def test_plain_data_dumped_by_pyyaml_parses_to_itself(data):
    text = yaml.safe_dump({"x": data}, default_style='"')
    assert plain(graph(text).target("x")) == data


def test_a_load_leaves_nothing_large_for_the_garbage_collector(uncollected):
    graph("a: [1, &x 2]")
    graph("a: [1, &x 2]")
    assert not [one for one in gc.get_objects() if type(one) is Composer]
