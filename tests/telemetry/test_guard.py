"""What fails in our parts is logged once by its name, and stops nobody; what users want to stop, stops."""

import logging

import pytest

from forgather_mem.telemetry.guard import MAX_STRIKES, FailureGuard


class Reader:
    """A part that does what it is told."""

    name = "a reader"
    strikes = 0
    off = False

    def read(self, error: BaseException | None = None) -> str:
        if error is not None:
            raise error
        return "read"


def test_a_result_comes_through_and_a_failure_gives_none(caplog: pytest.LogCaptureFixture) -> None:
    guard, reader = FailureGuard(), Reader()
    assert guard.call("reading", reader.read) == "read"
    assert guard.call_part(reader, "read") == "read"
    assert guard.call("nothing", None) is None
    assert guard.call_part(reader, "write") is None
    assert caplog.records == [], "what a part does not have is no failure"
    assert guard.call("reading", reader.read, OSError("no such file")) is None
    assert guard.call_part(reader, "read", ValueError("no number")) is None
    assert [record.getMessage() for record in caplog.records] == [
        "reading failed; training continues: OSError('no such file')",
        "Reader.read failed; training continues: ValueError('no number')",
    ]
    assert guard.failure == "ValueError('no number')"


def test_what_fails_again_and_again_is_logged_once_by_each_name(caplog: pytest.LogCaptureFixture) -> None:
    guard = FailureGuard()
    for name in ("a", "b", "a", "a"):
        assert guard.keeps(name, OSError(name))
    assert [record.getMessage().split()[0] for record in caplog.records] == ["a", "b"]
    assert all(record.exc_info is not None for record in caplog.records), "with its traceback"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_whoever_wants_to_stop_passes(stop: type[BaseException]) -> None:
    with pytest.raises(stop):
        FailureGuard().call("reading", Reader().read, stop())
    with pytest.raises(stop):
        FailureGuard().call_part(Reader(), "read", stop())


@pytest.mark.parametrize(("value", "strict"), [("1", True), ("0", False), ("", False)])
def test_strict_lets_every_failure_through_as_an_argument_or_by_the_environment(
    value: str, strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGATHER_MEM_STRICT", value)
    assert FailureGuard().strict is strict
    guard = FailureGuard(strict=True)
    with pytest.raises(OSError, match="here"):
        guard.call("reading", Reader().read, OSError("here"))
    with pytest.raises(OSError, match="here"):
        guard.call_part(Reader(), "read", OSError("here"))
    assert not guard.strike(Reader(), OSError("here"))


def test_a_part_is_switched_off_after_so_many_failures_in_a_row_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guard, reader = FailureGuard(), Reader()
    for number in range(1, MAX_STRIKES):
        assert guard.strike(reader, OSError())
        assert (reader.off, reader.strikes) == (False, number)
    reader.strikes = 0  # a call that went well
    for number in range(1, MAX_STRIKES + 3):
        assert guard.strike(reader, OSError("gone"))
        assert reader.off is (number >= MAX_STRIKES)
    sentence = f"a reader: switched off after {MAX_STRIKES} failures in a row, the last: OSError('gone')"
    assert guard.switched_off == [sentence]
    assert [record.getMessage() for record in caplog.records][1:] == [sentence]


def test_a_handler_of_the_users_that_fails_is_no_failure_of_the_training() -> None:
    class Fails(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("the log is full")

    handler = Fails()
    logger = logging.getLogger("forgather_mem")
    logger.addHandler(handler)
    try:
        assert FailureGuard().keeps("reading", OSError())
    finally:
        logger.removeHandler(handler)
