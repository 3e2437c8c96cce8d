"""Renders templates to text, with the origin of each line, and says in an error what went wrong where."""

from __future__ import annotations

import datetime
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from jinja2 import TemplateSyntaxError
from jinja2.exceptions import SecurityError, TemplateRuntimeError

from forgather_mem.config.limits import DEFAULT_LIMITS, Limits
from forgather_mem.config.rendering.compiler import Compiler, Job, LimitPassed, Load, Missing, Outline
from forgather_mem.config.rendering.sandbox import MissingName
from forgather_mem.config.rendering.source_map import MAP_LIMITS, Origin, SourceMap, Tracer, source_map
from forgather_mem.config.rendering.taint import Mangled, TaintTokens, untaint
from forgather_mem.config.rendering.variables import wrap
from forgather_mem.config.source.loader import Source, Sources, StrangersTemplate
from forgather_mem.config.source.rendered import ORIGIN, Reference, Rendered
from forgather_mem.config.source.search import Searcher
from forgather_mem.errors import TemplateError, did_you_mean, nearest, ours

_MISSPELT = 0.8  # measured on Forgather's templates: leftovers are below 0.72, a changed or lost letter above 0.85


@dataclass(eq=False)
class Renderer:
    """Renders templates and caches their compiled form until a file changes. Thread-safe: renders run one at a time.

    What a template may reach is limited, what it computes is not: a stranger's belongs into a process with limits
    (stranger.py).

    Args:
        searcher: Finds the files.
        budgets: The limits of one render.
        global_vars: Variables that every template sees, imported ones too.
        paste_values: Paste values from outside into the text, as Forgather does, instead of keeping them apart: they
            can then be YAML and tags. Only for values from people who may run code.
        is_own: Whether a file may be rendered here.
        marks: The strings from outside.
        moment: What time it is; without it, each render sees its own.
        read: Told how many characters each template has.
    """

    searcher: Searcher
    budgets: Limits = DEFAULT_LIMITS
    global_vars: Mapping[str, object] = field(default_factory=dict)
    paste_values: bool = False
    is_own: Callable[[Path], bool] = lambda file: True
    marks: TaintTokens = field(default_factory=TaintTokens)
    moment: datetime.datetime | None = None
    read: Callable[[int], None] = lambda num_chars: None

    def __post_init__(self) -> None:
        self._sources = Sources(self.searcher, self.budgets, self.is_own)
        self._compiler = Compiler(self.marks, paste_values=self.paste_values)
        self._lock = threading.RLock()

    def render(self, name: str, variables: Mapping[str, object] | None = None) -> Rendered:
        """Render a template by its name.

        Args:
            name: Of the template.
            variables: Its variables.

        Raises:
            TemplateError: if anything is wrong with it.
        """
        if (source := self._sources.load(name)) is None:
            raise self.searcher.not_found(name)
        return self._render(source, variables or {})

    def render_string(self, text: str, variables: Mapping[str, object] | None = None) -> Rendered:
        """Render a template given as text.

        Raises:
            TemplateError: if anything is wrong with it.
        """
        return self._render(self._sources.from_text(text), variables or {})

    def _render(self, source: Source, variables: Mapping[str, object]) -> Rendered:
        with self._lock:
            self.marks.reset()
            wrapped = self._wrapped(variables)
            job = Job(self._sources, self.budgets, self.moment or datetime.datetime.now(datetime.UTC), self.read)
            try:
                text, values = self._run(self._compiler, job, source, wrapped)
                unknown: tuple[TemplateError, ...] = _unknown_blocks(self._compiler) if job.parents else ()
            except TemplateError as error:
                error.references = _referenced(job)
                raise
            parent = job.parents.get(source.key)
            outlines = [self._compiler.outline(load.source) for load in job.first.values()]
            mentioned = frozenset().union(*(outline.mentioned for outline in outlines))
            unknown += tuple(_unread(source, self._compiler.outline(source), mentioned))
        locate = Tracer(lambda: self._trace(job, source, wrapped, text, values), source.place(1))
        return Rendered(
            name=source.name, text=text, values=values, locate=locate, unknown_blocks=unknown,
            parent=parent.name if parent is not None else None, mentioned=mentioned, num_chars=job.source_chars,
            references=_referenced(job),
        )  # fmt: skip

    def _run(
        self, compiler: Compiler, job: Job, source: Source, wrapped: dict[str, object]
    ) -> tuple[str, dict[str, str]]:
        """Render: the text, and the values in it."""
        compiler.begin(job, wrapped)
        compiler.globals.update(self._wrapped(self.global_vars))
        try:
            job.use(Load(source))
            template = compiler.compiled(source).template
            text = "".join(template.root_render_func(template.new_context(wrapped)))
            if len(text) > job.budgets.rendered_bytes:
                raise LimitPassed(f"the rendered text has more than {job.budgets.rendered_bytes:,} characters")
            if text.count("\n") > job.budgets.nodes:
                raise LimitPassed(f"the rendered text has more than {job.budgets.nodes:,} lines")
            text = self.marks.in_tags(text)
            if not text.isascii():
                text.encode()  # Jinja strings can hold lone surrogates, YAML can't
            return text, self.marks.used(ORIGIN.sub("", text) if compiler.origins else text)
        except (TemplateError, StrangersTemplate):
            raise
        except ours(Exception) as error:
            raise explain(error, compiler) from error

    def _trace(
        self, job: Job, source: Source, wrapped: dict[str, object], text: str, values: Mapping[str, str]
    ) -> SourceMap | None:
        """The source map; None for a text that is too long for one."""
        if len(text) > MAP_LIMITS.text:
            return None
        budgets = replace(self.budgets, rendered_bytes=8 * MAP_LIMITS.text)
        again = Job(self._sources, budgets, job.moment)
        with self._lock:
            self.marks.reset()
            compiler = Compiler(self.marks, paste_values=self.paste_values, origins=True)
            try:
                marked = self._run(compiler, again, source, self._wrapped(untaint(wrapped)))
            except TemplateError:
                return None
        found = [Origin(one.source, [*one.outline.blocks], again.chain(one.source.key)) for one in compiler.numbered]
        return source_map(text, values, *marked, found)

    def _wrapped(self, variables: Mapping[str, object]) -> dict[str, object]:
        return dict(variables) if self.paste_values else wrap(variables, self.marks.mark, self.budgets)


