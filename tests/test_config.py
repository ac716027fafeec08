from __future__ import annotations

import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from fumehood import config
from fumehood.config import DEFAULTS, FIELDS, Settings, clamp_timeout, load, rows, with_overrides
from fumehood.errors import BadArgument, ConfigurationError
from fumehood.types import Limits
from pace import calls

DOCS = Path(__file__).parent.parent / "docs" / "configuration.md"


def short(value):
    return config.v.shown(value)[:30]


@pytest.fixture
def place(tmp_path):
    """A home with the user's file and a working directory with the one an agent could plant."""

    class Place:
        home = tmp_path / "home"
        cwd = tmp_path / "cwd"
        user = home / ".config" / "fumehood" / "config.yaml"
        planted = cwd / "fumehood.yaml"

        def load(self, overrides=None, env_file=None, **environ):
            return load(overrides, environ={"HOME": str(self.home), **environ}, cwd=self.cwd, env_file=env_file)

    Place.user.parent.mkdir(parents=True)
    Place.cwd.mkdir()
    return Place()


def refusal_of(case, call, *args, kind=ConfigurationError):
    try:
        call(*args)
    except kind as error:
        return str(error)
    return pytest.fail(f"accepted: {short(case)}")


# --- the table ---


def test_the_table_and_the_settings_have_the_same_fields_in_the_same_order():
    assert [field.name for field in FIELDS] == list(DEFAULTS)


def test_every_default_survives_being_written_and_parsed():
    loaded = load(environ={}, cwd=Path("/nonexistent"))
    for field, row in zip(FIELDS, rows(loaded), strict=True):
        assert field.parse(row[2]) == field.default, field.name
        assert field.parse(field.default) == field.default, field.name


def test_nothing_set_gives_the_defaults():
    loaded = load(environ={}, cwd=Path("/nonexistent"))
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}


def test_environment_names_are_the_documented_ones():
    names = {field.name: field.env_name for field in FIELDS}
    assert names["type"] == "SANDBOX_TYPE"
    assert names["timeout_sec"] == "SANDBOX_TIMEOUT_SEC"
    assert names["docker_image"] == "DOCKER_IMAGE"


def test_the_documentation_lists_exactly_the_settings_with_their_defaults_and_meanings():
    table = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", DOCS.read_text("utf-8"), re.M)
    shown = rows(load(environ={}, cwd=Path("/nonexistent")))
    assert [(name, env, default.strip("`"), meaning) for name, env, default, meaning, _ in table] == [
        (name, env, value, description) for name, env, value, _, description in shown
    ]


def test_the_documentation_says_what_the_file_in_the_working_directory_may_do():
    words = {
        "NEVER": "refused",
        "LOWER": "lower",
        "LOWER_SIZE": "lower",
        "LOWER_THAN_TIMEOUT": "lower",
        "LOWER_OR_NONE": "lower",
        "OFF": "only false",
        "ON": "only true",
        "SUBSET": "fewer",
        "SUBSET_OR_ALL": "fewer",
        "SUPERSET": "more",
    }
    by_rule = {getattr(config.v, name): word for name, word in words.items()}
    table = re.findall(r"^\| `(\w+)` \| `\w+` \| .*? \| .*? \| (.*?) \|$", DOCS.read_text("utf-8"), re.M)
    assert dict(table) == {field.name: by_rule.get(field.narrows, "stricter") for field in FIELDS}


def test_limits_are_in_bytes():
    settings = Settings(memory_mb=20, file_mb=3, disk_mb=4, cpu_sec=5, processes=6, open_files=17, inodes=8)
    mib = 1024 * 1024
    assert settings.limits() == Limits(20 * mib, 5, 6, 17, 3 * mib, 4 * mib, 8)
    assert Settings().limits() == Limits()
    least = Settings(memory_mb=1, open_files=1).limits()
    assert (least.memory_bytes, least.open_files) == (8 * mib, 16)  # with less nothing starts


# --- the order of sources ---


