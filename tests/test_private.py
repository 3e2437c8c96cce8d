"""No secret of a command line, of arguments or of the environment is in any file that a run leaves, however it ends."""

import base64
import contextlib
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.commands import ROOT, RUN, python, report_in, run
from tests.launch.forked_run import run_forked

TOKEN = "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"
KEY, PASSWORD, WORD = "0d9c3fe1a2b45687d9c3fe1a2b456870d9c3fe1a", "open-sesame-17", "abracadabra"
SECRETS = (TOKEN, KEY, PASSWORD, WORD)
WORDS = [
    "--hub_token", TOKEN, f"--api-key={WORD}", "--db", f"postgres://me:{PASSWORD}@host/db", f"HF_TOKEN={WORD}",
    f"trainer.hub_token={WORD}", "--config", json.dumps({"wandb": {"api_key": WORD}}), "-e", f"WANDB_API_KEY={WORD}",
    KEY,
]  # fmt: skip
ENVIRONMENT = {"HF_TOKEN": TOKEN, "WANDB_API_KEY": KEY, "PRIVATE_PASSWORD": PASSWORD, "HF_HUB_OFFLINE": "1"}


def contents(data: bytes, depth: int = 2) -> Iterator[bytes]:
    """The bytes of a file, and what is encoded or compressed in them."""
    yield data
    for found in re.finditer(rb"[A-Za-z0-9+/]{24,}={0,2}", data) if depth else ():
        with contextlib.suppress(ValueError):
            yield from contents(base64.b64decode(found[0] + b"=="), depth - 1)
    for head in re.finditer(rb"\x78[\x01\x5e\x9c\xda]|\x1f\x8b\x08", data) if depth else ():
        with contextlib.suppress(zlib.error):
            yield from contents(zlib.decompressobj(47).decompress(data[head.start() :]), depth - 1)


def leaks(folder: Path) -> list[tuple[str, str]]:
    """Each file, by its name or contents, that has a secret, but for what is not of us."""
    return [
        (str(path.relative_to(folder)), secret)
        for path in sorted(folder.rglob("*"))
        for secret in SECRETS
        if path.name != "training_args.bin"
        for part in [str(path).encode(), *(contents(path.read_bytes()) if path.is_file() else ())]
        if secret.encode() in part
    ]


@pytest.mark.slow
@pytest.mark.fresh
@pytest.mark.parametrize("how", ["finished", "exception", "oom", "killed"])
def test_no_file_of_a_run_has_a_secret(how: str, tmp_path: Path) -> None:
    script = [*RUN, "--report", "told.json", str(ROOT / "tests/private_run.py"), how, *WORDS]
    result = run_forked(script, tmp_path, **ENVIRONMENT)
    assert (result.code == 0) == (how == "finished"), result.err
    (place,) = {path.parent for path in tmp_path.rglob("report.json")}
    for form in ("--json", "--markdown", "--html=page.html"):
        shown = run_forked(python("-m", "forgather_mem", "report", str(place), form), tmp_path)
        assert shown.code == 0, shown.err
        (tmp_path / f"printed{form}").write_text(shown.out + shown.err)
    (place / "report.json").rename(tmp_path / "kept.json")
    from_log = run_forked(python("-m", "forgather_mem", "report", str(place), "--json"), tmp_path)
    for path in place.glob("memory.*"):
        path.rename(tmp_path / f"kept.{path.name}")
    from_ring = run_forked(python("-m", "forgather_mem", "report", str(place), "--json"), tmp_path)
    told = json.loads((tmp_path / "told.json").read_text())["run"]["argv"]
    for again in (from_log, from_ring):
        assert json.loads(again.out)["run"]["argv"] == told
    assert told[:5] == [how, "--hub_token", "***", "--api-key=***", "--db"]
    names = {re.sub(r"\d{5,}.*|\.\d+$", "", path.name) for path in tmp_path.rglob("*") if path.is_file()}
    assert names >= {
        "told.json", "kept.json", "kept.memory.rank0.jsonl", "ring.rank0", "page.html", "events.mem.tfevents.",
        "memory.prom", "trainer_logs.json",
    }, names  # fmt: skip
    assert leaks(tmp_path) == []
    ours = result.err.partition("== forgather-mem ==")[2]
    assert not [secret for secret in SECRETS if secret in ours]


def test_what_the_waiting_parent_alone_has_seen_has_no_secret(tmp_path: Path) -> None:
    killed = "import os, sys; os.kill(os.getpid(), 9)  # " + TOKEN
    result = run([*RUN, "-c", killed, *WORDS], tmp_path)
    assert result.code == -9
    assert report_in(tmp_path)["run"]["argv"][:2] == ["--hub_token", "***"]
    run([*RUN, "sh", "-c", f"HF_TOKEN={WORD} exec {python()[0]} -c 'import sys; sys.exit(139)' x.py"], tmp_path)
    assert len(list(tmp_path.rglob("report.json"))) == 2
    assert leaks(tmp_path) == []


def test_in_lists_of_processes_no_process_of_ours_shows_what_the_command_may_hide(tmp_path: Path) -> None:
    (tmp_path / "looks.py").write_text(
        "import contextlib, pathlib\n"
        "for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
        "    with contextlib.suppress(OSError):\n"
        "        if (told := path.read_text(errors='replace')).startswith('(signals)') and 'looks.py' in told:\n"
        "            print(told.split(chr(0)))\n"
    )
    told = run([*RUN, "looks.py", *WORDS], tmp_path).out
    assert "'--hub_token', '***'" in told
    assert not [secret for secret in SECRETS if secret in told]


def test_a_secret_in_a_file_of_an_older_version_is_not_shown(tmp_path: Path) -> None:
    run([*RUN, "-c", "import os; os.kill(os.getpid(), 9)"], tmp_path)
    (path,) = tmp_path.rglob("report.json")
    report = json.loads(path.read_text())
    report["run"]["argv"] = WORDS
    path.write_text(json.dumps(report))
    shown = [
        run(python("-m", "forgather_mem", "report", form), tmp_path).out for form in ("--json", "--html=page.html")
    ]
    shown.append((tmp_path / "page.html").read_text())
    assert not [secret for secret in SECRETS for text in shown if secret in text]
    assert '"--hub_token",' in shown[0]