def _unread(source: Source, outline: Outline, mentioned: frozenset[str]) -> Iterator[TemplateError]:
    """The variables that a template sets, that no expression reads, and that have nearly the name of one that is."""
    for name, line in outline.names.items():
        if line and name not in mentioned and (near := nearest(name, mentioned, _MISSPELT)):
            yield source.place(line).error(f"no template uses the variable {name!r}", hint=f"did you mean {near!r}?")


def _unknown_blocks(compiler: Compiler) -> tuple[TemplateError, ...]:
    """The blocks of the render in progress that no parent has and that nothing prints with `self.name()`.

    Jinja silently drops such a block, so a misspelt name has no effect. A name close to one of the parents' names is
    therefore an error; any other is only reported (templates in the wild have such leftovers).

    Raises:
        TemplateError: for the first of them that looks misspelt, or for a line outside of all blocks.
    """
    job = compiler.job
    used = {name for load in job.loads for name in compiler.outline(load.source).used_blocks}
    unknown = []
    for key in job.parents:
        child = job.first[key].source
        known = {block for source in job.ancestors(key) for block in compiler.outline(source).blocks}
        outline = compiler.outline(child)
        chain = job.chain(key)
        if outline.outside is not None:
            place = child.place(outline.outside, chain=chain)
            meant = nearest((place.source_line or "").strip(" []{}!:").replace("-", "_"), known, _MISSPELT)
            blocks = f"write it in one of the blocks: {', '.join(sorted(known)[:20])}"
            hint = f"did you mean '[{meant}]'?" if meant else blocks
            raise place.error("this line stands outside of every block and is never rendered", hint=hint)
        for name in outline.outer_blocks:
            if name in known or name in used:
                continue
            near = nearest(name, known, _MISSPELT)
            error = child.place(outline.blocks[name], chain=chain).error(
                f"no template that {child.name} extends has a block {name!r}, so it is not rendered",
                hint=f"did you mean {near!r}?" if near else f"the blocks are: {', '.join(sorted(known)[:20])}",
            )
            if near:
                raise error
            unknown.append(error)
    return tuple(unknown)


def _referenced(job: Job) -> list[Reference]:
    """The templates of a render as a tree in preorder, each once, at its first use; sorted by name within a level."""
    used: dict[str | None, list[Source]] = {}
    for load in sorted(job.first.values(), key=lambda load: load.source.name):
        used.setdefault(load.by.key if load.by else None, []).append(load.source)
    return [*_tree(None, 0, used)]


def _tree(user: str | None, level: int, used: Mapping[str | None, Sequence[Source]]) -> Iterator[Reference]:
    for source in used.get(user, ()):
        yield level, source.name, str(source.file or "")
        yield from _tree(source.key, level + 1, used)