def test_each_source_wins_over_the_one_before(place):
    place.user.write_text("memory_mb: 900\nprocesses: 90\nopen_files: 80\ninodes: 70\n", "utf-8")
    place.planted.write_text("memory_mb: 800\nprocesses: 50\nopen_files: 60\n", "utf-8")
    loaded = place.load({"memory_mb": 600}, SANDBOX_MEMORY_MB="700", SANDBOX_PROCESSES="40")
    s = loaded.settings
    assert (s.memory_mb, s.processes, s.open_files, s.inodes, s.disk_mb) == (600, 40, 60, 70, 512)
    assert loaded.origins["memory_mb"] == "argument memory_mb"
    assert loaded.origins["processes"] == "environment SANDBOX_PROCESSES"
    assert loaded.origins["open_files"] == "./fumehood.yaml"
    assert loaded.origins["inodes"] == str(place.user)
    assert loaded.origins["disk_mb"] == "default"


def test_xdg_config_home_is_used_when_absolute_and_ignored_when_relative(place, tmp_path):
    other = tmp_path / "xdg" / "fumehood" / "config.yaml"
    other.parent.mkdir(parents=True)
    other.write_text("inodes: 5", "utf-8")
    place.user.write_text("inodes: 6", "utf-8")
    assert place.load(XDG_CONFIG_HOME=str(tmp_path / "xdg")).settings.inodes == 5
    assert place.load(XDG_CONFIG_HOME="xdg").settings.inodes == 6


def test_yaml_keys_may_be_spelled_like_environment_variables(place):
    place.user.write_text("SANDBOX_MEMORY_MB: 77\nDOCKER_IMAGE: x:1\n", "utf-8")
    assert place.load().settings.memory_mb == 77
    assert place.load().settings.docker_image == "x:1"


def test_an_env_file_counts_only_when_named_and_loses_to_the_real_environment(place, tmp_path):
    env_file = tmp_path / "prod.env"
    env_file.write_text(
        "# comment\n\nexport SANDBOX_MEMORY_MB=64 # small\nSANDBOX_PROCESSES='9'\n"
        'SANDBOX_TYPE="docker" # quoted\nSANDBOX_INODES=\nOTHER=1\nDOCKER_CONFIG=/x\n',
        "utf-8",
    )
    (place.cwd / ".env").write_text("SANDBOX_MEMORY_MB=1", "utf-8")
    assert place.load().settings.memory_mb == 1024
    loaded = place.load(env_file=env_file, SANDBOX_PROCESSES="8")
    assert (loaded.settings.memory_mb, loaded.settings.processes, loaded.settings.type) == (64, 8, "docker")
    assert loaded.settings.inodes == 16384
    assert loaded.origins["memory_mb"] == f"{env_file} SANDBOX_MEMORY_MB"
    assert loaded.origins["processes"] == "environment SANDBOX_PROCESSES"


@pytest.mark.parametrize("line", ["SANDBOX_TYPE", "=x", "A B=1", "SANDBOX_TYPE='open", "SANDBOX_TYPE='a'b"])
def test_a_line_that_an_env_file_cannot_have_is_named(place, tmp_path, line):
    env_file = tmp_path / "x.env"
    env_file.write_text("A=1\n" + line, "utf-8")
    with pytest.raises(ConfigurationError, match=r"x\.env, line 2"):
        place.load(env_file=env_file)


def test_an_env_file_that_is_missing_is_an_error(place, tmp_path):
    with pytest.raises(ConfigurationError, match="does not exist"):
        place.load(env_file=tmp_path / "no.env")


def test_the_process_environment_is_read_when_none_is_given(monkeypatch):
    monkeypatch.setenv("SANDBOX_MEMORY_MB", "321")
    assert load().settings.memory_mb == 321
    assert load(environ={}).settings.memory_mb == 1024


def test_empty_environment_variables_count_as_unset(place):
    assert place.load(SANDBOX_MEMORY_MB="", SANDBOX_TYPE=" ", SANDBOX_UNKNOWN="").settings == Settings()


def test_none_as_an_argument_means_not_given(place):
    assert place.load({"type": None, "require": None}, SANDBOX_TYPE="docker").settings.type == "docker"


