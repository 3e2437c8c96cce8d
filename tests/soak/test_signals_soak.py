"""200 signals at random moments of a script, collections among them: what its handler raises arrives each time."""

from pathlib import Path

import pytest
import yaml

from tests.launch.commands import RUN, python, run

pytestmark = pytest.mark.soak
NUM_SIGNALS = 200

HEAD, WAYS, TAIL = yaml.safe_load(Path(__file__).with_name("signals.yaml").read_text(encoding="utf-8")).values()


@pytest.mark.parametrize("with_us", [False, True], ids=["alone", "watched"])
@pytest.mark.parametrize("way", WAYS)
def test_what_a_handler_raises_arrives_each_time(tmp_path: Path, way: str, with_us: bool) -> None:
    tail = TAIL.format(num_signals=NUM_SIGNALS)
    (tmp_path / "train.py").write_text(f"{HEAD}{WAYS[way]}{tail}", encoding="utf-8")
    words = [*RUN, "train.py"] if with_us else python("train.py")
    result = run(words, tmp_path, timeout=3000)
    assert result.code == 0, result
    assert f"arrived {NUM_SIGNALS} of {NUM_SIGNALS}" in result.out, result
    assert "Exception ignored" not in result.err, result.err
    assert "failed; training continues" not in result.err, result.err
