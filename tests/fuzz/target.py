"""What is fuzzed: a name, a check that takes any bytes, and the words that good inputs are made of."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

_HERE = Path(__file__).parent
CORPUS = _HERE / "corpus"
_ESCAPED = re.compile(rb'\\(?:x([0-9a-f]{2})|(["\\]))')
_MOST_PIECES = 2000
_BETWEEN = b"\xff"  # in no UTF-8


class Target(NamedTuple):
    name: str
    check: Callable[[bytes], None]  # raises where the code under test does what it must not
    is_json: bool = False  # inputs are JSON, and the words its keys and values

    @property
    def dictionary(self) -> Path:
        """As libFuzzer has them: a word in quotes on each line."""
        return _HERE / "dictionaries" / f"{self.name}.dict"

    def words(self) -> list[bytes]:
        return [_unescaped(line[1:-1]) for line in self.dictionary.read_bytes().splitlines()]

    def seeds(self) -> list[Path]:
        return sorted((CORPUS / self.name).iterdir())


def fields(data: bytes, count: int) -> list[bytes]:
    """So many, the last with all that is left."""
    found = data.split(_BETWEEN, count - 1)
    return found + [b""] * (count - len(found))


def piece(how: bytes, whole: bytes) -> int:
    """How much comes at a time: what the input says, in a bounded number of pieces; without a word all at once."""
    return max(sum(how) if how else len(whole), len(whole) // _MOST_PIECES, 1)


def text(data: bytes) -> str:
    """Any string can come out of it, one with lone surrogates too."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "surrogateescape")


def finished(work: Coroutine[Any, Any, None]) -> None:
    """In an event loop in which no task fails unheard."""
    unheard: list[Any] = []

    async def listen() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: unheard.append(told))
        await work

    asyncio.run(listen())
    assert not unheard, unheard


def _unescaped(word: bytes) -> bytes:
    return _ESCAPED.sub(lambda found: found[2] or bytes.fromhex(found[1].decode()), word)
