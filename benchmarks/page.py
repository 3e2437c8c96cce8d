"""How fast the page is in Chromium: 300 000 steps, 16 series, on an axis of steps.

    python benchmarks/page.py [--steps 300000] [--out FILE]

Loading is over when the file has been read; from then on it is parsed, laid out and drawn. A hover is one move of the
pointer over the first plot until all linked plots, legends and readouts have followed; a zoom is all plots drawn anew.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from forgather_mem.page.data import page_data
from forgather_mem.page.html import page_html, script_json

ROOT = Path(__file__).parent.parent
FIRST_PAINT = """
await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
const [loaded] = performance.getEntriesByType('navigation'), painted = () => performance.getEntriesByType('paint');
while (!painted().length) await new Promise(done => setTimeout(done, 5));
return painted().find(entry => entry.name === 'first-contentful-paint').startTime - loaded.responseEnd;
"""
SHOW = """
const text = document.getElementById('runs').textContent, root = document.getElementById('page');
const begun = performance.now();
window.forgatherMem.page = window.forgatherMem.show(root, JSON.parse(text));
const made = performance.now() - begun;
await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
return [made, performance.now() - begun];
"""
HOVER = """
const over = document.querySelector('.u-over'), box = over.getBoundingClientRect(), times = [];
over.dispatchEvent(new MouseEvent('mouseenter', {clientX: box.left, clientY: box.top + 20}));
for (let move = 0; move < 200; move++) {
  const at = {clientX: box.left + box.width * (move * 37 % 200) / 200, clientY: box.top + 20, bubbles: true};
  const begun = performance.now();
  over.dispatchEvent(new MouseEvent('mousemove', at));
  document.body.getBoundingClientRect();
  times.push(performance.now() - begun);
  if (move % 10 === 0) await new Promise(done => requestAnimationFrame(done));
}
return times;
"""
ZOOM = """
const page = window.forgatherMem.page, times = [];
for (let zoom = 0; zoom < 20; zoom++) {
  const begun = performance.now();
  page.setZoom([zoom * 5000 + 1, zoom * 5000 + 100000]);
  await new Promise(done => queueMicrotask(done));
  times.push(performance.now() - begun);
  await new Promise(done => requestAnimationFrame(done));
}
page.setZoom(null);
return times;
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--out", type=Path, help="write the table to this file")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from tests.browser import why_no_browser
    from tests.page.runs import on_a_gpu
    from tests.reporting.report_fixtures import leaking, parsed

    if why_no_browser():
        sys.stdout.write(f"not measured: {why_no_browser()}\n")
        return
    readings = on_a_gpu(options.steps)
    begun = time.perf_counter()
    data = page_data(parsed(leaking()), readings)
    made_s = time.perf_counter() - begun
    page = page_html([data])
    series = sum(len(stack["parts"]) + len(stack["phases"]) for stack in data["stacks"]) + len(data["pauses"])
    rows = [
        ("steps, series", f"{options.steps:,}, {series}", ""),
        ("page without data, kB", f"{len(page_html([])) / 1e3:.0f}", "400"),
        ("data, kB", f"{len(script_json([data])) / 1e3:.0f}", "2,000"),
        ("rows that are kept", f"{len(data['steps']):,}", ""),
        ("data from readings, ms", f"{made_s * 1e3:.0f}", ""),
        *measured(page),
    ]
    text = "\n".join(f"| {' | '.join(row)} |" for row in (("what", "measured", "at most"), ("---",) * 3, *rows)) + "\n"
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text)


def measured(page: str) -> list[tuple[str, str, str]]:
    """What Chromium takes for it."""
    from tests.browser import Browser

    browser = Browser()
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "page.html")
            file.write_text(page)
            empty = Path(folder, "empty.html")
            empty.write_text("<!DOCTYPE html><title>empty</title><p>one word</p>")
            browser.size(1280, 900)
            browser.cdp("Performance.enable", timeDomain="threadTicks")
            paints, of_nothing, busy = [], [], []
            for _ in range(7):
                browser.open(empty.as_uri())
                of_nothing.append(browser.wait(FIRST_PAINT))
                browser.open(file.as_uri())
                paints.append(browser.wait(FIRST_PAINT))
                time.sleep(0.5)
                found = browser.cdp("Performance.getMetrics")["metrics"]
                busy += [1e3 * row["value"] for row in found if row["name"] == "TaskDuration"]
            shows = [browser.wait(SHOW) for _ in range(7)]
            hovers, zooms = browser.wait(HOVER), browser.wait(ZOOM)
    finally:
        browser.close()
    return [
        ("first paint after loading, ms (median of 7)", f"{statistics.median(paints):.0f}", "150"),
        ("the same of a page with one word, ms", f"{statistics.median(of_nothing):.0f}", ""),
        ("processor time of its thread for all of it, ms", f"{statistics.median(busy):.0f}", ""),
        ("parsed and built again, ms (median of 7)", f"{statistics.median(made for made, _ in shows):.0f}", "150"),
        ("the same until it is drawn, ms", f"{statistics.median(drawn for _, drawn in shows):.0f}", "150"),
        ("hover, ms (median, 99 % of 200)", f"{statistics.median(hovers):.1f}, {sorted(hovers)[197]:.1f}", "16"),
        ("zoom, ms (median of 20)", f"{statistics.median(zooms):.0f}", ""),
    ]


if __name__ == "__main__":
    main()
