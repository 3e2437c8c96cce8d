"""A rendered text: the values from outside in it, and where its lines come from."""

from forgather_mem.config.source.rendered import TOKEN_CLOSE, TOKEN_OPEN, Rendered

ONE, TWO = f"{TOKEN_OPEN}1{TOKEN_CLOSE}", f"{TOKEN_OPEN}2{TOKEN_CLOSE}"


def test_values_stand_in_the_place_of_their_tokens_once():
    values = {ONE: "a: b", TWO: ONE}  # a value that looks like a token stays what it is
    rendered = Rendered(name="t", text=f"x: {ONE}{TWO}\n", values=values, locate=Rendered.as_is("").locate)
    assert rendered.shown == f"x: a: b{ONE}\n"
    assert [rendered.has_value(text) for text in (ONE, "x", "")] == [True, False, False]
    assert rendered.put_back(f"{TOKEN_OPEN}3{TOKEN_CLOSE}") == f"{TOKEN_OPEN}3{TOKEN_CLOSE}"


def test_a_text_as_it_is_has_no_values_and_its_own_lines():
    rendered = Rendered.as_is(f"a: 1\n{ONE}", "t.yaml")
    assert (rendered.shown, rendered.values) == (f"a: 1\n{ONE}", {})
    assert str(rendered.place(2, 4)) == "t.yaml:2:4"
    assert [rendered.place(line).source_line for line in (1, 2, 3)] == ["a: 1", ONE, None]
