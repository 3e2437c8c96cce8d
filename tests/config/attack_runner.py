"""Runs attack templates, each in a child process with limits, and prints one JSON line for each.

    python attack_runner.py attacks/names.yaml [--heavy] [--unsafe] [--warm] [--only FILE/NAME...]

With `--heavy` the parent has torch, transformers and our callbacks imported, as a training script has, and runs the
attacks that say `heavy`; without it the config half alone, so that importing anything would show. `--unsafe` takes
the policy away, to see that the attacks are real. With `--warm` the process that renders a stranger's template is a
fork of that of the tests. `--only` runs those of these names.

A listener on this machine notes who connects. An audit hook in the child is the witness: a process that is started, a
connection, a file that is opened for writing, an import of something that no attack may import. A canary file stands
for all the rest. A stranger's template is rendered in a process of its own, which no hook sees: what this one does is
done once more in a fork of the child, under the same limits and the same watch.
"""

import atexit
import gc
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from bounds import forked, status

from tests.warm_renderer import share

MIB = 2**20
CPU_S = 20
MEMORY = 200 * MIB
FORBIDDEN = (
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "subprocess.Popen", "pty.spawn",
    "socket.connect", "socket.bind", "socket.getaddrinfo", "ctypes.dlopen", "ctypes.dlsym", "os.kill", "os.putenv",
    "shutil.rmtree", "shutil.copyfile", "os.remove", "os.rename", "os.mkdir", "os.chmod", "urllib.Request",
    "pickle.find_class", "webbrowser.open", "builtins.input", "http.client.connect",
)  # fmt: skip
SUSPICIOUS = frozenset(
    ["antigravity", "this", "evil", "conftest", "sitecustomize", "forgather", "webbrowser", "code", "pty", "runpy"]
)


def main(argv: list[str]) -> None:
    sys.dont_write_bytecode = True  # which an attack may not
    heavy = "--heavy" in argv
    only = set(argv[argv.index("--only") + 1 :]) if "--only" in argv else None
    argv = argv[: argv.index("--only")] if only is not None else argv
    listener = Listener()
    atexit.register(listener.close)  # else it holds our output, and who reads that waits
    if "--warm" in argv:
        share()
    from forgather_mem.config.environment import ConfigEnvironment

    # Everything that loading needs is imported once, here, and not in each child.
    ConfigEnvironment().load_from_string("-- set x = 1\na: !call:list [[{{ x }}]]\n").construct()
    if heavy:
        import transformers
        import transformers.trainer  # noqa: F401
        from torch.utils.tensorboard import SummaryWriter  # noqa: F401

        import forgather_mem.callbacks  # noqa: F401
    gc.freeze()  # so that a child's collections copy nothing
    for file in argv:
        if file.startswith("--"):
            continue
        for attack in yaml.load(Path(file).read_text(encoding="utf-8"), yaml.CSafeLoader):
            if bool(attack.get("heavy")) == heavy and (only is None or f"{Path(file).stem}/{attack['name']}" in only):
                result = run(attack, listener, unsafe="--unsafe" in argv or bool(attack.get("unsafe")))
                print(json.dumps({"file": Path(file).stem, "name": attack["name"], **result}), flush=True)


class Listener:
    """A server on this machine, in a process of its own: who connects is noted, and told that nothing is there."""

    def __init__(self) -> None:
        server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{server.getsockname()[1]}"
        self._heard, note = os.pipe()
        os.set_blocking(self._heard, False)
        self._process = os.fork()
        if self._process == 0:
            while True:
                client, _ = server.accept()
                os.write(note, b"!")
                client.settimeout(1)
                try:
                    client.recv(4096)
                    client.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                except OSError:
                    pass
                client.close()
        server.close()
        os.close(note)

    def heard(self) -> int:
        """How many have connected since this was last asked."""
        try:
            return len(os.read(self._heard, 1000))
        except BlockingIOError:
            return 0

    def close(self) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)


