"""What a server says of itself: which engine it is, its version, its settings. The server's half of a fingerprint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from httpx2 import Response

from outpace.errors import ConfigError
from outpace.lab.bench.endpoint import Endpoint, said, without_secrets
from outpace.lab.bench.told import part, whole

Engine = Literal["outpace", "vllm", "sglang", "unknown"]

STATE = "/v1/outpace/state"
"""What a server of ours tells of itself: `version`, `settings` as resolved, `now`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Nothing here is guessed: what a server does not say is None or empty."""

    url: str
    model: str
    engine: Engine = "unknown"
    version: str | None = None
    max_context: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    """As resolved, without secrets."""
    has_metrics: bool = False

    @property
    def num_draft_tokens(self) -> int | None:
        """SGLang's setting: tokens that one verify checks, the bonus token's place included."""
        found = self.settings.get("speculative_num_draft_tokens")
        return found if isinstance(found, int) else None

    @property
    def marks(self) -> tuple[str, ...]:
        """What its answers are not, by its settings: a server of ours may be one that is only there to be timed."""
        engine = part(self.settings.get("engine"))
        simulated = "its acceptance is simulated, so only times mean anything, and the texts nothing"
        lossy = "it lets drafted tokens share experts, so its answers need not be plain decoding's"
        said = {simulated: engine.get("simulate_acceptance"), lossy: engine.get("expert_reuse")}
        return tuple(mark for mark, is_set in said.items() if is_set)


async def ask_server(endpoint: Endpoint, model_name: str | None) -> ServerFacts:
    """Finds out.

    Raises:
        ConfigError: it cannot be reached, wants a key, or has no model of that name.
    """
    response = await endpoint.get("/v1/models")
    listed = _listed(response)
    names = [entry["id"] for entry in listed]
    model = model_name or next(iter(names), None)
    if model is None:
        raise ConfigError(f"{endpoint.url} lists no model at /v1/models{_why_none(response)}")
    if names and model not in names:
        raise ConfigError(f"{endpoint.url} has no model {model!r}; it lists {', '.join(map(str, names))}")
    metrics = await endpoint.metrics() or ""
    entry: dict[str, Any] = next((each for each in listed if each.get("id") == model), {})
    engine, settings, version = await _engine(endpoint, metrics, str(entry.get("owned_by")))
    return ServerFacts(
        url=endpoint.url,
        model=model,
        engine=engine,
        version=version if isinstance(version, str) else None,
        max_context=whole(entry.get("max_model_len")),
        settings=without_secrets(settings),
        has_metrics=bool(metrics),
    )


def _listed(response: Response) -> list[dict[str, Any]]:
    """Models that have a name; none where the answer is something else."""
    try:
        found = response.json() if response.status_code == 200 else None
    except (ValueError, RecursionError):
        return []
    data = found.get("data") if isinstance(found, dict) else None
    entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    return [entry for entry in entries if isinstance(entry.get("id"), str)]


def _why_none(response: Response) -> str:
    """What it answers instead, and what would help."""
    status, kind = response.status_code, response.headers.get("content-type", "").partition(";")[0] or "nothing"
    if status in (401, 403):
        return f": HTTP {status}, {said(response)}; put the server's key into OPENAI_API_KEY"
    if status >= 500:
        return f": HTTP {status}, {said(response)}; is the server ready?"
    if status in (200, 404):
        return (
            f" (HTTP {status}, {kind}): is it a server of OpenAI's API? One that lists none can be benched with "
            "--model-name"
        )
    return f" (HTTP {status}); is it the server's own URL?"


async def _engine(endpoint: Endpoint, metrics: str, owner: str) -> tuple[Engine, dict[str, Any], Any]:
    if "outpace_" in metrics or owner == "outpace":
        state = await endpoint.get_json(STATE)
        return "outpace", dict(part(state.get("settings"))), state.get("version")
    if "sglang:" in metrics or owner == "sglang":
        settings = await endpoint.get_json("/server_info") or await endpoint.get_json("/get_server_info")
        return "sglang", settings, settings.get("version")
    if "vllm:" in metrics or owner == "vllm":
        return "vllm", {}, (await endpoint.get_json("/version")).get("version")
    return "unknown", {}, None
