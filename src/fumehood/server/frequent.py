"""Which of the limits that requests bring come so often that cells wait for them.

Whoever brings others each time gets none ready, and takes none from others: a kind is kept once it is asked for again
within a minute; of all that are kept there are few, and where there is room for no more, nobody loses one that is in
use to somebody who has as many.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable

MOST = 8  # kinds, of all owners
CELLS = 2  # that wait for each
_AGAIN_S = 60.0
_QUIET_S = 60.0  # since when nobody may have asked for a kind that makes room
_SEEN = 16  # kinds of each owner that were asked for once

Kind = tuple[str, Hashable]  # whose, and what


class Frequent:
    def __init__(self, drop: Callable[[Kind], None], clock: Callable[[], float] = time.monotonic) -> None:
        """`drop` hears of each kind that is no longer kept."""
        self._drop = drop
        self._clock = clock
        self._kept: dict[Kind, float] = {}  # and when it was asked for; the latest last
        self._seen: dict[str, dict[Hashable, float]] = {}

    def is_kept(self, owner: str, what: Hashable) -> bool:
        """Each time that it is asked for."""
        now, kind = self._clock(), (owner, what)
        if self._kept.pop(kind, None) is None and not self._may_begin(kind, now):
            return False
        self._kept[kind] = now
        return True

    def _may_begin(self, kind: Kind, now: float) -> bool:
        owner, what = kind
        seen = self._seen.setdefault(owner, {})
        before = seen.pop(what, None)
        if before is not None and now - before <= _AGAIN_S and self._has_room(owner, now):
            return True
        seen[what] = now
        if len(seen) > _SEEN:
            del seen[next(iter(seen))]
        return False

    def _has_room(self, owner: str, now: float) -> bool:
        if len(self._kept) < MOST:
            return True
        loser = self._loser(owner, now)
        if loser is None:
            return False
        del self._kept[loser]
        self._drop(loser)
        return True

    def _loser(self, owner: str, now: float) -> Kind | None:
        oldest, asked = next(iter(self._kept.items()))
        if now - asked > _QUIET_S:
            return oldest
        counts = Counter(holder for holder, _ in self._kept)
        (richest, most), *_ = counts.most_common(1)
        if most <= counts[owner] + 1:
            return None
        return next(kind for kind in self._kept if kind[0] == richest)
