"""Traces by OpenTelemetry, where its own variables say so and the extra `otel` is there. Never code or output."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from starlette.types import Scope

from .. import __version__, config
from ..threads import begin
from . import log

_LAST_S = 2.0
_CARRIED = (b"traceparent", b"tracestate")
Finish = Callable[[int | None], None]


def start() -> Tracing | None:
    """Tracing as the OTEL_* variables have it, or None."""
    if not config.telemetry_wanted():
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        log.write(
            "no_traces", level="warning", message="OTEL_* is set and the extra is missing: pip install 'fumehood[otel]'"
        )
        return None
    return Tracing()


class Tracing:
    """One span for each request."""

    def __init__(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # only where it is wanted
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({"service.version": __version__})
        if resource.attributes.get("service.name", "").startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "fumehood"}))
        self._provider = TracerProvider(resource=resource)
        self._exporter = OTLPSpanExporter()
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("fumehood", __version__)
        self._server, self._failed = SpanKind.SERVER, Status(StatusCode.ERROR)
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def request(self, scope: Scope) -> Iterator[Finish]:
        """A span; call what it gives with the status."""
        method = scope.get("method", "WEBSOCKET")
        carrier = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _CARRIED}
        with self._tracer.start_as_current_span(
            method,
            self._propagator.extract(carrier),
            kind=self._server,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:

            def finish(status: int | None) -> None:
                state: dict[str, Any] = scope["state"]
                span.set_attribute("http.request.method", method)
                span.set_attribute("fumehood.request_id", state["request_id"])
                if "route" in state:
                    span.set_attribute("http.route", state["route"])
                    span.update_name(f"{method} {state['route']}")
                if status is not None:
                    span.set_attribute("http.response.status_code", status)
                if status is None or status >= 500:
                    span.set_status(self._failed)

            yield finish

    def close(self) -> None:
        """Send what is left; a collector that is gone does not keep the server."""
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        if not begin(sending):
            self._provider.shutdown()
            return
        sending.join(_LAST_S)
        if sending.is_alive():
            self._exporter.shutdown()  # which ends its waiting for another try
            log.write(
                "no_traces",
                level="warning",
                message="the collector did not take the last spans: see OTEL_EXPORTER_OTLP_ENDPOINT",
            )
