"""Turns exceptions of Jinja, or of Python below it, into messages that people can act on."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jinja2 import TemplateSyntaxError
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.parser import Parser

from forgather_mem.config.clock import OutOfTime
from forgather_mem.config.rendering.compiler import Compiler, Job, LimitPassed, Missing
from forgather_mem.config.rendering.sandbox import MissingName
from forgather_mem.config.rendering.taint import Mangled
from forgather_mem.config.source.loader import Source
from forgather_mem.errors import TemplateError, did_you_mean

_QUOTED = re.compile(r"(?:got|named|tag|block|unexpected(?: char)?) '([^']+)'")
_CHARACTER = re.compile(r"unexpected char ((\"'\"|'\"')|.+) at \d+")
_UNCLOSED_TAG = re.compile(r"needs to be closed is '(\w+)'")
_UNKNOWN_TAG = re.compile(r"unknown tag '(?!end|el)(\w+)'")
_UNQUOTED = re.compile(r"\s*(\S+ (?:extends|include)) ([\w.-]+/[\w./-]+|[\w.-]+\.yaml)\s*$")
_CURLY = re.compile("[\u2018\u2019\u201c\u201d]")
_UNCLOSED = "is this quote closed on its line?"
_LIMITS = "the limits are those of forgather_mem.config.limits.Limits; only code can raise them"
_FUNCTIONS = {"root": "", "macro": "in a macro"}


def explain(error: Exception, compiler: Compiler) -> TemplateError:
    """The `TemplateError` for an exception during rendering: what it means, and where.

    The caller raises it from the exception.
    """
    if isinstance(error, TemplateError):
        return error
    if isinstance(error, Missing):
        return error.explain()
    job = compiler.job
    message, hint = _words(error, compiler)
    if isinstance(error, TemplateSyntaxError) or job.compiling is not None:
        source = job.compiling or job.loads[-1].source
        line = getattr(error, "lineno", None) if isinstance(error, TemplateSyntaxError) else None
        if (unclosed := _UNCLOSED_TAG.search(str(error))) and not _UNKNOWN_TAG.search(str(error)):
            line = _opened(source, unclosed[1])
            message, hint = f"{unclosed[1]!r} has no end", f"add -- end{unclosed[1]}"
        return _at(source, _begun(source, line or 1), error, message, hint, job.chain(source.key))
    frames = list(_frames(error, job))
    if not frames:
        return TemplateError(message, template=job.loads[0].source.name if job.loads else None, hint=hint)
    source, line, function = frames[-1]
    where = _FUNCTIONS.get(function, f"in block {function[6:]}" if function.startswith("block_") else "")
    return _at(source, line, error, message, hint, [part for part in (where, *job.chain(source.key)) if part])


def _opened(source: Source, tag: str) -> int:
    """The line of the last tag of this name that nothing closes."""
    text = source.jinja()
    opened: list[int] = []
    for found in re.finditer(rf"\{{%[-+]?\s*(end)?{tag}\b", text):
        opened = opened[:-1] if found[1] else [*opened, found.start()]
    return text.count("\n", 0, opened[-1] if opened else 0) + 1


def _begun(source: Source, line: int) -> int:
    """The line on which the tag begins that is open at the end of this one."""
    text = "\n".join(source.jinja().split("\n")[:line])
    begin, end = (max(map(text.rfind, marks)) for marks in (("{{", "{%"), ("}}", "%}")))
    return text.count("\n", 0, begin) + 1 if begin > end else line


def _at(source: Source, line: int, error: Exception, message: str, hint: str | None, chain: list[str]) -> TemplateError:
    text = source.lines[line - 1] if 0 < line <= len(source.lines) else ""
    if text.lstrip().startswith("#"):
        hint = "Jinja reads YAML's comments, too: begin this one with ##"
    elif name := _UNQUOTED.match(text):
        hint = f'write the name in quotes: {name[1]} "{name[2]}"'
    place = source.place(line, _column(text, error), ", ".join(chain) or None)
    return place.error(message, hint=hint)


def _column(text: str, error: Exception) -> int | None:
    """The column of the culprit, if its name is known and found in the line."""
    if isinstance(error, MissingName) and isinstance(error.name, str):
        found = re.search(rf"\b{re.escape(error.name)}\b", text)
    else:
        quoted = _QUOTED.search(str(error)) if isinstance(error, TemplateSyntaxError) else None
        found = re.search(re.escape(quoted[1]), text) if quoted else None
    return found.start() + 1 if found else None


def _words(error: Exception, compiler: Compiler) -> tuple[str, str | None]:
    """The message and the hint."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, MissingName) and "TemplateReference" in text:
        blocks = {block for load in compiler.job.loads for block in compiler.outline(load.source).blocks}
        return f"there is no block {error.name!r}", did_you_mean(str(error.name), blocks)
    if isinstance(error, MissingName):
        return text.rstrip("."), _near_name(error, compiler)
    if isinstance(error, TemplateSyntaxError):
        message = (error.message or text).partition(". Jinja was looking")[0].rstrip(".")
        if unexpected := _CHARACTER.fullmatch(message):
            straight = "use straight quotes" if _CURLY.search(unexpected[1]) else None
            return f"unexpected character {unexpected[1]}", _UNCLOSED if unexpected[2] else straight
        return message[:1].lower() + message[1:], _near_word(message, compiler)
    if isinstance(error, LimitPassed | OutOfTime):
        return text, _repeated(compiler.job) or _LIMITS
    if isinstance(error, RecursionError) or (isinstance(error, MemoryError) and compiler.job.compiling):
        return "templates, macros or expressions nest too deeply", _repeated(compiler.job)
    if isinstance(error, SecurityError):
        return text.rstrip("."), "templates may use data, not the Python behind it"
    if isinstance(error, MemoryError):
        return "there is not enough memory to render this template", None
    if isinstance(error, Mangled):
        return text, "write {{ value }} or {{ value|toyaml }} where it belongs, and change it before it is given"
    if isinstance(error, TemplateRuntimeError):
        return text[:1].lower() + text[1:].rstrip("."), _near_word(text, compiler)
    if isinstance(error, ValueError) and "int_max_str_digits" in text:
        return "a number has too many digits", None
    if isinstance(error, SyntaxError):
        return f"Python can't compile this template: {error.msg}", None
    text = text.replace("'TaintedStr'", "'text' (a value from outside)")
    return f"{type(error).__name__}: {text}", None


