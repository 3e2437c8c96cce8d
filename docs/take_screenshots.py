"""The pictures of docs/dashboards.md and README.md, taken anew from the pages of real runs.

    python demo.py steps=120                                       # ConfigEnvironment().load("configs/demo.yaml", ...)
    forgather-mem run train.py                                     # README.md's script
    forgather-mem run demo.py output_dir=page                      # a page with phases, evaluations and collections
    python docs/take_screenshots.py out/demo --leak out/forgather_mem --page page --tab out

Needs Chromium with its chromedriver, and Pillow.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.browser import Browser

IMAGES = Path(__file__).parent / "images"
PINNED = (
    "train/loss",
    "mem_host/rss_gib",
    "mem_host/rss_peak_gib",
    "mem_phase_host/backward_gib",
    "mem_gc/pause_ms",
    "mem_tensors/optimizer_gib",
)
# Not needed for one run: the table below each chart, and the pane that has these switches.
TIDY = """
for (const box of document.querySelectorAll('mat-checkbox')) {
    const input = box.querySelector('input');
    if (/^(Enable step selection|Ignore outliers)/.test(box.innerText.trim()) && input.checked) input.click();
}
document.querySelector('.settings-button.checked')?.click();
"""
OPEN_ONLY = """
for (const bar of document.querySelectorAll('button.group-toolbar')) {
    const open = !!bar.querySelector('[svgicon=expand_less_24px]');
    if (open !== (bar.querySelector('.group-title').title === arguments[0])) bar.click();
}
"""
# Charts of the Custom Scalars tab show all points as they are.
AS_READ = "localStorage.setItem('_ignoreYOutliers', 'false');"
# A text is shown in full, not in a box that scrolls.
UNROLL = """
function look(root) {
    for (const element of root.querySelectorAll('*')) {
        if (element.id === 'steps-container') element.style.maxHeight = 'none';
        if (element.shadowRoot) look(element.shadowRoot);
    }
}
look(document);
"""
# Left, top, right and bottom of each section of a page, or of the section of this name; they are web components.
SECTIONS = """
const wanted = arguments[0], found = [];
function look(root) {
    for (const element of root.querySelectorAll('*')) {
        if (element.shadowRoot) look(element.shadowRoot);
        if (element.localName !== 'tf-category-paginated-view') continue;
        if (!wanted || (element.category || {}).name === wanted) found.push(element);
    }
}
look(document);
return found.map(e => e.getBoundingClientRect()).map(r => [r.left, r.top, r.right, r.bottom]);
"""


class Screen(Browser):
    """A browser whose pages draw themselves for a while, without an event for "all charts are drawn"."""

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        self._wait_s = wait_s

    def show(self, address: str, width: int, height: int) -> None:
        self.size(width, height)
        self.open("about:blank")
        self.open(address)
        time.sleep(self._wait_s)

    def do(self, script: str, *arguments: object, wait_s: float = 0.0) -> Any:
        answer = self.run(script, *arguments)
        time.sleep(wait_s)
        return answer

    def sections(self, name: str = "") -> list[list[float]]:
        """Where the sections of a TensorBoard page are: left, top, right, bottom."""
        for _ in range(60):
            found: list[list[float]] = self.do(SECTIONS, name, wait_s=2)
            if found:
                time.sleep(self._wait_s)
                return self.do(SECTIONS, name)  # type: ignore[no-any-return]
        raise SystemExit(f"the page has no section {name!r}")

    def seen(self) -> Image.Image:
        return Image.open(io.BytesIO(self.picture()))


@contextmanager
def tensorboard(logdir: str) -> Iterator[str]:
    """The address of a page on this folder."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", logdir, "--port", "0", "--host", "localhost"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        addresses = (re.search(r"http://localhost:\d+/", line) for line in process.stderr)
        try:
            yield next(found[0] for found in addresses if found)
        finally:
            process.terminate()


def report_page(folder: str) -> str:
    """The address of the page that `forgather-mem report` makes of this run."""
    page = Path(tempfile.mkdtemp()) / "page.html"
    subprocess.run([sys.executable, "-m", "forgather_mem", "report", folder, "--html", str(page)], check=True)
    return page.as_uri()


def take_report(browser: Screen, folder: str, name: str, plots: int, dark: bool = False) -> None:
    """The page that `forgather-mem report` makes of this run, down to the legend of this plot or of the last."""
    browser.dark(dark)
    browser.show(report_page(folder), 1000, 900)
    bottom: float = browser.run(
        f"return [...document.querySelectorAll('figure')].slice(0, {plots}).pop().getBoundingClientRect().bottom"
    )
    whole = Image.open(io.BytesIO(browser.picture(whole=True)))
    save(whole, name, (0, 0, 1000, bottom + 12))
    browser.dark(False)


def save(picture: Image.Image, name: str, box: Sequence[float] | None = None) -> None:
    """As a PNG of 256 colours; with fewer, two curves may get one colour."""
    if box is not None:
        picture = picture.crop(tuple(map(int, box)))  # type: ignore[arg-type]
    path = IMAGES / f"{name}.png"
    picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    sys.stdout.write(f"{path}: {path.stat().st_size // 1024} KiB, {picture.width} x {picture.height}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logdir", nargs="?", help="the folder of a run, as it shall stand in TensorBoard")
    parser.add_argument(
        "--leak", metavar="DIR", help="a run whose page is shown down to its first plot, in light and dark"
    )
    parser.add_argument("--page", metavar="DIR", help="a run whose page is shown down to its third plot")
    parser.add_argument("--tab", metavar="LOGDIR", help="a run that leaks, shown in TensorBoard's tab Memory")
    parser.add_argument("--wait", type=float, default=8.0, help="seconds that a page takes to draw itself")
    options = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    pinned = quote(json.dumps([{"plugin": "scalars", "tag": tag} for tag in PINNED]))
    browser = Screen(options.wait)
    try:
        if options.leak:
            take_report(browser, options.leak, "leak", 1)
            take_report(browser, options.leak, "leak_dark", 1, dark=True)
        if options.page:
            take_report(browser, options.page, "report", 3)
        if options.tab:
            with tensorboard(options.tab) as page:
                browser.show(f"{page}#forgather_mem", 1280, 690)
                save(browser.seen(), "memory_tab")
        if options.logdir is None:
            return
        with tensorboard(options.logdir) as page:
            browser.show(f"{page}?smoothing=0&pinnedCards={pinned}#timeseries", 1500, 970)
            browser.do(TIDY, wait_s=options.wait / 2)
            save(browser.seen(), "tensorboard")
            browser.show(f"{page}?smoothing=0#timeseries", 1500, 1240)
            browser.do(TIDY, wait_s=2)
            browser.do(OPEN_ONLY, "mem_phase_host", wait_s=options.wait / 2)
            save(browser.seen(), "groups")
            browser.do(AS_READ)
            browser.show(f"{page}#custom_scalars&_smoothingWeight=0", 1300, 2400)
            bottom = max(box[3] for box in browser.sections())
            save(browser.seen(), "charts", (0, 0, 1300, bottom + 10))
            browser.show(f"{page}#text", 1300, 6000)
            browser.sections("mem_report")
            browser.do(UNROLL, wait_s=2)
            (box,) = browser.sections("mem_report")
            save(browser.seen(), "verdict", (box[0] - 10, box[1] - 5, 1300, box[3] + 5))
    finally:
        browser.close()


if __name__ == "__main__":
    main()
