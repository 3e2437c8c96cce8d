"""The page in a real Chromium: what a reader sees, does and can't be made to do."""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forgather_mem.page.data import page_data
from forgather_mem.page.html import page_html
from forgather_mem.page.readings import Readings
from forgather_mem.units import GIB, format_bytes
from tests.browser import Browser, why_no_browser
from tests.page.runs import gpu_data, hostile_data
from tests.reporting.report_fixtures import all_well, parsed

# `make soak` sets NEEDS_BROWSER, so that it does not pass without
NOT_HERE = "" if os.environ.get("NEEDS_BROWSER") else why_no_browser()
pytestmark = pytest.mark.skipif(bool(NOT_HERE), reason=NOT_HERE)

PLOT = "const plot = window.forgatherMem.page.plots[0], u = plot.u;"
SETTLED = "await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def shown(chromium: Browser, tmp_path: Path) -> Iterator[Any]:
    """Shows runs; afterwards nothing was asked for, and the console is empty."""
    chromium.size(1280, 900)
    chromium.dark(False)
    chromium.requests()
    chromium.log()

    def show(*runs: Any) -> Browser:
        file = tmp_path / "page.html"
        file.write_text(page_html(runs))
        chromium.open(file.as_uri())
        chromium.wait(SETTLED + SETTLED)
        return chromium

    yield show
    asked = [address for address in chromium.requests() if not address.startswith(("chrome:", "data:"))]
    assert set(asked) <= {(tmp_path / "page.html").as_uri()}
    assert [entry["message"] for entry in chromium.log()] == []


def over(browser: Browser, number: int = 0) -> dict[str, float]:
    """Where the area of a plot is."""
    return browser.run(
        "const e = document.querySelectorAll('.u-over')[arguments[0]]; e.scrollIntoView({block: 'center'});"
        "const box = e.getBoundingClientRect();"
        "return {x: Math.round(box.x), y: Math.round(box.y), w: Math.round(box.width), h: Math.round(box.height)}",
        number,
    )


def move(x: float, y: float) -> dict[str, object]:
    return {"type": "pointerMove", "x": round(x), "y": round(y), "duration": 0}


def press(*keys: str) -> list[dict[str, object]]:
    return [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]


def limits(browser: Browser) -> list[list[float]]:
    """What each plot shows of the axis below it."""
    return browser.run("return window.forgatherMem.page.plots.map(({u}) => [u.scales.x.min, u.scales.x.max])")


def test_the_answer_is_there_without_a_click(shown: Any) -> None:
    browser = shown(gpu_data(500))
    text = browser.run("return document.body.innerText")
    for said in ("Trainer.kept_logits keeps 3.1 MiB a step, since step 60, made at train.py:41.", "keep less, and off"):
        assert said in text
    assert browser.run("return document.querySelectorAll('figure').length") == 4
    label = browser.run("return document.querySelector('.plot').getAttribute('aria-label')")
    assert label.startswith("Memory of GPU 0 over steps: peak 41.3 GiB, step 1,998, backward; at the end ")


def test_a_drag_zooms_all_plots_and_the_highest_point_stays(shown: Any) -> None:
    browser = shown(gpu_data(50_000))
    box = over(browser)
    at = [move(box["x"] + box["w"] * share, box["y"] + 50) for share in (0.25, 0.3, 0.5)]
    browser.act(at[0], {"type": "pointerDown", "button": 0}, *at[1:], {"type": "pointerUp", "button": 0})
    browser.wait(SETTLED)
    found = limits(browser)
    assert len({tuple(one) for one in found}) == 1
    low, high = found[0]
    assert 12_000 < low < 13_000
    assert 24_500 < high < 25_500
    seen = browser.run(
        PLOT + "const [low, high] = arguments; const x = u.data[0], top = u.data[1];"
        "return [Math.max(...top.filter((value, row) => x[row] >= low && x[row] <= high)), u.scales.y.max]", low, high,
    )  # fmt: skip
    assert seen[0] <= seen[1] < 1.3 * seen[0]
    browser.act(at[0], *[{"type": kind, "button": 0} for kind in ("pointerDown", "pointerUp")] * 2)
    browser.wait(SETTLED)
    assert all(low <= 1 and high >= 50_000 for low, high in limits(browser))


def test_the_pointer_shows_step_and_values_in_every_plot(shown: Any) -> None:
    data = gpu_data(400)
    browser = shown(data)
    box = over(browser)
    browser.act(move(box["x"] + box["w"] / 2, box["y"] + 50))
    browser.wait(SETTLED)
    lines = browser.run("return [...document.querySelectorAll('.readout')].map(e => e.textContent)")
    assert len(lines) == 4
    assert len({line.split(",")[0] for line in lines}) == 1
    assert "step 2" in lines[0] or "step 19" in lines[0]
    row = browser.run(PLOT + "return u.cursor.idx")
    shown_size = browser.run("return document.querySelector('.legend .holder b').textContent")
    (holder,) = [part for part in data["stacks"][0]["parts"] if part["key"] == "leak1"]
    assert shown_size == format_bytes(holder["values"][row] * 1024)


