"""`forgather-mem pp`: the text that a template renders to."""

from forgather_mem.config.environment import ConfigEnvironment


def test_pp_prints_the_rendered_text(cli):
    code, out, err = cli("pp", "train.yaml", "--set", "lr=2e-5")
    assert (code, err) == (0, "")
    text = ConfigEnvironment().preprocess("train.yaml", lr=2e-5)
    assert out == text.removesuffix("\n") + "\n"
    assert cli("render", "train.yaml", "--set", "lr=2e-5") == (code, out, err)


def test_pp_debug_shows_where_each_line_comes_from(cli):
    code, out, _ = cli("pp", "--debug", "train.yaml")
    assert code == 0
    origins = {line.partition("|")[2].strip(): line.partition("|")[0].strip() for line in out.splitlines()}
    assert origins["lr: 0.001"] == "base.yaml:3"
    assert origins["- !singleton:my_own.callbacks:Mine"] == "train.yaml:5"
    text = "\n".join(line.partition("| ")[2] for line in out.splitlines())
    assert text.split() == ConfigEnvironment().preprocess("train.yaml").split()


def test_pp_shows_values_of_several_lines_and_no_control_characters(cli, here):
    (here / "value.yaml").write_text("a: {{ value }}\nb: 2\n")
    value = '"one\\ntwo\\u001b[31m"'
    _, out, _ = cli("pp", "value.yaml", "--set", f"value={value}")
    assert out == "a: one\ntwo\\x1b[31m\nb: 2\n"
    _, out, _ = cli("pp", "--debug", "value.yaml", "--set", f"value={value}")
    assert [line.rstrip() for line in out.splitlines()] == [
        "value.yaml:1  | a: one", "              | two\\x1b[31m", "value.yaml:2  | b: 2",
    ]  # fmt: skip
