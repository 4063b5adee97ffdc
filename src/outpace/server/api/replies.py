"""What clients get, for the OpenAPI document only: answers are made by `formats`, and never pass through here.

Tests hold what is sent against it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

FinishReason = Literal["stop", "length", "tool_calls"]


class ErrorFacts(BaseModel):
    message: str
    type: Literal["authentication_error", "overloaded_error", "invalid_request_error", "server_error"]
    param: str | None
    code: str


class ErrorReply(BaseModel):
    """Every refusal and every failure."""

    error: ErrorFacts


class SpeculationUsage(BaseModel):
    """What speculation came to in a request."""

    accept_length: float | None
    """Tokens of a cycle that drafted; null where none did."""
    cycles: int
    """Plain steps among them."""
    emitted: int
    """Tokens out of these cycles."""
    drafted: int
    accepted: int
    drafted_at: list[int]
    """How many cycles made a first draft, a second, …"""
    accepted_at: list[int]
    """How many of these were accepted."""


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    """Counts are tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    speculation: SpeculationUsage


class Spelled(BaseModel):
    token: str
    logprob: float | None
    bytes: list[int] | None


class TokenEntry(Spelled):
    top_logprobs: list[Spelled]


class ChatLogprobs(BaseModel):
    content: list[TokenEntry]
    refusal: None


class ChatMessageReply(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None


class ChatChoice(BaseModel):
    index: int
    message: ChatMessageReply
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None


class ChatReply(BaseModel):
    """An answer of /v1/chat/completions that does not stream."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    finish_reason: FinishReason
    logprobs: CompletionLogprobs | None


class CompletionReply(BaseModel):
    """An answer of /v1/completions that does not stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class TokenizeReply(BaseModel):
    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeReply(BaseModel):
    prompt: str


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None


class Models(BaseModel):
    object: Literal["list"]
    data: list[Model]


class HealthReply(BaseModel):
    status: Literal["loading", "ready", "draining", "down"]


class ReadyReply(HealthReply):
    reason: str


class StateReply(BaseModel):
    """How the server is; `settings` and `now` are what the engine says of itself, `server` what the server was told."""

    time: float
    model: str
    version: str
    status: Literal["loading", "ready", "draining", "down"]
    reason: str
    engine_pid: int | None
    engine_deaths: int
    running: int
    waiting: int
    slots: int
    totals: dict[str, Any]
    now: dict[str, Any] | None
    recent: list[dict[str, Any]]
    server: dict[str, Any]
    settings: dict[str, Any]
