"""The status page in a real browser: what it shows is what the server says, live, and nothing leaves the server."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from server.running import Server, serving, until

SECRET = "what nobody else may read"
FLAGS = ("--num-pages", "200", "--max-rows", "3", "--k", "3", "--max-context", "600")


@pytest.fixture(scope="module")
def automatic(model: Path, drafter: Path) -> Iterator[Server]:
    """Chooses k itself, as by default."""
    with serving(model, "--drafter", str(drafter), *FLAGS) as running:
        yield running


def body(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": SECRET, "max_tokens": 60, "temperature": 0, "ignore_eos": True} | more


def text(page: Page, name: str) -> str:
    return page.locator(f"#{name}").inner_text()


def number(page: Page, name: str) -> float:
    """What a figure shows; NaN while it shows none."""
    shown = text(page, name).replace(",", "")
    return float(shown) if re.fullmatch(r"[\d.]+", shown) else float("nan")


def table(page: Page, name: str) -> dict[str, str]:
    found = page.locator(f"#{name} tr").evaluate_all("rows => rows.map(row => [...row.cells].map(c => c.textContent))")
    return {cells[0]: cells[1] for cells in found}


def opened(page: Page, server: Server) -> Page:
    page.goto(server.url)
    expect(page.locator("#status")).to_have_text("ready")
    return page


def test_it_shows_what_the_server_resolved(automatic: Server, page: Page) -> None:
    opened(page, automatic)
    state = automatic.state()
    settings = state["settings"]
    choices = table(page, "choices")
    assert choices["drafter"] == settings["drafter_source"]
    assert choices["CUDA graphs"] == f"none: {settings['graphs']['why_none']}"
    assert choices["products"] == settings["kernels"]["products"]
    assert choices["NCCL"] == "not used"
    assert choices["dtype, device"] == f"{settings['dtype']}, cpu"
    assert text(page, "model") == f"tiny · {state['version']}"
    assert int(text(page, "slots")) == 3
    costs = page.locator("#costs tr").evaluate_all("rows => rows.map(row => [...row.cells].map(c => c.textContent))")
    assert {(int(cost[0]), int(cost[1])) for cost in costs} >= {(1, 0), (1, 3)}
    page.get_by_text("This machine").click()
    assert table(page, "machine")["torch"] == settings["fingerprint"]["torch"]


def test_it_is_live(automatic: Server, page: Page) -> None:
    opened(page, automatic)
    before = automatic.state()["totals"]["tokens"]
    answers: list[Future[Any]] = []
    with ThreadPoolExecutor(5) as pool:

        def shows(what: Callable[[], bool]) -> bool:
            """Looks while five are asked, again and again: the page may blink while they are answered."""
            if all(answer.done() for answer in answers):
                answers.extend(pool.submit(automatic.post, "/v1/completions", body(max_tokens=500)) for _ in range(5))
            return what()

        until(lambda: shows(lambda: (number(page, "running"), number(page, "waiting")) == (3, 2)))
        until(lambda: shows(lambda: number(page, "tok-s") > 0))
        used = page.locator("#pages .used")
        until(lambda: shows(lambda: used.bounding_box()["width"] > 0))  # type: ignore[index]
        assert {answer.result().status_code for answer in answers} == {200}
    until(lambda: number(page, "running") == 0)
    state = automatic.state()
    assert state["totals"]["tokens"] - before == 500 * len(answers)
    since_start = text(page, "tokens").split("; ")[1]
    assert since_start == f"{state['totals']['tokens']:,} tokens since start"
    weighed = state["now"]["weighed"]
    assert number(page, "break-even") == pytest.approx(weighed["break_even"], abs=0.006)
    assert number(page, "accept-length") == pytest.approx(weighed["accept_length"], abs=0.006)
    assert text(page, "verdict").startswith(f"k = {weighed['k']} ")
    said = re.search(r"k (\d+) would emit ([\d.]+) tokens a cycle and breaks even at ([\d.]+)", state["now"]["why"])
    assert said is not None
    figures = [weighed[name] for name in ("k", "accept_length", "break_even")]
    assert [float(each) for each in said.groups()] == pytest.approx(figures, abs=0.006)
    assert number(page, "k") == state["now"]["k"]
    assert text(page, "why") == state["now"]["why"]
    points = page.locator("#curve").get_attribute("points")
    heights = [98 - float(point.split(",")[1]) for point in (points or "").split()]
    assert max(heights) == pytest.approx(96), "the peak fills the curve"


def test_a_cycle_is_one_bar_of_its_phases(automatic: Server, page: Page) -> None:
    automatic.post("/v1/completions", body(max_tokens=200))
    opened(page, automatic)
    phases = automatic.state()["now"]["phases"]
    assert phases and {entry["k"] for entry in phases} <= {0, 1, 2, 3}
    entry = max(phases, key=lambda one: one["cycle_ms"] or 0.0)
    parts = {name: entry[f"{name}_ms"] for name in ("draft", "verify", "accept", "gap")}
    assert entry["cycle_ms"] == pytest.approx(sum(parts.values()), abs=1e-3)
    bar = page.locator(f".cycle[data-k='{entry['k']}'] .bar")
    whole = bar.bounding_box()["width"]  # type: ignore[index]
    for name in ("verify", "gap"):
        width = bar.locator(f".{name}").bounding_box()["width"]  # type: ignore[index]
        assert width / whole == pytest.approx(parts[name] / entry["cycle_ms"], abs=0.02)
    told = re.search(r"verify ([\d.]+) ms", bar.get_attribute("aria-label") or "")
    assert told and float(told[1]) == pytest.approx(entry["verify_ms"], abs=0.0051), "to two places"


def test_recent_requests_are_figures_without_texts(automatic: Server, page: Page) -> None:
    automatic.post("/v1/completions", body(user=SECRET), headers={"X-Request-Id": "from-outside"})
    automatic.post("/v1/completions", body() | {"model": SECRET})
    automatic.post("/v1/completions", body(max_tokens=0))
    state = automatic.get("/v1/outpace/state")
    assert SECRET not in state.text and "from-outside" not in state.text
    newest, *_ = state.json()["recent"]
    assert newest["status"] == 400 and newest["completion_tokens"] is None
    opened(page, automatic)
    shown = page.locator("#recent tr").evaluate_all("rows => rows.map(row => [...row.cells].map(c => c.textContent))")
    assert [row[2] for row in shown[:3]] == ["400", "404", "200"]
    answered, entry = shown[2], state.json()["recent"][2]
    assert answered[1] == "/v1/completions"
    assert (int(answered[5]), int(answered[6])) == (len(SECRET), 60)
    length = entry["accept_length"]
    assert answered[8] == "–" if length is None else float(answered[8]) == pytest.approx(length, abs=0.006)
    assert SECRET not in page.content()
    http = table(page, "http")
    assert int(http["/v1/completions, 404"]) == 1


def test_it_reaches_for_nothing_outside_and_its_policy_forbids_it(automatic: Server, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    opened(page, automatic)
    expect(page.locator("#http tr").first).to_be_visible()
    assert {httpx.URL(url).path for url in asked} == {"/", "/v1/outpace/state", "/metrics"}
    assert {httpx.URL(url).netloc for url in asked} == {httpx.URL(automatic.url).netloc}


def test_its_policy_forbids_whatever_is_not_its_own(automatic: Server, browser: Browser) -> None:
    policy = automatic.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    tab = browser.new_page()  # one that may complain
    tab.goto(automatic.url)
    for element, source, directive in (
        ("img", "src: 'http://127.0.0.1:9/x.png'", "img-src"),
        ("script", "textContent: 'window.ran = true'", "script-src-elem"),
    ):
        refused = tab.evaluate(
            f"""new Promise(done => {{
              addEventListener('securitypolicyviolation', event => done(event.effectiveDirective), {{once: true}});
              document.body.append(Object.assign(document.createElement('{element}'), {{{source}}}));
            }})"""
        )
        assert refused == directive
    assert tab.evaluate("window.ran") is None
    tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_by_day_and_by_night(automatic: Server, page: Page, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    opened(page, automatic)
    ink, ground = (
        sum(map(int, re.findall(r"\d+", page.locator(where).evaluate(f"e => getComputedStyle(e).{what}"))[:3])) / 3
        for where, what in (("#tok-s", "color"), ("section >> nth=0", "backgroundColor"))
    )
    assert abs(ink - ground) > 150 and (ink < ground) is (scheme == "light")
    page.set_viewport_size({"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, "it fits a phone"


def test_without_a_key_it_says_so_and_with_one_it_shows(model: Path, page: Page) -> None:
    with serving(model, "--drafter", "none", "--num-pages", "40", env={"OUTPACE_API_KEY": "right"}) as server:
        page.goto(server.url)
        expect(page.locator("#locked-why")).to_have_text("This server wants a key.")
        assert not page.locator("#figures").is_visible()
        page.get_by_label("API key").fill("wrong")
        page.get_by_role("button").click()
        expect(page.locator("#locked-why")).to_have_text("That is no key of this server.")
        page.get_by_label("API key").fill("right")
        page.get_by_role("button").click()
        expect(page.locator("#status")).to_have_text("ready")
        assert page.locator("#figures").is_visible()
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        page.reload()
        expect(page.locator("#status")).to_have_text("ready")
        expect(page.locator("#verdict")).to_contain_text("no break-even")


def test_a_dead_engine_and_a_dead_server_are_said(model: Path, page: Page) -> None:
    with serving(model, "--drafter", "none", "--num-pages", "40") as server:
        opened(page, server)
        os.kill(server.state()["engine_pid"], signal.SIGSTOP)  # it lives, and says nothing
        expect(page.locator("#why")).to_have_text("the engine does not answer")
        os.kill(server.state()["engine_pid"], signal.SIGKILL)
        expect(page.locator("#reason")).to_contain_text("was killed by SIGKILL")
        until(lambda: server.state()["status"] == "ready", server)
        expect(page.locator("#status")).to_have_text("ready")
        server.end()
        expect(page.locator("#status")).to_have_text("unreachable")
