"""The lab against a running server of ours: what it reads there is what the server really tells, by name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import outpace
from outpace.lab.bench.endpoint import Endpoint
from outpace.lab.bench.record import BenchRecord
from outpace.lab.bench.run import bench
from outpace.lab.bench.server_facts import ask_server
from outpace.lab.bench.settings import Asking, Load
from outpace.lab.doctor.case import choose, measure
from outpace.lab.doctor.live import Seen, ask, watch
from outpace.lab.experiments.applied import says
from server.models import make_drafter, make_model
from server.running import Server, serving

ENGINE = ("--num-pages", "400", "--max-rows", "4", "--k", "3", "--max-context", "160")
ACCEPTED = ("--simulate-acceptance", "0.7", "0.6", "0.5")
"""A random drafter is hardly ever right."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    torch.manual_seed(0)
    model = make_model(tmp_path_factory.mktemp("measured") / "model")
    return model, make_drafter(model, model.parent / "drafter")


@pytest.fixture(scope="module")
def server(models: tuple[Path, Path]) -> Iterator[Server]:
    """Three drafts in every cycle, of which some stand."""
    with serving(models[0], "--drafter", str(models[1]), *ENGINE, "--control", "fixed", *ACCEPTED) as running:
        yield running


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Asking:
    path = tmp_path_factory.mktemp("asks") / "asks.jsonl"
    path.write_text("".join(f'"Question {number}?"\n' for number in range(9)))
    return Asking(workload=(str(path),), max_tokens=48, ignore_eos=True)


def measured(server: Server, asking: Asking) -> BenchRecord:
    async def whole() -> BenchRecord:
        endpoint = Endpoint(server.url)
        try:
            return await bench(endpoint, asking, Load(num_prompts=4), client=dict)
        finally:
            await endpoint.close()

    return asyncio.run(whole())


def test_what_the_server_is(server: Server) -> None:
    async def asked() -> Any:
        endpoint = Endpoint(server.url)
        try:
            return await ask_server(endpoint, None)
        finally:
            await endpoint.close()

    facts = asyncio.run(asked())
    assert (facts.engine, facts.version, facts.model) == ("outpace", outpace.__version__, "tiny")
    assert facts.max_context == 160 and facts.has_metrics
    assert facts.settings["engine"]["k"] == 3 and facts.settings["engine"]["control"] == "fixed"
    assert facts.settings["drafter"]["aux_boundaries"]
    assert says("k", facts.settings) == 3 and says("control", facts.settings) == "fixed", "an experiment's question"


def test_acceptance_is_what_the_server_counted(server: Server, asking: Asking) -> None:
    before = server.state()["totals"]
    record = measured(server, asking)
    assert [each.source for each in record.acceptance] == ["requests", "counters"]
    answers, counters = record.acceptance
    for field in ("accept_length", "acceptance_rate", "drafted", "accepted", "cycles", "by_position"):
        assert getattr(answers, field) == pytest.approx(getattr(counters, field), rel=1e-3), field
    assert len(answers.by_position) == 3 and answers.drafted and answers.accepted
    after = server.state()["totals"]
    drafted, accepted = (
        [a - b for a, b in zip(after[name], before[name] or [0, 0, 0], strict=True)]
        for name in ("drafted_at", "accepted_at")
    )
    assert sum(drafted) > answers.drafted and sum(accepted) > answers.accepted, "the warm-up's are not among them"
    assert record.implied_cycle_s


def test_the_doctor_reads_its_settings_and_positions(server: Server, asking: Asking) -> None:
    found = doctored(server, asking)
    assert found.run.asked["num_speculative_tokens"].value == 3 and found.run.asked["k"].value == 3
    assert found.run.max_accept_length == 4
    assert len(found.run.per_position) == 3
    assert not any("by position" in unknown.question for unknown in found.not_known)
    graphs = next(each for each in found.findings if each.question == "are cycles graphs")
    assert graphs.answer == "no" and "CPU" in graphs.text


def test_control_tells_the_doctor_what_it_measured(models: tuple[Path, Path], asking: Asking) -> None:
    with serving(models[0], "--drafter", str(models[1]), *ENGINE) as running:
        fresh = asyncio.run(watching(running))
        found = doctored(running, asking)
        watched = asyncio.run(watching(running))
    m = measure(choose([found.run], [], None))
    assert m.plain is not None and m.plain.kind == "server" and m.plain.value > 0.0
    decision = next(each for each in found.findings if each.question == "what does control do now")
    assert decision.numbers["weighed"]["break_even"] >= 1.0 and decision.answer.startswith(("k = ", "decodes plainly"))
    assert m.plain.estimated and "tokens of context" in m.plain.cite.source
    assert found.run.asked["k"].value == 3, "the setting, not what control chose"
    set_up = next(each for each in fresh.findings if each.question == "is it set up to speculate")
    assert set_up.answer == "yes, but it has served nothing" and "up to 3 drafts a cycle" in set_up.text
    assert "has served nothing" in fresh.run.setup and "has served nothing" not in watched.run.setup
    assert not any("whether it speculates" in unknown.question for unknown in fresh.not_known)
    assert watched.run.source == running.url and not watched.run.windows, "nobody asks it for anything now"


def doctored(server: Server, asking: Asking) -> Seen:
    async def whole() -> Seen:
        endpoint = Endpoint(server.url)
        try:
            return await ask(endpoint, asking, 3, dict)
        finally:
            await endpoint.close()

    return asyncio.run(whole())


async def watching(server: Server) -> Seen:
    endpoint = Endpoint(server.url)
    try:
        return await watch(endpoint, 0.2)
    finally:
        await endpoint.close()
