"""Translates the text of a template file into Jinja source, line by line.

Three steps, in this order: the file is split into its sub-templates, `##` comments are taken out and line
statements become Jinja tags, `[block]` lines become Jinja blocks. Line n of the result comes from line n of its part: a
comment leaves an empty Jinja comment, which prints nothing, not even its newline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forgather_mem.config.source.comments import STATEMENT, Scanner, indent_of

SEQUENCES, MAPPINGS = ("list", "tuple"), ("dlist", "dict", "var")
"""Tags that call nothing, by what each takes."""
FORMS = (*SEQUENCES, *MAPPINGS)

_NEWLINE = re.compile(r"\r\n|\r|\n")
_SPLIT = re.compile(r"\n#[^\S\n]*-{3,}[^\S\n]*([\w./]+)[^\S\n]*-{3,}(?=\n)")
_BLOCK = re.compile(r"(\s*)\[(\w+)(!*)\]\s*")
_EXTENDS = re.compile(r"^[^\S\n]*(?:--|<<|>>)\s+extends\b|\{%[-+]?\s*extends\b", re.MULTILINE)
_SEQUENCE = re.compile(rf"(?:^|\s)!(?:{'|'.join(SEQUENCES)})(?::\S*)?(?:\s+&\S+)?\s*$")
_STATEMENT_TAGS = {
    "--": ("{% ", " %}"),
    "<<": ("{%- ", " %}"),
    ">>": ("{% ", " -%}"),
    "==": ("{{ ", " }}"),
    "=>": ("{{ ", "|trim('\\n')}}"),
}


@dataclass(frozen=True, slots=True)
class Part:
    """One template of a file: the file's head, or one of its sub-templates.

    Attributes:
        name: Name of the sub-template; None for the head.
        first_line: 1-based line of the file on which its text begins.
        text: As written, with "\\n" between lines.
    """

    name: str | None
    first_line: int
    text: str


def split(text: str) -> list[Part]:
    r"""The head and the sub-templates of a file.

    >>> [(part.name, part.first_line) for part in split("a: 1\n#--- more.yaml ---\nb: 2\n")]
    [(None, 1), ('more.yaml', 3)]
    """
    text = plain_newlines(text)
    parts = []
    name: str | None = None
    start, line = 0, 1
    for match in _SPLIT.finditer(text):
        end = max(match.start(), start)  # two consecutive markers share a newline
        parts.append(Part(name, line, text[start:end]))
        line += text.count("\n", start, match.end() + 1)
        name, start = match[1], match.end() + 1
    parts.append(Part(name, line, text[start:]))
    return parts


def plain_newlines(text: str) -> str:
    """The text with "\\n" as the only line ending."""
    return "\n".join(_NEWLINE.split(text)) if "\r" in text else text


def to_jinja(text: str) -> str:
    r"""Jinja source of a part, with as many lines.

    >>> print(to_jinja("## what it is for\n[body]\n    -- if deep  ## or not\n    == x\n    -- endif"))
    {##}
    {% block body %}
    {% if deep  %}
    {{ x }}
    {% endif %}{{'\n'}}{% endblock body +%}
    """
    return "\n".join(_with_blocks(list(_with_statements(text.split("\n"))), _EXTENDS.search(text) is not None))


def _with_statements(lines: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Each line with its statement as a Jinja tag, and whether it may open a block."""
    scanner = Scanner(lines)
    for number, line in enumerate(lines):
        if scanner.is_calm and not scanner.special.search(line):
            yield line, False
            continue
        inside = scanner.inside_jinja
        comment = scanner.cut(number)
        if comment is not None:
            code = line[:comment]
            line = code[:-1] if inside or code.strip() else "{##}"
        if inside:
            yield line, False
        elif line.lstrip()[:2] in _STATEMENT_TAGS and (statement := STATEMENT.fullmatch(line)):
            opening, closing = _STATEMENT_TAGS[statement[1]]
            yield f"{opening}{statement[2]}{closing}", False
        else:
            yield line, "[" in line


def _with_blocks(lines: Sequence[tuple[str, bool]], is_child: bool) -> list[str]:
    """The lines with `[name]` as the start of a block, which ends before the next such line that is not deeper.

    `[name!]` trims what the block prints. In a child only the content of an outermost block can be trimmed:
    a filter around the block would print immediately, and the block again in its place in the parent.
    """
    done: list[str] = []
    open_blocks: list[tuple[int, str]] = []  # indent, closing tags

    def close(indent: int) -> None:
        while open_blocks and open_blocks[-1][0] >= indent:
            newline = "{{'\\n'}}" if done[-1] else ""
            done[-1] += newline + open_blocks.pop()[1]

    for number, (line, may_open) in enumerate(lines):
        match = _BLOCK.fullmatch(line) if may_open else None
        if match is None or not match[2].isidentifier() or _is_yaml(lines, number):
            done.append(line)
            continue
        indent, name = len(match[1]), match[2]
        close(indent)
        before, after = f"{{% block {name} %}}", f"{{% endblock {name} +%}}"
        if match[3] and is_child and not open_blocks:
            before, after = before + "{% filter trim %}", "{% endfilter %}" + after
        elif match[3]:
            before, after = "{% filter trim %}" + before, after + "{% endfilter %}"
        done.append(before)
        open_blocks.append((indent, after))
    close(0)
    return done


def _is_yaml(lines: Sequence[tuple[str, bool]], number: int) -> bool:
    """Whether a line `[name]` is the whole value of a tag above it that takes a sequence, or an item of an open flow
    collection, and so a YAML list rather than a block."""
    indent = indent_of(lines[number][0])
    in_flow = False  # after a comma
    for index in range(number - 1, -1, -1):
        above = lines[index][0].rstrip()
        if not above or above == "{##}" or above.lstrip().startswith("#"):
            continue
        if above[-1] in "[{":
            return True
        if above[-1] == ",":
            in_flow = True
            continue
        if in_flow or indent_of(above) >= indent or not _SEQUENCE.search(above):
            return False
        break
    else:
        return False
    texts = (lines[index][0] for index in range(number + 1, len(lines)))
    below = next((text for text in texts if text.strip() and text != "{##}"), None)
    return below is None or indent_of(below) < indent
