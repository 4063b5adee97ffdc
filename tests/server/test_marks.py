"""Answers that are not what they seem say so, and so does everything that shows their figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from outpace.server.answering.formats import Counted, usage
from outpace.server.wire import Tally
from server.running import serving

PATH = "/v1/completions"
BODY = {"model": "tiny", "prompt": "abc", "max_tokens": 8, "speculation": "auto"}
FLAGS = ("--num-pages", "100", "--control", "fixed", "--k", "2", "--max-context", "96")


def test_simulated_acceptance_is_told_with_every_answer_in_the_log_and_on_the_page(
    model: Path, drafter: Path, page: Page
) -> None:
    with serving(model, "--drafter", str(drafter), *FLAGS, "--simulate-acceptance", "0.5") as server:
        assert server.event("simulated")["simulate_acceptance"] == [0.5]
        assert server.post(PATH, BODY).json()["usage"]["speculation"]["simulated"] is True
        stream = server.post(PATH, BODY | {"stream": True, "stream_options": {"include_usage": True}}).text
        last = json.loads(stream.split("\n\n")[-3].removeprefix("data: "))
        assert last["usage"]["speculation"]["simulated"] is True
        page.goto(server.url)
        expect(page.locator("#choices")).to_contain_text("SIMULATED: answers are worth nothing but their speed")


def test_answers_that_are_what_they_seem_bear_no_mark(server: Any, page: Page) -> None:
    assert not {"simulated", "lossy"} & set(server.post(PATH, BODY).json()["usage"]["speculation"])
    assert not {"simulated", "lossy"} & {line["event"] for line in server.log}
    page.goto(server.url)
    expect(page.locator("#choices")).to_contain_text("control")
    assert not {"SIMULATED", "LOSSY"} & set(page.locator("#choices").inner_text().replace(":", " ").split())


@pytest.mark.parametrize("mark", ["simulated", "lossy"])
def test_one_answer_with_a_mark_marks_the_usage_of_all(mark: str) -> None:
    plain, marked = Counted(), Counted(tally=Tally(**{mark: True}))
    assert usage([3], [plain, marked])["speculation"][mark] is True
    assert mark not in usage([3], [plain, plain])["speculation"]
