"""The templates that a template uses, as a tree."""


def test_templates_that_are_used_are_listed_with_levels(folder):
    folder.write(
        base="-- include part ~ '.yaml'\n",
        part="a: 1",
        main="-- extends 'base.yaml'\n-- set part = 'part'\n#--- sub ---\n-- include 'b.yaml'\n",
    )
    assert [reference[:2] for reference in folder.renderer.references("main.yaml")[0]] == [
        (0, "main.yaml"), (1, "base.yaml"), (2, "part.yaml"),
    ]  # fmt: skip
    assert folder.renderer.references("main.yaml")[0][1].file == str(folder.path / "base.yaml")


def test_templates_are_listed_by_their_text_when_rendering_fails(folder):
    folder.write(base="{{ nope }}\n-- include 'part.yaml'\n", part="#", main="-- extends 'base.yaml'\n")
    assert [tuple(reference[:2]) for reference in folder.renderer.references("main.yaml")[0]] == [
        (0, "main.yaml"), (1, "base.yaml"), (2, "part.yaml"),
    ]  # fmt: skip
