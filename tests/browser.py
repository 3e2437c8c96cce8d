"""A real Chromium without a window, driven through chromedriver's HTTP interface: no package is needed for it."""

import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from typing import Any

from tests.programs import free_port

_FLAGS = (
    "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "hide-scrollbars",
    "disable-background-networking", "disable-component-update", "disable-sync", "force-color-profile=srgb",
)  # fmt: skip


def why_no_browser() -> str:
    """Why there is none to test with; "" if there is one."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"there is no {' and no '.join(missing)} here" if missing else ""


class Browser:
    """One Chromium; `close` ends it."""

    def __init__(self) -> None:
        self._profile = tempfile.mkdtemp()
        self._port = free_port()
        command = ["chromedriver", f"--port={self._port}"]
        self._driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        flags = [f"--{flag}" for flag in (*_FLAGS, f"user-data-dir={self._profile}")]
        wanted = {
            "goog:chromeOptions": {"args": flags, "binary": shutil.which("chromium")},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        self._session = f"/session/{self._when_up({'capabilities': {'alwaysMatch': wanted}})['sessionId']}"

    def size(self, width: int, height: int, scale: float = 1.0, mobile: bool = False) -> None:
        """Lay pages out as on a screen of so many CSS pixels."""
        self.cdp(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile
        )

    def dark(self, wanted: bool = True) -> None:
        value = "dark" if wanted else "light"
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def open(self, address: str) -> None:
        self._ask(f"{self._session}/url", {"url": address})

    def run(self, script: str, *arguments: object) -> Any:
        """What a function body gives in the page."""
        return self._ask(f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str) -> Any:
        """The same of a promise."""
        body = f"const done = arguments[0]; (async () => {{ {script} }})().then(done, error => done(String(error)));"
        return self._ask(f"{self._session}/execute/async", {"script": body, "args": []})

    def act(self, *actions: dict[str, object], kind: str = "pointer") -> None:
        """Move, press and type as a person would: actions of the WebDriver protocol."""
        device = {"type": kind, "id": kind, "actions": list(actions)}
        self._ask(f"{self._session}/actions", {"actions": [device]})

    def log(self, kind: str = "browser") -> list[dict[str, Any]]:
        """What was logged since the last call: "browser" is the console, "performance" has all requests."""
        return self._ask(f"{self._session}/se/log", {"type": kind})

    def requests(self) -> list[str]:
        """Addresses that were asked for since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]

    def picture(self, whole: bool = False) -> bytes:
        """What is seen, or all of the page, as a PNG file."""
        options: dict[str, object] = {"format": "png"}
        if whole:
            box = self.run("const e = document.documentElement; return [e.clientWidth, e.scrollHeight]")
            options |= {"captureBeyondViewport": True}
            options["clip"] = {"x": 0, "y": 0, "width": box[0], "height": box[1], "scale": 1}
        return base64.b64decode(self.cdp("Page.captureScreenshot", **options)["data"])

    def cdp(self, command: str, **params: object) -> Any:
        return self._ask(f"{self._session}/goog/cdp/execute", {"cmd": command, "params": params})

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._ask(self._session, method="DELETE")
        self._driver.terminate()
        self._driver.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    def _when_up(self, wanted: object) -> Any:
        for _ in range(100):
            try:
                return self._ask("/session", wanted)
            except urllib.error.HTTPError:
                raise
            except urllib.error.URLError:
                time.sleep(0.1)
        raise OSError("chromedriver does not answer")

    def _ask(self, route: str, data: object = None, method: str | None = None) -> Any:
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(f"http://localhost:{self._port}{route}", data=body, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise OSError(error.read().decode()[:2000]) from error
