from __future__ import annotations

import ast
import threading
import warnings

import pytest

from fumehood.config import Settings
from fumehood.errors import BadArgument
from fumehood.screen import ALTERNATIVES, MAX_CODE_CHARS, find, message

BLOCKED = Settings().dangerous_imports


IMPORTS = [
    ("import os", "os", 1, "import os"),
    ("import os.path", "os", 1, "import os.path"),
    ("x = 1\nimport os as system", "os", 2, "import os as system"),
    ("import json, socket", "socket", 1, "import socket"),
    ("from os import path as p", "os", 1, "from os import path as p"),
    ("from os.path import join", "os", 1, "from os.path import join"),
    ("from shutil import *", "shutil", 1, "from shutil import *"),
    ("def f():\n  if 1:\n    import subprocess", "subprocess", 3, "import subprocess"),
    ("__import__('os')", "os", 1, "__import__('os')"),
    ("__import__(name='os')", "os", 1, "__import__('os')"),
    ("__import__('o' 's')", "os", 1, "__import__('os')"),
    ("__import__('\\x6fs')", "os", 1, "__import__('os')"),
    ("__builtins__.__import__('os')", "os", 1, "__builtins__.__import__('os')"),
    ("import builtins as b\nb.__import__('os')", "os", 2, "b.__import__('os')"),
    ("import importlib\nimportlib.import_module('os.path')", "os", 2, "importlib.import_module('os.path')"),
    ("import importlib as il\nil.import_module('os')", "os", 2, "il.import_module('os')"),
    ("import importlib.util\nimportlib.import_module('os')", "os", 2, "importlib.import_module('os')"),
    ("from importlib import import_module\nimport_module('os')", "os", 2, "import_module('os')"),
    ("from importlib import import_module as im\nim('os')", "os", 2, "im('os')"),
    ("from importlib import *\nimport_module('os')", "os", 2, "import_module('os')"),
    ("def f(): im('os')\nfrom importlib import import_module as im", "os", 1, "im('os')"),
    ("import ºs", "os", 1, "import os"),  # Python reads the letter as a plain o
]


def test_every_way_to_import_is_found_with_line_and_statement():
    for code, *wanted in IMPORTS:
        assert [[f.module, f.line, f.statement] for f in find(code, BLOCKED)] == [wanted], code


NO_IMPORTS = [
    "",
    "print('import os')",
    "# import os",
    "import json",
    "import ossaudio",
    "import osx.os",
    "from . import os",
    "from .os import x",
    "from importlib import import_module\nimport_module('.os', 'pkg')",
    "import_module('os')",
    "x.import_module('os')",
    "__import__(name)",
    "__import__()",
    "__import__(3)",
    "os = 1; os.path",
    "import os.path as",
    "import os\n)",
]


def test_what_is_not_an_import_of_a_listed_module_is_left_alone():
    assert [code for code in NO_IMPORTS if find(code, BLOCKED)] == []


def test_a_listed_submodule_is_found_however_it_is_imported():
    blocked = ["urllib.request"]
    assert len(find("import urllib.request", blocked)) == 1
    assert len(find("from urllib import request", blocked)) == 1
    assert len(find("from urllib.request import urlopen", blocked)) == 1
    assert find("import urllib\nfrom urllib import parse", blocked) == []


def test_findings_come_in_the_order_of_the_program():
    code = "def f():\n    import socket\nimport os\n"
    assert [(f.line, f.module) for f in find(code, BLOCKED)] == [(2, "socket"), (3, "os")]


def test_nothing_is_found_with_an_empty_list():
    assert find("import os", []) == []


def test_the_message_names_line_import_alternative_settings_and_that_it_is_advice():
    text = message(find("x = 1\nimport os\nimport mystery", ["os", "mystery"]))
    assert "line 2: import os" in text
    assert "pathlib" in text
    assert "line 3: import mystery" in text
    assert "not on the list" in text
    assert "advice, not a boundary" in text
    assert "SANDBOX_BLOCK_DANGEROUS_IMPORTS" in text
    assert "SANDBOX_DANGEROUS_IMPORTS" in text


