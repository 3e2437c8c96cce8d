"""`forgather-mem graph`: a template as a tree."""


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
