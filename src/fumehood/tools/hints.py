"""What a reply says to do next and how a failure is worded. Models are taught these texts: they are exact."""

from __future__ import annotations

from typing import NamedTuple

from .. import errors
from ..backends.base import Places
from ..paths import INVALID

MAX_FILE_BYTES = 5 * 1024 * 1024

# By FileError.kind; one form for all.
FILE_ERRORS = {
    "invalid": INVALID,
    "missing": "File not found: must be an existing file",
    "directory": "Is a directory: must be a file",
    "special": "Not a regular file: must be a file",
    "too_large": f"File too large: must be at most {MAX_FILE_BYTES} bytes",
    "full": "Disk full: must fit in the space that is left",
    "denied": "Permission denied: must be a file that may be changed",
    "not_text": "Not a text file: must be UTF-8",
}
_TEXTS = {**FILE_ERRORS, "no_match": "old_string not found"}

EXEC_FILES = "Code executed successfully. {count} output files created. Consider using 'complete' to present results."
EXEC_NO_FILES = "Code executed but no outputs in {output}/. Verify script saves results."
EXEC_FAILED = "Execution failed. Review stderr and use sandbox_edit_file to fix errors."
CODE_NO_FILES = "Code executed successfully. Variables are kept for the next call."
CODE_NOT_KEPT = "Code executed successfully. It ran apart: its variables and files were not kept."
RAN_APART = (
    "These requirements are not the session's: the code ran by itself. Its variables and files were not kept,"
    " but for copies of its output files, which are the user's."
)
CODE_FAILED = "Execution failed. Review the output, fix the code and run it again."
STATE_LOST = "The interpreter was replaced and its variables are gone: define again what is needed."
WRITTEN = "File written successfully. Use sandbox_exec to run it."
EDITED = "File edited successfully. Re-run with sandbox_exec."
USER_DONE = "Tool call succeeded."
USER_FAILED = "Tool call failed. Review the error and the arguments."

_INVALID_PATH = "Invalid path. Use /tmp/ or /workspace/ only."
_WRITE = {
    "invalid": _INVALID_PATH,
    "too_large": "File too large. Split the content into several files.",
    "not_text": "Write failed - not UTF-8. Remove the characters that are not text.",
    "directory": "Write failed - a directory has that name. Choose another name.",
    "special": "Write failed - not a regular file. Choose another name.",
    "full": "Write failed - the disk is full. Delete files with sandbox_exec and try again.",
    "denied": "Write failed - no permission. Choose another path.",
}
_EDIT = {
    "invalid": _INVALID_PATH,
    "not_unique": "Edit failed - old_string not unique. Include more surrounding context.",
    "no_match": "Edit failed - old_string not found. Read file first with sandbox_exec.",
    "missing": "Edit failed - file not found. Create it with sandbox_write_file.",
    "directory": "Edit failed - it is a directory. List it with sandbox_exec.",
    "special": "Edit failed - not a regular file. Write a new one with sandbox_write_file.",
    "too_large": "Edit failed - the file is too large. Change it with a script and sandbox_exec.",
    "not_text": "Edit failed - not a text file. Change it with a script and sandbox_exec.",
    "full": "Edit failed - the disk is full. Delete files with sandbox_exec and try again.",
    "denied": "Edit failed - no permission. Write a new file with sandbox_write_file.",
}
_FILE_HINTS = {"sandbox_write_file": _WRITE, "sandbox_edit_file": _EDIT}


class Failure(NamedTuple):
    """Why nothing ran, with the exit code the command line has for it."""

    error: str
    exit_code: int
    hint: str


# The first that fits.
_FAILURES: tuple[tuple[type[Exception], int, str], ...] = (
    (errors.CommandNotAllowed, 126, "Command refused. Use one of the allowed commands."),
    (errors.LanguageNotAllowed, 126, "Language refused. Use one of the allowed languages."),
    (errors.BudgetExceeded, 126, "The session's budget is used up. Present the results so far."),
    (errors.RuntimeMissing, 127, "That language is not installed here. Use another one."),
    (errors.PackageError, 2, "The packages cannot be had. Name others, or do without them."),
    (errors.BadArgument, 2, "Invalid arguments. Correct them and call {tool} again."),
    (errors.FileError, 2, "The file cannot be used. Check its path with sandbox_exec."),
    (errors.ConfigurationError, 78, "The sandbox is set up wrongly. Tell the user what the error says."),
    (errors.SessionBusy, 125, "The session is busy. Wait for the other call to end and try again."),
    (errors.SessionEnded, 125, "The session has ended. Tell the user; what it held is gone."),
    (errors.FumehoodError, 125, "The sandbox is not available. Try once more, then tell the user."),
)


def failure(tool: str, error: Exception) -> Failure:
    """One of our errors as a model is told of it."""
    if isinstance(error, errors.FileError) and tool in _FILE_HINTS:
        said = str(error)
        text = said if ": must " in said or error.kind == "invalid" else _TEXTS.get(error.kind, said)
        hint = _FILE_HINTS[tool].get(error.kind, "The file cannot be used. Check its path with sandbox_exec.")
        return Failure(text, 2, hint)
    for kind, exit_code, hint in _FAILURES:
        if isinstance(error, kind):
            return Failure(str(error), exit_code, hint.format(tool=tool))
    return Failure(
        f"the sandbox failed ({type(error).__name__}); run `fumehood doctor` to see what is wrong",
        125,
        "The sandbox is not available. Try once more, then tell the user.",
    )


def after_exec(exit_code: int, count: int, places: Places) -> str:
    """The hint of a command that ran."""
    if exit_code != 0:
        return EXEC_FAILED
    return EXEC_FILES.format(count=count) if count else EXEC_NO_FILES.format(output=places.output)


def after_code(exit_code: int, count: int, *, kept: bool = True, lost: bool = False) -> str:
    """The hint of code that ran in the interpreter."""
    if exit_code != 0:
        return f"{CODE_FAILED} {STATE_LOST}" if lost else CODE_FAILED
    if lost:
        return STATE_LOST
    if count:
        return EXEC_FILES.format(count=count)
    return CODE_NO_FILES if kept else CODE_NOT_KEPT
