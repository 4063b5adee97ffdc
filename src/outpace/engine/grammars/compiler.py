"""Compiling grammars for one model's vocabulary, in threads of their own: one bad schema stalls nobody.

The work is done by llguidance, which leaves Python's lock alone meanwhile. Grammars of strangers are tried first in a
process that can be killed (`trials`), so that what is compiled here is known to take little time and memory. The
library's end-of-answer token is an id of its own behind the vocabulary: the bit of that id says whether the answer may
end, and `Matcher` makes of it what the request means by an end.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as OutOfTime
from dataclasses import dataclass
from threading import Lock, get_native_id
from typing import Any

from llguidance import LLExecutor, LLMatcher, LLTokenizer

from outpace.engine.grammars.notation import build, source_of
from outpace.engine.grammars.trials import TrialFailed, Trials
from outpace.engine.grammars.vocabulary import Vocabulary
from outpace.errors import RequestError
from outpace.grammar import Grammar
from outpace.models.text.tokenizer import Tokenizer

MAX_KEPT = 64
"""Compiled grammars, those used last."""
COMPILE_S = 10.0
"""Longest wait for one."""
NUM_THREADS = 8
"""Most of the time they wait for a trial: an ordinary grammar shares the cores with hostile ones, and does not queue
behind them."""


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
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammar", initializer=_step_back)
        self._lock = Lock()
        self._index: LLTokenizer | None = None
        self._executor: LLExecutor | None = None
        self._guarded = False
        self._trials: Trials | None = None

    def guard(self) -> None:
        """From now on grammars are strangers': each is tried in a process of its own before it is compiled here."""
        self._guarded = True

    def warm(self) -> Future[Any]:
        """Begins with what all grammars need of the vocabulary, which takes a second or more the first time.

        Its error, where there can be no grammars, is also that of each request that has one.
        """
        return self._threads.submit(self._tools)

    def close(self) -> None:
        """Ends what `guard` started; nothing is compiled any more."""
        self._threads.shutdown(cancel_futures=True)
        if self._trials is not None:
            self._trials.close()

    def begin(self, grammar: Grammar) -> Future[Compiled]:
        """Compiles it, unless that was done or begun already. Its error is a RequestError."""
        compiling = self._kept.get(grammar)
        if compiling is None or _failed_by_chance(compiling):
            compiling = self._kept[grammar] = self._threads.submit(self._compile, grammar)
        self._kept.move_to_end(grammar)
        for oldest in list(self._kept)[:-MAX_KEPT]:
            if self._kept[oldest].done():  # one that is waited for is asked for again until it is
                del self._kept[oldest]
        return compiling

    def give_up(self, grammar: Grammar) -> None:
        """Nobody waits for it any more: if it is not being compiled yet, it will not be."""
        if (compiling := self._kept.get(grammar)) is not None and compiling.cancel():
            del self._kept[grammar]

    def compile(self, grammar: Grammar) -> Compiled:
        """The grammar, once it is compiled.

        Raises:
            RequestError: it cannot be honoured, admits nothing, or takes too long.
            TrialFailed: it could not be tried.
        """
        compiling = self.begin(grammar)
        try:
            error = compiling.exception(COMPILE_S)
        except OutOfTime as late:
            raise RequestError(f"grammar: it was not compiled within {COMPILE_S:g} s; make it simpler") from late
        if error is not None:  # told anew each time: a kept one would grow with every place that it passes
            if isinstance(error, RequestError):
                raise type(error)(str(error))
            raise RequestError(f"grammar: {error!r:.500}")
        return compiling.result()

    def _compile(self, grammar: Grammar) -> Compiled:
        index, executor = self._tools()
        source = source_of(grammar) if self._trials is None else self._trials.source(grammar)
        return Compiled(build(index, source, self._num_ids), self._num_ids, executor)

    def _tools(self) -> tuple[LLTokenizer, LLExecutor]:
        with self._lock:
            if self._index is None or self._executor is None:
                if self._tokenizer is None:
                    raise RequestError("grammar: it needs a tokenizer, and the model has none; leave it out")
                vocabulary = Vocabulary.of(self._tokenizer, self._num_ids)
                if self._guarded:
                    self._trials = Trials(vocabulary)
                    self._trials.start()
                self._index = vocabulary.indexed()
                self._executor = LLExecutor(min(8, os.cpu_count() or 1))
            return self._index, self._executor


def _failed_by_chance(compiling: Future[Compiled]) -> bool:
    return compiling.done() and isinstance(compiling.exception(), TrialFailed)


def _step_back() -> None:
    """Lets the thread that decodes go first."""
    if sys.platform == "linux":  # elsewhere a priority is a process's
        os.setpriority(os.PRIO_PROCESS, get_native_id(), 5)
