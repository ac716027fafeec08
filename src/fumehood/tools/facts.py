"""What is so in a session, for the texts that a model reads: it is never told what is not."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, NamedTuple

from ..backends.base import Places
from ..config import Settings
from ..errors import CommandNotAllowed, FumehoodError
from ..languages import resolve
from ..policy import check_command
from ..types import Receipt
from .hints import MAX_FILE_BYTES

if TYPE_CHECKING:
    from ..sync_session import Session

EXEC_TIMEOUT_S = 60.0
_SHOWN = 120
_MB = 1024 * 1024
_NETWORK = {True: "There is network access.", False: "There is no network access.", None: ""}

# By the name a model knows it by: the module that shows it is there.
LIBRARIES = {
    "polars": "polars",
    "pandas": "pandas",
    "numpy": "numpy",
    "scipy": "scipy",
    "scikit-learn": "sklearn",
    "matplotlib": "matplotlib",
    "seaborn": "seaborn",
    "plotly": "plotly",
    "pyarrow": "pyarrow",
    "duckdb": "duckdb",
    "statsmodels": "statsmodels",
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "torch": "torch",
    "sympy": "sympy",
    "networkx": "networkx",
    "pillow": "PIL",
    "openpyxl": "openpyxl",
}
_ASK = "import importlib.util as u, json, sys; print(json.dumps([m for m in sys.argv[1:] if u.find_spec(m)]))"


class Facts(NamedTuple):
    """What the descriptions and the system prompt are made of."""

    places: Places
    settings: Settings
    libraries: tuple[str, ...]  # names of LIBRARIES that can be imported inside
    requirements: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()  # paths inside
    receipt: Receipt | None = None  # what is enforced; None is not known

    @property
    def exec_timeout_s(self) -> float:
        return min(EXEC_TIMEOUT_S, self.settings.max_timeout_sec)

    @property
    def network(self) -> bool | None:
        """Whether programs reach beyond the machine; None is not known."""
        if self.receipt is None:
            return self.settings.network or None
        return self._level("network") == "none"

    def words(self) -> dict[str, str]:
        """What stands for each name in a description."""
        settings, places, limits = self.settings, self.places, self.settings.limits()
        libraries = (*self.requirements, *(name for name in self.libraries if name not in self.requirements))
        return {
            "tmp": places.tmp,
            "workspace": places.workspace,
            "output": places.output,
            "network": _NETWORK[self.network],
            "libraries": f"Installed: {', '.join(libraries)}." if libraries else "",
            "datasets": self._datasets(),
            "commands": _listed("commands", settings.allowed_commands),
            "packages": _listed("packages", settings.allowed_packages),
            "languages": ", ".join(filter(self._can_run, settings.supported_languages)) or "none",
            "file_mb": str(min(MAX_FILE_BYTES, limits.file_bytes, limits.disk_bytes) // _MB),
            "limits": self._limits(),
            "exec_timeout": f"{self.exec_timeout_s:g}",
            "code_timeout": f"{settings.timeout_sec:g}",
            "max_timeout": f"{settings.max_timeout_sec:g}",
        }

    def _level(self, axis: str) -> str | None:
        return None if self.receipt is None else self.receipt.axes[axis].level

    def _datasets(self) -> str:
        is_lent = self.settings.type == "local" and self._level("files") == "sealed"  # elsewhere they are copies
        how = ", read-only" if is_lent else ""
        return f"Datasets{how}: {', '.join(self.datasets)}." if self.datasets else ""

    def _limits(self) -> str:
        bounds, limits = [], self.settings.limits()
        if self._level("memory") not in (None, "none"):
            bounds.append(f"{limits.memory_bytes // _MB} MB of memory")
        if self._level("disk") in ("sealed", "confined"):  # below, each file is bounded but not their sum
            bounds.append(f"{limits.disk_bytes // _MB} MB of disk")
        shown = f"{self.settings.max_output_kb} KB of each output stream are shown."
        return f"{', '.join(bounds)}; {shown}" if bounds else shown

    def _can_run(self, name: str) -> bool:
        """Python has an interpreter of its own; what starts as a command must be an allowed one."""
        language = resolve(name, (name,))
        if language.name == "python":
            return True
        try:
            check_command((language.program, f"{self.places.tmp}/x"), self.settings.allowed_commands, {})
        except CommandNotAllowed:
            return False
        return True


def facts(session: Session) -> Facts:
    """Ask the session, and its sandbox where this machine cannot know."""
    receipt = session.check()  # the places are the backend's own once there is a sandbox
    known = None if session.backend_name == "fake" else receipt  # there, nothing runs that could be bounded
    libraries = _libraries(session)
    if "polars" in libraries:  # the system prompt asks for Polars alone
        libraries = tuple(name for name in libraries if name != "pandas")
    return Facts(session.places, session.settings, libraries, session.requirements, session.dataset_paths, known)


def _libraries(session: Session) -> tuple[str, ...]:
    if session.backend_name == "fake":
        return ()
    if session.backend_name == "local":  # the same interpreter, with the packages of its environment
        found = {module for module in LIBRARIES.values() if importlib.util.find_spec(module)}
    else:
        try:
            said = session.exec(["python", "-c", _ASK, *LIBRARIES.values()]).stdout
            found = set(json.loads(said))
        except (FumehoodError, ValueError, TypeError):
            found = set()
    return tuple(name for name, module in LIBRARIES.items() if module in found)


def _listed(what: str, allowed: tuple[str, ...]) -> str:
    if "*" in allowed:
        return f"All {what} are allowed."
    if not allowed:
        return f"No {what} are allowed here."
    return f"Allowed {what}: {', '.join(allowed[:_SHOWN])}{', …' if len(allowed) > _SHOWN else ''}."