def test_none_as_text_unsets_what_a_weaker_source_set(place):
    place.user.write_text("fallback: local\ncpu_sec: 4\ndangerous_imports: [os]\n", "utf-8")
    s = place.load({"fallback": "none"}, SANDBOX_CPU_SEC="none", SANDBOX_DANGEROUS_IMPORTS="none").settings
    assert (s.fallback, s.cpu_sec, s.dangerous_imports) == (None, None, ())


@pytest.mark.parametrize("name", ["allowed_commands", "allowed_packages"])
def test_an_empty_list_of_what_is_allowed_means_none_and_an_unset_one_the_default(place, name):
    variable = f"SANDBOX_{name.upper()}"
    assert getattr(place.load(**{variable: ""}).settings, name) == ()
    assert getattr(place.load(**{variable: "  "}).settings, name) == ()
    assert place.load(**{variable: ""}).origins[name] == f"environment {variable}"
    assert getattr(place.load().settings, name) == DEFAULTS[name] != ()
    assert getattr(place.load(**{variable: "*"}).settings, name) == ("*",)


def test_overrides_on_top_of_loaded_settings_leave_the_others_alone(place):
    first = place.load(SANDBOX_MEMORY_MB="64")
    second = with_overrides(first, {"processes": 3})
    assert (second.settings.memory_mb, second.settings.processes) == (64, 3)
    assert second.origins["processes"] == "argument processes"
    assert (first.settings.processes, first.origins["processes"]) == (256, "default")


# --- names and values ---


@pytest.mark.parametrize(
    ("environ", "close"),
    [({"SANDBOX_MEMROY_MB": "5"}, "SANDBOX_MEMORY_MB"), ({"SANDBOX_TIMEOUT": "5"}, "SANDBOX_TIMEOUT_SEC")],
)
def test_an_unknown_environment_variable_is_an_error_with_a_close_match(place, environ, close):
    with pytest.raises(ConfigurationError, match=rf"{next(iter(environ))}.*environment.*Did you mean {close}\?"):
        place.load(**environ)


def test_environment_variables_of_others_are_left_alone(place):
    assert place.load(DOCKER_CONFIG="x", DOCKER_CPU="9", MY_SANDBOX_X="1").settings == Settings()


def test_a_containers_memory_bounds_what_programs_get_in_it(place):
    small = place.load(SANDBOX_TYPE="docker").settings.limits()
    assert (small.memory_bytes, small.disk_bytes) == (256 * 2**20, 128 * 2**20)
    large = place.load(SANDBOX_TYPE="docker", DOCKER_MEMORY_LIMIT="8g").settings.limits()
    assert large == place.load().settings.limits()


def test_docker_is_found_where_its_own_variables_say(place):
    settings = place.load(DOCKER_HOST="unix:///x", DOCKER_CONTEXT="far", DOCKER_RUNTIME="runsc").settings
    assert (settings.docker_host, settings.docker_context, settings.docker_runtime) == ("unix:///x", "far", "runsc")


def test_unknown_arguments_and_yaml_keys_are_errors_with_a_close_match(place):
    with pytest.raises(ConfigurationError, match=r"'memory' \(from argument\).*memory_mb"):
        place.load({"memory": 5})
    place.user.write_text("netwrk: false", "utf-8")
    with pytest.raises(ConfigurationError, match=r"'netwrk' \(from .*config\.yaml\).*Did you mean network\?"):
        place.load()


@pytest.mark.parametrize(
    "text", ["1: 2", "null: 1", "[a]: 1", "? {a: 1}\n: 2", "- a", "text", "true: 1", "2020-01-01: 1"]
)
def test_yaml_that_is_not_settings_is_an_error_that_names_the_file(place, text):
    place.planted.write_text(text, "utf-8")
    with pytest.raises(ConfigurationError, match=r"\./fumehood\.yaml"):
        place.load()


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "{}"])
def test_an_empty_file_sets_nothing(place, text):
    place.planted.write_text(text, "utf-8")
    assert place.load().settings == Settings()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("1", True),
        ("YES", True),
        (" on ", True),
        ("false", False),
        ("0", False),
        ("No", False),
        ("off", False),
    ],
)
def test_booleans_are_written_in_many_ways(place, text, value):
    assert place.load(SANDBOX_NETWORK=text).settings.network is value


