"""Constructors that remember how they were called, and what templates build of them."""

import textwrap

import pytest

from forgather_mem.config.construction.construct import Construction
from forgather_mem.config.construction.resolve import Resolver
from forgather_mem.config.graph.parse import parse
from forgather_mem.config.limits import DEFAULT_LIMITS
from forgather_mem.config.policy.policy import Policy
from forgather_mem.config.source.rendered import Rendered
from forgather_mem.errors import TemplateError

PARTS = '''
import functools

made = []

class Part:
    """Remembers that and how it was made."""
    def __init__(self, *args, **kwargs):
        self.args, self.kwargs = args, kwargs
        made.append((args, kwargs))
    def __eq__(self, other):
        return type(other) is Part and (self.args, self.kwargs) == (other.args, other.kwargs)

class Strict:
    def __init__(self, lr, momentum=0, *, nesterov=False):
        self.lr = lr
        made.append("strict")

class Inner:
    class Deep:
        @classmethod
        def make(cls):
            return "deep"

def wrapped(function):
    @functools.wraps(function)
    def wrapper(*args, old=None, **kwargs):
        return function(*args, **kwargs)
    return wrapper

@wrapped
def tolerant(lr):
    return lr

def nothing(*args):
    made.append("nothing")

def zero():
    made.append("zero")
    return 0

def fail(error="ValueError", *args):
    raise errors[error]

class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("not even this")

errors = {
    "ValueError": ValueError("no good"), "exit": SystemExit(3), "ctrl-c": KeyboardInterrupt(), "stop": StopIteration(),
    "memory": MemoryError(), "key": KeyError("k"), "bad": Unprintable(),
}

def recurse():
    return recurse()

def takes_type(x):
    return len(x)

def positional(a, b, /, c):
    return a, b, c

def nodes(*args, **kwargs):
    return args, kwargs
'''
OURS = Policy(allow=["parts_of_test", "getattr", "call"])


def construction(text, policy=OURS, budgets=DEFAULT_LIMITS, **variables):
    text = textwrap.dedent(text)
    graph = parse(Rendered.as_is(text, "t.yaml"), budgets)
    return graph, Construction(Resolver(graph, policy, variables, budgets=budgets))


def build(text, policy=OURS, budgets=DEFAULT_LIMITS, **variables):
    """The targets of a template, in one construction."""
    graph, built = construction(text, policy, budgets, **variables)
    if not graph.targets:
        return built.build([graph.root])[0]
    return dict(zip(graph.targets, built.build([graph.target(name) for name in graph.targets]), strict=True))


def refused(text, policy=OURS, budgets=DEFAULT_LIMITS, **variables):
    with pytest.raises(TemplateError) as caught:
        build(text, policy, budgets, **variables)
    return caught.value