_QUOTED = re.compile(r"(?:got|named|tag|block|unexpected(?: char)?) '([^']+)'")
_CHARACTER = re.compile(r"unexpected char ((\"'\"|'\"')|.+) at \d+")
_OF_BLOCKS = re.compile("unknown tag|end of template|defined twice")  # errors of Jinja about them
_TAG = re.compile(r"\{#.*?#\}|\{%[-+]?\s*(raw\b.*?endraw|\w+)\s*(\w*)((?:(?!%\}).)*)", re.DOTALL)
_OPENING = {"autoescape", "block", "call", "filter", "for", "if", "macro", "set", "with"}
_INNER = {"elif": ("if",), "else": ("if", "for")}
_TAGS = _OPENING | _INNER.keys() | {"extends", "from", "import", "include", "print"}
_NOT_EXTENDED = re.compile(r"\W*extends\s*[\"']")
_UNQUOTED = re.compile(r"\s*(\S+ (?:extends|include)) ([\w.-]+/[\w./-]+|[\w.-]+\.yaml)\s*(?:-?%\}\s*)?$")
_COMMENTED = re.compile(r"\s*#|[^'\"{#]*\s#.*\{[{%]")
_MEANT = {  # what Jinja says, and what people had in mind
    "got '='": "did you mean '=='?",
    "of statement block', got 'if'": "did you mean 'elif'?",
    r"'name', got '\|'": "write 'or' for '||'",
    "char '&'": "write 'and' for '&&'",
    "char '!'": "write 'not' for '!'",
    r"test_\w+\(\) takes": "remove what stands behind the test",
    "non top-level scope": "write it above the first block",
    r"char '[\u2018\u2019\u201c\u201d]'": "use straight quotes",
    "the parent's block|BlockReference": "write == super()",
    "of statement block', got '(integer|float|string)'": "is a '=' missing before the value?",
    "extended multiple times": "a template extends one other: remove one of the lines",
    "no parent block": 'a template that extends another says so: write -- extends "NAME", with a space',
}
_WORDS = {"super": "== super()", "elseif": "elif", "elsif": "elif"}
_UNCLOSED = "is this quote closed on its line?"
_LIMITS = "the limits are those of forgather_mem.config.limits.Limits; only code can raise them"
_FUNCTIONS = {"root": "", "macro": "in a macro"}


def explain(error: Exception, compiler: Compiler) -> TemplateError:
    """The `TemplateError` for an exception during rendering: what it means, and where.

    The caller raises it from the exception.
    """
    if isinstance(error, Missing):
        return error.explain()
    job = compiler.job
    message, hint = _words(error, compiler)
    if isinstance(error, TemplateSyntaxError) or job.compiling is not None:
        source = job.compiling or job.loads[-1].source
        line = getattr(error, "lineno", None) if isinstance(error, TemplateSyntaxError) else None
        if _OF_BLOCKS.search(message):
            line, message, hint = _wrong_tag(source) or (line, message, hint)
        return _at(source, _begun(source, line or 1), error, message, hint, job.chain(source.key))
    if not (frames := list(_frames(error, job))):
        return TemplateError(message, template=job.loads[0].source.name if job.loads else None, hint=hint)
    source, line, function = frames[-1]
    if "no parent block" in message:
        line = next((number for number, text in enumerate(source.lines, 1) if _NOT_EXTENDED.match(text)), line)
    where = _FUNCTIONS.get(function, f"in block {function[6:]}" if function.startswith("block_") else "")
    return _at(source, line, error, message, hint, [part for part in (where, *job.chain(source.key)) if part])


