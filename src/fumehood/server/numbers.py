"""Counts for Prometheus: requests, executions, refusals, and who used what."""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from .. import __version__, records
from ..types import ExecutionResult
from .gate import Gate
from .tokens import Token, Tokens

CONTENT_TYPE = CONTENT_TYPE_PLAIN_1_0_0
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "WEBSOCKET")  # others are one: anybody can make them up
_CAPACITY = ("max_running", "max_queue", "max_sessions", "max_connections")
_TELL_NOTHING_OF_OTHERS = {"fumehood_info", *(f"fumehood_{name}" for name in _CAPACITY)}
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
        self._requests = Counter("fumehood_requests", "Requests.", ("token", "method", "route", "status"), registry=own)
        self._seconds = Histogram(
            "fumehood_request_seconds", "Time to the end of the answer.", ("route",), buckets=_BUCKETS, registry=own
        )
        self._executions = Counter(
            "fumehood_executions", "Executions, by how they ended.", ("token", "reason"), registry=own
        )
        self._of_token = Counter("fumehood_token_executions", "Executions, by token.", ("token",), registry=own)
        self._wall = Counter("fumehood_token_seconds", "Seconds of execution, by token.", ("token",), registry=own)
        self._cpu = Counter("fumehood_token_cpu_seconds", "Seconds of CPU, by token.", ("token",), registry=own)
        self._refused = Counter(
            "fumehood_refused", "Requests that a problem answered.", ("token", "code"), registry=own
        )
        self._waited = Histogram(
            "fumehood_queue_seconds", "Time until there was a place.", ("token",), buckets=_BUCKETS, registry=own
        )
        gate.entered = lambda token, queued_s: self._waited.labels(token.name).observe(queued_s)
        self.sessions: Count[str] = Count()  # by owner
        own.register(_ByOwner("fumehood_sessions", "Sessions that are open.", tokens, self.sessions.__getitem__))
        own.register(_ByOwner("fumehood_running", "Executions that run.", tokens, gate.running_of.__getitem__))
        own.register(_ByOwner("fumehood_queued", "Executions that wait.", tokens, gate.queued_of))
        for name in _CAPACITY:
            option = Gauge(f"fumehood_{name}", f"The option --{name.replace('_', '-')}.", registry=own)
            option.set_function(partial(_option, gate, name))
        lost = Gauge("fumehood_records_lost", "Records that could not be stored, since the start.", registry=own)
        lost.set_function(records.lost)
        read = Gauge("fumehood_token_file_ok", "Whether the token file is in force as it is now.", registry=own)
        read.set_function(lambda: tokens.failure is None)
        Gauge("fumehood_info", "Which version.", ("version",), registry=own).labels(__version__).set(1)

    def connected(self, all_of_them: Callable[[], int], without_token: Callable[[], int]) -> None:
        """Who counts connections."""
        Gauge("fumehood_connections", "Connections.", registry=self._registry).set_function(all_of_them)
        unknown = Gauge("fumehood_connections_without_token", "Those that have shown none.", registry=self._registry)
        unknown.set_function(without_token)

    def request(self, owner: str, method: str, route: str, status: int, seconds: float) -> None:
        """One request; `owner` is empty for nobody's, `route` is its pattern, never the path."""
        self._requests.labels(owner, method if method in _METHODS else "other", route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def refused(self, owner: str, code: str) -> None:
        self._refused.labels(owner, code).inc()

    def executed(self, token: Token, result: ExecutionResult) -> None:
        """One execution that has ended."""
        self._executions.labels(token.name, str(result.meta.get("reason", "ok"))).inc()
        self._of_token.labels(token.name).inc()
        self._wall.labels(token.name).inc(max(0.0, result.duration))
        usage = result.meta.get("usage")
        self._cpu.labels(token.name).inc(max(0.0, usage.get("cpu_s", 0.0)) if isinstance(usage, dict) else 0.0)

    def text(self, token: Token) -> bytes:
        """All of it for whoever may see that; else what is the token's own, or the same for everybody."""
        if token.sees_all_numbers:
            return generate_latest(self._registry)
        return generate_latest(_Collected(_seen_by(token, self._registry.collect())))


def _option(gate: Gate, name: str) -> float:
    value: int = getattr(gate.options, name)
    return value


class _ByOwner:
    """A gauge for each owner, those who have nothing too."""

    def __init__(self, name: str, text: str, tokens: Tokens, of: Callable[[str], int]) -> None:
        self._name, self._text, self._tokens, self._of = name, text, tokens, of

    def collect(self) -> Iterable[Metric]:
        found = GaugeMetricFamily(self._name, self._text, labels=("token",))
        for owner in self._tokens.owners:
            found.add_metric((owner,), self._of(owner))
        yield found


def _seen_by(token: Token, families: Iterable[Metric]) -> Iterable[Metric]:
    for family in families:
        if family.name not in _TELL_NOTHING_OF_OTHERS:
            family.samples = [sample for sample in family.samples if sample.labels.get("token") == token.name]
        if family.samples:
            yield family