def test_every_module_on_the_default_list_has_an_alternative_of_its_own():
    assert set(BLOCKED) <= set(ALTERNATIVES)


def test_the_message_stays_short_and_printable_whatever_was_imported():
    code = (
        "\n".join(["import os"] * 5000) + "\n__import__('os.\\x1b[2J" + "x" * 5000 + "')\nfrom os import " + "y" * 5000
    )
    text = message(find(code, BLOCKED))
    assert "and 4992 more" in text
    assert len(text) < 3000
    last = message(find(code, BLOCKED)[-2:])
    assert len(last) < 1000
    assert last.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "code",
    [
        "import os\0",
        "import os\nx = '\ud800'",
        "import os\n" + "(" * 100_000,
        "import os\n" + "-" * 100_000 + "1",
        "import os\nx" + "()" * 100_000,
        "import os\nx" + "+x" * 100_000,
        "import os\nx" + "[0]" * 100_000,
        "import os\n" + "not " * 100_000 + "x",
        "import os\n" + "lambda:" * 50_000 + "x",
        "import os\n" + "if x:pass\n" + "elif x:pass\n" * 30_000,
        "import os\n" + "\n".join(" " * depth + "if 1:" for depth in range(300)),
    ],
    ids=lambda code: repr(code[9:25]),
)
def test_code_that_breaks_the_parser_breaks_nothing_else(code):
    found = []
    thread = threading.Thread(target=lambda: found.append(find(code, BLOCKED)))  # threads have smaller stacks
    thread.start()
    thread.join()
    assert len(found) == 1
    assert find(code, BLOCKED) in ([], found[0])


@pytest.mark.parametrize(
    "code",
    [
        "import os" + ".os" * 160_000,
        "import os" + " . \\\n os" * 40_000,
        "import a\nx = a" + ".a" * 160_000,
        "import os" + ".ö" * 100,
    ],
    ids=["plain", "continued", "attributes", "letters"],
)
def test_a_dotted_name_that_would_take_gigabytes_to_parse_is_refused(code):
    with pytest.raises(BadArgument, match="dotted name of more than 50 parts"):
        find(code, BLOCKED)


def test_a_dotted_name_of_usual_length_is_read():
    assert len(find("import os" + ".a" * 40, BLOCKED)) == 1


def test_a_program_too_long_to_parse_is_refused_with_the_setting_to_change():
    with pytest.raises(BadArgument, match=r"524,288 characters.*SANDBOX_BLOCK_DANGEROUS_IMPORTS=false"):
        find("import json\n" + "#" * MAX_CODE_CHARS, BLOCKED)


def test_a_long_program_that_imports_nothing_is_not_refused():
    assert find("x = '" + "y" * 50_000_000 + "'", BLOCKED) == []


@pytest.mark.parametrize("line", ["# -*- coding: utf-7 -*-", "#!/usr/bin/python\n# vim: set fileencoding=utf_7 :"])
def test_an_encoding_that_could_hide_an_import_is_refused(line):
    with pytest.raises(BadArgument, match=r"encoded in utf.7"):
        find(line + "\nimport json", BLOCKED)


@pytest.mark.parametrize(
    "line", ["# coding: utf-8", "# coding: latin-1", "# -*- coding: UTF_8 -*-", "x = 1  # coding: utf-7"]
)
def test_usual_encodings_are_read(line):
    assert len(find(line + "\nimport os", BLOCKED)) == 1


def test_warnings_of_the_program_stay_out_of_the_host():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(find("import os\nx = '\\d'\nassert (1, 'x')\n1 is 1", BLOCKED)) == 1
    assert caught == []


def test_warnings_as_errors_do_not_blind_the_screen():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(find("import os\nx = '\\d'", BLOCKED)) == 1


def test_a_parser_that_another_thread_disturbs_is_asked_again(monkeypatch):
    """Python 3.11 raises SystemError there: the program must not go by unread."""
    parse, asked = ast.parse, []

    def disturbed(*args):
        asked.append(args)
        if len(asked) < 3:
            raise SystemError("AST constructor recursion depth mismatch")
        return parse(*args)

    monkeypatch.setattr(ast, "parse", disturbed)
    assert [found.module for found in find("import os", BLOCKED)] == ["os"]
