"""What is so in a session, for the texts that a model reads: it is never told what is not."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, NamedTuple

from ..backends.base import Places
from ..config import Settings
from ..errors import FumehoodError

if TYPE_CHECKING:
    from ..sync_session import Session

EXEC_TIMEOUT_S = 60.0
_SHOWN = 40

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

    @property
    def exec_timeout_s(self) -> float:
        return min(EXEC_TIMEOUT_S, self.settings.max_timeout_sec)

    def words(self) -> dict[str, str]:
        """What stands for each name in a description."""
        settings, places = self.settings, self.places
        commands = settings.allowed_commands
        shown = ", ".join(commands[:_SHOWN]) + (", …" if len(commands) > _SHOWN else "")
        libraries = (*self.requirements, *(name for name in self.libraries if name not in self.requirements))
        return {
            "tmp": places.tmp,
            "workspace": places.workspace,
            "output": places.output,
            "network": "There is network access." if settings.network else "There is no network access.",
            "libraries": f"Installed: {', '.join(libraries)}." if libraries else "",
            "datasets": f"Datasets, read-only: {', '.join(self.datasets)}." if self.datasets else "",
            "commands": "All commands are allowed."
            if "*" in commands
            else f"Allowed commands: {shown}."
            if commands
            else "No commands are allowed here.",
            "languages": ", ".join(settings.supported_languages),
            "limits": f"{settings.memory_mb} MB of memory, {settings.disk_mb} MB of disk; "
            f"{settings.max_output_kb} KB of each output stream are shown.",
            "exec_timeout": f"{self.exec_timeout_s:g}",
            "code_timeout": f"{settings.timeout_sec:g}",
            "max_timeout": f"{settings.max_timeout_sec:g}",
        }


def facts(session: Session) -> Facts:
    """Ask the session, and its sandbox where this machine cannot know."""
    session.check()  # the places are the backend's own once there is a sandbox
    libraries = _libraries(session)
    if "polars" in libraries:  # the system prompt asks for Polars alone
        libraries = tuple(name for name in libraries if name != "pandas")
    return Facts(session.places, session.settings, libraries, session.requirements, session.dataset_paths)


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