def test_lists_are_separated_by_commas_or_given_as_lists(place):
    s = place.load({"preload": ["numpy", "polars"]}, SANDBOX_SUPPORTED_LANGUAGES="python, js ,,bash,py").settings
    assert s.supported_languages == ("python", "javascript", "bash")
    assert s.preload == ("numpy", "polars")


BAD_VALUES = [
    ("network", "maybe"),
    ("network", 2),
    ("memory_mb", "lots"),
    ("memory_mb", "0"),
    ("memory_mb", "-1"),
    ("memory_mb", "1_000"),
    ("memory_mb", "٣"),
    ("memory_mb", "1.5"),
    ("memory_mb", 1.5),
    ("memory_mb", True),
    ("memory_mb", 2**31),
    ("memory_mb", "9" * 5000),
    ("memory_mb", 10**5000),
    ("timeout_sec", "nan"),
    ("timeout_sec", "inf"),
    ("timeout_sec", float("nan")),
    ("timeout_sec", "0"),
    ("timeout_sec", "-3"),
    ("timeout_sec", "soon"),
    ("timeout_sec", [3]),
    ("isolation", "seal"),
    ("require", "auto"),
    ("store_code", "sometimes"),
    ("supported_languages", "python,cobol"),
    ("supported_languages", ["python", 3]),
    ("supported_languages", []),
    ("dangerous_imports", "os,rm -rf"),
    ("preload", "a..b"),
    ("type", "../x"),
    ("type", "x" * 65),
    ("artifacts_dir", "a\0b"),
    ("artifacts_dir", "  "),
    ("docker_image", "a\nb"),
    ("docker_memory_limit", "0"),
    ("docker_memory_limit", "m"),
    ("docker_memory_limit", "-1m"),
    ("docker_memory_limit", "1.5g"),
    ("docker_cpu_limit", "0"),
]


def test_a_bad_value_is_an_error_that_names_setting_and_origin_and_stays_short(place):
    for name, value in BAD_VALUES:
        message = refusal_of((name, value), place.load, {name: value})
        assert re.search(rf"{name} = .*from argument {name}.*expected", message), (name, short(value))
        assert len(message) < 400
        assert message.isprintable()


def test_a_bad_choice_has_a_close_match(place):
    with pytest.raises(
        ConfigurationError, match=r"SANDBOX_ISOLATION.*auto, process, confined, sealed.*did you mean sealed"
    ):
        place.load(SANDBOX_ISOLATION="saeled")


def test_a_timeout_above_its_ceiling_is_an_error_that_names_both(place):
    with pytest.raises(
        ConfigurationError, match=r"timeout_sec = 400 .*SANDBOX_TIMEOUT_SEC.*max_timeout_sec = 300 .*default"
    ):
        place.load(SANDBOX_TIMEOUT_SEC="400")
    assert place.load(SANDBOX_TIMEOUT_SEC="400", SANDBOX_MAX_TIMEOUT_SEC="400").settings.timeout_sec == 400


# --- the file that an agent could have planted ---