def test_a_part_can_be_hidden_and_keeps_its_colour(shown: Any) -> None:
    browser = shown(gpu_data(200))
    colours = (
        "return [...document.querySelectorAll('.legend')[0].querySelectorAll('i')]"
        ".map(e => getComputedStyle(e).backgroundColor)"
    )
    before = browser.run(colours)
    top = "const {u} = window.forgatherMem.page.plots[0]; return [u.data.length, Math.max(...u.data[1])]"
    whole = browser.run(top)
    browser.run("document.querySelector('.legend button').click()")
    browser.wait(SETTLED)
    less = browser.run(top)
    assert less[0] == whole[0] - 1
    assert less[1] < whole[1]
    assert browser.run("return document.querySelector('.legend button').getAttribute('aria-pressed')") == "false"
    assert browser.run(colours) == before
    assert browser.run("return document.activeElement.className").strip() == ""


def test_the_keyboard_moves_zooms_and_is_heard(shown: Any) -> None:
    browser = shown(gpu_data(200))
    browser.run("document.querySelector('.plot').focus()")
    browser.act(*press("\ue011", "\ue014", "\ue014"), kind="key")  # Home, right, right
    said = browser.run("return document.querySelector('[role=status]').textContent")
    assert said.startswith("step 3, ")
    assert "Trainer.kept_logits" in said
    browser.act(*press("+"), kind="key")
    browser.wait(SETTLED)
    low, high = limits(browser)[0]
    assert high - low == pytest.approx(99.75, abs=1)
    browser.act(*press("0"), kind="key")
    browser.wait(SETTLED)
    assert limits(browser)[0][1] >= 200


def test_names_stay_text(shown: Any) -> None:
    browser = shown(hostile_data())
    assert browser.run("return window.bad === undefined && !document.querySelector('img')")
    assert browser.run("return document.querySelectorAll('script').length") == 2
    assert "<img src=x" in browser.run("return document.querySelector('h1').textContent")


def test_what_is_not_its_own_does_not_run(shown: Any) -> None:
    browser = shown(gpu_data(50))
    browser.run("const s = document.createElement('script'); s.textContent = 'window.bad = 1'; document.body.append(s)")
    assert browser.run("return window.bad === undefined")
    assert "Content Security Policy" in browser.log()[0]["message"]


@pytest.mark.parametrize("width", [390, 1280, 3840])
def test_nothing_is_wider_than_the_screen(shown: Any, width: int) -> None:
    browser = shown(gpu_data(300))
    browser.size(width, 900)
    browser.wait(SETTLED + SETTLED)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run("return document.querySelector('.uplot').getBoundingClientRect().width") > 0.6 * min(width, 2400)


def test_dark_is_dark_and_a_switch_changes_it(shown: Any) -> None:
    browser = shown(gpu_data(50))
    brightness = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + +b, 0) / 3"
    assert browser.run(brightness) > 240
    browser.dark()
    browser.wait(SETTLED)
    assert browser.run(brightness) < 40
    browser.run("window.forgatherMem.page.themeButton.click()")
    assert browser.run(brightness) > 240
    browser.run("window.forgatherMem.page.setTheme('auto')")
    assert browser.run(brightness) < 40


