"""What is replaced in the classes of the HTTP library is still there: under another name nothing would call ours."""

from __future__ import annotations

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from fumehood.server import protocol, run

REPLACED = {
    protocol.Http: {
        *("connection_made", "connection_lost", "data_received", "eof_received", "shutdown", "on_response_complete"),
        *("_should_upgrade", "handle_websocket_upgrade", "send_400_response", "handle_events"),
    },
    protocol.WebSockets: {
        *("connection_made", "connection_lost", "data_received", "shutdown", "send", "handle_parser_exception"),
        "send_receive_event_to_app",
    },
    run.Stoppable: {"capture_signals", "startup", "shutdown"},
}


@pytest.mark.parametrize("ours", REPLACED, ids=lambda ours: ours.__name__)
def test_what_is_replaced_is_there(ours: type) -> None:
    for name in REPLACED[ours]:
        assert name in vars(ours), name
        assert any(name in vars(base) for base in ours.__mro__[1:] if base.__module__.startswith("uvicorn")), name


def test_what_is_read_of_them_is_there() -> None:
    for kind, names in (
        (H11Protocol, ("_get_upgrade", "cycle", "conn", "flow", "scope")),
        (RequestResponseCycle, ("more_body", "response_started", "response_complete")),
        (FlowControl, ("read_paused",)),
        (WebSocketsSansIOProtocol, ("handshake_complete", "handshake_initiated", "frames", "conn", "close_sent")),
    ):
        source = {
            name for member in vars(kind).values() if hasattr(member, "__code__") for name in member.__code__.co_names
        }
        assert set(names) <= source | set(vars(kind)), kind
