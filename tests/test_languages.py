from __future__ import annotations

import pytest

from fumehood.errors import BadArgument, LanguageNotAllowed
from fumehood.languages import LANGUAGES, NAMES, resolve


def test_every_language_resolves_by_its_name_and_aliases():
    for language in LANGUAGES:
        for name in (language.name, *language.aliases, language.name.upper(), f" {language.name} "):
            assert resolve(name, NAMES) is language


def test_no_two_languages_share_a_name():
    names = [name for language in LANGUAGES for name in (language.name, *language.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("alias", "name"), [("py", "python"), ("js", "javascript"), ("node", "javascript"), ("sh", "bash")]
)
def test_aliases_are_the_documented_ones(alias, name):
    assert resolve(alias, [name]).name == name


def test_the_command_runs_the_script_from_its_file_with_the_arguments():
    assert resolve("python", ["python"]).command(b"print(1)", ["a", "b"]) == (
        ("python", "main.py", "a", "b"),
        b"print(1)",
    )
    assert resolve("js", ["javascript"]).command(b"1") == (("node", "main.js"), b"1")


def test_a_known_language_that_is_not_allowed_says_how_to_allow_it():
    with pytest.raises(LanguageNotAllowed, match="SANDBOX_SUPPORTED_LANGUAGES=python,bash"):
        resolve("sh", ["python"])


def test_an_unknown_language_names_the_known_ones_and_the_setting():
    with pytest.raises(LanguageNotAllowed, match=r"'cobol'.*python, javascript, bash.*SANDBOX_SUPPORTED_LANGUAGES"):
        resolve("cobol", NAMES)


def test_the_allow_list_may_use_aliases():
    assert resolve("javascript", ["js"]).name == "javascript"


@pytest.mark.parametrize("name", [None, 3, b"python"])
def test_a_language_that_is_not_text_is_a_bad_argument(name):
    with pytest.raises(BadArgument, match="language must be a name"):
        resolve(name, NAMES)


@pytest.mark.parametrize(
    "name", ["", "\0", "python\n;rm", "x" * 100_000, "\ud800", "../python"], ids=lambda name: repr(name)[:20]
)
def test_hostile_names_are_refused_briefly(name):
    with pytest.raises(LanguageNotAllowed) as caught:
        resolve(name, NAMES)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()
