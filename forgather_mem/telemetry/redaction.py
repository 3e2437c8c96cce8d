"""Command lines and texts without their secrets, told by the names of arguments and by what secrets look like.

A report is uploaded with a checkpoint, or shown to anybody. Next to nothing is imported: the waiting parent of
`forgather-mem run` writes arguments, too.
"""

from __future__ import annotations

import functools
import re

HIDDEN = "***"
_MAX_CHARS, _MAX_PLAIN = 30_000, 60
# What an argument is called
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET = re.compile(r"secret|passw|passphrase|credential|webhook", re.I)
_SECRET_AT_THE_END = re.compile(r"pass|pwd|.*auth|authorization|bearer|jwt|cookies?|sig|signature")
# Whose token is one of a text, and whose key is one of a table
_OF_TEXTS = frozenset(
    """
    pad eos bos unk mask cls sep eod eot boi eoi start end begin stop think image img video audio vision speech box
    object special extra additional new next first last prefix suffix middle separator newline system instruction
    response assistant placeholder per patch frame class language lang task
    """.split()  # noqa: SIM905
)
_OF_TABLES = frozenset(
    """
    text image img images video audio speech label labels column col field sort group order primary foreign dataset
    data input output target source prompt response answer question query chosen rejected message messages metric
    conversation instruction completion caption context loss score reward feature sample id index name cache dict
    state model module config task split file json csv yaml row batch sequence time step best monitor document doc
    content kv
    """.split()  # noqa: SIM905
)
_PLAIN = re.compile(r"true|false|yes|no|none|null|on|off|", re.I)
_PLAIN_TOKEN = re.compile(r"-?\d{1,7}|<[^<>]{1,40}>|\[[A-Z_]{1,20}\]")  # the number of one, or its text
_OF_HASHES = frozenset("revision rev commit sha ref branch tag version hash digest checksum md id uuid".split())  # noqa: SIM905
# Where names and values stand
_OPTION = re.compile(r"-{1,2}([A-Za-z][\w.-]*+)")
_NAMED = re.compile(r"[+~-]*([A-Za-z_][\w.-]*+)\s*[=:]\s*(?=\S)")
_NAMED_WITHIN = re.compile(
    r"""(?<![\w.-])(-{1,2})?([A-Za-z_][\w.-]*+)"""
    r"""(?:[\\"']*+\s*+[=:]\s*+(?:-\s++)?|(?(1)(?:\s++|["']\s*+,\s*+["']?)(?!-)|(?!)))(?=\S)"""
)
_VALUE = re.compile(
    r"""\*{3}|(?:(?:Bearer|Basic|Token)\s++)?(?:(\\*["']).*?(?:(?<!\\)\1|\Z)|\[[^]]*+]?|\{[^}]*+}?|[^\s;&"'|]*+)""",
    re.S | re.I,
)
# What secrets look like: the user of an address, or before a host; known tokens; characters at random
_USER = re.compile(
    r"(?<=://)(?:[^\s/?#@:]*+:(?!\d{1,5}(?:[/?#]|$))(?:[^\s@]{0,300}+@)+|(?:[^\s/?#@]{0,300}+@)+)"
    r"|(?<![\w./@%+-])[\w.%+-]{1,100}+:[^\s/@]{1,300}+@(?!sha256:)(?=\w)"
)
_KNOWN = re.compile(
    r"(?<![\w-])(?:(?:hf|gh[opsur]|npm|r8|gsk|api_org)_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{12,}"
    r"|(?:github_pat|dckr_pat|glpat|[rs]k|pplx|nvapi|pypi|xox[a-z]|xapp|whsec)[_-](?=[\w-]*\d)[\w-]{16,}"
    r"|A[KS]IA[A-Z0-9]{16}|AIza[\w-]{35}|ya29\.[\w-]{10,}|eyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*)?)"
    r"|(?<=Bearer )[\w.+/=~-]{6,}|(?<=Basic )[\w+/=]{12,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END[^-]*-----|\Z)",
    re.S,
)
_QUERY = re.compile(r"(?<=[?&])([\w.-]++)=[^\s&#\"'<>]++")
_RUN = re.compile(r"(?<![\w/+=.~-])[\w+-][\w/+-]{31,}={0,2}(?![\w.])|[\w-]{24,}={0,2}", re.A)
_PART = re.compile(_WORD.pattern + r"|\d+")
_HEX = re.compile(r"[0-9a-fA-F]{32,}")


