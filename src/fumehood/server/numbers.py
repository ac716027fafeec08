"""Counts for Prometheus: requests, executions, refusals, and who used what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from .. import __version__
from ..types import ExecutionResult
from .gate import Gate
from .tokens import Token, Tokens

CONTENT_TYPE = CONTENT_TYPE_PLAIN_1_0_0
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "WEBSOCKET")  # others are one: anybody can make them up
_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


def merged(texts: Mapping[str, bytes | None]) -> bytes:
    """The numbers of several workers, each under its name; of one that said nothing, that alone."""
    found: dict[str, Metric] = {}
    up = found["fumehood_worker_up"] = Metric("fumehood_worker_up", "Whether the worker answers.", "gauge")
    for worker, text in texts.items():
        up.add_sample(up.name, {"worker": worker}, float(text is not None))
        for family in text_string_to_metric_families((text or b"").decode()):
            kept = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                kept.add_sample(sample.name, {**sample.labels, "worker": worker}, sample.value)
    return generate_latest(_Collected(found.values()))


class _Collected(CollectorRegistry):
    """What was collected elsewhere."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class Numbers:
    """A registry of its own: two servers in one process do not mix."""

    def __init__(self, gate: Gate, tokens: Tokens) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # twice as many lines, for nothing that we ask
        own = self._registry = CollectorRegistry()
        self._requests = Counter("fumehood_requests", "Requests.", ("method", "route", "status"), registry=own)
        self._seconds = Histogram(
            "fumehood_request_seconds", "Time to the end of the answer.", ("route",), buckets=_BUCKETS, registry=own
        )
        self._executions = Counter("fumehood_executions", "Executions, by how they ended.", ("reason",), registry=own)
        self._of_token = Counter("fumehood_token_executions", "Executions, by token.", ("token",), registry=own)
        self._wall = Counter("fumehood_token_seconds", "Seconds of execution, by token.", ("token",), registry=own)
        self._cpu = Counter("fumehood_token_cpu_seconds", "Seconds of CPU, by token.", ("token",), registry=own)
        self._refused = Counter("fumehood_refused", "Requests that a problem answered.", ("code",), registry=own)
        self.sessions = Gauge("fumehood_sessions", "Sessions that are open.", registry=own)
        running = Gauge("fumehood_running", "Executions that run.", registry=own)
        running.set_function(lambda: gate.running)
        queued = Gauge("fumehood_queued", "Executions that wait.", registry=own)
        queued.set_function(lambda: gate.queued)
        read = Gauge("fumehood_token_file_ok", "Whether the token file is in force as it is now.", registry=own)
        read.set_function(lambda: tokens.failure is None)
        Gauge("fumehood_info", "Which version.", ("version",), registry=own).labels(__version__).set(1)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """One request; `route` is its pattern, never the path."""
        self._requests.labels(method if method in _METHODS else "other", route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def refused(self, code: str) -> None:
        self._refused.labels(code).inc()

    def executed(self, token: Token, result: ExecutionResult) -> None:
        """One execution that has ended."""
        self._executions.labels(str(result.meta.get("reason", "ok"))).inc()
        self._of_token.labels(token.name).inc()
        self._wall.labels(token.name).inc(max(0.0, result.duration))
        usage = result.meta.get("usage")
        self._cpu.labels(token.name).inc(max(0.0, usage.get("cpu_s", 0.0)) if isinstance(usage, dict) else 0.0)

    def text(self) -> bytes:
        return generate_latest(self._registry)
