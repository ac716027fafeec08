from __future__ import annotations

import re

import pytest

from fumehood import redact
from fumehood.redact import MARK, Known, redact_env, redact_text
from pace import AT_MOST, growth

# Put together at run time, so that scanners of this repository find no credential.
LETTERS = "aB3dE5gH1jK7mN9pQ2sT4vW6yZ8cF0xL"
SECRETS = {
    "openai": "sk-proj-" + LETTERS,
    "anthropic": "sk-ant-" + "api03-" + LETTERS,
    "stripe": "sk_" + "live_" + LETTERS,
    "github": "ghp" + "_" + LETTERS + "abcd",
    "github fine-grained": "github" + "_pat_" + LETTERS + "_" + LETTERS,
    "gitlab": "glpat" + "-" + LETTERS,
    "aws": "AKIA" + "ABCDEFGH12345678",
    "slack": "xoxb" + "-123456789012-" + LETTERS,
    "google": "AIza" + LETTERS + "abc",
    "hugging face": "hf" + "_" + LETTERS,
    "npm": "npm" + "_" + LETTERS + "abcd",
    "pypi": "pypi" + "-" + LETTERS * 2,
    "e2b": "e2b" + "_" + "0123456789abcdef" * 3,
    "jwt": "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxIn0." + LETTERS,
}
BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7\n" * 4


def pem(kind="RSA "):
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{BODY}-----END {kind}PRIVATE KEY-----"


@pytest.mark.parametrize("around", ["{}", "key {} end", "k='{}'", '{{"a": "{}"}}', "url?x={}&y=1", "({})", "a\n{}\nb"])
def test_keys_of_well_known_vendors_are_taken_out_wherever_they_stand(around):
    for name, secret in SECRETS.items():
        text = redact_text(around.format(secret))
        assert secret not in text, name
        assert text == around.format(MARK), name


FURTHER = [
    "rk_" + "test_" + LETTERS,
    "glsoat" + "-" + LETTERS,
    "ASIA" + "ABCDEFGH12345678",
    "xapp" + "-1-" + LETTERS,
    "ya29" + "." + LETTERS,
    "ak" + "-" + LETTERS,
    "as" + "-" + LETTERS,
    "SG" + f".{LETTERS}.{LETTERS}",
]


def test_every_vendor_has_an_example_that_is_found():
    """A pattern alone finds nothing: its rule must know how it starts."""
    examples = [*SECRETS.values(), *FURTHER]
    for pattern in redact._VENDORS:
        mine = [example for example in examples if re.fullmatch(pattern, example)]
        assert mine, pattern
        assert [redact_text(example) for example in mine] == [MARK] * len(mine)