def _wrong_tag(source: Source) -> tuple[int, str, str] | None:
    """The first tag that doesn't fit those before it, else the last that has no end: its line, what, and what to do."""
    text, line, at = source.jinja(), 1, 0
    opened, blocks = [("", 0)], dict[str, int]()
    for found in _TAG.finditer(text):
        line, at = line + text.count("\n", at, found.start()), found.start()
        tag, name, inner = found[1] or "raw", found[2], opened[-1][0]
        if tag in _OPENING and not (tag == "set" and "=" in found[3]):
            if tag == "block" and blocks.setdefault(name, line) != line:
                first = source.first_line + blocks[name] - 1
                return line, f"block {name!r} defined twice", f"the first is in line {first}: write both in one"
            opened.append((tag, line))
        elif tag == f"end{inner}":
            opened.pop()
        elif tag[:3] == "end" and tag[3:] in (outer for outer, _ in opened[1:]):
            break
        else:
            ended, hint = tag.removeprefix("end"), ""
            if (ended != tag and ended in _OPENING) or inner not in _INNER.get(tag, (inner,)):
                hint = f"no -- {'if' if tag in _INNER else ended} is open here"
            elif tag not in _TAGS and not tag.startswith("raw"):
                near = f"end{inner}" if ended != tag and inner else nearest(tag, _TAGS)
                near = _WORDS.get(tag, near)
                hint = f"did you mean {near!r}?" if near else "a comment begins with ##"
            if hint:
                return line, f"encountered unknown tag {tag!r}", hint
    tag, line = opened[-1]
    return (
        (line, f"{tag!r} has no end", f"add -- end{tag}" + ", or -- set NAME = VALUE" * (tag == "set")) if tag else None
    )


def _begun(source: Source, line: int) -> int:
    """The line of the first tag up to the end of this one that is open there, or where another begins."""
    text = "\n".join(source.jinja().split("\n")[:line])
    begin = -1
    for found in re.finditer(r"\{#.*?#\}|\{[{%]|[%}]\}", text, re.DOTALL):
        if begin >= 0 and found[0][0] == "{":
            break
        begin = found.start() if found[0] in ("{{", "{%") else -1
    return text.count("\n", 0, begin) + 1 if begin >= 0 else line


def _at(source: Source, line: int, error: Exception, message: str, hint: str | None, chain: list[str]) -> TemplateError:
    text = source.lines[line - 1] if 0 < line <= len(source.lines) else ""
    if _COMMENTED.match(text):
        hint = "Jinja reads YAML's comments, too: begin this one with ##"
    elif name := _UNQUOTED.match(text):
        hint = f'write the name in quotes: {name[1]} "{name[2]}"'
    return source.place(line, _column(text, error, message), chain).error(message, hint=hint)


def _column(text: str, error: Exception, message: str) -> int | None:
    """The column of the culprit, if its name is known and found in the line."""
    if isinstance(error, MissingName) and isinstance(error.name, str):
        found = re.search(rf"\b{re.escape(error.name)}\b", text)
    else:
        quoted = isinstance(error, TemplateSyntaxError) and (_QUOTED.search(message) or _QUOTED.search(str(error)))
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
            hint = _UNCLOSED if unexpected[2] else _near_word(message, compiler)
            return f"unexpected character {unexpected[1]}", hint
        return message[:1].lower() + message[1:], _near_word(message, compiler)
    if isinstance(error, LimitPassed):
        return text, _LIMITS
    if isinstance(error, RecursionError) or (isinstance(error, MemoryError) and compiler.job.compiling):
        return "templates, macros or expressions nest too deeply", None
    if isinstance(error, SecurityError):
        return text.rstrip("."), "templates may use data, not the Python behind it"
    if isinstance(error, MemoryError):
        return "there is not enough memory to render this template", None
    if isinstance(error, Mangled):
        return text, "write {{ value }} or {{ value|toyaml }} where it belongs, and change it before it is given"
    if isinstance(error, TemplateRuntimeError):
        return text[:1].lower() + text[1:].rstrip("."), _near_word(text, compiler)
    text = text.replace("'TaintedStr'", "'text' (a value from outside)")
    return f"{type(error).__name__}: {text}", _near_word(text, compiler)


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
    if meant := next((hint for said, hint in _MEANT.items() if re.search(said, message)), None):
        return meant
    if tag := re.search(r"end of (print )?statement.*got '({?)", message):
        closing = f"is a '{'}}' if tag[1] else '%}'}' missing on this line?"
        return closing if tag[2] else "add what is missing before it, or remove what stands from there on"
    if bracket := re.search(r"unexpected '(?:.+', expected ')?(}|(?<=expected ')[])])'", message):
        return f"is a '{bracket[1]}' missing on this line, or one too many?"
    if match := re.search(r"[Nn]o (filter|test) named '([^']+)'", message):
        names = compiler.filters if match[1] == "filter" else compiler.tests
        return did_you_mean(match[2], [name for name in names if name[0] != " "])
    return None


def _frames(error: BaseException, job: Job) -> Iterator[tuple[Source, int, str]]:
    """The templates that an exception passed through, outermost first: source, line, function."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        template = frame.f_globals.get("__jinja_template__")
        if template is not None and template.name in job.first:
            yield job.first[template.name].source, template.get_corresponding_lineno(line), frame.f_code.co_name