NARROWING = [
    ("memory_mb", "10"),
    ("timeout_sec", "5"),
    ("max_timeout_sec", "100"),
    ("max_output_kb", "1"),
    ("output_kill_mb", "1"),
    ("cpu_sec", "3"),
    ("processes", "5"),
    ("open_files", "50"),
    ("file_mb", "5"),
    ("disk_mb", "5"),
    ("inodes", "5"),
    ("isolation", "sealed"),
    ("require", "confined"),
    ("block_dangerous_imports", "true"),
    ("dangerous_imports", "[os, subprocess, shutil, socket, ctypes]"),
    ("store_code", "always"),
    ("docker_cpu_limit", "0.1"),
    ("docker_memory_limit", "128m"),
    ("session_idle_sec", "60"),
    ("session_max_sec", "600"),
    ("session_busy", "refuse"),
    ("session_max_calls", "5"),
    ("session_max_cpu_sec", "5"),
    ("session_max_wall_sec", "5"),
    ("session_max_output_mb", "5"),
    ("start_retries", "0"),
    ("allowed_commands", "[python, ls]"),
    ("allowed_commands", "[]"),
    ("allowed_packages", "[numpy, polars]"),
    ("allowed_packages", "[]"),
    ("packages_mb", "100"),
    ("packages_files", "100"),
    ("type", "local"),  # the same as below changes nothing
    ("network", "false"),
]
WEAKENING = [
    ("type", "fake"),
    ("fallback", "local"),
    ("isolation", "process"),
    ("isolation", "confined"),
    ("network", "true"),
    ("supported_languages", "[python, bash]"),
    ("timeout_sec", "31"),
    ("max_timeout_sec", "301"),
    ("max_output_kb", "11"),
    ("output_kill_mb", "1025"),
    ("memory_mb", "1025"),
    ("cpu_sec", "31"),
    ("processes", "257"),
    ("open_files", "1025"),
    ("file_mb", "257"),
    ("disk_mb", "513"),
    ("inodes", "16385"),
    ("dangerous_imports", "[os]"),
    ("store_code", "never"),
    ("artifacts_dir", "/dev/shm/x"),
    ("store_max_mb", "1"),
    ("store_max_mb", "100000"),
    ("warm_cells", "5"),
    ("preload", "[evil]"),
    ("session_idle_sec", "901"),
    ("session_max_sec", "86401"),
    ("start_retries", "3"),
    ("start_failure", "skip"),
    ("output_dir", "/dev/shm/x"),
    ("tools_dir", "tools"),
    ("allowed_commands", "[python, nsenter]"),
    ("allowed_commands", "['*']"),
    ("allowed_commands", "[python *]"),
    ("wheelhouse", "wheels"),
    ("packages_dir", "packages"),
    ("packages_mb", "2049"),
    ("packages_files", "100001"),
    ("docker_host", "tcp://evil:2375"),
    ("docker_context", "evil"),
    ("docker_tls_verify", "true"),
    ("docker_cert_path", "/evil"),
    ("docker_runtime", "weak"),
    ("docker_image", "evil:latest"),
    ("docker_network_enabled", "true"),
    ("docker_cpu_limit", "8"),
    ("docker_memory_limit", "1g"),
    ("remote_url", "https://evil:8080"),
    ("remote_token", "evil"),
    ("remote_token_file", "/evil"),
    ("remote_cleartext", "true"),
]


def test_the_planted_file_may_narrow(place):
    for name, value in NARROWING:
        place.planted.write_text(f"{name}: {value}\n", "utf-8")
        loaded = place.load()
        field = next(field for field in FIELDS if field.name == name)
        got = getattr(loaded.settings, name)
        assert got == field.parse(value.strip("[]")), name
        assert loaded.origins[name] == ("default" if got == field.default else "./fumehood.yaml")


def test_the_planted_file_may_not_weaken(place):
    for name, value in WEAKENING:
        place.planted.write_text(f"{name}: {value}\n", "utf-8")
        message = refusal_of((name, value), place.load)
        old = config.v.written(DEFAULTS[name])
        assert f"./fumehood.yaml may not change {name} from {old} (from default) to" in message, (name, value)
        assert "there" in message
        assert "never weaken" in message


