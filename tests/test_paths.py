from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from fumehood import BadArgument, FileError
from fumehood.backends.base import Places
from fumehood.paths import checked, checked_directory, refusal

INSIDE = Places()
REAL = Places("/tmp/fumehood-1/work", "/tmp/fumehood-1/tmp")


@pytest.mark.parametrize(
    "path", ["/tmp/a.py", "/workspace/a/b/c.txt", "/tmp/output/ü ö.csv", "/workspace/..a", "/tmp/-"]
)
def test_a_path_beneath_a_place_is_taken(path):
    assert checked(path, INSIDE) == path


def test_mnt_data_is_the_workspace():
    assert checked("/mnt/data/a.csv", INSIDE) == "/workspace/a.csv"


OTHERS = [
    *("/home/bad.py", "/etc/passwd", "/", "", "tmp/a", "a.py", "/tmp", "/tmp/", "/workspace", "//tmp/a", "/tmpx/a"),
    *("/tmp/../etc/passwd", "/tmp/a/..", "/tmp/./a", "/tmp//a", "/tmp/a/", "/workspace/../tmp/a", "/mnt/a"),
    *("/tmp/a\0b", "/tmp/a\nb", "/tmp/\x1b[31m", "/tmp/\x7f", "/tmp/\x85", "/tmp/\u2028", "/tmp/\ud800"),
]


def refusal_of(path):
    try:
        return checked(path, INSIDE)
    except FileError as error:
        return str(error), error.kind


def test_any_other_path_is_refused_in_the_same_words():
    refusal = ("Invalid path: must be /tmp/* or /workspace/*", "invalid")
    assert {ascii(path): refusal_of(path) for path in OTHERS} == {ascii(path): refusal for path in OTHERS}


@pytest.mark.parametrize("path", ["/tmp/" + "x" * 256, "/tmp/" + "ü" * 128, "/tmp" + "/abc" * 300])
def test_a_path_that_is_too_long_is_refused(path):
    with pytest.raises(FileError, match="Invalid path: longer") as caught:
        checked(path, INSIDE)
    assert caught.value.kind == "invalid"


@pytest.mark.parametrize("name", ["a\\b", "..\\x", "\\", "d\\/x"])
def test_a_path_with_a_backslash_is_refused(name):
    assert refusal_of(f"/tmp/{name}") == ("Invalid path: its name has a backslash", "invalid")


NAMES = ["a", "ü ö", "...", "-rf", "a\nb", "\x1aff", "\u2028", "\ud800", "a\\b", "x" * 255, "x" * 256, "d/" * 600 + "x"]


@pytest.mark.parametrize("path", [f"/workspace/{name}" for name in NAMES])
def test_what_is_refused_is_what_a_listing_says_cannot_be_asked_for(path):
    assert (refusal_of(path) != path) == (refusal(path) is not None)


@pytest.mark.parametrize("path", [None, 5, b"/tmp/a", ["/tmp/a"]])
def test_what_is_no_text_is_a_bad_argument(path):
    with pytest.raises(BadArgument, match="path must be a str"):
        checked(path, INSIDE)


def test_a_path_object_is_taken():
    assert checked(PurePosixPath("/tmp/a"), INSIDE) == "/tmp/a"


def test_without_a_root_of_its_own_both_spellings_name_the_same_file():
    assert checked("/workspace/a", REAL) == checked("/tmp/fumehood-1/work/a", REAL) == "/tmp/fumehood-1/work/a"
    assert checked("/tmp/a", REAL) == checked("/tmp/fumehood-1/tmp/a", REAL) == "/tmp/fumehood-1/tmp/a"


def test_a_directory_may_be_a_place_itself():
    assert checked_directory("/mnt/data", INSIDE) == "/workspace"
    assert checked_directory("/tmp", REAL) == REAL.tmp
    assert checked_directory("/tmp/output", INSIDE) == "/tmp/output"
    with pytest.raises(FileError):
        checked_directory("/etc", INSIDE)
