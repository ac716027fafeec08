"""The old home of `sync_session`. A module of this name would hide the function `fumehood.open_session`."""

from __future__ import annotations

import sys
from typing import Any

from .sync_session import Session, SyncStream, open_session

__all__ = ["Session", "SyncStream", "open_session"]

_function: Any = open_session
_function.Session, _function.SyncStream, _function.open_session = Session, SyncStream, open_session
sys.modules[__name__] = _function
