"""What the template commands print into a pipe."""

import subprocess
import sys


def test_a_reader_that_leaves_early_is_no_error_message(here):
    (here / "long.yaml").write_text("\n".join(f"k{i}: {i}" for i in range(50_000)))
    command = f"{sys.executable} -m forgather_mem pp long.yaml | head -1"
    done = subprocess.run(command, shell=True, cwd=here, capture_output=True, text=True)
    assert done.stdout == "k0: 0\n"
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
