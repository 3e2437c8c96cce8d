"""`forgather-mem demo`, as a person types it: a real training in processes of its own."""

import os
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "forgather_mem", "demo"]


def test_the_demo_is_a_run_whose_leak_is_named_with_its_line_and_has_a_page(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FORGATHER_MEM", "COLUMNS"))}
    done = subprocess.run(COMMAND, cwd=tmp_path, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stderr
    assert "== forgather-mem == demo.py == 150 steps, " in said
    assert "\nLEAK   tensors on the host grow 1.5 MiB a step" in said
    assert "  held by   MyTrainer.kept_logits     list, +1 item a step, 150 items, 225.0 MiB\n" in said
    script = (tmp_path / "out/demo.py").read_text().splitlines()
    line = 1 + next(number for number, text in enumerate(script) if "kept_logits.append" in text)
    assert f"  made at   demo.py:{line}\n            {script[line - 1].strip()}\n" in said
    assert said.endswith("forgather-mem: the page is in out/demo.html\n")
    assert "MyTrainer.kept_logits keeps 1.5 MiB a step" in (tmp_path / "out/demo.html").read_text()
