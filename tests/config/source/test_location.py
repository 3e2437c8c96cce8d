"""Places in templates, and the errors about them."""

import pickle

from forgather_mem.config.source.rendered import SourceLocation


def test_an_error_has_its_place_its_line_and_the_way_there():
    place = SourceLocation("base.yaml", 3, 5, "lr: 1e", "extended by main.yaml:1")
    assert str(place) == "base.yaml:3:5"
    error = place.error("no number", path="$.lr", hint="write 1e-4")
    assert (error.template, error.line, error.column, error.path) == ("base.yaml", 3, 5, "$.lr")
    assert str(error).splitlines() == [
        "base.yaml:3:5: no number",
        "   3 | lr: 1e",
        "     |     ^",
        "  at $.lr; extended by main.yaml:1",
        "  write 1e-4",
    ]
    assert pickle.loads(pickle.dumps(place)) == place


def test_a_line_that_nobody_knows_is_left_out():
    assert str(SourceLocation("a.yaml", 7).error("odd")) == "a.yaml:7:1: odd"
