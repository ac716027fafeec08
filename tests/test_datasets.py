from __future__ import annotations

import os

import pytest

from fumehood import BadArgument, datasets
from fumehood.datasets import Facts, check, identity, resolved, safe_name


def names(tmp_path, *given: str, suffix: str = ".csv") -> list[str]:
    source = tmp_path / f"source{suffix}"
    source.write_text("a\n", "utf-8")
    return [dataset.filename for dataset in resolved(dict.fromkeys(given, source))]


@pytest.mark.parametrize(
    ("name", "path", "filename"),
    [
        ("sales", "/x/s.csv", "sales.csv"),
        ("sales.csv", "/x/s.csv", "sales.csv"),
        ("Sales.CSV", "/x/S.CSV", "Sales.csv"),
        ("sales", "/x/s.parquet", "sales.parquet"),
        ("sales.csv", "/x/s.parquet", "sales.csv.parquet"),
        ("sales", "/x/noext", "sales.csv"),
        ("a b/c", "/x/s.csv", "a_b_c.csv"),
        ("../../etc/passwd", "/x/s.csv", "_.._etc_passwd.csv"),
        (".hidden", "/x/s.csv", "hidden.csv"),
        ("...", "/x/s.csv", "dataset.csv"),
        ("é\n\0", "/x/s.csv", "___.csv"),
        ("x", "/x/s.c v", "x.c_v"),
        ("n" * 300, "/x/s.csv", "n" * 96 + ".csv"),
    ],
)
def test_a_name_is_made_safe_and_keeps_the_suffix_of_its_file(name, path, filename):
    assert safe_name(name, path) == filename
    assert len(safe_name(name, path)) <= 100


def test_two_names_never_become_one(tmp_path):
    assert names(tmp_path, "a b", "a/b", "a?b") == ["a_b.csv", "a_b_2.csv", "a_b_3.csv"]


def test_a_name_that_is_safe_as_it_stands_keeps_it(tmp_path):
    assert names(tmp_path, "a b", "a_b", "a_b_2") == ["a_b_3.csv", "a_b.csv", "a_b_2.csv"]


def test_long_names_that_differ_at_their_end_stay_apart(tmp_path):
    found = names(tmp_path, "x" * 200 + "1", "x" * 200 + "2")
    assert len(set(found)) == 2
    assert max(map(len, found)) == 100


def test_relative_paths_are_resolved_at_once(tmp_path, monkeypatch):
    (tmp_path / "d.csv").write_text("a\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    assert resolved({"d": "d.csv"})[0].path == str(tmp_path / "d.csv")


def test_none_is_no_dataset():
    assert resolved(None) == resolved({}) == ()


@pytest.mark.parametrize("given", [["a.csv"], "a.csv", 5, {("a",)}])
def test_anything_but_a_mapping_is_refused(given):
    with pytest.raises(BadArgument, match="datasets must be a mapping"):
        resolved(given)


def test_a_missing_file_is_named_with_its_dataset(tmp_path):
    with pytest.raises(BadArgument) as caught:
        resolved({"sales": tmp_path / "sales.csv"})
    assert str(caught.value) == f"dataset 'sales': {tmp_path}/sales.csv does not exist; check the path"


def test_a_directory_a_pipe_and_a_device_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, what in ((tmp_path, "is a directory"), (tmp_path / "pipe", "not a regular"), ("/dev/null", "not a reg")):
        with pytest.raises(BadArgument, match=f"dataset 'd': .*{what}"):
            resolved({"d": path})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(tmp_path):
    (tmp_path / "d.csv").touch(0)
    with pytest.raises(BadArgument, match=r"dataset 'd': .*permission denied"):
        resolved({"d": tmp_path / "d.csv"})


@pytest.mark.parametrize("path", [None, 5, b"a.csv", "", "a\0b"])
def test_a_path_of_another_kind_is_refused(path):
    with pytest.raises(BadArgument, match="dataset 'd'"):
        resolved({"d": path})


@pytest.mark.parametrize("name", [None, 5, "", "  "])
def test_a_name_of_another_kind_is_refused(name):
    with pytest.raises(BadArgument, match="a name must be"):
        resolved({name: "a.csv"})


def test_a_file_that_vanished_is_found_out_later(tmp_path):
    source = tmp_path / "d.csv"
    source.write_text("a\n", "utf-8")
    found = resolved({"d": source})
    check(found)
    source.unlink()
    with pytest.raises(BadArgument, match=r"dataset 'd': .* does not exist"):
        check(found)


# What records say


def test_a_file_is_known_by_its_content_and_a_large_one_by_its_time(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert identity(str(path)) == {"bytes": 3, "sha256": digest}
    monkeypatch.setattr(datasets, "HASHED_BYTES", 2)
    assert identity(str(path)) == {"bytes": 3, "mtime_ns": path.stat().st_mtime_ns}
    assert identity(str(tmp_path / "none")) == identity(str(tmp_path)) == {}


def test_facts_are_read_again_when_a_file_changed(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_bytes(b"abc")
    facts = Facts(resolved({"my a": path}))
    assert not facts.fresh()
    facts.look()
    assert facts.fresh()
    [told] = facts.told("/tmp/data")
    assert (told["name"], told["path"], told["source"], told["bytes"]) == ("my a", "/tmp/data/my_a.csv", str(path), 3)
    with monkeypatch.context() as patch:
        patch.setattr(datasets, "identity", lambda _: pytest.fail("read although nothing changed"))
        facts.look()
    path.write_bytes(b"abcd")
    assert not facts.fresh()
    facts.look()
    assert facts.told("/tmp/data")[0]["bytes"] == 4
    path.unlink()
    facts.look()
    assert "bytes" not in facts.told("/tmp/data")[0]
