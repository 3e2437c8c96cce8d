"""A report's page, read as HTML, and curves for it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

from forgather_mem.reporting.from_events import Curve

EMPTY = {"meta", "path", "br", "link", "input", "img"}


class Page(HTMLParser):
    """Tags with their attributes, the texts of the report and of each table, and whether all was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data

    @property
    def plots(self) -> list[dict[str, Any]]:
        return [json.loads(str(found["data-plot"])) for _, found in self.tags if "data-plot" in found]

    @property
    def marks(self) -> list[str]:
        return [
            str(found["title"]) for tag, found in self.tags if "mark" in str(found.get("class")) and "title" in found
        ]


def curve(*points: tuple[int, float]) -> Curve:
    made = Curve()
    for step, value in points:
        made.add(step, value)
    return made
