"""A session's files over HTTP, against a real server."""

from __future__ import annotations

import pytest

OCTETS = {"Content-Type": "application/octet-stream"}


def put(client, session, path, content=b"0123456789"):
    return client.put(f"/sessions/{session}/files/content", params={"path": path}, content=content, headers=OCTETS)


def get(client, session, path, **headers):
    return client.get(f"/sessions/{session}/files/content", params={"path": path}, headers=headers)


def test_what_is_put_is_there(alice, session):
    reply = put(alice, session, "/workspace/deep/a.csv", bytes(range(256)) * 100)
    assert reply.json() == {"path": "/workspace/deep/a.csv", "size": 25600, "mime": "text/csv"}
    assert get(alice, session, "/workspace/deep/a.csv").content == bytes(range(256)) * 100
    listed = alice.get(f"/sessions/{session}/files").json()["files"]
    assert [(file["path"].rpartition("/")[2], file["size"]) for file in listed] == [("a.csv", 25600)]
    beneath = alice.get(f"/sessions/{session}/files", params={"directory": "/workspace/deep"}).json()["files"]
    assert len(beneath) == 1
    assert alice.get(f"/sessions/{session}/files", params={"directory": "/tmp"}).json()["files"] == []


@pytest.mark.parametrize(
    ("asked", "status", "content", "span"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=5-99", 206, b"56789", "bytes 5-9/10"),
        ("bytes=10-", 416, None, "bytes */10"),
        ("bytes=-0", 416, None, "bytes */10"),
        ("bytes=4-2", 200, b"0123456789", None),
        ("bytes=0-1,4-5", 200, b"0123456789", None),
        ("bytes=-", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
        ("bytes=" + "9" * 30 + "-", 200, b"0123456789", None),
    ],
)
def test_ranges(alice, session, asked, status, content, span):
    put(alice, session, "/workspace/r")
    reply = get(alice, session, "/workspace/r", Range=asked)
    assert reply.status_code == status
    assert reply.headers.get("content-range") == span
    if content is not None:
        assert reply.content == content


def test_a_file_that_is_large_comes_whole_or_in_ranges(alice, session):
    size = 80 << 20  # more than a session's read gives by itself
    code = f"with open('large', 'wb') as file:\n    _ = file.write(b'x' * {size - 3}), file.write(b'end')"
    assert alice.post(f"/sessions/{session}/run", json={"code": code}).json()["exit_code"] == 0
    whole = get(alice, session, "/workspace/large")
    assert (whole.status_code, len(whole.content), whole.content[-4:]) == (200, size, b"xend")
    part = get(alice, session, "/workspace/large", Range="bytes=-5")
    assert (part.status_code, part.content) == (206, b"xxend")
    assert part.headers["content-range"] == f"bytes {size - 5}-{size - 1}/{size}"
    assert alice.get("/info").json()["limits"]["download_bytes"] >= size


def test_a_range_of_an_empty_file_cannot_be_had(alice, session):
    put(alice, session, "/workspace/empty", b"")
    assert get(alice, session, "/workspace/empty").content == b""
    assert get(alice, session, "/workspace/empty", Range="bytes=0-").status_code == 416


def test_a_range_that_depends_on_a_validator_is_the_whole(alice, session):
    put(alice, session, "/workspace/r")
    assert get(alice, session, "/workspace/r", **{"Range": "bytes=1-2", "If-Range": '"x"'}).status_code == 200


def test_a_download_is_never_shown_as_a_page(alice, session):
    name = 'ä "quoted" <script>.html'
    put(alice, session, f"/workspace/{name}", b"<script>alert(1)</script>")
    reply = get(alice, session, f"/workspace/{name}")
    assert reply.headers["content-type"] == "application/octet-stream"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in reply.headers["content-security-policy"]
    assert reply.headers["content-disposition"] == (
        "attachment; filename=\"_ _quoted_ _script_.html\"; filename*=UTF-8''%C3%A4%20%22quoted%22%20%3Cscript%3E.html"
    )


@pytest.mark.parametrize(
    "path",
    [
        *("../../../../etc/cron.d/x", "/etc/passwd", "/workspace/../etc/passwd", "/workspace//x", "//etc/passwd"),
        *("/workspace/.", "/workspace/a\x00b", "/workspace/a\nb", "C:\\x", "/workspace/a\\b", "/proc/self/environ"),
        *("..%2f..%2fetc%2fpasswd", "/workspace", "/workspace/", "relative", "/workspace/" + "a" * 256),
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(alice, session, path):
    for reply in (
        put(alice, session, path),
        get(alice, session, path),
        alice.post(f"/sessions/{session}/edit", json={"path": path, "old": "a", "new": "b"}),
    ):
        assert (reply.status_code, reply.json()["code"]) == (422, "validation"), reply.text
        assert "path" in reply.json()["detail"]
        assert "root:" not in reply.text
    assert alice.get(f"/sessions/{session}/files").json()["files"] == []


def test_a_path_in_the_target_itself_leads_nowhere(server, alice, session):
    for target in ("..%2f..%2fetc%2fpasswd", "%00", "/etc/passwd", "...", "%252e%252e%252fetc"):
        reply = alice.get(f"{server.url}/sessions/{session}/files/{target}")
        assert reply.status_code in (400, 404), target
        assert "root:" not in reply.text


def test_links_that_a_program_made_are_not_followed(alice, session):
    code = "import os; os.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'dir'); os.mkfifo('pipe')"
    assert alice.post(f"/sessions/{session}/run", json={"code": code}).json()["exit_code"] == 0
    for name in ("link", "dir/passwd", "pipe", "dir"):
        reply = get(alice, session, f"/workspace/{name}")
        assert reply.status_code == 422, name
        assert "root:" not in reply.text
    assert alice.get(f"/sessions/{session}/files").json()["files"] == []


def test_a_file_that_is_not_there_is_404(alice, session):
    assert get(alice, session, "/workspace/none").status_code == 404


def test_a_passage_is_replaced_if_it_is_the_only_one(alice, session):
    put(alice, session, "/workspace/e.txt", b"one two two")
    edit = f"/sessions/{session}/edit"
    assert alice.post(edit, json={"path": "/workspace/e.txt", "old": "one", "new": "1"}).status_code == 204
    assert get(alice, session, "/workspace/e.txt").content == b"1 two two"
    for old in ("two", "three"):
        reply = alice.post(edit, json={"path": "/workspace/e.txt", "old": old, "new": "x"})
        assert (reply.status_code, reply.json()["code"]) == (422, "validation")


def test_an_upload_past_the_cap_is_refused(alice, session):
    reply = put(alice, session, "/workspace/large", bytes(51 << 20))
    assert (reply.status_code, reply.json()["code"]) == (413, "too_large")


def test_an_upload_must_be_octets(alice, session):
    reply = alice.put(f"/sessions/{session}/files/content", params={"path": "/workspace/a"}, json={})
    assert reply.status_code == 415


def test_a_listing_of_what_is_no_directory_is_refused(alice, session):
    put(alice, session, "/workspace/f", b"x")
    for directory, status in (("/workspace/f", 422), ("/workspace/none", 404), ("/etc", 422), ("a\\b", 422)):
        reply = alice.get(f"/sessions/{session}/files", params={"directory": directory})
        assert reply.status_code == status, directory


@pytest.mark.parametrize("name", ["%ff", "%ed%a0%80", "%c3%28", "ok%fe"])
def test_a_path_that_is_not_utf8_is_refused(alice, session, name):
    reply = alice.put(f"/sessions/{session}/files/content?path=/workspace/{name}", content=b"a", headers=OCTETS)
    assert (reply.status_code, reply.json()["code"]) == (400, "bad_request")
    assert "UTF-8" in reply.json()["detail"]
    assert alice.get(f"/sessions/{session}/files").json()["files"] == []
    assert alice.get(f"/sessions/{session}{name}").status_code == 400


def test_what_cannot_be_asked_for_is_told_beside_the_files(alice, session):
    code = "import os; [open(b'/workspace/' + name, 'w').close() for name in (b'a\\xff', b'b\\n', b'ok')]"
    ran = alice.post(f"/sessions/{session}/run", json={"code": code}).json()
    assert ran["meta"]["files"]["created"] == [r"/workspace/a\x1aff", r"/workspace/b\n", "/workspace/ok"]
    alice.post(f"/sessions/{session}/run", json={"code": "os.symlink('/etc', '/workspace/link')"})
    listed = alice.get(f"/sessions/{session}/files").json()
    assert [file["path"] for file in listed["files"]] == ["/workspace/ok"]
    why = "its name has control characters or bytes that are not UTF-8"
    assert listed["left_out"] == [
        {"path": r"/workspace/a\x1aff", "why": why},
        {"path": r"/workspace/b\n", "why": why},
        {"path": "/workspace/link", "why": "a symbolic link, which is never followed"},
    ]
    assert "left_out" not in alice.get(f"/sessions/{session}/files", params={"directory": "/tmp"}).json()


ODD = r"""
import os
for top in ('/workspace', '/tmp/output'):
    os.chdir(top)
    for name in (b'a\\b', b'..\\x', b'\\', b'a\nb', b'\xff', b'\x7f', b' x ', b'...', b'%2e%2e', b'ok'):
        open(name, 'w').close()
    open('none', 'w').close(); os.chmod('none', 0)
    open('private', 'w').close(); os.chmod('private', 0o600)
    for _ in range(8):
        os.mkdir('d' * 200); os.chdir('d' * 200); open('f', 'w').close()
"""


def test_each_file_that_is_listed_can_be_had_and_no_other(alice, session):
    ran = alice.post(f"/sessions/{session}/run", json={"code": ODD}).json()
    assert ran["stderr"] == ""
    for directory in ("/workspace", "/tmp/output"):
        listed = alice.get(f"/sessions/{session}/files", params={"directory": directory}).json()
        names = {file["path"].removeprefix(f"{directory}/") for file in listed["files"]}
        assert {name for name in names if "dd" not in name} == {" x ", "...", "%2e%2e", "ok", "private"}
        for file in listed["files"]:
            assert get(alice, session, file["path"]).status_code == 200, file
        for entry in listed["left_out"]:
            assert get(alice, session, entry["path"]).status_code in (404, 422), entry
        why = {entry["path"].removeprefix(f"{directory}/"): entry["why"] for entry in listed["left_out"]}
        assert {why.pop(name) for name in ("a\\b", "..\\x", "\\")} == {"its name has a backslash"}
        assert why.pop("none") == "a file that may not be opened"
        assert len(names) + len(listed["left_out"]) == 20
        if directory == "/tmp/output":
            assert [file["path"] for file in ran["files"]] == [file["path"] for file in listed["files"]]
            left_out = ran["meta"]["files_left_out"]
            assert {entry["path"] for entry in left_out} == {entry["path"] for entry in listed["left_out"]}


def test_a_file_whose_rights_are_gone_is_neither_deleted_nor_lost_to_who_replaces_it(alice, session):
    put(alice, session, "/workspace/f", b"old")
    ran = alice.post(f"/sessions/{session}/run", json={"code": "import os; os.chmod('f', 0)"}).json()
    assert ran["meta"]["files"] == {"created": [], "changed": ["/workspace/f"], "deleted": []}
    assert (get(alice, session, "/workspace/f").status_code, put(alice, session, "/workspace/f").status_code) == (
        422,
        200,
    )
    assert get(alice, session, "/workspace/f").content == b"0123456789"
    listed = alice.get(f"/sessions/{session}/files").json()
    assert ([file["path"] for file in listed["files"]], "left_out" in listed) == (["/workspace/f"], False)


def test_what_is_told_beside_the_files_is_bounded(alice, session):
    code = "import os; [os.symlink('x', f'/workspace/{number}') for number in range(150)]"
    alice.post(f"/sessions/{session}/run", json={"code": code})
    left_out = alice.get(f"/sessions/{session}/files").json()["left_out"]
    assert len(left_out) == 101
    assert left_out[-1] == {"path": "…", "why": "50 more"}


def test_a_directory_of_nothing_but_links_can_be_listed(alice, session):
    code = "import os; os.mkdir('d'); os.symlink('/etc', 'd/link'); os.symlink('d', 'link')"
    alice.post(f"/sessions/{session}/run", json={"code": code})
    listed = alice.get(f"/sessions/{session}/files", params={"directory": "/workspace/d"}).json()
    assert (listed["files"], [entry["path"] for entry in listed["left_out"]]) == ([], ["/workspace/d/link"])
    assert alice.get(f"/sessions/{session}/files", params={"directory": "/workspace/link"}).status_code == 422
