"""From a request's fields to `SamplingParams`. A new sampling field is a line in `protocol.Sampling` and one here."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from outpace.config import MAX_SEED, SamplingParams
from outpace.errors import RequestError
from outpace.server.asking.protocol import Asked, MaxK
from outpace.server.asking.structured import of_format, of_outputs
from outpace.server.http.api_errors import ApiError

DEFAULTS: dict[str, Any] = {"temperature": 1.0}
"""What OpenAI's API means by leaving a field out, where `SamplingParams` means something else."""


def _same(value: Any) -> Any:
    return value


def _texts(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _top_k(value: int) -> int:
    return 0 if value == -1 else value


def _max_k(value: str | MaxK) -> int | None:
    if isinstance(value, MaxK):
        return value.max_k
    return {"off": 0, "auto": None}[value]


def _bias(value: Mapping[str, float]) -> dict[int, float]:
    for key in value:
        if not re.fullmatch(r"0|[1-9]\d{0,9}", key, re.ASCII):  # each id has one spelling, so none comes twice
            raise RequestError(f'logit_bias holds {key!r:.60}; its keys must be token ids, such as "42"')
    return {int(key): bias for key, bias in value.items()}


FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "temperature": ("temperature", _same),
    "top_p": ("top_p", _same),
    "top_k": ("top_k", _top_k),
    "min_p": ("min_p", _same),
    "seed": ("seed", _same),
    "stop": ("stop", _texts),
    "stop_token_ids": ("stop_token_ids", tuple),
    "include_stop_str_in_output": ("include_stop_str_in_output", _same),
    "ignore_eos": ("ignore_eos", _same),
    "min_tokens": ("min_tokens", _same),
    "presence_penalty": ("presence_penalty", _same),
    "frequency_penalty": ("frequency_penalty", _same),
    "repetition_penalty": ("repetition_penalty", _same),
    "logit_bias": ("logit_bias", _bias),
    "bad_words": ("bad_words", _same),
    "prompt_logprobs": ("prompt_logprobs", _same),
    "response_format": ("grammar", of_format),
    "structured_outputs": ("grammar", of_outputs),
    "speculation": ("max_k", _max_k),
}
"""By the client's name: the field of `SamplingParams`, and how the value is brought into its form."""


def params_of(asked: Asked, room: int, default_max_tokens: int | None = None) -> SamplingParams:
    """How to answer. What names no seed gets one.

    Args:
        asked: the request.
        room: tokens that fit behind the prompt, for a request that sets no limit.
        default_max_tokens: the server's limit for such a request; None is OpenAI's.

    Raises:
        ApiError: a value is out of its range; it names the client's field.
    """
    settings = dict(DEFAULTS)
    if asked.seed is None:
        settings["seed"] = secrets.randbelow(MAX_SEED)
    try:
        if asked.response_format is not None and asked.structured_outputs is not None:
            raise RequestError("grammar: response_format and structured_outputs exclude each other; leave one out")
        for name, (field, convert) in FIELDS.items():
            value = getattr(asked, name)
            if value is not None:
                settings[field] = convert(value)
        if asked.num_logprobs is not None:
            settings["logprobs"] = asked.num_logprobs
            if asked.echoes:
                settings.setdefault("prompt_logprobs", asked.num_logprobs)
        return SamplingParams(max_tokens=_limit(asked, room, default_max_tokens), **settings)
    except RequestError as error:
        raise refused(error, asked) from error


def _limit(asked: Asked, room: int, default: int | None) -> int:
    if asked.most_tokens is not None:
        return asked.most_tokens
    usual = asked.usual_tokens if default is None else default
    return max(1, room if usual is None else min(room, usual))


def refused(error: RequestError, asked: Asked) -> ApiError:
    """A refusal by the client's name of what is wrong: the field that the message begins with, or else the prompt."""
    return refusing(asked)(error)


def refusing(asked: Asked) -> Callable[[RequestError], ApiError]:
    """The same for later, when the request itself is gone."""
    subject = asked.subject
    names = {field: name for name, (field, _) in FIELDS.items() if getattr(asked, name) is not None}
    if getattr(asked, "tools", None) is not None:
        names.setdefault("grammar", "tools")
    names |= {"tools": "tools", "max_tokens": asked.limit_name, "logprobs": asked.logprobs_name}
    names["max_k"] = "speculation.max_k"

    def refused(error: RequestError) -> ApiError:
        said = str(error)
        word = re.split(r"\W", said, maxsplit=1)[0]
        if word not in names:
            return ApiError(400, said, code="invalid_value", param=subject)
        return ApiError(400, names[word] + said.removeprefix(word), code="invalid_value", param=names[word])

    return refused


def choices(params: SamplingParams, num_choices: int) -> list[SamplingParams]:
    """Parameters of each choice of one prompt, each with a seed of its own.

    The first choice has the request's seed: it is what a request for one choice gets.

    Args:
        params: with a seed.
        num_choices: of the prompt.
    """
    assert params.seed is not None
    return [params, *(replace(params, seed=_derived(params.seed, place)) for place in range(1, num_choices))]


def _derived(seed: int, place: int) -> int:
    digest = blake2b(f"{seed}/{place}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % MAX_SEED
