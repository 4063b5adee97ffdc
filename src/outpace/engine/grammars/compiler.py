"""Compiling grammars for one model's vocabulary, in threads of their own: one bad schema stalls nobody.

The work is done by llguidance, which leaves Python's lock alone meanwhile and bounds itself: by the size of a grammar,
by the states of its lexer, by the work of a step. Its end-of-answer token is an id of its own behind the vocabulary:
the bit of that id says whether the answer may end, and `Matcher` makes of it what the request means by an end.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as OutOfTime
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from outpace.errors import RequestError
from outpace.grammar import Grammar, json_rule
from outpace.models.text.tokenizer import Tokenizer

MAX_KEPT = 64
"""Compiled grammars, those used last."""
COMPILE_S = 10.0
"""Longest wait for one."""
NUM_THREADS = 2


@dataclass(frozen=True, slots=True)
class Compiled:
    """A grammar for a vocabulary."""

    start: LLMatcher
    """Before the first token; only ever copied."""
    num_ids: int
    """Of the vocabulary, and the id that stands for the end."""
    executor: LLExecutor
    """Computes masks of several rows at once."""


class Compiler:
    """Compiles for one model.

    Args:
        tokenizer: the model's, if it has one.
        num_ids: width of its logits.
    """

    def __init__(self, tokenizer: Tokenizer | None, num_ids: int) -> None:
        self._tokenizer, self._num_ids = tokenizer, num_ids
        self._kept: OrderedDict[Grammar, Future[Compiled]] = OrderedDict()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammar")
        self._lock = Lock()
        self._vocabulary: LLTokenizer | None = None
        self._executor: LLExecutor | None = None

    def warm(self) -> Future[Any]:
        """Begins with what all grammars need of the vocabulary, which takes a second or more the first time.

        Its error, where there can be no grammars, is also that of each request that has one.
        """
        return self._threads.submit(self._tools)

    def begin(self, grammar: Grammar) -> Future[Compiled]:
        """Compiles it, unless that was done or begun already. Its error is a RequestError."""
        if grammar not in self._kept:
            self._kept[grammar] = self._threads.submit(self._compile, grammar)
        self._kept.move_to_end(grammar)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return self._kept[grammar]

    def compile(self, grammar: Grammar) -> Compiled:
        """The grammar, once it is compiled.

        Raises:
            RequestError: it cannot be honoured, admits nothing, or takes too long.
        """
        compiling = self.begin(grammar)
        try:
            error = compiling.exception(COMPILE_S)
        except OutOfTime as late:
            raise too_slow() from late
        if error is not None:  # told anew each time: a kept one would grow with every place that it passes
            raise RequestError(str(error) if isinstance(error, RequestError) else f"grammar: {error!r:.500}")
        return compiling.result()

    def _compile(self, grammar: Grammar) -> Compiled:
        vocabulary, executor = self._tools()
        start = LLMatcher(vocabulary, _source(grammar), log_level=0, limits=_limits())
        first = start.deep_copy()
        words = np.frombuffer(first.compute_bitmask(), dtype=np.uint8)
        if error := start.get_error() or first.get_error():
            raise RequestError(f"grammar: {reason(error)}")
        if only_ends(words, self._num_ids):
            raise RequestError("grammar: it admits the empty text alone; give one that admits a token")
        return Compiled(start, self._num_ids, executor)

    def _tools(self) -> tuple[LLTokenizer, LLExecutor]:
        with self._lock:
            if self._vocabulary is None or self._executor is None:
                if self._tokenizer is None:
                    raise RequestError("grammar: it needs a tokenizer, and the model has none; leave it out")
                self._vocabulary = LLTokenizer(TokenizerWrapper(_Vocabulary(self._tokenizer, self._num_ids)))
                self._executor = LLExecutor(min(8, os.cpu_count() or 1))
            return self._vocabulary, self._executor


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, num_ids: int) -> None:
        texts = tokenizer.token_bytes()[:num_ids]
        names = {i: token.content for i, token in tokenizer.backend.get_added_tokens_decoder().items()}
        # A special token is written as the byte 0xFF and its name; no other may begin so, and none of a text does.
        self.tokens = [
            (b"\xff" + names[i].encode() if i in names else b"") if text is None else text.removeprefix(b"\xff")
            for i, text in enumerate(texts)
        ]
        self.tokens += [b""] * (num_ids - len(texts))
        self.special_token_ids = [i for i, text in enumerate(texts) if text is None and i in names]
        self.eos_token_id = num_ids
        self.tokens.append(b"\xff<end of the answer>")
        self.special_token_ids.append(num_ids)

    def __call__(self, text: bytes | str) -> list[int]:
        """It would spell out what a grammar forces; nothing here is forced, only masked."""
        return []


def _source(grammar: Grammar) -> str:
    """In llguidance's own notation, with every spelling of a text by tokens admitted, not just the tokenizer's."""
    return '%llguidance {"no_forcing": true}\n' + _rules(grammar)


def _rules(grammar: Grammar) -> str:
    match grammar.kind:
        case "json_schema":
            return f"start: {json_rule(json.loads(grammar.source))}"
        case "regex":
            return f"start: /{regex_to_lark(grammar.source, '')}/"
        case "choice":
            return "start: " + " | ".join(json.dumps(choice) for choice in json.loads(grammar.source))
        case "ebnf":
            return _lark(grammar.source)


def _lark(rules: str) -> str:
    if "%llguidance" in rules:
        raise RequestError("grammar: it holds %llguidance, which is for the engine to say; remove that line")
    try:
        lark: str = any_to_lark(rules)
    except Exception as error:  # the converter has errors of many kinds
        raise RequestError(f"grammar: it cannot be read as EBNF: {reason(str(error))}") from error
    return lark


def complaint(grammar: Grammar) -> str | None:
    """What the library has against a grammar, whatever the vocabulary; None if nothing."""
    wrong, said = LLMatcher.validate_grammar_with_warnings(_source(grammar), limits=_limits())
    return f"grammar: {reason(said[0])}" if wrong else None


def _limits() -> LLParserLimits:
    return LLParserLimits(
        max_items_in_row=10_000, max_lexer_states=25_000, max_grammar_size=100_000, verbose_errors=False
    )


def too_slow() -> RequestError:
    """It was not compiled in time."""
    return RequestError(f"grammar: it was not compiled within {COMPILE_S:g} s; make it simpler")


def reason(error: str) -> str:
    """What a library says, on one line and without what it appends of its state."""
    said = " ".join(error.replace("<non-verbose/>", "").split())
    return "no token fits it" if said.startswith("NoExtension") or not said else said[:500]


def only_ends(mask: np.ndarray[Any, Any], num_ids: int) -> bool:
    """Whether a packed mask admits the end and nothing else; `mask` is of bytes."""
    place, bit = divmod(num_ids, 8)
    return bool(mask[place] == 1 << bit and not mask[:place].any())
