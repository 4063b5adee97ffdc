"""Prometheus metrics: what is counted here as requests end, and what the client counted, read when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from outpace.server.engine_client.client import EngineClient
from outpace.server.wire import State

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

TOTALS = {
    "tokens": "Tokens written.",
    "cycles": "Verify passes of each request, plain steps among them.",
    "emitted": "Tokens out of those cycles, one a plain step.",
    "drafted": "Tokens drafted.",
    "accepted": "Drafts accepted.",
    "reused": "Prompt tokens whose prefill a cached prefix saved.",
    "untried": "Answers whose grammar could not be tried, for want of the machine's time or memory.",
}
BY_POSITION = {
    "drafted_at": "Cycles that made a draft at this place, of which the first is 0: all but plain steps.",
    "accepted_at": "Drafts at this place that were accepted.",
}


class _OfClient(Collector):
    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self.state: State | None = None

    def collect(self) -> Iterator[Metric]:
        client = self._client
        for name, summary in TOTALS.items():
            yield CounterMetricFamily(f"outpace_{name}", summary, value=getattr(client.desk.totals, name))
        for name, summary in BY_POSITION.items():
            counter = CounterMetricFamily(f"outpace_{name}", summary, labels=["position"])
            for place, number in enumerate(getattr(client.desk.totals, name)):
                counter.add_metric([str(place)], number)
            yield counter
        yield CounterMetricFamily("outpace_engine_deaths", "Engine processes that died.", value=client.num_deaths)
        yield GaugeMetricFamily("outpace_ready", "1 when requests are taken.", value=float(client.ready))
        yield GaugeMetricFamily("outpace_running", "Answers in the engine.", value=client.desk.num_running)
        yield GaugeMetricFamily("outpace_waiting", "Answers that wait for it.", value=client.desk.num_waiting)
        if self.state is not None:
            yield from _of_state(self.state)


def _of_state(state: State) -> Iterator[Metric]:
    pages = GaugeMetricFamily("outpace_pages", "KV pages by what they are.", labels=["kind"])
    for kind, number in state.pages.items():
        pages.add_metric([kind], number)
    yield pages
    yield GaugeMetricFamily("outpace_k", "Drafts a cycle, as decided last.", value=state.k)
    yield CounterMetricFamily(
        "outpace_preemptions", "Times that an answer gave its pages back and started over.", value=state.preempted
    )
    yield from _of_graphs(state.graphs)
    if state.weighed is not None:
        weighed = state.weighed
        yield GaugeMetricFamily("outpace_weighed_k", "The k that the last decision weighed.", value=weighed["k"])
        yield GaugeMetricFamily(
            "outpace_expected_accept_length", "What that k would bring a cycle.", value=weighed["accept_length"]
        )
        yield GaugeMetricFamily(
            "outpace_break_even", "Accept length above which that k pays.", value=weighed["break_even"]
        )


def _of_graphs(graphs: dict[str, Any]) -> Iterator[Metric]:
    """Nothing on a CPU, which has no graphs."""
    if "captured" not in graphs:
        return
    prefills = graphs["prefill"]
    yield from _by_how("cycle", graphs, {})
    yield from _by_how("prefill", prefills, {"no_frame": prefills["no_frame"]})


def _by_how(what: str, graphs: dict[str, Any], others: dict[str, int]) -> Iterator[Metric]:
    """Shapes, and forwards of them; `others` have no shape."""
    shapes = GaugeMetricFamily(f"outpace_{what}_shapes", f"Shapes of {what}s met, by how they run.", labels=["as"])
    forwards = CounterMetricFamily(
        f"outpace_device_{what}s", f"{what.capitalize()}s of the engine, by how they ran.", labels=["as"]
    )
    shapes.add_metric(["graph"], graphs["captured"])
    shapes.add_metric(["eager"], len(graphs["eager"]))
    eager = graphs["eager_replays"]
    for how, num in {"graph": graphs["replays"] - eager, "eager": eager, **others}.items():
        forwards.add_metric([how], num)
    yield shapes
    yield forwards


class Metrics:
    """All metrics of one server.

    Args:
        client: whose figures are shown.
    """

    def __init__(self, client: EngineClient) -> None:
        self._registry = CollectorRegistry()
        self._of_client = _OfClient(client)
        self._registry.register(self._of_client)
        self._requests = Counter(
            "outpace_http_requests", "Requests by path and status.", ["path", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "outpace_http_seconds", "Time of a request.", ["path"], buckets=SECONDS, registry=self._registry
        )
        self._first = Histogram(
            "outpace_first_token_seconds",
            "Time from a request to its first token, waiting included.",
            buckets=SECONDS,
            registry=self._registry,
        )

    def note_request(self, path: str, status: int, seconds: float, first_token_s: float | None) -> None:
        """A request is over; a status of 0 is one whose client went away before there was any."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)
        if first_token_s is not None:
            self._first.observe(first_token_s)

    def text(self, state: State | None) -> bytes:
        """Prometheus' text format; without `state` the engine's own gauges are left out."""
        self._of_client.state = state
        return generate_latest(self._registry)
