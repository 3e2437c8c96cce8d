"""The session of one run of the launcher, as each of its processes sees it."""

from pathlib import Path

import pytest

from forgather_mem.telemetry import run_session


@pytest.mark.parametrize("value", ["0", "off", "OFF", "false", "False", "no", "No", " 0 "])
def test_each_of_these_values_switches_off(value: str) -> None:
    assert run_session.is_off({"FORGATHER_MEM": value})


@pytest.mark.parametrize("value", ["", "1", "on", "True", "YES", "maybe", "2"])
def test_all_others_leave_it_on(value: str) -> None:
    assert not run_session.is_off({"FORGATHER_MEM": value})
    assert not run_session.is_off({})


@pytest.mark.parametrize(
    ("rank", "size", "expected"), [("2", "4", (2, 4)), (None, None, (0, 1)), ("", "many", (0, 1)), ("-1", "0", (0, 1))]
)
def test_the_rank_is_what_a_launcher_says_and_0_where_it_says_nothing(
    rank: str | None, size: str | None, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    assert run_session.rank_and_size() == expected


def test_a_folder_is_a_runs_only_from_its_beginning_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(run_session.FOLDER, str(tmp_path))
    assert run_session.folder() is None
    assert not run_session.note(run_session.TORCH), "nothing is written to a folder that is not ours"
    assert list(tmp_path.iterdir()) == []
    run_session.make_notes(str(tmp_path))
    assert run_session.folder() == str(tmp_path)
    with pytest.raises(OSError, match="exists"):
        run_session.make_notes(str(tmp_path))
    for left in tmp_path.iterdir():
        left.unlink()
    assert run_session.folder() is None
    monkeypatch.delenv(run_session.FOLDER)
    assert run_session.folder() is None


def test_the_parent_reads_what_was_noted_by_kind_in_order_each_text_once(session: Path) -> None:
    for text in ("first", "second\twith a tab", "first", "\udcff.py"):
        assert run_session.note("mine", text)
    assert run_session.note("other", "third")
    assert run_session.noted(str(session), "mine") == ["first", "second\twith a tab", "\udcff.py"]
    assert run_session.noted(str(session), "other") == ["third"]
    assert run_session.noted(str(session / "nowhere"), "mine") == []


def test_a_training_that_has_a_folder_of_its_own_takes_the_parents_black_box_away(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (session / run_session.WAITING_RING).touch()
    monkeypatch.chdir(session)
    for name in ("a", "b", "a"):
        run_session.register(name, "ring.rank0")
    assert run_session.registered(str(session)) == [str(session / "a"), str(session / "b")]
    assert not (session / run_session.WAITING_RING).exists()


def test_nothing_is_noted_through_a_link(session: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    victim = tmp_path_factory.mktemp("elsewhere") / "file"
    victim.write_text("theirs")
    (notes,) = session.iterdir()
    notes.unlink()
    notes.symlink_to(victim)
    assert not run_session.note(run_session.TORCH)
    assert victim.read_text() == "theirs"
