"""The page as a file: whole, offline, small, and safe whatever a run is called."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

from forgather_mem.page.html import asset, page_html
from forgather_mem.page.stacks import _LABELS
from tests.page.runs import gpu_data, hostile_data

# Keys of parts, marks and pauses
MADE = (
    {part["key"] for kind in ("leak", "oom") for stack in gpu_data(50, kind)["stacks"] for part in stack["parts"]},
    {mark["kind"] for kind in ("leak", "oom") for mark in gpu_data(50, kind)["marks"]},
    {one["key"] for one in gpu_data(50)["pauses"]},
    set(_LABELS),
)


class Page(HTMLParser):
    """Tags with their attributes, and the text in each; whether all was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.append((self.open[-1], data))


def test_the_page_is_whole_and_asks_for_nothing() -> None:
    page = page_html([gpu_data(50)])
    found = Page(page)
    assert page.isascii()
    assert [attributes for tag, attributes in found.tags if tag == "link"] == [{"rel": "icon", "href": "data:,"}]
    for tag, attributes in found.tags:
        assert not {"src", "action", "srcset", "style"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|import\(", page)
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"https://github.com/leeoniya/uPlot"}  # its head


def test_only_its_own_script_and_style_may_run() -> None:
    found = Page(page_html([gpu_data(50)]))
    (policy,) = (
        str(attributes["content"])
        for _, attributes in found.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none';")
    texts = {tag: text for tag, text in found.texts if tag in ("script", "style")}
    for tag, text in texts.items():
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_no_name_of_a_run_becomes_part_of_the_page() -> None:
    plain, hostile = Page(page_html([gpu_data(60)])), Page(page_html([hostile_data()]))
    assert hostile.tags == plain.tags
    (data,) = [text for tag, text in hostile.texts if text.startswith("[{")]
    assert json.loads(data)[0]["script"]


def test_the_page_is_small_without_its_data() -> None:
    assert len(page_html([])) < 400_000
    assert asset("page.js").count("\n") <= 800


def test_no_text_of_the_data_is_made_markup() -> None:
    script = asset("page.js")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|cssText", script)


def test_what_was_taken_over_has_its_licence_beside_it() -> None:
    assert "MIT" in asset("uPlot.LICENSE")
    assert "Leon Sorokin" in asset("uPlot.LICENSE")


def test_each_colour_has_a_shade_for_light_and_for_dark_pages() -> None:
    light, dark = re.findall(r":root(?:\[data-theme=dark\])? \{(.*?)\}", asset("page.css"), re.S)
    shades = [set(re.findall(r"--([\w]+):", block)) for block in (light, dark)]
    assert shades[0] == shades[1]
    used = set(re.findall(r"var\(--(\w+)\)", asset("page.css"))) - {"c"}  # that of one entry
    assert used | {key for made in MADE for key in made} <= shades[0]
