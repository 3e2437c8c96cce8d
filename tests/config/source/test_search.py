"""Names of templates to files: the search path, the library behind it, and what may not be read."""

import os
import sys

import pytest

from forgather_mem.config.limits import Limits
from forgather_mem.config.source.search import Searcher
from forgather_mem.errors import TemplateError


@pytest.fixture
def folders(tmp_path):
    for name, files in {
        "first": {"a.yaml": "a: 1", "sub/b.yaml": "## What b is for\nb: 1"},
        "second": {"a.yaml": "a: 2", "c.yaml": "# ---- C ----\nc: 1", "notes.txt": "", ".hidden/d.yaml": ""},
    }.items():
        for file, text in files.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return tmp_path


@pytest.fixture
def searcher(folders):
    return Searcher([folders / "first", str(folders / "second"), folders / "missing"])


def test_the_first_folder_that_has_a_name_wins(searcher, folders):
    assert searcher.find("a.yaml").file == folders / "first" / "a.yaml"
    assert searcher.find("c.yaml").file == folders / "second" / "c.yaml"


def test_a_name_is_found_with_dots_and_double_slashes_in_it(searcher):
    assert searcher.find("./sub//b.yaml").name == "sub/b.yaml"


def test_one_folder_may_be_given_as_string_or_path(folders):
    for searchpath in (folders / "first", str(folders / "first")):
        assert Searcher(searchpath).find("a.yaml").file == folders / "first" / "a.yaml"


def test_what_no_folder_has_is_not_found(searcher):
    assert searcher.find("nothing.yaml") is None
    assert searcher.find("sub") is None


@pytest.mark.parametrize("name", ["../x.yaml", "sub/../../x.yaml", "..", "sub/.."])
def test_a_name_can_not_climb_out(searcher, name):
    with pytest.raises(TemplateError, match=r"has '\.\.' in it"):
        searcher.find(name)


def test_an_absolute_name_is_refused_with_the_search_path_that_would_find_it(searcher, folders):
    with pytest.raises(TemplateError, match="is an absolute path") as error:
        searcher.find(str(folders / "first" / "a.yaml"))
    assert error.value.hint == f"searchpath {str(folders / 'first')!r}, name 'a.yaml' would find it"


@pytest.mark.parametrize("name", ["", ".", "/", "a\0.yaml", "a\n.yaml", "a\\b.yaml"])
def test_a_name_that_is_none_is_refused(searcher, name):
    with pytest.raises(TemplateError):
        searcher.find(name)


def test_a_link_inside_the_search_path_is_followed_and_one_out_of_it_is_not(searcher, folders):
    (folders / "secret.yaml").write_text("x")
    (folders / "first" / "in.yaml").symlink_to(folders / "second" / "c.yaml")
    (folders / "first" / "out.yaml").symlink_to(folders / "secret.yaml")
    (folders / "first" / "up").symlink_to(folders)
    assert searcher.read(searcher.find("in.yaml")).endswith("c: 1")
    for name in ("out.yaml", "up/secret.yaml"):
        with pytest.raises(TemplateError, match=r"is a link to .*secret\.yaml, which is outside"):
            searcher.find(name)


def test_a_search_path_that_is_a_link_itself_works(folders):
    (folders / "link").symlink_to(folders / "first")
    assert Searcher(folders / "link").find("a.yaml") is not None


def test_a_pipe_is_no_template_and_nobody_waits_for_it(searcher, folders):
    os.mkfifo(folders / "first" / "pipe.yaml")
    with pytest.raises(TemplateError, match="is not a regular file"):
        searcher.find("pipe.yaml")


def test_a_file_that_becomes_a_pipe_after_it_was_found_is_not_read(searcher, folders):
    found = searcher.find("a.yaml")
    found.file.unlink()
    os.mkfifo(found.file)
    with pytest.raises(TemplateError, match="is not a regular file"):
        searcher.read(found)


