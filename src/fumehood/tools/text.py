"""What a model calls: text in, text out, and never an exception."""

from __future__ import annotations

from ..api import shared_sandbox
from ..errors import ConfigurationError, FumehoodError
from ..execution import shorten
from ..types import ExecutionResult

NO_OUTPUT = "(no output)"
_TEXT_BYTES = 24 * 1024  # of one answer, unless SANDBOX_MAX_OUTPUT_KB allows the streams more

_NEXT = {
    "error": "Read the last lines of stderr, fix the code and run it again.",
    "timeout": "Do less per call (smaller input, fewer steps, no endless loop), or pass a longer timeout.",
    "signal": "The program was ended by a signal; look for what it did last, and run a smaller part of it.",
    "memory": "Use less memory: work in chunks, drop what is no longer needed.",
    "processes": "Start fewer processes and threads, and wait for those that were started.",
    "disk": "Write fewer and smaller files, and delete those no longer needed.",
    "output": "Print less: a summary, or only the first lines.",
    "blocked_import": "Rewrite the code without these imports and run it again.",
    "cancelled": "Run it again if it is still wanted.",
}


def run_python_code(code: str, timeout: float | None = None) -> str:
    """Run Python code in a sandbox and return its output as text; on failure, what happened and what to do next."""
    return run_code(code, "python", timeout)


def run_code(code: str, language: str = "python", timeout: float | None = None) -> str:
    """Run code in a sandbox and return its output as text; on failure, what happened and what to do next."""
    cap = _TEXT_BYTES
    try:
        with shared_sandbox() as sandbox:
            cap = max(cap, 2 * sandbox.settings.max_output_kb * 1024 + 4096)
            text = render(sandbox.execute(code, language, timeout))
    except ConfigurationError as error:
        text = f"Error (nothing ran, the configuration is wrong): {error}"
    except FumehoodError as error:
        text = f"Error (nothing ran): {error}"
    except Exception as error:  # a bug of ours must not end the agent
        _report(error)
        text = f"Error: the sandbox failed ({type(error).__name__}); run `fumehood doctor` to see what is wrong."
    return shorten(text, cap)


def render(result: ExecutionResult) -> str:
    """A result as compact text: the output alone if all went well."""
    meta = result.meta
    notes = ""
    if meta.get("timeout_clamped"):
        notes = f"\n[timeout lowered to the ceiling of {meta['timeout']:g} s, SANDBOX_MAX_TIMEOUT_SEC]"
    if result.exit_code == 0 and meta.get("reason") == "ok":
        if result.stderr.strip():
            return f"{_block(result.stdout)}[stderr]\n{result.stderr}{notes}"
        return (result.stdout or NO_OUTPUT) + notes
    reason = meta.get("reason", "error")
    parts = [f"Error: {_what(reason, result)}"]
    parts += [f"[{name}]\n{text.rstrip()}" for name, text in _streams(result) if text.strip()]
    parts.append(f"Next: {_NEXT.get(reason, _NEXT['error'])}{notes}")
    return "\n".join(parts)


def _what(reason: str, result: ExecutionResult) -> str:
    if reason == "timeout":
        return f"timed out after {result.meta['timeout']:g} s (exit code {result.exit_code})"
    said = {
        "signal": "the program was killed by a signal",
        "memory": "the program hit its memory limit",
        "processes": "the program hit its limit of processes and threads",
        "disk": "the program hit its disk limit",
        "output": "the program printed too much and was killed",
        "blocked_import": "not run, because of imports that are blocked here",
        "cancelled": "cancelled",
    }
    return f"{said.get(reason, 'the program failed')} (exit code {result.exit_code})"


def _streams(result: ExecutionResult) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("stderr", result.stderr), ("stdout", result.stdout)


def _block(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _report(error: Exception) -> None:
    import logging  # only when something broke

    logging.getLogger("fumehood").error("run_code failed", exc_info=error)
