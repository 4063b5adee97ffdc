"""What chats and completions have in common: a request is checked as a whole, sent to the engine, and answered."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from outpace.config import SamplingParams
from outpace.errors import RequestError
from outpace.server.answering.calling import Calling
from outpace.server.answering.formats import Envelope, Format
from outpace.server.answering.reading import Reader
from outpace.server.answering.response import Answering, Awaited
from outpace.server.api.backend import Backend
from outpace.server.asking.protocol import MAX_CHOICES, Asked, ChatRequest, CompletionRequest
from outpace.server.asking.sampling import choices, params_of, refusing
from outpace.server.asking.tools import Offer, blamed, params_under
from outpace.server.http.api_errors import ApiError
from outpace.server.http.observing import facts_of
from outpace.wording import count_of


async def answer(
    backend: Backend,
    request: Request,
    asked: Asked,
    prompts: Sequence[list[int]],
    form: Format,
    offer: Offer | None = None,
) -> Response:
    """Every prompt's choices, one after the other; they are begun, and the response is what waits for them.

    Raises:
        ApiError, OutpaceError: there will be no answer.
    """
    _check_number(asked, len(prompts))
    _check_fits(asked)
    asked = _with_word_ids(backend, asked)
    if asked.labels:
        facts_of(request.scope).update(asked.labels)
    wanted = _wanted(backend, asked, prompts, offer)
    echoed = await _echoed(backend, prompts, asked.n or 1) if asked.echoes else None  # before anything runs
    told = None if offer is None else offer.told()
    submission = backend.client.submit(wanted, backend.request_timeout, () if told is None else told.form.special)
    refused = refusing(asked)  # as all that follows: the engine is at it meanwhile
    answering = Answering(
        request=request,
        envelope=Envelope(form, backend.name),
        submission=submission,
        num_prompts=tuple(map(len, prompts)),
        explain=lambda error: blamed(error, told) or refused(error),
        include_usage=asked.include_usage,
        continuous_usage=asked.continuous_usage,
        reader=Reader(
            spell=backend.texts.spell,
            columnar=form.columnar,
            echoed=echoed,
            tells_prompt=asked.prompt_logprobs is not None,
            calling=None if told is None else partial(Calling, told, early=bool(asked.stream)),
        ),
    )
    return Awaited(answering, stream=bool(asked.stream))


def _check_number(asked: Asked, num_prompts: int) -> None:
    """How many answers one request may ask for.

    Raises:
        ApiError: it asks for more.
    """
    num_choices = asked.n or 1
    if num_choices * num_prompts > MAX_CHOICES:
        raise ApiError(
            400,
            f"{count_of(num_prompts, 'prompt')} with n {num_choices} are "
            f"{count_of(num_choices * num_prompts, 'answer')}; one request may ask for {MAX_CHOICES}",
            code="invalid_value",
            param="n",
        )


def _check_fits(asked: Asked) -> None:
    """Fields that mean nothing without another, or that say the same of which both cannot be.

    Raises:
        ApiError: one was given alone, or two contradict each other.
    """
    if isinstance(asked, ChatRequest) and asked.top_logprobs and not asked.logprobs:
        raise ApiError(400, "top_logprobs need logprobs: true", code="invalid_value", param="top_logprobs")
    if isinstance(asked, ChatRequest) and asked.max_tokens not in (None, asked.most_tokens):
        message = (
            f"max_tokens is {asked.max_tokens} and max_completion_tokens {asked.most_tokens}: leave one of them out"
        )
        raise ApiError(400, message, code="invalid_value", param="max_tokens")
    if isinstance(asked, CompletionRequest) and asked.best_of not in (None, asked.n or 1):
        message = f"best_of is {asked.best_of}; all answers are told, so it must be n, which is {asked.n or 1}"
        raise ApiError(400, message, code="invalid_value", param="best_of")


def _with_word_ids(backend: Backend, asked: Asked) -> Asked:
    """The request with its bad words as token ids.

    Raises:
        ApiError: they are texts, and there is no tokenizer for them.
    """
    if not asked.bad_words:
        return asked
    try:
        return asked.model_copy(update={"bad_words": backend.texts.word_ids(asked.bad_words)})
    except RequestError as error:
        raise ApiError(400, str(error), code="invalid_value", param="bad_words") from error


def _wanted(
    backend: Backend, asked: Asked, prompts: Sequence[list[int]], offer: Offer | None
) -> list[tuple[list[int], SamplingParams]]:
    """What the engine is asked: each prompt with its choices' parameters.

    Raises:
        ApiError, OutpaceError: a value is out of its range, or beyond the limits of the engine; or there is none.
    """
    limits, wanted = backend.limits(), list[tuple[list[int], SamplingParams]]()
    for prompt in prompts:
        params = params_of(asked, limits.room(len(prompt)), backend.default_max_tokens)
        params = params_under(params, offer, backend.texts.special_id)
        limits.check(prompt, params)  # a stream whose second prompt is refused later would have begun
        wanted += [(prompt, choice) for choice in choices(params, asked.n or 1)]
    return wanted


async def _echoed(backend: Backend, prompts: Sequence[list[int]], num_choices: int) -> tuple[str, ...]:
    """The prompt's text before each answer."""
    texts = [await backend.texts.text(prompt, skip_special=True) for prompt in prompts]
    return tuple(text for text in texts for _ in range(num_choices))