def run(attack: dict[str, Any], listener: Listener, *, unsafe: bool = False) -> dict[str, Any]:
    """One attack in a forked child: how it ended, what the witness saw, time and memory."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        canary, folder = root / "canary", root / "templates"
        folder.mkdir()
        prepare(attack, root, folder, canary, listener.address)
        result, status = forked(lambda: attempt(attack, folder, unsafe))
        if result is None:
            result = {"end": f"killed by {signal.Signals(status & 0x7F).name}"}
        return {
            "loads": attack.get("loads", False),
            **result,
            "unsafe": unsafe,
            "canary": canary.exists(),
            "heard": listener.heard(),
        }


def prepare(attack: dict[str, Any], root: Path, folder: Path, canary: Path, address: str) -> None:
    """The files that the attack has beside its template, and one above them that nobody may read."""
    (root / "secret.yaml").write_text("secret: !call:list [[1]]\n")
    texts = {"attack.yaml": attack["text"], **attack.get("files", {})}
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for key, (unit, count) in attack.get("repeat", {}).items():
            text = text.replace(f"<{key}>", unit * count)
        for key, (count, step, *unit) in attack.get("numbers", {}).items():
            numbers = ((unit[0] if unit else "%d: 1, ") % (i * step) for i in range(count))
            text = text.replace(f"<{key}>", "".join(numbers))
        for word, value in (("canary", canary), ("folder", folder), ("address", address)):
            text = text.replace(f"{{{word}}}", str(value))
        path.write_text(text, "utf-8")
    for name, content in attack.get("bytes", {}).items():
        (folder / name).write_bytes(bytes.fromhex(content))
    for name, target in attack.get("links", {}).items():
        (folder / name).symlink_to(target)
    for name in attack.get("pipes", []):
        os.mkfifo(folder / name)


def attempt(attack: dict[str, Any], folder: Path, unsafe: bool) -> dict[str, Any]:
    """Load the template and build everything it asks for, under limits and under watch."""
    from forgather_mem.config.environment import ConfigEnvironment
    from forgather_mem.config.policy.policy import Policy
    from forgather_mem.errors import TemplateError

    os.chdir(folder)
    sys.path.insert(0, "")
    seen_in_child = rendered_under_watch(attack, folder, unsafe)
    used = status("VmRSS")
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + 2 * MEMORY, -1))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(2 * CPU_S)
    sys.stdin = open(os.devnull)  # noqa: SIM115
    seen = watch(folder)
    begin = time.process_time()
    message = ""
    try:
        environment = ConfigEnvironment([folder], policy=Policy.UNSAFE_ANY if unsafe else None)
        environment.load(attack.get("load", "attack.yaml"), **attack.get("vars", {})).construct(None)
        end = "loaded"
    except TemplateError as error:
        end, message = "TemplateError", str(error)
    except BaseException as error:
        end, message = type(error).__name__, "".join(traceback.format_exception(error))[-1500:]
    cpu_s = time.process_time() - begin
    seen.append("end")
    return {
        "end": end,
        "message": message[:4000],
        "length": len(message),
        "seen": seen_in_child + [event for event in seen if event != "end"],
        "cpu_s": round(cpu_s, 3),
        "grown_mib": round((status("VmHWM") - used) / MIB, 1),
    }


def rendered_under_watch(attack: dict[str, Any], folder: Path, unsafe: bool) -> list[str]:
    """What is seen while the process of a stranger's template does its work."""
    from forgather_mem.config.environment import ConfigEnvironment
    from forgather_mem.config.policy.policy import Policy
    from forgather_mem.config.rendering import child as renders
    from forgather_mem.config.source.syntax import is_plain
    from forgather_mem.errors import TemplateError

    if unsafe:
        return []
    try:
        environment = ConfigEnvironment([folder], policy=Policy())
        request = environment._request(attack.get("load", "attack.yaml"), attack.get("vars", {}))
    except TemplateError:
        return []

    file = folder / request.name
    if file.is_file() and is_plain(file.read_text("utf-8", errors="replace")):
        return []  # nothing is rendered

    def render() -> list[str]:
        seen = watch(folder)
        renders.limited(replace(request, budgets=replace(request.budgets, render_cpu_s=0.2)))
        return seen

    return forked(render)[0] or []  # it may have ended at a limit of the kernel


def watch(folder: Path) -> list[str]:
    """A list that fills with what an attack may not do; "end" in it ends the watch."""
    from forgather_mem.config.rendering.stranger import _START

    seen: list[str] = []

    def hook(event: str, args: tuple[object, ...]) -> None:
        if "end" in seen or (event in ("subprocess.Popen", "os.posix_spawn") and _START in args[1]):
            return
        if event in FORBIDDEN or event.startswith(("os.exec", "socket.sendto", "ftplib", "smtplib")):
            seen.append(f"{event} {args!r:.200}")
        elif event == "import" and str(args[0]).partition(".")[0] in SUSPICIOUS:
            seen.append(f"import {args[0]}")
        elif event == "open" and (isinstance(args[0], int) or args[0] == os.devnull):
            return  # the ends of pipes, and what our own process has for its errors
        elif event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            seen.append(f"open for writing {args[0]!r}")
        elif event == "open" and not allowed_to_read(str(args[0]), folder):
            seen.append(f"open {args[0]!r}")

    sys.addaudithook(hook)
    return seen


def allowed_to_read(path: str, folder: Path) -> bool:
    """What Python itself and the loader read; never the secret above the folder, devices or system files."""
    if path.endswith("secret.yaml"):
        return False
    return not os.path.realpath(path).startswith(("/etc/passwd", "/dev/zero", "/proc/self/environ", "/dev/std"))


if __name__ == "__main__":
    main(sys.argv[1:])