CREDENTIALS = [
    ("Authorization: Bearer abcdef0123456789abcdef", "abcdef0123456789abcdef"),
    ("authorization: basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
    ("postgresql://user:hunter2@db.example/x", "hunter2"),
    ("redis://:hunter2@cache:6379/0", "hunter2"),
    ("DB_PASSWORD=hunter22", "hunter22"),
    ("password: hunter22", "hunter22"),
    ("password = 'correct-horse'", "correct-horse"),
    ('password: str = "correct-horse"', "correct-horse"),
    ('{"password": "correcthorse"}', "correcthorse"),
    ('{\\"password\\": \\"correcthorse\\"}', "correcthorse"),
    ('api_key = "abcdefgh"', "abcdefgh"),
    ("api-key: 0123456789", "0123456789"),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfi", "wJalrXUtnFEMI"),
    ("token: abcdef0123", "abcdef0123"),
    ('token="abcdef0123"', "abcdef0123"),
    ("cmd --token abcdef0123 run", "abcdef0123"),
    ("Server=x;UID=sa;PWD=hunter22;", "hunter22"),
    ("client_secret='zzzzzzzz'", "zzzzzzzz"),
]


def test_credentials_in_urls_headers_and_assignments_are_taken_out():
    for text, secret in CREDENTIALS:
        assert secret in text
        assert secret not in redact_text(text)
        assert MARK in redact_text(text), text


ORDINARY = [
    "token = tokenizer.next_token()",
    "password = input('Password: ')",
    "password=password",
    "connect(password=args.password)",
    "max_tokens: 100000",
    "token_count = 1234567",
    '{"token": "hello", "id": 5}',
    "tokens = line2.split()",
    "token = lines2[0]",
    "token = os.environ['TOKEN_1234']",
    "PWD=/work/main2/src",
    "api_key = '${API_KEY}'",
    "password: '<your password>'",
    "sk-toggleable__content-arrow-container",
    "task-0123456789ABCDEFabcdef0123",
    "https://example.com:8080/a@b",
    "http://localhost:8080/path",
    "user@example.com",
    "the bearer of this letter is honest",
    "0123456789abcdef0123456789abcdef01234567",
    "if '-----BEGIN PUBLIC KEY-----' in text:",
    "def secret(): pass",
    "eyJust a word",
    "",
]


def test_ordinary_code_and_text_stay_as_they_are():
    assert [redact_text(text) for text in ORDINARY] == ORDINARY


def test_private_keys_are_taken_out_whole():
    for kind in ("", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "):
        assert redact_text(f"a\n{pem(kind)}\nb\n{pem(kind)}\nc") == f"a\n{MARK}\nb\n{MARK}\nc"


def test_a_private_key_that_was_cut_off_is_taken_out_as_far_as_it_goes():
    assert redact_text("a " + pem()[:150]) == f"a {MARK}"
    assert redact_text(pem()[:150] + "\n... (output truncated)") == f"{MARK}... (output truncated)"


def test_a_program_that_only_mentions_a_private_key_keeps_its_rest():
    code = 'if "-----BEGIN PRIVATE KEY-----" in text:\n    found()\n'
    assert redact_text(code) == f'if "{MARK}" in text:\n    found()\n'


def test_values_passed_as_extra_are_taken_out_wherever_they_appear():
    assert redact_text("x=swordfish, swordfish2", extra=["swordfish"]) == f"x={MARK}, {MARK}2"
    assert redact_text("ab swordfish-long", extra=["swordfish", "swordfish-long"]) == f"ab {MARK}"


def test_an_extra_value_is_also_found_as_repr_writes_it():
    assert redact_text(repr({"K": "line1\nline2"}), extra=["line1\nline2"]) == f"{{'K': '{MARK}'}}"


def test_short_extra_values_do_not_take_words_out_of_the_text():
    assert redact_text("1 true local", extra=["1", "true", "local", ""]) == "1 true local"


def test_an_extra_value_inside_the_mark_does_not_grow_it():
    assert redact_text(f"a {MARK}", extra=["redacted"]) == f"a {MARK}"


def test_the_environment_keeps_its_names_only():
    assert redact_env({"A": "1", "TOKEN": "x"}) == {"A": MARK, "TOKEN": MARK}


WORDS = """password passwd token secret api_key ;pwd --token bearer authorization basic :// user : @ = == str eyJ sk-
    ' " \\ , [ ] ( ) { } a 7 - _ ."""
PIECES = [
    *SECRETS.values(),
    pem(),
    "-----BEGIN PRIVATE KEY-----",
    "-----END PRIVATE KEY-----",
    *WORDS.split(),
    " ",
    "\n",
    "hunter22",
    MARK,
]


def check_that_redacting_twice_changes_nothing_more(texts, max_examples):
    from hypothesis import HealthCheck, given, settings

    # A slow machine is no finding.
    @settings(deadline=None, max_examples=max_examples, suppress_health_check=[HealthCheck.too_slow], database=None)
    @given(texts)
    def check(text):
        once = redact_text(text)
        assert redact_text(once) == once

    check()


@pytest.mark.parametrize("count", [120, pytest.param(4000, marks=pytest.mark.soak)])
def test_redacting_twice_changes_nothing_more(count):
    from hypothesis import strategies as st

    check_that_redacting_twice_changes_nothing_more(st.lists(st.sampled_from(PIECES), max_size=25).map("".join), count)


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.soak)])
def test_any_text_is_taken(count):
    from hypothesis import strategies as st

    check_that_redacting_twice_changes_nothing_more(st.text(), count)