def test_a_file_over_the_budget_is_refused_and_code_can_raise_it(folders):
    (folders / "big.yaml").write_text("x" * 2_000)
    searcher = Searcher(folders, Limits(source_bytes=1_000))
    found = searcher.find("big.yaml")
    with pytest.raises(TemplateError, match="more than 1,000 bytes"):
        searcher.read(found)
    searcher = Searcher(folders, Limits(source_bytes=2_000))
    assert len(searcher.read(searcher.find("big.yaml"))) == 2_000


def test_text_that_is_not_utf_8_is_refused_with_its_line(searcher, folders):
    (folders / "first" / "latin.yaml").write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(TemplateError, match="byte 0xe9 is not UTF-8") as error:
        searcher.read(searcher.find("latin.yaml"))
    assert (error.value.template, error.value.line) == ("latin.yaml", 2)


def test_a_byte_order_mark_is_no_part_of_the_text(searcher, folders):
    (folders / "first" / "bom.yaml").write_text("a: 1", encoding="utf-8-sig")
    assert searcher.read(searcher.find("bom.yaml")) == "a: 1"


def test_a_changed_file_is_no_longer_current(searcher):
    found = searcher.find("a.yaml")
    assert found.is_current()
    found.file.write_text("a: 3, longer than before")
    assert not found.is_current()
    found.file.unlink()
    assert not found.is_current()


def test_all_templates_are_listed_once_with_their_first_comment(searcher):
    listed = searcher.names()
    assert listed["sub/b.yaml"] == "What b is for"
    assert listed["c.yaml"] == "C"
    assert not {"notes.txt", ".hidden/d.yaml"} & set(listed)


def test_listing_leaves_out_what_is_nested_very_deeply(tmp_path):
    inner = tmp_path
    for depth in range(40):
        (inner / f"t{depth}.yaml").write_text("\n" * 150 + "# why\n")
        inner = inner / "d"
        inner.mkdir()
    listed = {name.count("/"): comment for name, comment in Searcher(tmp_path).names().items()}
    assert max(listed) == 20
    assert listed[20] == "why"


def test_the_hint_says_the_nearest_name_and_where_was_looked(searcher, folders):
    hint = searcher.hint("sub/bb.yaml")
    assert hint.startswith("did you mean 'sub/b.yaml'?")
    assert f"{folders / 'missing'} (does not exist)" in hint


def test_the_list_opens_nothing_outside_the_search_path(tmp_path):
    """Nor does it wait for a pipe, or name what can't be loaded."""
    folder, outside = tmp_path / "templates", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "secret.yaml").write_text("# TOKEN=abc\n")
    (outside / ".env").write_text("# TOKEN=abc\n")
    (folder / "own.yaml").write_text("# mine\n")
    (folder / "inside.yaml").symlink_to("own.yaml")
    links = {
        "file.yaml": outside / "secret.yaml", "other.yaml": "../outside/.env", "folder": outside,
        "zero.yaml": "/dev/zero", "chain.yaml": "file.yaml", "ring.yaml": "ring.yaml", "gone.yaml": "nowhere",
        "env.yaml": "/proc/self/environ",
    }  # fmt: skip
    for name, target in links.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe.yaml")
    (folder / "sub.yaml").mkdir()
    opened, watching = [], [True]
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" and watching else None)
    found = Searcher(folder).names()
    watching.clear()
    seen = [name for name in opened if name.startswith((str(tmp_path), "/dev", "/proc/self/env"))]
    assert sorted(seen) == [str(folder / "inside.yaml"), str(folder / "own.yaml")]
    own = {name: found[name] for name in found if not name.startswith(("callbacks/", "configs/", "trainers/"))}
    assert own == {"own.yaml": "mine", "inside.yaml": "mine"}


def test_the_list_shows_what_a_name_means(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "a.yaml").write_text(f"# {folder.name}\n")
    (first / "a.yaml").unlink()
    (first / "a.yaml").symlink_to("/etc/passwd")  # hides the other, and can't be loaded
    assert "a.yaml" not in Searcher([first, second]).names()
