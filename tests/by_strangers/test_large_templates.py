"""Large templates as people write them are within the limits, and the tree of a template always ends."""

import pytest

from forgather_mem import ConfigEnvironment

RUNS = '-- set runs = [{"name": "b", "o": {"lr": 2}}, {"name": "a", "o": {"lr": 1}}] * 500\n'
TEMPLATES = {
    "20 000 steps": ("x: [" + ", ".join(str(i * 500) for i in range(20_000)) + "]", 20_000),
    "10 000 keys that are steps": (
        "x: !singleton:set [[" + ", ".join(str(i * 1024) for i in range(10_000)) + "]]",
        10_000,
    ),
    "a loop in a loop": (
        "x: !list\n-- for i in range(45)\n-- for k in range(45)\n"
        "    - { i: {{ i }}, k: {{ k }} }\n-- endfor\n-- endfor\n",
        2_025,
    ),
    "sorted by an attribute of an attribute": (
        RUNS + 'x: !list\n-- for run in runs | sort(attribute="o.lr")\n    - {{ run.name }}\n-- endfor\n',
        1_000,
    ),
    "grouped": (RUNS + 'x: !list\n-- for lr, group in runs | groupby("o.lr")\n    - {{ lr }}\n-- endfor\n', 2),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_large_honest_template_loads(name):
    text, length = TEMPLATES[name]
    assert len(ConfigEnvironment().load_from_string(text).construct("x")) == length


@pytest.mark.parametrize("word", ["extends", "include"])
def test_the_tree_of_a_template_that_uses_itself_ends(word, tmp_path):
    (tmp_path / "t.yaml").write_text(f'-- {word} "t.yaml"\n')
    environment = ConfigEnvironment(tmp_path)
    found, error = environment.references("t.yaml")
    assert [name for _, name, _ in found] == ["t.yaml"]
    assert error is not None
