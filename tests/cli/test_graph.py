"""`forgather-mem graph`: a template as a tree, and as YAML."""

from forgather_mem.config.environment import ConfigEnvironment
from tests.config.graph.graphs import build_the_same


def test_an_unknown_target(cli):
    code, _, err = cli("graph", "base.yaml", "--target", "trainer_callback")
    assert code == 1
    assert "did you mean 'trainer_callbacks'?" in err


def test_graph_as_a_tree(cli):
    code, out, _ = cli("graph", "train.yaml")
    assert code == 0
    assert out.splitlines()[:3] == [
        "lr: 0.001",
        "trainer_callbacks: !list @trainer_callbacks",
        "    [0]: !singleton:collections:OrderedDict",
    ]
    _, part, _ = cli("graph", "train.yaml", "-t", "lr")
    assert part == "lr: 0.001\n"


def test_graph_as_yaml_means_the_same(cli):
    code, out, _ = cli("graph", "train.yaml", "--format", "yaml")
    assert code == 0
    environment = ConfigEnvironment()
    assert build_the_same(environment.load_from_string(out).graph, environment.load("train.yaml").graph)
