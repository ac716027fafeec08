"""Whether it lives, whether it can run programs, and its numbers."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .routes import Route
from .state import Call


class Health(msgspec.Struct):
    """It answers."""

    status: Literal["ok"] = "ok"


async def healthz(_: Call[Any, Any]) -> Health:
    return Health()


ROUTES = (Route("GET", "/healthz", healthz, "It answers.", reply=Health, public=True),)