AGAINST_THE_USERS_FILE = [
    ("require: sealed", "require: confined", False),
    ("require: sealed", "require: null", False),
    ("require: process", "require: sealed", True),
    ("block_dangerous_imports: true", "block_dangerous_imports: false", False),
    ("session_busy: refuse", "session_busy: queue", False),
    ("session_max_calls: 5", "session_max_calls: 6", False),
    ("session_max_calls: 5", "session_max_calls: null", False),
    ("session_max_calls: 5", "session_max_calls: 4", True),
    ("session_max_cpu_sec: 5", "session_max_cpu_sec: 5.1", False),
    ("session_max_cpu_sec: 5", "session_max_cpu_sec: none", False),
    ("session_max_wall_sec: 5", "session_max_wall_sec: 6", False),
    ("session_max_wall_sec: 5", "session_max_wall_sec: null", False),
    ("session_max_output_mb: 5", "session_max_output_mb: 6", False),
    ("session_max_output_mb: 5", "session_max_output_mb: null", False),
    ("allowed_packages: [numpy]", "allowed_packages: [numpy, evil]", False),
    ("allowed_packages: [numpy]", "allowed_packages: ['*']", False),
    ("allowed_packages: []", "allowed_packages: [numpy]", False),
    ("allowed_packages: [numpy, six]", "allowed_packages: [six]", True),
    ("source_packages: [numpy]", "source_packages: [numpy, evil]", False),
    ("source_packages: [numpy, six]", "source_packages: [six]", True),
    ("source_packages: []", "source_packages: [six]", False),
    ("allowed_commands: ['*']", "allowed_commands: [ls]", True),
    ("allowed_commands: []", "allowed_commands: [ls]", False),
    ("isolation: process", "isolation: confined", True),
    ("isolation: process", "isolation: auto", True),
    ("isolation: confined", "isolation: auto", False),
    ("isolation: sealed", "isolation: auto", False),
    ("isolation: confined", "isolation: sealed", True),
    ("network: true", "network: false", True),
    ("memory_mb: 100", "memory_mb: 101", False),
    ("memory_mb: 4000", "memory_mb: 3000", True),
    ("cpu_sec: 100", "cpu_sec: 90", True),
    ("cpu_sec: 3", "cpu_sec: null", False),
    ("cpu_sec: 3", "cpu_sec: 4", False),
    ("store_code: always", "store_code: on_error", False),
    ("supported_languages: [python, bash]", "supported_languages: [bash]", True),
    ("docker_memory_limit: 1024k", "docker_memory_limit: 1m", True),
    ("docker_memory_limit: 1024k", "docker_memory_limit: 2m", False),
    ("type: docker", "type: local", False),
    ("preload: [numpy]", "preload: []", False),
]


def test_the_planted_file_is_measured_against_the_users_file(place):
    for user, planted, accepted in AGAINST_THE_USERS_FILE:
        place.user.write_text(user, "utf-8")
        place.planted.write_text(planted, "utf-8")
        if accepted:
            assert "./fumehood.yaml" in place.load().origins.values(), (user, planted)
        else:
            message = refusal_of((user, planted), place.load)
            assert re.search(rf"may not change.*{re.escape(str(place.user))}", message), (user, planted)


def test_every_setting_has_a_case_in_which_the_planted_file_is_refused():
    # Some have the weakest value as their default: only a stricter one of the user's can be weakened.
    stricter = {user.partition(":")[0] for user, _, accepted in AGAINST_THE_USERS_FILE if not accepted}
    assert {name for name, _ in WEAKENING} | stricter == set(DEFAULTS)


def test_the_planted_file_cannot_use_the_environment_to_weaken_by_spelling(place):
    place.planted.write_text("SANDBOX_NETWORK: true", "utf-8")
    with pytest.raises(ConfigurationError, match="may only be switched off"):
        place.load()
    place.planted.write_text("network: false\nSANDBOX_NETWORK: true", "utf-8")
    with pytest.raises(ConfigurationError, match="twice"):
        place.load()
    place.planted.write_text("network: false\nnetwork: true", "utf-8")
    with pytest.raises(ConfigurationError, match="twice"):
        place.load()


def test_the_environment_may_go_beyond_the_planted_file(place):
    place.planted.write_text("memory_mb: 10", "utf-8")
    assert place.load(SANDBOX_MEMORY_MB="4096").settings.memory_mb == 4096


def test_a_planted_link_fifo_or_directory_is_refused_without_waiting(place, tmp_path):
    (tmp_path / "elsewhere.yaml").write_text("memory_mb: 5", "utf-8")
    place.planted.symlink_to(tmp_path / "elsewhere.yaml")
    with pytest.raises(ConfigurationError, match="symbolic link"):
        place.load()
    place.planted.unlink()
    os.mkfifo(place.planted)
    with pytest.raises(ConfigurationError, match="not a regular file"):
        place.load()
    place.planted.unlink()
    place.planted.mkdir()
    with pytest.raises(ConfigurationError, match="not a regular file"):
        place.load()


