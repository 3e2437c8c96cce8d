"""Graphs of templates, and the errors about them, for the tests of this folder."""

import pytest

from forgather_mem.config.graph.nodes import NO_DEFAULT, CallNode, DictNode, Graph, ListNode, Node, VarNode, edges
from forgather_mem.config.graph.parse import parse
from forgather_mem.config.limits import Limits
from forgather_mem.config.source.rendered import TOKEN_CLOSE, TOKEN_OPEN, Rendered
from forgather_mem.errors import TemplateError

TOKEN = f"{TOKEN_OPEN}7{TOKEN_CLOSE}"
MERGES = """
a: &a {x: 1, y: 2}
b: &b {y: 3, z: 4}
one: {<<: *a, y: 5}
after: {y: 5, <<: *a, w: 0}
many: {q: 0, <<: [*a, *b], z: 9}
twice: {<<: *a, <<: *b}
inline: {<<: {x: 7}, <<: [{x: 8}, *a]}
chained: &c {<<: *a, v: 1}
deep: {<<: *c}
quoted: {"<<": 1}
value: [<<]
"""


def graph(text, **budgets):
    return parse(Rendered.as_is(text, "t.yaml"), Limits(**budgets))


def node(text):
    """The node of a document `x: ...`."""
    return graph(f"x: {text}").target("x")


def refused(text, **budgets):
    with pytest.raises(TemplateError) as caught:
        graph(text, **budgets)
    return caught.value


def plain(value):
    """The graph as plain data, which PyYAML's safe loader would give for a document without tags of ours."""
    if isinstance(value, ListNode):
        return [plain(item) for item in value.items]
    return {key: plain(item) for key, item in value.entries.items()} if isinstance(value, DictNode) else value


def root(text, **budgets):
    return graph(text, **budgets).root


def with_value(text, value):
    """The graph of a text in which TOKEN stands for a value from outside."""
    return parse(Rendered(name="t.yaml", text=text, values={TOKEN: value}, locate=Rendered.as_is(text).locate))


def build_the_same(one: Graph, other: Graph) -> bool:
    """Whether two graphs would build the same objects, sharing included; locations don't count."""
    partner = {}
    back = {}
    stack = [(one.root, other.root)]
    while stack:
        a, b = stack.pop()
        if not (isinstance(a, Node) and isinstance(b, Node)):
            if type(a) is not type(b) or not (a == b or (a != a and b != b)):
                return False
            continue
        if id(a) in partner or id(b) in back:
            if partner.get(id(a)) is not b or back.get(id(b)) is not a:
                return False
            continue
        partner[id(a)], back[id(b)] = b, a
        if _shape(a) != _shape(b):
            return False
        stack.extend(zip((value for _, value in edges(a)), (value for _, value in edges(b)), strict=True))
    return True


def _shape(node: Node) -> tuple[object, ...]:
    """A key that equal nodes have in common, without their values."""
    if isinstance(node, ListNode):
        return ListNode, node.form, node.name, len(node.items)
    if isinstance(node, DictNode):
        return DictNode, node.form, node.name, [(type(key), key) for key in node.entries]
    if isinstance(node, CallNode):
        keys = [*node.kwargs, node.latent is None]
        return CallNode, node.kind, node.constructor, node.name, node.searchpath, len(node.args), keys
    assert isinstance(node, VarNode)
    return VarNode, node.variable, node.default is NO_DEFAULT
