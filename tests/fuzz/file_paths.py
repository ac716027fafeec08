"""Paths that a caller or a model names, and names that a program gives its files."""

from __future__ import annotations

import os
import tempfile

from fumehood import paths
from fumehood.backends.base import Places
from fumehood.copies import Copies
from fumehood.engine.files import Files
from fumehood.errors import BadArgument, FileError

from .target import Target, fields, text

_PLACES = (Places(), Places("/tmp/fumehood-1/workspace", "/tmp/fumehood-1/tmp"))
_INSIDE = {"/workspace": "workspace", "/tmp": "tmp"}


def check(data: bytes) -> None:
    """The first field is a path, the second the bytes of a name that is there."""
    path, name = fields(data, 2)
    _check_rules(text(path))
    _check_tree(text(path), name)
    _check_copy(text(path))


def _check_rules(path: str) -> None:
    for places in _PLACES:
        for rule in (paths.checked, paths.checked_directory):
            try:
                found = rule(path, places)
            except (FileError, BadArgument):
                continue
            roots = (places.workspace, places.tmp)
            assert found in roots or found.startswith(tuple(f"{root}/" for root in roots))
            assert not {".", ".."} & set(found.split("/"))
            assert "" not in found[1:].split("/")
            assert not any(ord(ch) < 32 for ch in found)
            found.encode()
    assert paths.shown(path).isprintable()


def _check_tree(path: str, name: bytes) -> None:
    with tempfile.TemporaryDirectory() as top:
        for place in ("inside/workspace/d", "inside/tmp", "outside"):
            os.makedirs(f"{top}/{place}")
        os.symlink(f"{top}/outside", f"{top}/inside/tmp/link")
        _plant(os.fsencode(f"{top}/inside/tmp/"), name)
        files = Files(os.open(f"{top}/inside", os.O_RDONLY | os.O_DIRECTORY), _INSIDE)
        try:
            _use(files, path)
        finally:
            files.close()
        assert not os.listdir(f"{top}/outside")
        assert sorted(os.listdir(f"{top}/inside")) == ["tmp", "workspace"]


def _check_copy(name: str) -> None:
    """An output file of that name, copied to this machine."""
    with tempfile.TemporaryDirectory() as top:
        copies = Copies(f"{top}/out", "1")
        try:
            copied = copies.save(name, b"x")
        except ValueError:
            assert not os.listdir(top)
            return
        assert os.path.realpath(copied).startswith(os.path.realpath(copies.directory) + "/")
        assert os.listdir(f"{top}/out") == ["session_1"]


def _plant(directory: bytes, name: bytes) -> None:
    try:
        os.close(os.open(directory + name.replace(b"/", b""), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except (OSError, ValueError):
        pass  # the kernel takes no such name


def _use(files: Files, path: str) -> None:
    for found in files.beneath("/tmp"):
        found.path.encode()
        if paths.printable(found.path) and not found.why:
            assert files.read(found.path, 10) == b""
    for use in (
        files.beneath,
        files.has_nothing,
        lambda each: files.write(each, b"x"),
        lambda each: files.read(each, 9),
    ):
        try:
            use(path)
        except FileError:
            pass


TARGET = Target("file_paths", check)