def _near_name(error: MissingName, compiler: Compiler) -> str | None:
    if not isinstance(error.name, str):
        return None
    if not str(error).startswith(repr(error.name)) and error.known is None:
        return _near_word(str(error), compiler)
    if error.known is not None:
        return did_you_mean(error.name, error.known) or f"there is: {', '.join(sorted(error.known)[:12]) or 'nothing'}"
    known = {*compiler.globals, *compiler.variables}
    for load in compiler.job.loads:
        known |= compiler.outline(load.source).names.keys() | compiler.outline(load.source).mentioned
    near = did_you_mean(error.name, known - {error.name})
    return near or f"give it as a variable: load(..., {error.name}=...) or --set {error.name}=..."


def _near_word(message: str, compiler: Compiler) -> str | None:
    if end := re.search(r"unknown tag 'end(\w+)'", message):
        return f"no -- {end[1]} is open here"
    if tag := _UNKNOWN_TAG.search(message):
        known = [name[6:] for name in dir(Parser) if name.startswith("parse_")]
        return did_you_mean(tag[1], known) or "a comment begins with ##"
    if message == "unexpected '}'":
        return "an expression ends with }}"
    if "the parent's block" in message:
        return "write == super()"
    if "no parent block" in message:
        return 'a template that extends another says so in its first line: -- extends "NAME"'
    if bracket := re.search(r"unexpected '.+', expected '([])}])'", message):
        return f"is a '{bracket[1]}' missing on this line?"
    match = re.search(r"[Nn]o (filter|test) named '([^']+)'", message)
    if match is None:
        return None
    names = compiler.filters if match[1] == "filter" else compiler.tests
    return did_you_mean(match[2], [name for name in names if name[0] != " "])


def _repeated(job: Job) -> str | None:
    """The template that was loaded suspiciously often."""
    keys = [load.source.key for load in job.loads]
    most = max(keys, key=keys.count, default=None)
    if most is None or keys.count(most) < 10:
        return None
    return f"{job.first[most].source.name!r} was loaded {keys.count(most)} times: does it use itself?"


def _frames(error: BaseException, job: Job) -> Iterator[tuple[Source, int, str]]:
    """The templates that an exception passed through, outermost first: source, line, function."""
    step = error.__traceback__
    while step is not None:
        template = step.tb_frame.f_globals.get("__jinja_template__")
        if template is not None and template.name in job.first:
            yield (
                job.first[template.name].source,
                template.get_corresponding_lineno(step.tb_lineno),
                step.tb_frame.f_code.co_name,
            )
        step = step.tb_next
