"""Redacts the texts of one record within bounds, whatever a program put into them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..redact import Known, hide, variants, without

MAX_TEXT_CHARS = 1024 * 1024  # of one text
MAX_CHARS = 4 * 1024 * 1024  # of all texts
MAX_VALUES = 50_000  # texts, numbers, lists and mappings
MAX_CPU_S = 5.0  # behind the other bounds, which are reached first
LEFT_OUT = "... (cut for the record)"

# Longer than any secret: what a cut might have left of one lies in the part that is dropped.
_CUT_MARGIN_CHARS = 64 * 1024
_MAX_DEPTH = 64  # a program may have nested what it displayed as deep as it liked


class Cleaner:
    """The first reading of a record finds its secrets, a second one takes out those that stand bare before that.

    What there is no room for is left out. Nothing is kept that was not examined.
    """

    def __init__(self, known: Known) -> None:
        self._known = known
        self._given = variants(known.given)
        self._hidden: dict[str, str] = {}
        self._bare: list[str] = []
        self._until_cpu_s = time.thread_time() + MAX_CPU_S
        self._begin()

    def must_read_again(self, *, was_cut: bool) -> bool:
        """After the first reading. `was_cut`: there is a text that may end in half a secret, learned after it."""
        found = variants(self._known.found)
        if not found:
            return False
        texts = "\n".join(self._hidden.values())
        self._bare = [value for value in found if value in texts]
        self._begin()
        return was_cut or bool(self._bare)

    def text(self, text: str) -> str:
        if not self._takes(min(len(text), MAX_TEXT_CHARS)):
            return LEFT_OUT
        hidden = self._hidden.get(text)
        if hidden is None:
            hidden = self._hidden[text] = self._cut(text)
        return without(self._bare, hidden)

    def deep(self, value: Any, depth: int = 0) -> Any:
        """Whatever JSON can say, with all its texts cleaned."""
        if isinstance(value, str):
            return self.text(value)
        if not self._takes(0):
            return LEFT_OUT
        if not isinstance(value, (Mapping, list, tuple)):
            return value
        if depth > _MAX_DEPTH:
            return "…"
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        items = []
        for item in value:
            items.append(self.deep(item, depth + 1))
            if self._is_full:
                break
        return items

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[Any, Any]:
        items = {}
        for key, item in value.items():
            name = self.text(key) if isinstance(key, str) else key
            items[name] = self.deep(item, depth + 1)
            if self._is_full:
                break
        return items

    def _cut(self, text: str) -> str:
        if len(text) <= MAX_TEXT_CHARS:
            return hide(text, self._given, self._known)
        kept = hide(text[:MAX_TEXT_CHARS], self._given, self._known)[:-_CUT_MARGIN_CHARS]
        return f"{kept}\n... ({len(text)} characters, cut for the record)"

    def _begin(self) -> None:
        self._chars, self._values = MAX_CHARS, MAX_VALUES
        self._is_full = False

    def _takes(self, chars: int) -> bool:
        """Whether there is room for one more value; after the first refusal there is for none."""
        self._chars -= chars
        self._values -= 1
        if self._chars < 0 or self._values < 0 or time.thread_time() > self._until_cpu_s:
            self._is_full = True
        return not self._is_full
