"""`open_session()` and the session it gives: the same as `AsyncSession`, for callers without an event loop."""

from __future__ import annotations

import os
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from .backends.base import Backend, Event, Places
from .config import Settings
from .handed import Handed
from .interrupts import held
from .session import READ_BYTES, AsyncSession
from .streaming import Stream
from .sync import portal
from .types import ExecutionResult, FileStat, Receipt

T = TypeVar("T")


def open_session(
    type: str | Backend | None = None,  # noqa: A002
    require: str | None = None,
    datasets: Mapping[str, str | os.PathLike[str]] | None = None,
    session_id: str | None = None,
    requirements: Sequence[str] | None = None,
    *,
    io_handler: object = None,
    run_id: str | None = None,
    **settings: Any,
) -> Session:
    """A session whose files and variables are kept until it is closed; its sandbox is made by the first call."""
    return Session(
        AsyncSession(
            type, require, datasets, session_id, requirements, io_handler=io_handler, run_id=run_id, **settings
        )
    )


class Session:
    """`AsyncSession` without await. Safe to use from many threads and inside an event loop."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    @property
    def session_id(self) -> str:
        """Names its output directory and stands in its records."""
        return self._session.session_id

    @property
    def run_id(self) -> str:
        """What its records have in common."""
        return self._session.run_id

    @property
    def settings(self) -> Settings:
        """Every setting in force; where the fallback stands in, `type` names that."""
        return self._session.settings

    @property
    def origins(self) -> Mapping[str, str]:
        """Where each setting came from."""
        return self._session.origins

    @property
    def backend_name(self) -> str:
        """Where it runs."""
        return self._session.backend_name

    @property
    def requirements(self) -> tuple[str, ...]:
        """The packages it was asked to have."""
        return self._session.requirements

    @property
    def places(self) -> Places:
        """Where things are, as the program sees them; the backend's own once the sandbox is made."""
        return self._session.places

    @property
    def dataset_paths(self) -> tuple[str, ...]:
        """Where the program finds the datasets."""
        return self._session.dataset_paths

    @property
    def datasets(self) -> dict[str, str]:
        """The same, by name."""
        return self._session.datasets

    @property
    def output_dir(self) -> str:
        """Where copies of the output files go on this machine."""
        return self._session.output_dir

    @property
    def ends_in_s(self) -> float:
        """Seconds until it ends if no further call comes."""
        return self._session.ends_in_s

    @property
    def ended(self) -> bool:
        """Whether no further call is taken."""
        return self._session.ended

    @held
    def run(
        self,
        code: str,
        timeout: float | None = None,
        *,
        reasoning_trace: str | None = None,
        requirements: Sequence[str] | None = None,
    ) -> ExecutionResult:
        """Run Python in the session's interpreter, which remembers; with other requirements in one of its own."""
        return self._wait_for(
            self._session.run(code, timeout, reasoning_trace=reasoning_trace, requirements=requirements)
        )

    @held
    def exec(
        self,
        command: Sequence[str],
        timeout: float | None = None,
        *,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        reasoning_trace: str | None = None,
    ) -> ExecutionResult:
        """Run a command in the session's files, beside the interpreter."""
        return self._wait_for(
            self._session.exec(command, timeout, stdin=stdin, env=env, reasoning_trace=reasoning_trace)
        )

    def stream(
        self,
        program: str | Sequence[str],
        timeout: float | None = None,
        *,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        reasoning_trace: str | None = None,
        requirements: Sequence[str] | None = None,
        handed: Handed | None = None,
    ) -> SyncStream:
        """`run` of program text, or `exec` of a list, giving its events as they come; its output files go to `handed`.

        `stdin` and `env` are for a command, `requirements` for program text.
        """
        return SyncStream(
            self._session.stream(
                program,
                timeout,
                stdin=stdin,
                env=env,
                reasoning_trace=reasoning_trace,
                requirements=requirements,
                handed=handed,
            )
        )

    @held
    def write(self, path: str, content: str | bytes, *, reasoning_trace: str | None = None) -> int:
        """Make or replace a file; the number of bytes written."""
        return self._wait_for(self._session.write(path, content, reasoning_trace=reasoning_trace))

    @held
    def edit(self, path: str, old_string: str, new_string: str, *, reasoning_trace: str | None = None) -> None:
        """Replace the one passage of a text file that reads `old_string`."""
        self._wait_for(self._session.edit(path, old_string, new_string, reasoning_trace=reasoning_trace))

    @held
    def read(self, path: str, max_bytes: int = READ_BYTES) -> bytes:
        """A file's content; FileError if there is more than `max_bytes`."""
        return self._wait_for(self._session.read(path, max_bytes))

    @held
    def files(self, directory: str | None = None) -> list[FileStat]:
        """The regular files, or those beneath one directory; datasets are not among them."""
        return self._wait_for(self._session.files(directory))

    @held
    def check(self) -> Receipt:
        """Make the sandbox, and say what it enforces."""
        return self._wait_for(self._session.check())

    def cancel(self) -> None:
        """End the call that runs now; callable from any thread."""
        self._session.cancel()

    @held
    def close(self) -> None:
        """End what runs, the sandbox and its files. Closing twice is fine."""
        self._wait_for(self._session.close())

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return portal.run(coroutine)


class SyncStream:
    """Gives Output, Display and one Exited; then `result` is there. A context manager and iterator."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @property
    def result(self) -> ExecutionResult:
        """The whole, after the last event."""
        return self._stream.result

    @held
    def __enter__(self) -> SyncStream:
        portal.run(self._stream.__aenter__())
        return self

    @held
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        portal.run(self._stream.__aexit__(kind))

    def __iter__(self) -> Iterator[Event]:
        return self

    @held
    def __next__(self) -> Event:
        event = portal.run(_next(self._stream))
        if event is None:
            raise StopIteration
        return event


async def _next(stream: Stream) -> Event | None:
    # StopAsyncIteration cannot be the result of a future.
    return await anext(stream, None)
