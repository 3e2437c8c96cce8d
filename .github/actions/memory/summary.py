"""The job's summary: the decision, what led to it, the parts, and the report; `memory.sh` writes it.

    summary.py CODE SAID REPORT [BASELINE] [COMPARE_WITH]

CODE is what `forgather-mem run` ended with, SAID the file with all that the command and it have said, REPORT the file
of `--report`, which is not there if the command was not started.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

_MOST = 100_000  # characters of a text; a runner drops a summary of more than 1 MiB
_REPORT = re.compile(r"(^== forgather-mem .*?)^=====*$\n?", re.MULTILINE | re.DOTALL)
_OF_THE_JOB = re.compile(r"^(?:forgather-mem report|tensorboard) .*\n", re.MULTILINE)  # name folders that go with it


def main(code: int, said: Path, report: Path, baseline: str, compare_with: str) -> None:
    """Print the summary as Markdown."""
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    text = said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""
    *_, found = [None, *_REPORT.finditer(text)]
    told = re.sub("^forgather-mem: ", "", text[found.end() :] if found else text, flags=re.MULTILINE)
    ended = exit_code(report)
    what = decision(code, ended, told, is_compared=bool(baseline))
    print(f"### Memory{what and f': {what}'}")
    print(fenced(told), end="")
    for before in filter(None, (baseline, compare_with)) if ended is not None else ():
        command = ["forgather-mem", "compare", "--markdown", "--", before, str(report)]
        print(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout.decode("utf-8", "replace"), end="")
    if found:
        is_open = " open" if ended or not (baseline or compare_with) else ""
        shown = fenced(_OF_THE_JOB.sub("", f"{found[0].rstrip()}\n"))
        print(f"\n<details{is_open}><summary>The report</summary>\n\n{shown}\n</details>")


def exit_code(report: Path) -> "int | None":
    """What the command itself has ended with, as its report says; None without one."""
    try:
        return json.loads(report.read_text(encoding="utf-8"))["run"].get("exit_code") or 0
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def decision(code: int, ended: "int | None", told: str, *, is_compared: bool) -> str:
    """The decision in a few words; nothing where no limit is known that was kept."""
    if ended is None or (code == 4 and not ended):
        return f"could not be judged (exit code {code})"
    if ended:
        return f"the command failed with {ended}"
    if code == 3:
        return "grown" if "this is more than allowed_growth" in told else "a limit is exceeded"
    if told.startswith("the baseline is in "):
        return "the baseline is written"
    return "not grown" if is_compared else ""


def fenced(text: str) -> str:
    """A text in a fence that is longer than any in it; its end, if it is long."""
    text = text[-_MOST:].strip("\n")
    fence = "`" * max([3, *(len(found) + 1 for found in re.findall("`+", text))])
    return f"{fence}text\n{text}\n{fence}\n" if text.strip() else ""


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), *[*sys.argv[4:], "", ""][:2])
