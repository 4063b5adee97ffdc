"""What clients may send: OpenAI's fields as far as they are honoured, and what Outpace adds. The rest is refused.

Types are strict. Ranges of sampling fields are those of `SamplingParams`, which `sampling` fills from them; here lie
only the bounds on sizes.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WrapValidator

from outpace.config import MAX_BIASES
from outpace.server.asking.conversation import BoundedJson, Messages, ToolChoice, Tools
from outpace.server.asking.neutral import Neutral, NeutralStream
from outpace.server.asking.strict import FIRST_ERROR, Name, Strict, check_size, in_parts
from outpace.server.asking.structured import ResponseFormat, StructuredOutputs

MAX_CHOICES = 128
"""Answers of one request: choices times prompts."""
MAX_STOPS = 16
MAX_TOKEN_IDS = 1 << 20

BIASES = BeforeValidator(partial(check_size, most=MAX_BIASES))
TokenId = Annotated[int, Field(ge=0, lt=1 << 32)]
IN_PARTS = WrapValidator(in_parts)
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKEN_IDS), FIRST_ERROR, IN_PARTS]
Word = Annotated[str, Field(min_length=1, max_length=256)]
Stop = Annotated[str, Field(min_length=1, max_length=1024)]


class MaxK(Strict):
    """`{"max_k": 3}`: at most so many drafts a cycle."""

    max_k: int


class StreamOptions(NeutralStream):
    """Of an answer that does not stream they change nothing: it has its usage anyway."""

    include_usage: bool = False
    """A last chunk with the usage, and null in all others."""
    continuous_usage_stats: bool = False
    """vLLM's name: the usage so far in every chunk that has choices."""


class Sampling(Strict):
    """How an answer is decoded; null is the same as leaving a field out. `sampling.FIELDS` says what each becomes."""

    temperature: float | None = None
    """1 if left out, as with OpenAI."""
    top_p: float | None = None
    top_k: int | None = None
    """0 or, as with vLLM, -1 takes all."""
    min_p: float | None = None
    seed: int | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=4096), FIRST_ERROR] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=MAX_BIASES), BIASES] | None = None
    bad_words: Annotated[list[TokenIds | Word], Field(max_length=64), FIRST_ERROR] | None = None
    """Token ids, or texts: these are banned as the tokenizer spells them, with and without a space in front."""
    prompt_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    speculation: Literal["off", "auto"] | MaxK | None = None
    """Speed only: the answer is the same."""


class Asked(Sampling, Neutral):
    """What both kinds of completion have."""

    model: Name
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    subject: ClassVar[str] = "prompt"
    """The field that the prompt comes in."""
    usual_tokens: ClassVar[int | None] = None
    """What OpenAI's API takes for an answer's limit where none is set; None is what the context leaves."""

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    @property
    def most_tokens(self) -> int | None:
        """Longest answer, if the request sets a limit."""
        return self.max_tokens

    @property
    def limit_name(self) -> str:
        """The field that `most_tokens` came from."""
        return "max_tokens"

    logprobs_name: ClassVar[str] = "logprobs"

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives wanted beside each token's log-probability; None wants no log-probabilities."""
        return None

    @property
    def echoes(self) -> bool:
        """The prompt is to stand before the answer."""
        return False


class Conversing(Strict):
    """How a conversation becomes a prompt, by vLLM's names."""

    chat_template_kwargs: BoundedJson | None = None
    """What else the model's template looks at, such as `enable_thinking`."""
    add_generation_prompt: bool | None = None
    """The prompt ends with the opening of the answer; so it does if this is left out, unless a message is continued."""
    continue_final_message: bool | None = None
    """The prompt ends within the last message, and the answer goes on with that."""

    @property
    def rendering(self) -> dict[str, Any]:
        """Options of `ChatTemplate.render`."""
        continues = bool(self.continue_final_message)
        return {
            "variables": self.chat_template_kwargs,
            "add_generation_prompt": not continues
            if self.add_generation_prompt is None
            else self.add_generation_prompt,
            "continue_final_message": continues,
        }


class ChatRequest(Asked, Conversing):
    """Body of /v1/chat/completions."""

    subject: ClassVar[str] = "messages"

    logprobs_name: ClassVar[str] = "top_logprobs"

    messages: Messages
    modalities: list[Literal["text"]] | None = None
    verbosity: Literal["medium"] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    """"auto" if left out."""
    parallel_tool_calls: bool | None = None
    """False: at most one call is told. What the model writes beyond it is left out; its tokens count."""

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def limit_name(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"


class CompletionRequest(Asked):
    """Body of /v1/completions."""

    usual_tokens: ClassVar[int | None] = 16

    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES), FIRST_ERROR]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_CHOICES), FIRST_ERROR]
    )

    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    """As many as `n`: all answers are told."""
    suffix: Literal[""] | None = None

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def echoes(self) -> bool:
        return bool(self.echo)

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


class TokenizeRequest(Conversing):
    """Body of /tokenize: a text or a conversation."""

    model: Name | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    """Of the conversation."""
    add_special_tokens: bool | None = None
    """Of a text: those that belong around it, as in /v1/completions; true if left out."""


class DetokenizeRequest(Strict):
    """Body of /detokenize."""

    model: Name | None = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKEN_IDS), FIRST_ERROR, IN_PARTS]
    skip_special_tokens: bool = False
