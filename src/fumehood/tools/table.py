"""The tools, one row each: all that is known of a tool stands there and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from . import calls
from .calls import Call
from .hints import Failure


class ToolCategory(Enum):
    CODE_EXECUTION = "code_execution"
    FILE_MANAGEMENT = "file_management"
    USER = "user"  # from SANDBOX_TOOLS_DIR


class Tool(NamedTuple):
    """`description` and the texts in `schema` are filled in with `Facts.words`, unless they are the user's own."""

    name: str
    title: str
    category: ToolCategory
    description: str
    schema: Mapping[str, Any]
    function: Callable[[Call], dict[str, Any]]
    failed: Callable[[Failure, Mapping[str, Any]], dict[str, Any]]
    destructive: bool = False  # may delete or replace what was there
    template: bool = True


def _object(required: tuple[str, ...], **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _seconds(default: str) -> dict[str, Any]:
    text = f"Seconds it may take: {default} unless given, {{max_timeout}} at most; more is cut to that."
    return {"type": "number", "exclusiveMinimum": 0, "description": text}


_PATH = _text("Absolute path in {tmp}/ or {workspace}/.")
_CODE = _text("The program text.")

TABLE = (
    Tool(
        "sandbox_exec",
        "Run a command",
        ToolCategory.CODE_EXECUTION,
        """Execute a command in an isolated sandbox. The command is a list, the program and then its arguments, with no
        shell in between. Files are kept from call to call and shared by all tools. Save results in {output}/: what is
        there comes back in output_files. {datasets} {libraries} {network} {commands} Limits: {limits}""",
        _object(
            ("command",),
            command={
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "description": 'The program and its arguments, such as ["python", "{tmp}/analysis.py"].',
            },
            timeout=_seconds("{exec_timeout}"),
        ),
        calls.sandbox_exec,
        calls.exec_failed,
        destructive=True,
    ),
    Tool(
        "sandbox_write_file",
        "Write a file",
        ToolCategory.FILE_MANAGEMENT,
        """Create or overwrite a text file in the sandbox, at most {file_mb} MB. Directories on the way are made. Run it
        with sandbox_exec.""",
        _object(("file_path", "content"), file_path=_PATH, content=_text("All of the file's text.")),
        calls.sandbox_write_file,
        calls.file_failed,
        destructive=True,
    ),
    Tool(
        "sandbox_edit_file",
        "Edit a file",
        ToolCategory.FILE_MANAGEMENT,
        """Replace one exact piece of text in a file of the sandbox. old_string must occur exactly once: include enough
        of the lines around it.""",
        _object(
            ("file_path", "old_string", "new_string"),
            file_path=_PATH,
            old_string=_text("The text to replace, to the letter, white space included."),
            new_string=_text("What takes its place."),
        ),
        calls.sandbox_edit_file,
        calls.file_failed,
        destructive=True,
    ),
    Tool(
        "run_python_code",
        "Run Python",
        ToolCategory.CODE_EXECUTION,
        """Run Python code in the session's interpreter. Variables, imports and files are kept from call to call, as in
        a notebook; the value of the last expression comes back in results. Save files in {output}/. {datasets}
        {libraries} {network} Limits: {limits}""",
        _object(("code",), code=_CODE, timeout=_seconds("{code_timeout}")),
        calls.run_python_code,
        calls.code_failed,
        destructive=True,
    ),
    Tool(
        "run_code",
        "Run code",
        ToolCategory.CODE_EXECUTION,
        """Run code in one of these languages: {languages}. Python runs in the session's interpreter, which keeps its
        variables; programs in other languages start afresh and share its files. {network} Limits: {limits}""",
        _object(
            ("code",),
            code=_CODE,
            language=_text("One of: {languages}; python unless given."),
            timeout=_seconds("{code_timeout}"),
        ),
        calls.run_code,
        calls.code_failed,
        destructive=True,
    ),
    Tool(
        "code_interpreter",
        "Code interpreter",
        ToolCategory.CODE_EXECUTION,
        """Run Python code and get its logs and the files it saved in {output}/. Variables are kept from call to call,
        unless requirements are given that the session does not have: then the code runs apart, by itself, without the
        session's files. {datasets} {libraries} {network} Limits: {limits}""",
        _object(
            ("code",),
            code=_CODE,
            requirements={
                "type": "array",
                "items": {"type": "string"},
                "description": 'Packages it needs beyond those installed, such as ["humanize==4.9.0"]. {packages}',
            },
        ),
        calls.code_interpreter,
        calls.interpreter_failed,
        destructive=True,
    ),
)
