"""Takes credentials out of text before it is stored. Only what is very likely one: records must stay readable.

Every pattern is linear: a start that cannot be found twice inside one run, bounded looks ahead, possessive runs. A text
is searched piece by piece: one call for a whole megabyte would keep every other thread of the process waiting.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

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
    rf"(?i)({_ANY}{_BETWEEN}|(?<=--){_ANY}[ ]{{1,4}})(?![/.~=:-])(?={_PLAIN}{{0,60}}[0-9]){_PLAIN}{{6,}}+"
)
_CALLED = "([{"


class _Rule(NamedTuple):
    """What to look for. `whole` is tried only where `start` is found, in lower case where `folds`."""

    whole: re.Pattern[str]  # what comes before the secret is group 1
    start: re.Pattern[str]  # no longer than _REACH
    hints: tuple[str, ...]  # one of them is in everything that `start` finds
    folds: bool = True
    after: str = ""  # what follows the secret, and stays
    unless_before: str = ""  # what is followed by one of these stays


_STRONG_START = r"pass[wp]|pwd|secret|(?:api|access|private|account)[_-]?key"
_STRONG_HINTS = ("passw", "passphrase", "pwd", "secret", "key")
_VENDOR_START = r"[rs]k[-_]|gh[opsru]_|github_pat_|gl|A[KS]IA|xox|xapp-|AIza|ya29|hf_|npm_|pypi-|e2b_|a[ks]-|SG\.|eyJ"
_VENDOR_HINTS = (
    *("sk-", "k_live_", "k_test_", "gh", "github_pat_", "gl", "KIA", "SIA", "xox", "xapp-", "AIza", "ya29."),
    *("hf_", "npm_", "pypi-", "e2b_", "ak-", "as-", "SG.", "eyJ"),
)
_RULES = (
    _Rule(_VENDOR, re.compile(rf"(?<!{_W})(?:{_VENDOR_START})"), _VENDOR_HINTS, folds=False),
    _Rule(_URL, re.compile("://"), ("://",), folds=False, after="@"),
    _Rule(_HEADER, re.compile("bearer|authorization"), ("bearer", "authorization")),
    _Rule(_QUOTED_STRONG, re.compile(_STRONG_START), _STRONG_HINTS),
    _Rule(_QUOTED_TOKEN, re.compile("token"), ("token",)),
    # Not a look ahead of the pattern: each name within a long value would read that value to its end once more.
    _Rule(_UNQUOTED, re.compile(f"{_STRONG_START}|token"), (*_STRONG_HINTS, "token"), unless_before=_CALLED),
)
_STEP = 16 * 1024
_REACH = 32
_SHORTEST = 6  # of a text that could hold any secret: `://:x@`, or a remembered value
_FOLDED = (("\u0130", "i"), ("\u0131", "i"), ("\u017f", "s"), ("\u212a", "k"))  # what IGNORECASE takes for letters


class Known:
    """Secrets met in the steps of one run: a later step must not store them bare. Of too many the oldest go."""

    def __init__(self) -> None:
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
            _remember(self._found, value)
            self._sorted = None

    def scrub(self, text: str) -> str:
        """Without what was found; what was given is the business of `redact_text`."""
        values = self._sorted
        if values is None:
            values = self._sorted = variants(self.found)
        return without(values, text)


def redact_text(text: str, extra: Iterable[str] = (), known: Known | None = None) -> str:
    """The text without credentials, and without the values in `extra` (of six characters or more)."""
    text = hide(text, variants(extra), known)
    # Not before the patterns: a found secret may be part of a name that they look for.
    return text if known is None else known.scrub(text)


def hide(text: str, values: Sequence[str], known: Known | None = None) -> str:
    """The text without these values and without credentials; those are learned, and not yet looked for elsewhere."""
    if len(text) < _SHORTEST:
        return text
    text = without(values, text)
    for _ in range(4):  # what one pass takes out can lay bare another
        before = text
        text = _without_private_keys(text)
        folded: str | None = None
        for rule in _RULES:
            if rule.folds and folded is None:
                folded = _fold(text)
            kept = _without_matches(rule, text, folded if rule.folds and folded is not None else text, known)
            if kept is not text:
                text, folded = kept, None
        if text == before:
            break
    return text


def without(values: Iterable[str], text: str) -> str:
    """The text with each of the values hidden; the longest must come first."""
    for value in values:
        text = text.replace(value, MARK)
    return text


def _without_matches(rule: _Rule, text: str, folded: str, known: Known | None) -> str:
    parts: list[str] = []
    kept = at = 0  # what stands before `kept` is in `parts`
    while at < len(text):
        end = at + _STEP
        if all(folded.find(hint, at, end + _REACH) < 0 for hint in rule.hints):
            at = end
            continue
        while at < end:
            start = rule.start.search(folded, at, end + _REACH)
            if start is None or start.start() >= end:
                at = end
                break
            match = rule.whole.match(text, start.start())
            if match is None:
                at = start.start() + 1
                continue
            at = match.end()
            if not text.startswith(tuple(rule.unless_before), at):
                parts += [text[kept : match.start()], _hidden(rule.after, known, match)]
                kept = at
    return "".join([*parts, text[kept:]]) if parts else text


def _fold(text: str) -> str:
    """In lower case, each character where it was."""
    if text.isascii():
        return text.lower()
    pieces = [text[at : at + _STEP] for at in range(0, len(text), _STEP)]
    return "".join([_without_odd_letters(piece).lower() for piece in pieces])


def _without_odd_letters(text: str) -> str:
    for odd, letter in _FOLDED:
        text = text.replace(odd, letter)
    return text


def _hidden(after: str, known: Known | None, match: re.Match[str]) -> str:
    before = match[1] if match.re.groups else ""
    if known is not None:
        known.learn(match[0][len(before) : len(match[0]) - len(after)])
    return f"{before}{MARK}{after}"


def _remember(values: dict[str, None], value: str) -> None:
    # Every step is one that the interpreter does not interrupt: threads share a run.
    values.pop(value, None)
    values[value] = None
    if len(values) > MAX_KNOWN:
        for old in list(values)[:-MAX_KNOWN]:
            values.pop(old, None)


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """The names of the variables, their values hidden."""
    return dict.fromkeys(env, MARK)


def variants(secrets: Iterable[str]) -> list[str]:
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
