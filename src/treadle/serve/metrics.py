"""Metrics of the server, in the text format of Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

_SECONDS = (5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
_MODEL = ("model", "version")


class ModelMetrics:
    """Those of one model."""

    def __init__(self, metrics: Metrics, name: str, version: str) -> None:
        label = name, version
        self.seconds = metrics.seconds.labels(*label)
        self.queued = metrics.queued.labels(*label)
        self.run = metrics.run.labels(*label)
        self.rows = metrics.rows.labels(*label)
        self.waiting = metrics.waiting.labels(*label)
        self._requests = metrics.requests
        self._label = label
        self._by_status: dict[int, Counter] = {}

    def answered(self, status: int) -> None:
        """Count a request by its answer."""
        if status not in self._by_status:
            self._by_status[status] = self._requests.labels(*self._label, str(status))
        self._by_status[status].inc()


class Metrics:
    """A registry of its own, so that a process can hold several servers."""

    content_type = CONTENT_TYPE_LATEST.encode()

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def seconds(name: str, about: str) -> Histogram:
            return Histogram(name, about, _MODEL, registry=registry, buckets=_SECONDS)

        self.requests = Counter(
            "treadle_requests_total",
            "Inference requests, by status.",
            (*_MODEL, "status"),
            registry=registry,
        )
        self.seconds = seconds(
            "treadle_request_seconds", "From a request's headers to the end of its answer."
        )
        self.queued = seconds("treadle_queue_seconds", "Waiting for the model.")
        self.run = seconds("treadle_run_seconds", "Runs of the model.")
        self.rows = Histogram(
            "treadle_batch_rows",
            "Rows (extent of axis 0) of a run.",
            _MODEL,
            registry=registry,
            buckets=_ROWS,
        )
        self.waiting = Gauge(
            "treadle_waiting", "Requests that wait for the model.", _MODEL, registry=registry
        )
        self.in_flight = Gauge(
            "treadle_in_flight", "Requests being read, run or answered.", registry=registry
        )
        self.refused = Counter(
            "treadle_refused_total",
            "Requests that reached no model, by status.",
            ("status",),
            registry=registry,
        )

    def text(self) -> bytes:
        """All of them, for a scraper."""
        return generate_latest(self.registry)


__all__ = ["Metrics", "ModelMetrics"]
