"""What the endpoints work with, and what they ask of it first: the model's name, and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outpace.engine.limits import Limits
from outpace.models.text.tool_formats import ToolFormat
from outpace.server.engine_client.client import EngineClient
from outpace.server.http.api_errors import ApiError
from outpace.server.monitoring.metrics import Metrics
from outpace.server.monitoring.recent import Recent
from outpace.server.text.texts import Texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A model that is served."""

    client: EngineClient
    texts: Texts
    metrics: Metrics
    recent: Recent
    name: str
    """Of the model, towards clients."""
    tool_form: ToolFormat | None
    """How the model spells tool calls, as far as that is known."""
    request_timeout: float
    default_max_tokens: int | None
    """Longest answer of requests that set no limit; None is what OpenAI's API takes."""
    settings: dict[str, Any]
    """Of the server, without its keys."""
    created: int

    def limits(self) -> Limits:
        """Of the engine, or of the one that was there last.

        Raises:
            Unavailable: no engine was ever ready, or nothing is taken any more.
        """
        self.client.check_open()
        engine, target = self.client.described["engine"], self.client.described["target"]
        return Limits(
            vocab_size=target["vocab_size"],
            eos_token_ids=tuple(target["eos_token_ids"]),
            max_context=engine["max_context"],
            page_size=engine["page_size"],
            num_pages=engine["num_pages"] - 1,  # one is nobody's
        )

    def check_model(self, name: str | None) -> None:
        """Whether a request is for this model; one that names none is.

        Raises:
            ApiError: it names another.
        """
        if name is not None and name != self.name:
            raise ApiError(
                404,
                f"there is no model {name!r:.100} here; this server has {self.name!r}",
                code="model_not_found",
                param="model",
            )