@functools.lru_cache(maxsize=4)  # a report is changed, and made anew, many times
def redacted_argv(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a command line: names stay, values go where name or value says that they are secret.

    What stands behind a short option, or alone, goes by its looks. Done twice it gives the same. Of more than 30,000
    characters the beginning is kept.

    >>> redacted_argv(("--hub_token", "x", "--api-key=y", "--max_new_tokens", "128", "postgres://me:pw@host/db"))
    ('--hub_token', '***', '--api-key=***', '--max_new_tokens', '128', 'postgres://***@host/db')
    """
    told: list[str] = []
    name, left = "", _MAX_CHARS
    for word in words:
        left -= len(word)
        if left < 0:
            break
        option = _OPTION.fullmatch(word)
        hides = not option and is_secret(name, word)
        told.append(HIDDEN if hides else _redacted_word(word, name))
        name = option[1] if option else name if hides and name.endswith("keys") else ""
    return tuple(told)


def redacted(text: str, *, has_hashes: bool = False) -> str:
    """The text without what looks like a secret: users in addresses, tokens of known forms, random characters.

    Args:
        text: The name of an argument says more, see `redacted_argv`.
        has_hashes: Hexadecimal numbers stay.

    >>> redacted("401 for https://me:pw@host/x?page=2 with hf_abcdefghijKLMNOPQRST")
    '401 for https://***@host/x?page=2 with ***'
    """
    text = _KNOWN.sub(HIDDEN, _USER.sub(f"{HIDDEN}@", text))
    text = _QUERY.sub(lambda found: f"{found[1]}={HIDDEN}" if is_secret(found[1], found[0]) else found[0], text)
    return _RUN.sub(lambda found: HIDDEN if _is_random(found, has_hashes) else found[0], text)


def redacted_value(value: object, name: str = "") -> object:
    """The value of an argument of this name, with all that is in it; what is no text, list or mapping as it is.

    >>> redacted_value({"lr": 0.1, "data": {"api_key": "x"}, "text": "password: y"})
    {'lr': 0.1, 'data': {'api_key': '***'}, 'text': 'password: ***'}
    """
    if is_secret(name, str(value)):
        return HIDDEN
    if isinstance(value, str):
        return _without_values(value, name)
    if isinstance(value, dict):
        return {key: redacted_value(inner, str(key)) for key, inner in value.items()}
    return [redacted_value(inner, name) for inner in value] if isinstance(value, list) else value


def is_secret(name: str, value: str) -> bool:
    """Whether the value of an argument is to be kept secret, by the argument's name.

    >>> is_secret("trainer.hub_token", "x"), is_secret("pad_token_id", "0"), is_secret("num_tokens", "9")
    (True, False, False)
    """
    words = _words(name)
    before, last = words[-3:-1] if words[-2:] == ["key", "id"] else words[-2:]
    if _PLAIN.fullmatch(value):
        return False
    ordinary = _OF_TEXTS if last.endswith("token") else _OF_TABLES if last.endswith(("key", "keys")) else None
    if ordinary is not None:
        return before not in ordinary and not _PLAIN_TOKEN.fullmatch(value)
    return bool(_SECRET.search(name) or _SECRET_AT_THE_END.fullmatch(last))


def _words(name: str) -> list[str]:
    """The words of which a name is made, in small letters; before them two empty ones."""
    return ["", "", *map(str.lower, _WORD.findall(name))]


def _redacted_word(word: str, name: str) -> str:
    """A word of a command line that stands behind the option of this name, or alone."""
    at = 0
    while named := _NAMED.match(word, at):
        name, at = named[1], named.end()
        if is_secret(name, word[at : at + _MAX_PLAIN]):
            return word[:at] + HIDDEN
    return _without_values(word, name)


def _without_values(text: str, name: str) -> str:
    """The value of the argument of this name: text that may have names and values in it, as JSON and commands have."""
    told, at = "", 0
    for named in _NAMED_WITHIN.finditer(text):
        begin = _VALUE.match(text, named.end(), named.end() + _MAX_PLAIN)
        if "\n" in named[0] and begin and begin[0].endswith(":"):
            continue  # in YAML a mapping stands there, whose names are asked in turn
        if named.start() >= at and begin and is_secret(named[2], begin[0].strip("\\\"'")):
            value = _VALUE.match(text, named.end())
            told, at = told + text[at : named.end()] + HIDDEN, value.end() if value else at
    return redacted(told + text[at:], has_hashes=_words(name)[-1] in _OF_HASHES)


def _is_random(found: re.Match[str], has_hashes: bool) -> bool:
    """Whether a long run of characters is one that nobody has thought of; the names of files are left alone."""
    run, before = found[0].rstrip("="), found.string[max(0, found.start() - 200) : found.start()].split(" ")[-1]
    if before.endswith(("/", "@")) and "://" not in before:
        return False
    if _HEX.fullmatch(run):
        return not (has_hashes or before.endswith("sha256:") or run.isdigit() or run.isalpha())
    kinds = [any(map(is_one, run)) for is_one in (str.islower, str.isupper, str.isdigit)]
    others = sum(not char.isalnum() for char in run)
    # 98 of 100 random ones have shorter words, and 15 of 47,000 long names in torch and transformers
    least = 0.36 if all(kinds) else 0.26 if len(run) >= 32 and not others else 1
    return others <= len(run) / 10 and len(_PART.findall(run)) > least * len(run)
