"""`forgather-mem trefs`: the templates that a template uses."""


def test_trefs_is_a_tree_of_files(cli, here):
    code, out, _ = cli("trefs", "train.yaml")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [["train.yaml", "train.yaml"], ["base.yaml", "base.yaml"]]
    assert out.splitlines()[1].startswith("    base.yaml")


def test_trefs_says_which_template_is_missing(cli, here):
    (here / "child.yaml").write_text('-- include "base.yaml"\n-- include "bse.yaml"\n')
    code, out, err = cli("trefs", "child.yaml")
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()] == ["child.yaml", "base.yaml"]
    assert "child.yaml:2:1: template 'bse.yaml' not found" in err
