"""Which backends there are. A backend's module is imported when it is named, not before."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from .backends.base import Backend
from .config import Settings
from .errors import BackendUnavailable, ExtraMissing, UnknownBackend

GROUP = "fumehood.backends"

_BUILT_IN = {
    "local": ("fumehood.backends.local", "LocalBackend"),
    "docker": ("fumehood.backends.docker", "DockerBackend"),
    "kubernetes": ("fumehood.backends.kubernetes", "KubernetesBackend"),
    "e2b": ("fumehood.backends.e2b", "E2BBackend"),
    "modal": ("fumehood.backends.modal", "ModalBackend"),
    "vercel": ("fumehood.backends.vercel", "VercelBackend"),
    "remote": ("fumehood.backends.remote", "RemoteBackend"),
    "fake": ("fumehood.backends.fake", "FakeBackend"),
}

Factory = Callable[[Settings], Backend]


def names() -> tuple[str, ...]:
    """Every name `SANDBOX_TYPE` takes here, built-ins first."""
    return (*_BUILT_IN, *(name for name in sorted(_third_party()) if name not in _BUILT_IN))


def is_known(name: str) -> bool:
    """Whether there is a backend of that name."""
    return name in _BUILT_IN or name in _third_party()


def open_backend(settings: Settings) -> Backend:
    """The backend that `settings.type` names, not started yet."""
    return factory(settings.type)(settings)


def factory(name: str) -> Factory:
    """What makes the backend called `name`."""
    if name in _BUILT_IN:
        return _built_in(name)
    third_party = _third_party()
    if name not in third_party:
        import difflib  # only for a message

        close = difflib.get_close_matches(name, names(), n=1)
        meant = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownBackend(
            f"no backend is called {name[:100]!r}.{meant} Set SANDBOX_TYPE to one of: {', '.join(names())}"
        )
    try:
        made: Factory = third_party[name].load()
    except (ImportError, AttributeError) as error:
        raise BackendUnavailable(
            f"the backend {name!r} is installed but does not load ({error}); reinstall the package that provides it"
        ) from error
    return made


def _built_in(name: str) -> Factory:
    module, attribute = _BUILT_IN[name]
    try:
        made: Factory = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name == module:
            raise BackendUnavailable(
                f"the backend {name!r} is not part of this version of fumehood; set SANDBOX_TYPE=local"
            ) from error
        raise ExtraMissing(
            f"the backend {name!r} needs {error.name!r}, which is not installed: pip install 'fumehood[{name}]'"
        ) from error
    return made


def _third_party() -> dict[str, importlib.metadata.EntryPoint]:
    from importlib.metadata import entry_points  # slow to import, and only unknown names need it

    return {point.name: point for point in entry_points(group=GROUP)}
