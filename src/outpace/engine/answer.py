"""What one request has said so far: runs of token ids in, text that can be shown out.

It needs the tokenizer and nothing of the engine, so it may live in another process than the engine does.

Which stop wins depends on nothing but the tokens, never on how they were grouped into runs: tokens are looked at one by
one, and the first event ends the answer. A stop string counts from the token whose text completes it; it wins over a
stop token and over `max_tokens` that come with the same token or later.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from outpace.config import SamplingParams
from outpace.engine.sequence import FinishReason
from outpace.errors import RequestError
from outpace.models.text.stop_strings import StopStrings
from outpace.models.text.tokenizer import IncrementalDecoder, Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a run of tokens added to an answer."""

    text: str
    """Whole characters, none of which is ever taken back."""
    num_tokens: int
    """How many of the run's tokens belong to the answer: cut token ids and logprobs there."""
    finish_reason: FinishReason | None
    stopped_by: str | int | None
    """The stop string or the id of `stop_token_ids` that ended the answer; None for the model's own end."""


class Answer:
    """One answer while it is written. The cost of a token does not depend on how many came before it.

    Its text is the decoding of its tokens, without that of the stop token, up to the first stop string
    (`StopStrings` says which is first) that is complete after the first `min_tokens` tokens.
    `include_stop_str_in_output` keeps what stopped it.

    Args:
        tokenizer: None for a model without one; all text is then empty.
        params: of the request.
        kept: special tokens that are shown nevertheless, such as those around tool calls.

    Raises:
        RequestError: there are stop strings and no tokenizer to find them with.
    """

    def __init__(self, tokenizer: Tokenizer | None, params: SamplingParams, kept: Collection[str] = ()) -> None:
        if tokenizer is None and params.stop:
            raise RequestError("stop strings need a tokenizer, and the model has none: use stop_token_ids")
        self._decoder = None if tokenizer is None else IncrementalDecoder(tokenizer, kept=kept)
        self._stops = StopStrings(params.stop) if params.stop else None
        self._params = params
        self.num_tokens = 0
        """Completion tokens: all up to the one that ended the answer, that one included."""
        self.finish_reason: FinishReason | None = None
        self.stopped_by: str | int | None = None

    def push(self, run: Sequence[int], finish_reason: FinishReason | None = None, *, closed: bool = False) -> Piece:
        """The next tokens. What comes after the answer's end is dropped.

        Args:
            run: any number of new token ids.
            finish_reason: why the engine ended the request behind them: "stop" says that the last is a stop token,
            closed: or, where this is set, that a grammar ended with it.
        """
        if self.finish_reason is not None:
            return self._piece("", 0)
        text, num_tokens = self._read(run, finish_reason, closed)
        self.num_tokens += num_tokens
        return self._piece(text, num_tokens)

    def _read(self, run: Sequence[int], finish_reason: FinishReason | None, closed: bool) -> tuple[str, int]:
        """The text to show and how many tokens count; settles how the answer ended, if it did."""
        spoken = run
        if finish_reason == "stop" and not closed and not self._params.include_stop_str_in_output:
            spoken = run[:-1]
        text = ""
        for place, token in enumerate(spoken, start=1):
            text += self._search(self._decode(token), place)
            if self.finish_reason is not None:
                return text, place
        if finish_reason is not None:
            text += self._end(run, finish_reason, closed)
        return text, len(run)

    def _end(self, run: Sequence[int], finish_reason: FinishReason, closed: bool) -> str:
        """The rest of the text, in which a stop string may still lie, and the engine's reason if none does."""
        text = "" if self._decoder is None else self._search(self._decoder.finish(), len(run))
        if self.finish_reason is None:
            self.finish_reason = finish_reason
            if finish_reason == "stop" and not closed and run[-1] in self._params.stop_token_ids:
                self.stopped_by = run[-1]
            text += "" if self._stops is None else self._stops.finish()
        return text

    def _decode(self, token: int) -> str:
        return "" if self._decoder is None else self._decoder.push((token,))

    def _search(self, text: str, place: int) -> str:
        """What can be shown of a token's text; ends the answer if a stop string is complete in it."""
        if self._stops is None:
            return text
        shown, _ = self._stops.push(text, armed=self.num_tokens + place > self._params.min_tokens)
        if self._stops.matched is None:
            return shown
        self.finish_reason, self.stopped_by = "stop", self._stops.matched
        return shown + self._stops.matched if self._params.include_stop_str_in_output else shown

    def _piece(self, text: str, num_tokens: int) -> Piece:
        return Piece(text=text, num_tokens=num_tokens, finish_reason=self.finish_reason, stopped_by=self.stopped_by)
