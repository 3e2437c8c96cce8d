"""`forgather-mem targets`: what a template can build, and where it stands."""


def test_targets_with_their_places(cli):
    code, out, _ = cli("targets", "train.yaml")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["lr", "0.001", "base.yaml:3"],
        ["trainer_callbacks", "OrderedDict,", "Mine", "base.yaml:5"],
    ]
