"""The server against its own OpenAPI document: what it allows is answered as it says, what it forbids is refused, and
whatever comes, there is no 500 and no hang."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from outpace.config import MAX_K, MAX_LOGPROBS, MAX_SEED
from server.running import Server, serving

pytestmark = pytest.mark.slow

FLAGS = ("--num-pages", "400", "--max-rows", "16", "--control", "fixed", "--k", "2", "--max-context", "96")
CASES = {
    "/v1/chat/completions": 110,  # its bodies take the longest to be thought up
    "/v1/completions": 300,
    "/tokenize": 300,
    "/detokenize": 300,
}
"""Bodies of each kind: what is allowed, and what is not. Over 2,000 in all."""
GETS = ("/v1/models", "/v1/models/{name}", "/health", "/ready", "/metrics", "/v1/outpace/state", "/")
CHECKED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
SECONDS = 120
HARD = ("response_format", "structured_outputs", "tools", "tool_choice", "parallel_tool_calls")
"""Fields in which little of what their types allow is a schema, a grammar or a tool."""
OF_CONVERSATIONS = ("chat_template_kwargs", "add_generation_prompt", "continue_final_message")
"""Fields that a text has no use for."""
MOST_CHOICES = 4
"""128 answers of 90 tokens each are sound, and would take the test's time."""

load_all_checks()


@pytest.fixture(scope="module")
def served(model: Path, drafter: Path) -> Iterator[Server]:
    with serving(model, "--drafter", str(drafter), *FLAGS) as running:
        yield running


@pytest.fixture(scope="module")
def document(served: Server) -> dict[str, Any]:
    found: dict[str, Any] = served.get("/openapi.json").json()
    return found


@pytest.mark.parametrize("path", CASES)
def test_what_is_allowed_is_answered_as_described(served: Server, document: dict[str, Any], path: str) -> None:
    found = ask(served, document, path, "POST", GenerationMode.POSITIVE, CASES[path])
    assert found[200] > 15 and found.total() >= CASES[path], found


@pytest.mark.parametrize("path", CASES)
def test_what_is_forbidden_is_refused(served: Server, document: dict[str, Any], path: str) -> None:
    found = ask(served, document, path, "POST", GenerationMode.NEGATIVE, CASES[path], "negative_data_rejection")
    assert found[400] > 80 and found.total() >= CASES[path], found


@pytest.mark.parametrize("path", GETS)
def test_what_is_read_is_as_described(served: Server, document: dict[str, Any], path: str) -> None:
    ask(served, document, path, "GET", GenerationMode.POSITIVE, 5)


def ask(
    served: Server, document: dict[str, Any], path: str, method: str, mode: GenerationMode, count: int, *more: str
) -> Counter[int]:
    """So many requests, and every check of each answer; how often each status came."""
    statuses: Counter[int] = Counter()
    operation = schemathesis.openapi.from_dict(document)[path][method]
    checks = CHECKS.get_by_names([*CHECKED, *more])

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=count, suppress_health_check=list(HealthCheck))
    def one(case: Any) -> None:
        if isinstance(case.body, dict) and mode is GenerationMode.POSITIVE:
            sane(case.body)
        response = case.call(base_url=served.url, timeout=SECONDS)
        statuses[response.status_code] += 1
        case.validate_response(response, checks=checks)

    one()
    assert max(statuses) < 500, statuses
    return statuses


def sane(body: dict[str, Any]) -> None:
    """What is allowed, most of it near what can be answered: the model's name, no made-up schemas, few answers."""
    if len(json.dumps(body)) % 8:
        if "model" in body:
            body["model"] = "tiny"
        for name in (*HARD, *(OF_CONVERSATIONS if "prompt" in body else ())):
            body.pop(name, None)
    if (body.get("n") or 1) > MOST_CHOICES:
        body["n"] = MOST_CHOICES


def test_ranges_are_those_that_are_checked(document: dict[str, Any]) -> None:
    chat = document["components"]["schemas"]["ChatRequest"]["properties"]
    completion = document["components"]["schemas"]["CompletionRequest"]["properties"]
    for fields, name, low, high in (
        (chat, "temperature", 0.0, 100.0),
        (chat, "top_p", 1e-9, 1.0),
        (chat, "seed", 0, MAX_SEED),
        (chat, "n", 1, 128),
        (chat, "top_logprobs", 0, MAX_LOGPROBS),
        (chat, "max_completion_tokens", 1, 1 << 24),
        (completion, "logprobs", 0, MAX_LOGPROBS),
        (completion, "presence_penalty", -2.0, 2.0),
    ):
        (part,) = [part for part in fields[name]["anyOf"] if part["type"] != "null"]
        assert (part["minimum"], part["maximum"]) == (low, high), name
    max_k = document["components"]["schemas"]["MaxK"]["properties"]["max_k"]
    assert (max_k["minimum"], max_k["maximum"]) == (0, MAX_K)
    assert chat["logprobs"]["anyOf"] == [{"type": "boolean"}, {"type": "null"}]


@pytest.mark.parametrize("path", [*CASES, *GETS])
def test_another_method_is_405_and_says_which_there_are(served: Server, document: dict[str, Any], path: str) -> None:
    allowed = {method.upper() for method in document["paths"][path]}
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH"} - allowed:
        response = httpx.request(method, served.url + path.replace("{name}", "tiny"), json={})
        assert response.status_code == 405
        assert response.json()["error"]["code"] == "method_not_allowed"
        assert set(response.headers["allow"].split(", ")) == allowed


def test_keys_are_described_where_they_are_wanted(model: Path, document: dict[str, Any]) -> None:
    assert "securitySchemes" not in document["components"]
    with serving(model, "--drafter", "none", "--num-pages", "40", env={"OUTPACE_API_KEY": "right"}) as server:
        described = server.get("/openapi.json", headers={"Authorization": "Bearer right"}).json()
        for path, operations in described["paths"].items():
            for method, operation in operations.items():
                response = httpx.request(method, server.url + path, json={})
                wants = "security" in operation
                assert wants is ("401" in operation["responses"]) is (response.status_code == 401), path
