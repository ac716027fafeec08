from __future__ import annotations

import pytest

from fumehood import BadArgument, FileError
from fumehood.edits import MAX_BYTES, check, edited, occurrences, replace_once
from pace import AT_MOST, growth

NOT_FOUND = "old_string not found in /tmp/a: read the file, and copy the passage as it stands there"


def test_the_one_match_is_replaced_and_every_other_byte_stays():
    assert edited(b"a\r\nb = 3\r\n\tc \r", "b = 3", "b = 5", "/tmp/a") == b"a\r\nb = 5\r\n\tc \r"


def test_a_byte_order_mark_and_the_missing_last_newline_stay():
    assert edited("\ufeffx = 1".encode(), "1", "2", "/tmp/a") == "\ufeffx = 2".encode()


def test_the_replacement_may_hold_the_old_text_and_may_be_empty():
    assert replace_once("abc", "b", "bbb", "/tmp/a") == "abbbc"
    assert replace_once("abc", "b", "", "/tmp/a") == "ac"


@pytest.mark.parametrize(
    ("text", "old", "message"),
    [
        ("abc", "x", NOT_FOUND),
        ("abc", "ABC", NOT_FOUND),
        ("a\r\nb", "a\nb", NOT_FOUND),
        ("aba", "a", "old_string found 2 times - not unique. Include more context."),
        ("aaa", "aa", "old_string found 2 times - not unique. Include more context."),
        ("abababa", "aba", "old_string found 3 times - not unique. Include more context."),
        ("abc", "", "old_string is empty: must be a passage of the file"),
        ("", "", "old_string is empty: must be a passage of the file"),
    ],
)
def test_anything_but_one_match_is_an_error_in_the_documented_words(text, old, message):
    with pytest.raises(FileError) as caught:
        replace_once(text, old, "new", "/tmp/a")
    assert str(caught.value) == message


@pytest.mark.parametrize("data", [b"\xff\xfe", b"caf\xe9", b"\x80", b"PNG\0\0", b"\xed\xa0\x80"])
def test_a_binary_file_is_not_edited(data):
    with pytest.raises(FileError, match="Not a text file") as caught:
        edited(data, "a", "b", "/tmp/a")
    assert caught.value.kind == "not_text"


def test_the_result_may_have_five_megabytes_and_not_one_byte_more():
    base = b"x" * (MAX_BYTES - 1) + b"y"
    assert len(edited(base, "y", "z", "/tmp/a")) == MAX_BYTES
    with pytest.raises(FileError, match=f"{MAX_BYTES + 1} bytes, at most {MAX_BYTES}") as caught:
        edited(base, "y", "zz", "/tmp/a")
    assert caught.value.kind == "too_large"


@pytest.mark.parametrize(("old", "new"), [(None, "a"), ("a", 5), (b"a", "b"), ("a", "\ud800"), ("\udc00", "b")])
def test_what_is_no_text_is_a_bad_argument(old, new):
    with pytest.raises(BadArgument, match="_string"):
        check(old, new)


@pytest.mark.parametrize("unit", ["a", "ab", "aab"])
def test_counting_overlaps_of_a_long_repeating_string_takes_linear_time(unit):
    def count(size):
        text, old = unit * (size // len(unit)), unit * (size // 2 // len(unit))
        assert occurrences(text, old) == (len(text) - len(old)) // len(unit) + 1

    assert growth(count, 4_000) < AT_MOST


def test_the_two_ways_of_counting_agree():
    text = "abacabadabacaba" * 200
    for old in ("a", "aba", "abacaba", "abacabadabacaba" * 20):
        places = sum(text.startswith(old, at) for at in range(len(text)))
        assert occurrences(text, old) == places
