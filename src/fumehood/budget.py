"""What a session may use in all, over its calls."""

from __future__ import annotations

from .config import Settings
from .errors import BudgetExceeded

_MB = 1024 * 1024


class Budget:
    """Adds up what the calls used; refuses the next one when a cap is reached."""

    def __init__(self, settings: Settings) -> None:
        self.calls = 0
        self.cpu_s = 0.0
        self.wall_s = 0.0
        self.output_bytes = 0
        self._settings = settings

    def check(self) -> None:
        """Raise before a call that finds something used up."""
        settings = self._settings
        caps = (
            (self.calls, settings.session_max_calls, 1, "session_max_calls", "calls"),
            (self.cpu_s, settings.session_max_cpu_sec, 1, "session_max_cpu_sec", "seconds of CPU time"),
            (self.wall_s, settings.session_max_wall_sec, 1, "session_max_wall_sec", "seconds of running time"),
            (self.output_bytes, settings.session_max_output_mb, _MB, "session_max_output_mb", "MB of output"),
        )
        for used, limit, unit, setting, what in caps:
            if limit is not None and used >= limit * unit:
                raise BudgetExceeded(
                    f"Nothing was run: this session has used up its budget of {limit:g} {what}."
                    " Finish with what you have: no further call of this session will run."
                    f" (Whoever runs it: SANDBOX_{setting.upper()}.)"
                )

    def wall_left_s(self) -> float | None:
        """Seconds that the next call may take."""
        limit = self._settings.session_max_wall_sec
        return None if limit is None else max(0.0, limit - self.wall_s)

    def spend(self, *, cpu_s: float = 0.0, wall_s: float = 0.0, output_bytes: int = 0) -> None:
        """Count one call."""
        self.calls += 1
        self.cpu_s += cpu_s
        self.wall_s += wall_s
        self.output_bytes += output_bytes
