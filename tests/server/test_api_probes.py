"""Every probe of the API that the suite of attacks names has its tests here."""

from __future__ import annotations

import json
import os
import re
import secrets
from pathlib import Path

import pytest
from raw_http import connect, head

from escape.probes import PROBES
from running import TOKENS, Running
from support import wait_until

AUTH = f"Authorization: Bearer {TOKENS['alice']}"
HERE = Path(__file__).parent
HELD_BY = {
    "api01": [  # no token
        "test_access.test_without_a_token_nothing_is_told",
        "test_access.test_a_stream_needs_a_token_too",
        "test_access.test_a_wrong_token_is_not_told_what_was_wrong",
        "test_server_events.test_no_socket_without_a_ticket",
    ],
    "api03": [  # bind address
        "test_serve_command.test_it_listens_on_loopback_alone",
        "test_serve_command.test_not_loopback_it_wants_level_sealed",
        "test_serve_command.test_not_loopback_it_wants_a_token_that_is_given",
    ],
    "api05": [  # CSRF by a simple request
        "test_access.test_a_form_of_another_page_runs_nothing",
    ],
    "api06": [  # CORS
        "test_access.test_there_is_no_cors",
    ],
    "api08": [  # Origin: null, file://, an extension's
        "test_access.test_pages_of_another_origin_are_refused",
        "test_server_events.test_a_page_of_another_origin_opens_none",
    ],
    "api10": [  # oversized body
        "test_limits_http.test_a_body_without_end_is_refused_while_it_comes",
        "test_limits_http.test_all_bodies_together_have_a_bound",
        "test_server_files.test_an_upload_past_the_cap_is_refused",
    ],
    "api11": [  # slowloris, idle connections
        "test_limits_http.test_slow_headers_are_cut_off",
        "test_limits_http.test_a_slow_body_is_cut_off",
        "test_limits_http.test_slow_headers_of_a_second_request_are_cut_off",
        "test_limits_http.test_connections_are_counted",
        "test_limits_http.test_a_client_that_does_not_read_is_cut_off",
    ],
    "api13": [  # limits beyond the server's policy
        "test_server_execute.test_a_request_only_narrows",
        "test_server_input.test_a_bad_request_names_its_field_and_runs_nothing",
        "test_server_input.test_a_stronger_level_than_there_is_is_refused",
        "test_server_sessions.test_a_session_is_narrowed_once_and_for_all",
    ],
    "api15": [  # path traversal
        "test_server_files.test_a_path_that_leads_elsewhere_is_refused",
        "test_server_files.test_a_path_in_the_target_itself_leads_nowhere",
        "test_server_files.test_links_that_a_program_made_are_not_followed",
    ],
    "api16": [  # another token's sessions
        "test_server_sessions.test_another_tokens_session_is_not_there",
        "test_server_sessions.test_a_forged_id_is_not_there",
        "test_server_history.test_a_token_sees_only_its_own",
    ],
    "api18": [  # header and log injection
        "test_access.test_a_header_with_a_break_in_it_is_bad",
        "test_access.test_the_log_has_no_secret_no_code_and_no_break",
        "test_access.test_a_request_id_is_ours_and_nothing_is_reflected",
        "test_server_input.test_names_and_code_put_nothing_into_the_log",
    ],
    "api20": [  # error disclosure
        "test_describes_itself.test_a_failure_of_the_server_shows_no_trace",
        "test_server_input.test_no_error_tells_a_path_of_the_machine",
        "test_describes_itself.test_an_error_of_this_machine_tells_nothing_of_it",
    ],
    "api21": [  # response type confusion
        "test_server_files.test_a_download_is_never_shown_as_a_page",
    ],
    "api23": [  # the client disconnects in mid-run
        "test_api_probes.test_a_client_that_leaves_takes_the_whole_tree_with_it",
        "test_server_execute.test_a_client_that_leaves_a_stream_ends_its_program",
        "test_server_sessions.test_a_client_that_leaves_interrupts_its_run_and_the_state_is_kept",
    ],
    "api25": [  # a token in arguments or the environment
        "test_serve_command.test_a_given_token_is_printed_nowhere_and_reaches_no_program",
        "test_serve_command.test_a_token_is_made_and_printed_once",
    ],
}


def test_every_probe_of_the_api_is_held_by_tests_that_are_there() -> None:
    assert HELD_BY.keys() == {probe["id"] for probe in PROBES if probe["group"] == "API"}
    for name in {name for names in HELD_BY.values() for name in names}:
        module, _, test = name.partition(".")
        assert re.search(rf"^def {test}\(", (HERE / f"{module}.py").read_text("utf-8"), re.MULTILINE), name


def _sleepers(seconds: str) -> list[int]:
    """By an argument that no other process of this machine has."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and seconds.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_a_client_that_leaves_takes_the_whole_tree_with_it(server: Running, accept: str) -> None:
    seconds = f"3600.{os.getpid()}{secrets.randbelow(10**9):09}"
    command = ["sleep", seconds]
    code = f"import subprocess as s; s.Popen({command}, start_new_session=True); s.run({command})"
    body = json.dumps({"code": code, "timeout": 300}).encode()
    headers = (AUTH, "Content-Type: application/json", f"Content-Length: {len(body)}", f"Accept: {accept}")
    with connect(server.url) as stream:
        stream.sendall(head(server.url, "POST /execute", *headers) + body)
        assert wait_until(lambda: len(_sleepers(seconds)) == 2)
    assert wait_until(lambda: not _sleepers(seconds))
