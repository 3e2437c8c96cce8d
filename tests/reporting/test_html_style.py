"""The style sheet and the script of a report's page."""

from __future__ import annotations

import re

from forgather_mem.reporting.html_style import SCRIPT, STYLE


def test_every_colour_that_is_used_has_a_shade_for_light_and_for_dark_pages() -> None:
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.S)
    shades = [set(re.findall(r"--(\w+):", block)) for block in (light, dark)]
    assert shades[0] - shades[1] == {"c7"}  # a grey for both
    assert shades[1] <= shades[0]
    used = set(re.findall(r"var\(--(\w+)\)", STYLE)) - {"c"}  # that of one curve
    assert used <= shades[0]


def test_nothing_is_fetched_and_nothing_ends_its_own_tag() -> None:
    for text in (STYLE, SCRIPT):
        assert not re.search(r"https?:|//|url\(|@import|fetch|XMLHttp|</", text)
