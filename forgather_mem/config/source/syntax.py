"""Translates the text of a template file into Jinja source, line by line.

Three steps, in this order: the file is split into its sub-templates, `##` comments are taken out and line
statements become Jinja tags, `[block]` lines become Jinja blocks. Line n of the result comes from line n of its part: a
comment leaves an empty Jinja comment, which prints nothing, not even its newline. Of a text that has nothing of the
language it is said at once: importing Jinja takes longer than the rest of a small load.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from forgather_mem.config.source.rendered import RESERVED

SEQUENCES: Mapping[str, Callable[..., object]] = {"list": list, "tuple": tuple}
"""Tags of a sequence that call nothing, and what each makes of the list of its items; all else follows from a row."""
MAPPINGS: Mapping[str, Callable[..., object]] = {"dlist": list, "dict": dict, "var": object}
"""Tags of a mapping that call nothing, and what each makes of a dict; `!dlist` and `!var` have a way of their own."""
FORMS = (*SEQUENCES, *MAPPINGS)

_NEWLINE = re.compile(r"\r\n|\r|\n")
_SPLIT = re.compile(r"\n#[^\S\n]*-{3,}[^\S\n]*([\w./]+)[^\S\n]*-{3,}(?=\n)")
_BLOCK = re.compile(r"(\s*)\[(\w+)(!*)\]\s*")
_EXTENDS = re.compile(r"^[^\S\n]*(?:--|<<|>>)\s+extends\b|\{%[-+]?\s*extends\b", re.MULTILINE)
_SEQUENCE = re.compile(rf"(?:^|\s)!(?:{'|'.join(SEQUENCES)})(?::\S*)?(?:\s+&\S+)?\s*$")
_STATEMENT_TAGS = {
    "--": ("{% ", " %}"), "<<": ("{%- ", " %}"), ">>": ("{% ", " -%}"),
    "==": ("{{ ", " }}"), "=>": ("{{ ", "|trim('\\n')}}"),
}  # fmt: skip


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
    texts_above = (lines[index][0].rstrip() for index in range(number - 1, -1, -1))
    told = (text for text in texts_above if text != "{##}" and not text.lstrip().startswith("#") and text)
    above = next(told, "")
    if above.endswith(","):  # in a flow collection, if in anything
        return next((text for text in told if not text.endswith(",")), "").endswith(("[", "{"))
    if above.endswith(("[", "{")):
        return True
    if indent_of(above) >= indent or not _SEQUENCE.search(above):
        return False
    texts = (lines[index][0] for index in range(number + 1, len(lines)))
    below = next((text for text in texts if text.strip() and text != "{##}"), None)
    return below is None or indent_of(below) < indent


STATEMENT = re.compile(r"\s*(--|<<|>>|==|=>)\s(.*)")
_BLOCK_TAG = re.compile(r"\s*(?:block|endblock)\b")
_LITERAL = re.compile(r"(?:^|\s)[|>][-+0-9]{0,2}(?:\s+#.*)?$")
_WORD = re.compile(r"\S+")
_MAX_QUOTED_LINES = 100

# What a line can be inside of, and what to look for there. "" is plain YAML, "~" a line statement.
_STOPS = {
    "": re.compile(r"\{[{%#]|[\"']|#+"),
    'yaml"': re.compile(r"\{[{%#]|(?:\\.)+|\""),
    "yaml'": re.compile(r"\{[{%#]|''|'"),
    "text": re.compile(r"\{[{%#]"),  # a line of a literal
    "{{": re.compile(r"}}|[{\"']|#+"),
    "{%": re.compile(r"%}|[{\"']|#+"),
    "~": re.compile(r"[{\"']|#+"),
    "brace": re.compile(r"[{}\"']|#+"),
    'string"': re.compile(r"\\.|\""),
    "string'": re.compile(r"\\.|'"),
    "{#": re.compile(r"#}"),
    "raw": re.compile(r"\{%[-+]?\s*endraw\s*[-+]?%}"),
}
_JINJA = ("{{", "{%", "{#", "~", "brace", "raw", 'string"', "string'")


class Scanner:
    """Reads lines in order and finds their comments.

    Args:
        lines: All lines of the template. Call `cut` for each of them, in order.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._number = 0
        self._inside: list[str] = []  # what the next line begins in, outermost first
        self._literal: int | None = None  # it may belong to a block literal of a key with this indent

    @property
    def inside_jinja(self) -> bool:
        """Whether the next line belongs to a Jinja tag, comment or raw section that an earlier line opened."""
        return bool(self._inside) and self._inside[-1] in _JINJA

    def cut(self, number: int) -> int | None:
        """Index of the first `#` of a line's comment, or None."""
        self._number, line = number, self._lines[number]
        if self._inside:
            return self._within(line, 0)
        statement = STATEMENT.fullmatch(line)
        if self._in_literal(line, statement) and not statement:
            return self._within(line, 0, "text")
        stripped = line.lstrip()
        if stripped.startswith("##"):
            return len(line) - len(stripped)
        if statement:
            return self._within(line, statement.start(2), "~")
        found = self._scan(line, 0)
        if not self._inside:
            self._open_literal(line if found is None else line[:found])
        return found

    def _within(self, line: str, at: int, *opened: str) -> int | None:
        """Scan a line that lies inside something: a statement ends with it, and so does a text of a literal."""
        self._inside += opened
        found = self._scan(line, at)
        if "~" in opened or self._inside == ["text"]:
            self._inside.clear()
        return found

    def _scan(self, line: str, at: int) -> int | None:
        inside = self._inside
        commented = False  # after a single `#`, quotes mean nothing
        opened_at = 0
        while True:
            mode = inside[-1] if inside else ""
            stop = _STOPS[mode].search(line, at)
            if stop is None:
                return None
            found, at = stop[0], stop.end()
            before = line[stop.start() - 1 : stop.start()]
            if found[0] == "#" and found != "#}":
                if not before or before.isspace():
                    if len(found) > 1:
                        return stop.start()
                    commented = commented or not mode
            elif found in ("{{", "{%", "{#"):
                inside.append(found)
                opened_at = at
            elif mode in ("{{", "{%") and found in ("}}", "%}"):
                inside.pop()
                if found == "%}" and line[opened_at : stop.start()].strip("-+ \t") == "raw":
                    inside.append("raw")
            elif found == "{":
                inside.append("brace")
            elif mode == "" and found in "\"'":
                starts = not before or before.isspace() or before in "[{,:("
                if starts and not commented and self._ends(found, at):
                    inside.append("yaml" + found)
            elif mode in ("{{", "{%", "~", "brace") and found in "\"'":
                inside.append("string" + found)
            elif found[0] != "\\" and found != "''":
                inside.pop()

    def _ends(self, quote: str, at: int) -> bool:
        """Whether a scalar that begins with this quote also ends, on this line or on a more indented one."""
        line = self._lines[self._number]
        if line.find(quote, at) >= 0:  # a copy of the rest for each quote would take quadratic time
            return True
        indent = indent_of(line)
        for later in self._lines[self._number + 1 : self._number + 1 + _MAX_QUOTED_LINES]:
            if later.strip() and indent_of(later) <= indent:
                return False
            if quote in later:
                return True
        return False

    def _in_literal(self, line: str, statement: re.Match[str] | None) -> bool:
        if self._literal is None:
            return False
        if not line.strip() or indent_of(line) > self._literal:
            return True
        # A statement prints nothing itself, so it does not end the literal; a block does: its content may be printed
        # somewhere else.
        if statement and not _BLOCK_TAG.match(statement[2]):
            return True
        self._literal = None
        return False

    def _open_literal(self, line: str) -> None:
        """If this line ends with the `|` or `>` of a block literal, remember that the next lines belong to it."""
        line = line.rstrip()
        match = _LITERAL.search(line)
        if match is None:
            return
        words = [(word.start(), word[0]) for word in _WORD.finditer(line, 0, match.start())]
        column = -1
        while words and words[0][1] in ("-", "?"):
            column = words.pop(0)[0]
        plain = [word for _, word in words if word[0] not in "!&"]
        if plain:
            self._literal = words[0][0] if plain[-1].endswith(":") else None
        elif words or column >= 0:
            self._literal = column


def indent_of(line: str) -> int:
    """How many blanks a line begins with."""
    return len(line) - len(line.lstrip())


# Each begins with a literal character, which `re` finds much faster than a line's beginning or one of several patterns.
_JINJA_SIGN = re.compile(r"\{[{%#]")
_LINE_SIGN = re.compile(
    r"\n(?:[^\S\n]*+"
    r"(?:(?:--|<<|>>|==|=>)(?=\s|\Z)"  # line statements
    r"|\[\w+!*\][^\S\n]*(?=\n|\Z))"  # blocks
    r"|#[^\S\n]*-{3})"  # sub-templates
)
# Other line ends; characters of Jinja or of tokens
_OTHER_SIGNS = (*"\r\f\v\x1c\x1d\x1e\x85\u2028\u2029\ufeff", *RESERVED)


def is_plain(text: str) -> bool:
    """Whether a text has nothing of the template language.

    >>> is_plain("a: 1\\n"), is_plain("a: {{ b }}"), is_plain("<<: *a"), is_plain("-- if b")
    (True, False, True, False)
    """
    if "##" in text or _JINJA_SIGN.search(text) or any(char in text for char in _OTHER_SIGNS):
        return False
    return not _LINE_SIGN.search(f"\n{text}")