def test_the_users_own_file_may_be_a_link(place, tmp_path):
    (tmp_path / "dotfiles.yaml").write_text("memory_mb: 5", "utf-8")
    place.user.symlink_to(tmp_path / "dotfiles.yaml")
    assert place.load().settings.memory_mb == 5


HOSTILE_FILES = [
    (b"a" * 70_000, "larger than 64 KiB"),
    (b"memory_mb: 5\n" + b"#" * 70_000, "larger than 64 KiB"),
    (b"\xff\xfe\x00", "not UTF-8"),
    (b"memory_mb: &a 5\nprocesses: *a", "anchors or aliases"),
    (b"a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]", "anchors or aliases"),
    (b"preload: [[[a]]]", "nested too deeply"),
    (b"[" * 60_000, "nested too deeply"),
    (b"{a: " * 15_000, "nested too deeply"),
    (b"memory_mb: [", "not valid YAML"),
    (b"memory_mb: 5\n---\nmemory_mb: 6", "not valid YAML"),
    (b"memory_mb: !!python/object/apply:os.system [id]", "not valid YAML"),
    (b"memory_mb: " + b"9" * 6000, "cannot be read|expected"),
    (b"memory_mb: 2020-99-99", "cannot be read"),
    (b"memory_mb: \x1b[31m", "not valid YAML"),
    (b"memory_mb: {a: 1}", "expected"),
    (b"memory_mb: null", "expected"),
]


def test_hostile_files_are_refused_with_a_short_clear_text(place):
    for raw, words in HOSTILE_FILES:
        place.planted.write_bytes(raw)
        message = refusal_of(raw, place.load)
        assert re.search(words, message), short(raw)
        assert "./fumehood.yaml" in message
        assert len(message) < 400
        assert message.isprintable()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_is_an_error_and_a_home_that_cannot_be_entered_holds_nothing(place):
    place.user.write_text("memory_mb: 5", "utf-8")
    place.user.chmod(0)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        place.load()
    place.home.chmod(0)
    try:
        assert place.load().settings == Settings()
    finally:
        place.home.chmod(0o700)


# --- timeouts ---


@pytest.mark.parametrize(
    ("timeout", "expected"),
    [
        (None, (30, False)),
        (5, (5, False)),
        (0.01, (0.01, False)),
        (300, (300, False)),
        (300.5, (300, True)),
        (10**400, (300, True)),
        (float("inf"), (300, True)),
        (Decimal("1.5"), (1.5, False)),
    ],
    ids=short,
)
def test_a_timeout_is_clamped_to_the_ceiling_and_says_so(timeout, expected):
    assert clamp_timeout(timeout, Settings()) == expected


BAD_TIMEOUTS = [
    0,
    -1,
    -0.0,
    float("nan"),
    float("-inf"),
    -(10**400),
    True,
    False,
    "5",
    b"5",
    [],
    {},
    1j,
    type,
    Decimal("NaN"),
]


def test_a_timeout_that_is_no_positive_number_is_a_bad_argument():
    for timeout in BAD_TIMEOUTS:
        message = refusal_of(timeout, clamp_timeout, timeout, Settings(), kind=BadArgument)
        assert message.startswith("timeout must be"), short(timeout)


# --- cost ---


def test_loading_without_files_is_cheap(tmp_path):
    environ = {**os.environ, "HOME": str(tmp_path)}
    load(environ=environ, cwd=tmp_path)
    assert len(calls(lambda: load(environ=environ, cwd=tmp_path))) < 500  # about 140, which take microseconds


def test_importing_and_loading_pulls_in_nothing_heavy(tmp_path):
    program = (
        "import sys; from fumehood.config import load; load(environ={}); "
        "print([m for m in ('yaml', 'asyncio', 'subprocess', 'difflib', 'ctypes', 'argparse') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, encoding="utf-8", check=True
    )
    assert done.stdout.strip() == "[]"


def test_packages_that_are_built_are_named_one_by_one():
    assert load({"source_packages": "numpy,six"}, environ={}).settings.source_packages == ("numpy", "six")
    with pytest.raises(ConfigurationError, match=r"source_packages = '\*' .*each is named"):
        load({"source_packages": "*"}, environ={})
