"""Objects that a construction shares with the partials that it made."""

import copy
import gc
import pickle
import weakref

from tests.config.construction.parts import build, construction


def test_a_partial_builds_its_own_arguments_when_it_is_called(parts):
    text = """
        once: &once !singleton:parts_of_test:Part [once]
        p: !partial:parts_of_test:Part
            - *once
            - !factory:parts_of_test:Part [each]
            - [list]
            - &named !list [named]
            - !singleton:parts_of_test:Part [late]
    """
    made = build(text)
    assert [args[0] for args, _ in parts.made] == ["once"]
    first, second = made["p"](), made["p"]()
    assert first.args[0] is second.args[0] is made["once"]
    assert first.args[1] is not second.args[1]
    assert first.args[2] is not second.args[2]
    assert first.args[3] is second.args[3]
    assert first.args[4] is second.args[4]


def test_two_partials_and_a_later_target_share_a_singleton(parts):
    text = """
        a: !partial:parts_of_test:Part [&s !singleton:parts_of_test:zero []]
        b: !partial:parts_of_test:Part [*s]
        c: [*s]
    """
    graph, built = construction(text)
    a, b = built.build([graph.target("a"), graph.target("b")])
    assert (a().args, b().args) == ((0,), (0,))
    assert built.build([graph.target("c")]) == [[0]]
    assert parts.made.count("zero") == 1


def test_a_partial_may_be_called_while_the_rest_is_built(parts):
    made = build("""
        s: &s !singleton:parts_of_test:zero
        now: !singleton:call [!partial:parts_of_test:Part [*s, !partial:parts_of_test:Part [*s]]]
    """)
    assert made["now"].args[1]().args == (0,)
    assert parts.made.count("zero") == 1


def test_a_partial_keeps_alive_only_what_its_arguments_name(parts):
    class Big:
        pass

    big = Big()
    graph, built = construction(
        "m: &m !singleton:parts_of_test:Part [!var big]\np: !partial:parts_of_test:Part [!var small]", big=big, small=1
    )
    model, partial = built.build([graph.target("m"), graph.target("p")])
    gone = weakref.ref(big)
    del built, big, model
    parts.made.clear()
    gc.collect()
    assert gone() is None
    assert partial().args == (1,)


def test_a_partial_can_be_pickled_and_copied_with_its_singletons(parts):
    text = "p: !partial:parts_of_test:Part [&s !singleton:dict {a: 1}, *s, !var v]\nother: *s"
    made = build(text, v=(1, 2), unused=lambda: None)
    for twin in (pickle.loads(pickle.dumps(made["p"])), copy.deepcopy(made["p"]), copy.copy(made["p"])):
        args = twin(7).args
        assert args == ({"a": 1}, {"a": 1}, (1, 2), 7)
        assert args[0] is args[1] is twin().args[0]
    assert copy.copy(made["p"])().args[0] is made["other"]