ADVERSARIAL = [
    "eyJ",
    "eyJa",
    "eyJaaaaaaaaaaaaa.",
    "sk-",
    "sk-a",
    "-",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----(",
    "-----BEGIN RSA ",
    "-----BEGIN PRIVATE KEY-----!-----END ",
    "://",
    "://a:",
    "://a:b",
    "password=",
    "password='",
    'password="a',
    "password = ",
    "password: str = ",
    "token=aaaaaaa",
    "token=a1bcdef",
    "token='aaaaaaaaaaa",
    "secret_access_",
    "--token ",
    "bearer ",
    "Bearer a.",
    "authorization ",
    "\\",
    '\\"',
    " ",
    "a",
    "A1",
    "SG.aaaaaaaaaaaaaaaaaaaa.",
    "ghp_",
    "xoxb-",
]


@pytest.mark.parametrize("size", [8_000, pytest.param(125_000, marks=pytest.mark.soak)])
def test_adversarial_text_takes_linear_time(size):
    """Up to `pace.TIMES` this size: in the long form, a megabyte."""
    for piece in ADVERSARIAL:

        def redact(size, piece=piece):
            text = piece * (size // len(piece))
            redact_text(text)
            redact_text("password='" + text)
            redact_text(text + "(")

        assert growth(redact, size) < AT_MOST, piece


def test_a_quadratic_pattern_would_be_found():
    assert growth(lambda size: re.sub("a+!", "", "a" * size), 1_000) > AT_MOST


class Watched:
    """A start that notes how much of a text each search may look at."""

    def __init__(self, start):
        self._start = start
        self.looked = []

    def search(self, text, at, end):
        self.looked.append(min(end, len(text)) - at)
        return self._start.search(text, at, end)


def test_no_search_looks_at_more_than_a_piece_of_the_text(monkeypatch):
    rules = [rule._replace(start=Watched(rule.start)) for rule in redact._RULES]
    monkeypatch.setattr(redact, "_RULES", rules)
    text = "x" * 300_000 + " :// key token bearer gh "
    redact_text(text)
    for rule in rules:
        assert rule.start.looked
        assert max(rule.start.looked) <= redact._STEP + redact._REACH


@pytest.mark.parametrize("shift", range(-40, 8))
def test_a_secret_across_two_pieces_is_found(shift):
    for text, secret in [*CREDENTIALS, *((f" {secret} ", secret) for secret in SECRETS.values())]:
        assert secret not in redact_text("." * (redact._STEP + shift) + "\n" + text)


def test_letters_that_look_alike_to_a_pattern_are_found_too():
    assert redact_text("PA\u017f\u017fWORD=hunter22 \u0130") == f"PA\u017f\u017fWORD={MARK} \u0130"
    assert redact_text("ap\u0131_\u212aey = 'abcdefgh'") == f"ap\u0131_\u212aey = '{MARK}'"


# What a run has met


def test_every_kind_of_secret_is_remembered_without_what_stands_around_it():
    known = Known()
    key = "sk-" + "aB3" * 12
    text = f"{key} https://me:hunter2@host 'Authorization: Bearer abcdefgh12345678' token=abc12345"
    text += " api_key = 'open-sesame'"
    redact_text(text, known=known)
    assert set(known.found) == {key, "hunter2", "abcdefgh12345678", "open-sesame", "abc12345"}
    assert known.scrub(f"x{key}y hunter2") == f"x{MARK}y {MARK}"


def test_a_mark_is_no_secret_and_short_or_endless_values_are_not_remembered():
    known = Known()
    redact_text(f"password='{MARK}' password='abcde' sk-{'aB3' * 2000}", known=known)
    assert known.found == []


def test_a_remembered_word_does_not_hide_the_names_that_patterns_look_for():
    known = Known()
    redact_text("password = 'password'", known=known)
    assert "hunter2x" not in redact_text("password = 'hunter2x'", known=known)


def test_of_too_many_the_oldest_are_forgotten_and_given_ones_stand_apart():
    known = Known()
    known.give(["given-value"])
    for number in range(300):
        known.learn(f"secret-{number:03}")
    assert known.given == ["given-value"]
    assert (len(known.found), known.found[0]) == (200, "secret-100")
