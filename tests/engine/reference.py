"""A slow reference that shares nothing with the engine but the model's layers: at every token the logits of the whole
token list, processed by transformers where it has a processor, by hand otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from models.dense_attend import DenseAttend
from outpace import LLM, SamplingParams
from outpace.kernels.sample import Sampling, gumbel, truncate
from outpace.models.registry import LoadedTarget
from outpace.types import SamplingKind, TokenLogprobs


@torch.inference_mode()
def raw_logits(target: LoadedTarget, tokens: Sequence[int]) -> Tensor:
    """Logits behind every token, float32 [N, V]: one dense forward, nothing cached."""
    attend = DenseAttend(target.config.windows)
    hidden, _ = target.model(torch.tensor([list(tokens)]), torch.arange(len(tokens))[None], attend)
    return target.model.logits(hidden)[0].float()


def processed(logits_V: Tensor, tokens: list[int], num_prompt: int, params: SamplingParams, stops: set[int]) -> Tensor:
    """Logits of the token behind `tokens` after penalties, biases and bans, [V]."""
    ids, scores = torch.tensor([tokens]), logits_V[None].clone()
    if params.repetition_penalty != 1.0:
        scores = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(ids, scores)
    output = tokens[num_prompt:]
    for token in set(output):
        scores[0, token] -= params.frequency_penalty * output.count(token)
        scores[0, token] -= params.presence_penalty
    if params.logit_bias:
        bias = {(int(token),): float(value) for token, value in dict(params.logit_bias).items()}
        scores = SequenceBiasLogitsProcessor(bias)(ids, scores)
    if params.bad_words:
        scores = NoBadWordsLogitsProcessor([list(word) for word in params.bad_words])(ids, scores)
    if params.min_tokens and stops:
        scores = MinNewTokensLengthLogitsProcessor(num_prompt, params.min_tokens, sorted(stops))(ids, scores)
    return scores[0]


def decode(target: LoadedTarget, prompt: Sequence[int], params: SamplingParams) -> tuple[int, ...]:
    """The answer, one whole forward a token."""
    tokens = list(prompt)
    stops = set(params.stop_token_ids) | set(() if params.ignore_eos else target.config.eos_token_ids)
    for _ in range(params.max_tokens):
        scores = processed(raw_logits(target, tokens)[-1], tokens, len(prompt), params, stops)
        tokens.append(_choose(scores, params, len(tokens)))
        if tokens[-1] in stops:
            break
    return tuple(tokens[len(prompt) :])


def _choose(scores_V: Tensor, params: SamplingParams, position: int) -> int:
    if params.greedy:
        return int(scores_V.argmax())
    assert params.seed is not None
    sampling = Sampling(
        temperature_B=torch.tensor([params.temperature]),
        top_k_B=torch.tensor([params.top_k]),
        top_p_B=torch.tensor([params.top_p]),
        min_p_B=torch.tensor([params.min_p]),
        seed_B=torch.tensor([params.seed]),
        kind=SamplingKind.TRUNCATED,
    )
    cut = truncate((scores_V / params.temperature)[None, None], sampling)
    noise = gumbel(sampling.seed_B, torch.tensor([[position]]), torch.arange(len(scores_V)))
    return int((cut + noise).argmax())


@dataclass
class Served:
    """All that an engine told of one request."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    finish_reason: str | None = None


def serve(llm: LLM, batch: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[Served]:
    """Answers straight from the engine, log-probabilities included; a step that is interrupted is done again."""
    engine = llm.engine
    ids = [engine.add(prompt, p) for prompt, p in zip(batch, params, strict=True)]
    served = {i: Served() for i in ids}
    while engine.busy:
        try:
            engine.step()
        except KeyboardInterrupt:
            continue
        for update in engine.poll_all():
            answer = served[update.request_id]
            assert (answer.token_ids == ()) or update.prompt_logprobs is None
            answer.token_ids += update.token_ids
            if update.logprobs is not None:
                assert len(update.logprobs) == len(update.token_ids)
                answer.logprobs += update.logprobs
            if update.prompt_logprobs is not None:
                answer.prompt_logprobs = update.prompt_logprobs
            answer.finish_reason = update.finish_reason
    return [served[i] for i in ids]
