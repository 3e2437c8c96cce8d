"""A real TensorBoard server, asked over HTTP for what its page shows."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any


class Page:
    """TensorBoard on a folder of runs, in a process of its own, on a loopback port.

    Args:
        logdir: Its subfolders are the runs.
        fast: Load with the data server (TensorBoard's default) or in Python (`--load_fast false`).
        packages: A folder with packages of which its process is to know, too.
    """

    def __init__(self, logdir: Path, *, fast: bool, packages: Path | None = None) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "tensorboard.main", "--logdir", str(logdir), "--port", "0"]
        command += ["--host", "localhost", "--reload_interval", "1", "--load_fast", "true" if fast else "false"]
        paths = [*([str(packages)] if packages else []), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
        seen = []
        for line in self._process.stderr:
            seen.append(line)
            match = re.search(r"http://localhost:\d+/", line)
            if match:
                self.url = match[0]
                return
        self._process.stderr.close()
        self._process.wait(timeout=60)
        raise RuntimeError(f"TensorBoard did not start: {''.join(seen)}")

    def close(self) -> None:
        self._process.terminate()
        self._process.stderr.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:  # its own handler of the signal may hang where it has only just begun
            self._process.kill()
            self._process.wait()

    def get(self, route: str, **query: str) -> Any:
        """The JSON of a route of a plugin."""
        return self.read(f"plugin/{route}?{urllib.parse.urlencode(query)}")

    def read(self, route: str) -> Any:
        """The JSON of any route."""
        with urllib.request.urlopen(f"{self.url}data/{route}", timeout=60) as answer:
            return json.load(answer)

    def headers(self, route: str) -> Any:
        """The headers with which a route answers."""
        with urllib.request.urlopen(f"{self.url}data/{route}", timeout=60) as answer:
            return answer.headers

    def tags(self, run: str, tag: str) -> dict[str, Any]:
        """All scalar tags of a run, as soon as this one is among them."""
        return self._wait(lambda: (found := self.get("scalars/tags").get(run, {})) and tag in found and found)

    def points(self, run: str, tag: str, at_least: int = 1) -> list[tuple[int, float]]:
        """(step, value) as the page draws them, as soon as there are that many."""
        self.tags(run, tag)

        def read() -> Any:
            points = self.get("scalars/scalars", run=run, tag=tag)
            return len(points) >= at_least and [(int(step), value) for _, step, value in points]

        return self._wait(read)

    def texts(self, run: str, tag: str) -> list[str]:
        """The HTML of a text tag."""
        self._wait(lambda: tag in self.get("text/tags").get(run, []))
        return [entry["text"] for entry in self.get("text/text", run=run, tag=tag)]

    @staticmethod
    def _wait(ask: Any, timeout_s: float = 30.0) -> Any:
        until = time.monotonic() + timeout_s
        while not (answer := _quiet(ask)):
            assert time.monotonic() < until, "TensorBoard does not show it"
            time.sleep(0.1)
        return answer


def _quiet(ask: Any) -> Any:
    try:
        return ask()
    except urllib.error.HTTPError as error:  # the run is not loaded yet
        error.close()
        return None
