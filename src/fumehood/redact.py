"""Takes credentials out of text before it is stored. Only what is very likely one: records must stay readable.

Every pattern is linear: a start that cannot be found twice inside one run, bounded looks ahead, possessive runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial

MARK = "[redacted]"
MIN_SECRET = 6  # shorter values given as `extra` would take ordinary words out of the text
MAX_SECRET = 4096  # of those that are remembered
MAX_KNOWN = 200

_W = r"[A-Za-z0-9_-]"
_VENDORS = (
    rf"sk-(?={_W}{{0,60}}[0-9])(?={_W}{{0,60}}[A-Z]){_W}{{20,}}+",  # OpenAI, Anthropic, and those who copied them
    r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}+",  # Stripe
    r"gh[opsru]_[A-Za-z0-9]{36,}+",
    r"github_pat_[A-Za-z0-9_]{40,}+",
    rf"gl(?:pat|ptt|rt|soat|cbt|dt)-{_W}{{20,}}+",  # GitLab
    r"A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9])",  # AWS
    r"xox[a-z]-[A-Za-z0-9-]{10,}+",  # Slack
    r"xapp-[A-Za-z0-9-]{20,}+",
    rf"AIza{_W}{{35,}}+",  # Google
    r"ya29\.[A-Za-z0-9_-]{20,}+",
    r"hf_[A-Za-z0-9]{30,}+",  # Hugging Face
    r"npm_[A-Za-z0-9]{36,}+",
    rf"pypi-{_W}{{50,}}+",
    r"e2b_[0-9a-f]{40,}+",
    r"a[ks]-[A-Za-z0-9]{22,}+",  # Modal
    rf"SG\.{_W}{{16,}}+\.{_W}{{16,}}+",  # SendGrid
    rf"eyJ{_W}{{10,}}+\.eyJ{_W}{{4,}}+\.{_W}*+",  # JSON web token
)
_VENDOR = re.compile(rf"(?<!{_W})(?:{'|'.join(_VENDORS)})")

_PEM_BEGIN = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_PEM_END = re.compile(r"-----END (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_PEM_BODY = re.compile(r"[A-Za-z0-9+/=\s\\]*+")
_PEM_MAX = 32 * 1024

_URL = re.compile(r"(://[^\s/:@'\"<>?#]{0,128}:)[^\s/@'\"<>]{1,512}@")
_HEADER = re.compile(
    r"(?i)\b(bearer\s{1,4}|authorization\W{1,6}(?:basic|token)\s{1,4})(?=[^\s]{0,60}[0-9=])[\w.~+/=-]{16,}+"
)

# A name, then what stands between it and its value in Python, JSON (also escaped), YAML, ini, shell and DSNs.
_BETWEEN = r"\\{0,2}[\"']?[ \t]{0,4}(?::[ \t]{0,4}str[ \t]{0,4}=|={1,2}|:)[ \t]{0,4}"
_STRONG = (
    r"(?:passw(?:or)?d|passphrase|(?<=;)pwd|secret(?:[_-]?(?:access[_-]?)?key)?|(?:api|access|private|account)[_-]?key)"
)
_ANY = rf"(?:{_STRONG}|token)"
_PLAIN = r"[^\s\"',;&|()\[\]{}<>$%\\]"
_QUOTED_STRONG = re.compile(rf"(?i)({_STRONG}{_BETWEEN}\\{{0,2}}([\"']))(?![<$%{{])[^\s\"'\\]{{4,}}+(?=\\{{0,2}}\2)")
_QUOTED_TOKEN = re.compile(
    rf"(?i)(token{_BETWEEN}\\{{0,2}}([\"']))(?=[^\s\"'\\]{{0,60}}[0-9])[^\s\"'\\<${{]{{8,}}+(?=\\{{0,2}}\2)"
)
# Without quotes it may be a variable of the program: only what has a digit and is not called or indexed.
_UNQUOTED = re.compile(
    rf"(?i)({_ANY}{_BETWEEN}|--{_ANY}[ ]{{1,4}})(?![/.~=:-])(?={_PLAIN}{{0,60}}[0-9]){_PLAIN}{{6,}}+(?![(\[{{])"
)

# Each with what follows the secret; what comes before it is group 1.
_PASSES = (
    (_VENDOR, ""),
    (_URL, "@"),
    (_HEADER, ""),
    (_QUOTED_STRONG, ""),
    (_QUOTED_TOKEN, ""),
    (_UNQUOTED, ""),
)


class Known:
    """Secrets met in the steps of one run: a later step must not store them bare. Of too many the oldest go."""

    def __init__(self) -> None:
        self.learned = 0
        self._given: dict[str, None] = {}  # by the caller, as values of env
        self._found: dict[str, None] = {}
        self._sorted: list[str] | None = None

    @property
    def given(self) -> list[str]:
        return list(self._given)

    @property
    def found(self) -> list[str]:
        return list(self._found)

    def give(self, values: Iterable[str]) -> None:
        for value in values:
            if len(value) >= MIN_SECRET:
                _remember(self._given, value)

    def learn(self, value: str) -> None:
        if MIN_SECRET <= len(value) <= MAX_SECRET and MARK not in value and value not in self._found:
            self.learned += 1
            _remember(self._found, value)
            self._sorted = None

    def scrub(self, text: str) -> str:
        """Without what was found; what was given is the business of `redact_text`."""
        values = self._sorted
        if values is None:
            values = self._sorted = _variants(self.found)
        for value in values:
            text = text.replace(value, MARK)
        return text


def redact_text(text: str, extra: Iterable[str] = (), known: Known | None = None) -> str:
    """The text without credentials, and without the values in `extra` (of six characters or more)."""
    for secret in _variants(extra):
        text = text.replace(secret, MARK)
    for _ in range(4):  # what one pass takes out can lay bare another
        before = text
        text = _without_private_keys(text)
        for pattern, after in _PASSES:
            text = pattern.sub(partial(_hidden, after, known), text)
        if text == before:
            break
    # Not before the patterns: a found secret may be part of a name that they look for.
    return text if known is None else known.scrub(text)


def _hidden(after: str, known: Known | None, match: re.Match[str]) -> str:
    before = match[1] if match.re.groups else ""
    if known is not None:
        known.learn(match[0][len(before) : len(match[0]) - len(after)])
    return f"{before}{MARK}{after}"


def _remember(values: dict[str, None], value: str) -> None:
    # Every step is one that the interpreter does not interrupt: threads share a run.
    values.pop(value, None)
    values[value] = None
    for old in list(values)[:-MAX_KNOWN]:
        values.pop(old, None)


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """The names of the variables, their values hidden."""
    return dict.fromkeys(env, MARK)


def _variants(secrets: Iterable[str]) -> list[str]:
    """The values as they are and as `repr` writes them, longest first, so that none hides part of another."""
    long_enough = {secret for secret in secrets if len(secret) >= MIN_SECRET and secret not in MARK}
    return sorted(long_enough | {repr(secret)[1:-1] for secret in long_enough}, key=lambda s: (-len(s), s))


def _without_private_keys(text: str) -> str:
    begin = _PEM_BEGIN.search(text)
    if begin is None:
        return text
    parts, position = [], 0
    end = _PEM_END.search(text)
    while begin is not None:
        while end is not None and end.start() < begin.end():
            end = _PEM_END.search(text, begin.end())
        parts += [text[position : begin.start()], MARK]
        if end is not None and end.start() - begin.end() <= _PEM_MAX:
            position = end.end()
        else:  # cut off: what still looks like the key
            body = _PEM_BODY.match(text, begin.end())
            position = body.end() if body else begin.end()
        begin = _PEM_BEGIN.search(text, position)
    return "".join([*parts, text[position:]])