def test_the_parts_that_touch_can_be_told_apart(shown: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    browser = shown(gpu_data(2000))
    box = over(browser)
    picture = image.open(io.BytesIO(browser.picture())).convert("RGB")
    column = [picture.getpixel((int(box["x"] + box["w"] * 0.73), int(box["y"] + row))) for row in range(int(box["h"]))]
    expected = [
        browser.run("return window.forgatherMem.page.colour(arguments[0])", key)
        for key in ("parameters", "optimizer", "gradients", "activations", "leak1")
    ]
    for colour in expected:
        wanted = tuple(int(colour[place : place + 2], 16) for place in (1, 3, 5))
        assert column.count(wanted) > 5, colour


def test_what_lasted_one_step_of_very_many_is_seen_at_its_full_height(shown: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    num, spikes = 100_000, (20_000, 51_000, 80_000)
    readings = Readings()
    for row in range(num):
        size = GIB if row in spikes else 0.7 * GIB
        readings.add("step_end", row, 1000.0 + row, [("host/rss_bytes", size), ("host/anon_bytes", size)])
    browser = shown(page_data(parsed(all_well()), readings))
    box = over(browser)
    picture = image.open(io.BytesIO(browser.picture())).convert("L")
    high = browser.run(PLOT + "return u.valToPos(0.85 * 2 ** 30 / plot.factor, 'y')")
    for spike in spikes:
        x = browser.run(PLOT + "return u.valToPos(arguments[0], 'x')", spike)
        seen = [picture.getpixel((round(box["x"] + x + near), round(box["y"] + high))) for near in (-2, -1, 0, 1, 2)]
        assert min(seen) < 128, f"step {spike}: {seen}"


def test_the_line_of_the_whole_keeps_to_its_steps_where_nothing_was_read(shown: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    readings = Readings()
    for step in (1, 2, 3, 1999, 2000):
        size = 8 * GIB if step > 1998 else GIB
        readings.add("step_end" if step < 1999 else "save", step, 1000.0 + step, [("host/rss_bytes", size)])
    browser = shown(page_data(parsed(all_well()), readings))
    box = over(browser)
    picture = image.open(io.BytesIO(browser.picture())).convert("L")
    x, high = browser.run(PLOT + "return [u.valToPos(1000, 'x'), u.valToPos(2, 'y')]")
    column = [picture.getpixel((round(box["x"] + x), round(box["y"] + y))) for y in range(int(high))]
    assert min(column) > 180  # the grid's lines, but nothing of the stack


def test_each_thing_has_a_colour_of_its_own(shown: Any) -> None:
    data = gpu_data(50, "oom")
    data["startup"] = [[500, 1024], [9000, 5_000_000]]
    browser = shown(data)
    colour = "return arguments[0].map(key => window.forgatherMem.page.colour(key))"
    keys = ["startup", "mapped", "other", "cached", *(f"more{number}" for number in range(1, 7))]
    assert len(set(browser.run(colour, keys))) == len(keys)
    parts = browser.run("return window.forgatherMem.page.run.stacks[0].parts.map(part => [part.label, part.key])")
    assert ["CUDA and libraries", "more1"] in parts
    assert len({key for _, key in parts}) == len(parts)


def test_a_checkpoint_covers_no_evaluation_of_the_same_step(shown: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    data = gpu_data(100)
    data["marks"] = [{"kind": kind, "step": 50, "text": kind} for kind in ("evaluation", "checkpoint")]
    browser = shown(data)
    box = over(browser)
    picture = image.open(io.BytesIO(browser.picture())).convert("L")
    x = box["x"] + browser.run(PLOT + "return u.valToPos(50, 'x')")
    for above in (12, 28):  # the middles of both rows
        seen = [picture.getpixel((round(x) + near, round(box["y"]) - above)) for near in (-1, 0, 1)]
        assert max(seen) < 160, f"{above} pixels above the plot: {seen}"


def test_the_axis_of_time_begins_with_the_process(shown: Any) -> None:
    data = gpu_data(100)
    data["startup"] = [[500, 1024], [1500, 400_000], [9000, 5_000_000]]
    browser = shown(data)
    assert limits(browser)[0][0] == 1
    browser.run("[...document.querySelectorAll('button')].find(e => e.textContent === 'time').click()")
    browser.wait(SETTLED)
    low, high = limits(browser)[0]
    assert low == 0.5
    assert 19 < high < 21
    assert "before the first step" in browser.run("return document.body.innerText")


def test_several_runs_are_compared_and_one_is_chosen(shown: Any) -> None:
    first, second = gpu_data(100), gpu_data(300, "well")
    first["name"], second["name"] = "before", "after"
    browser = shown(first, second)
    assert "Memory of GPU 0, 2 runs" in browser.run("return document.body.innerText")
    browser.run("const s = document.querySelector('select'); s.value = 1; s.dispatchEvent(new Event('change'))")
    browser.wait(SETTLED)
    assert browser.run("return document.querySelector('h1').textContent").startswith("NO LEAK")


def test_new_data_of_a_running_training_keeps_the_view(shown: Any) -> None:
    browser = shown(gpu_data(100))
    browser.run("window.forgatherMem.page.setZoom([20, 40]); document.querySelectorAll('.plot')[1].focus()")
    browser.run("window.forgatherMem.page.update(arguments[0])", [gpu_data(150)])
    browser.wait(SETTLED)
    assert limits(browser)[0] == [20, 40]
    assert browser.run(PLOT + "return plot.wholeX()[1]") > 149
    assert browser.run("return document.activeElement === document.querySelectorAll('.plot')[1]")


def test_a_run_without_readings_says_so(shown: Any) -> None:
    assert "there are no curves" in shown(gpu_data(0)).run("return document.body.innerText")
