"""The tools bound to one session: a call in, a dict out, and never an exception."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ..backends.base import Backend
from ..errors import BadArgument, FumehoodError
from ..paths import shown
from ..sync_session import Session, open_session
from . import hints, prompt, schema, specs, user_tools
from .calls import Call
from .facts import Facts, facts
from .table import TABLE, Tool

_log = logging.getLogger("fumehood.tools")


class Toolbox:
    """The tool table bound to one session, whose sandbox is made on the first call. Safe to use from many threads."""

    def __init__(
        self,
        datasets: Mapping[str, str | os.PathLike[str]] | None = None,
        session_id: str | None = None,
        io_handler: object | None = None,
        *,
        type: str | Backend | None = None,  # noqa: A002
        require: str | None = None,
        requirements: Sequence[str] | None = None,
        session: Session | None = None,
        **settings: Any,
    ) -> None:
        self._owns = session is None
        self._session = session or open_session(
            type, require, datasets, session_id, requirements, io_handler=io_handler, **settings
        )
        found = user_tools.load(
            self._session.settings.tools_dir,
            frozenset(tool.name for tool in TABLE),
            self._session.origins["tools_dir"],
        )
        self.tools: dict[str, Tool] = {tool.name: tool for tool in (*TABLE, *found.tools)}
        self.problems = found.problems  # what of `tools_dir` could not be used
        self._facts: Facts | None = None
        self._lock = threading.Lock()

    @property
    def session(self) -> Session:
        return self._session

    def call(
        self, name: str, arguments: Mapping[str, Any] | str | None = None, reasoning_trace: str | None = None
    ) -> dict[str, Any]:
        """Call a tool. Whatever goes wrong is in the reply."""
        plain = str.__str__(name) if isinstance(name, str) else name
        tool = self.tools.get(plain) if isinstance(plain, str) else None
        if tool is None:
            return _unknown(plain, self.tools)
        given: Mapping[str, Any] = {}
        try:
            given = schema.given(_mapping(tool.name, arguments), tool.schema)
            schema.check(tool.name, given, tool.schema)
            return tool.function(Call(self._session, given, _trace(reasoning_trace)))
        except FumehoodError as error:
            return tool.failed(hints.failure(tool.name, error), given)
        except Exception as error:  # a bug of ours must not end the agent
            _log.error("%s failed", tool.name, exc_info=error)
            return tool.failed(hints.failure(tool.name, error), {})

    async def call_async(
        self, name: str, arguments: Mapping[str, Any] | str | None = None, reasoning_trace: str | None = None
    ) -> dict[str, Any]:
        """`call` beside a running event loop."""
        from ..thread_pool import aside  # needs asyncio

        return await aside(self.call, name, arguments, reasoning_trace)

    def specs(self, format: str = "openai") -> list[dict[str, Any]]:  # noqa: A002
        """The tools as `openai` (Responses API), `anthropic` or `mcp` wants them described."""
        known = self.facts()
        words = known.words()
        return [specs.spec(tool, format, words, network=known.network) for tool in self.tools.values()]

    def system_prompt(self) -> str:
        """What to tell a model about the sandbox before it starts."""
        return prompt.system_prompt(self.facts())

    def facts(self) -> Facts:
        """What is so in this session; asked once."""
        session = self._session
        with self._lock:
            if self._facts is None:
                try:
                    self._facts = facts(session)
                except FumehoodError as error:
                    _log.warning("the sandbox could not be asked what it has: %s", shown(str(error)))
                    return Facts(session.places, session.settings, (), session.requirements, session.dataset_paths)
            return self._facts

    def close(self) -> None:
        """End the session, unless it was given. Closing twice is fine."""
        if self._owns:
            self._session.close()

    def __enter__(self) -> Toolbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _mapping(tool: str, arguments: object) -> Mapping[str, Any]:
    if arguments is None:
        return {}
    if isinstance(arguments, (str, bytes)):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise BadArgument(f"the arguments of {tool} are not JSON: {error}") from None
    if not isinstance(arguments, Mapping):
        raise BadArgument(f"the arguments of {tool} must be an object, not {arguments.__class__.__name__[:60]}")
    return dict(arguments)


def _trace(reasoning_trace: object) -> str | None:
    return reasoning_trace if isinstance(reasoning_trace, str) else None


def _unknown(name: object, tools: Mapping[str, Tool]) -> dict[str, Any]:
    shown = ascii(name[:60]) if isinstance(name, str) else name.__class__.__name__[:60]
    listed = ", ".join(tools)
    return {
        "success": False,
        "error": f"There is no tool {shown}; there are: {listed}",
        "hint": f"Use one of {listed}.",
    }
