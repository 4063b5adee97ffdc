"""The engine process's loop: messages in, steps while there is work, pieces out.

What a request can do wrong is refused when it begins. Where a step raises all the same, `Suspicion` finds the request
that makes it raise: that one fails, the others go on, and those that had to stand aside meanwhile are done over from
their seed, without what they have said already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic, sleep

from outpace.engine.grammars.trials import TrialFailed, untried
from outpace.engine.llm import LLM
from outpace.errors import RequestError
from outpace.server.engine_process import state
from outpace.server.engine_process.served import Served
from outpace.server.engine_process.suspicion import Suspicion
from outpace.server.wire import (
    Abort,
    Aborted,
    Accepted,
    AskState,
    Broken,
    FromEngine,
    Refused,
    Submit,
    ToEngine,
    Untried,
    WireError,
)

COMPILE_WAIT_S = 60.0
"""Longest wait for a grammar, those of others included. One alone ends far sooner: see `trial_process`."""
COMPILE_POLL_S = 0.002
"""Between looks at grammars that are being compiled, while nothing else is to be done."""


class Serving:
    """One engine behind a connection.

    Args:
        llm: the engine.
        send: hands a message to the other side.
    """

    def __init__(self, llm: LLM, send: Callable[[FromEngine], None]) -> None:
        self._llm = llm
        self._send = send
        self._served: dict[int, Served] = {}
        """By the other side's id, oldest first."""
        self._held: list[Submit] = []
        """Came while a culprit was sought."""
        self._compiling: list[tuple[Submit, float]] = []
        """Came with a grammar that is not compiled yet, and when."""
        self._suspicion: Suspicion[Served] = Suspicion()

    @property
    def busy(self) -> bool:
        return bool(self._served or self._held or self._compiling or self._suspicion.seeking)

    def handle(self, messages: Iterable[ToEngine]) -> None:
        """Obeys what came.

        Raises:
            WireError: a message that makes no sense now.
        """
        for message in messages:
            match message:
                case Submit():
                    self._held.append(message)
                case Abort(id=request_id):
                    self._abort(request_id)
                    self._send(Aborted(id=request_id))
                case AskState(ask=ask):
                    self._send(state.of(ask, self._llm))
                case _:
                    raise WireError(f"{type(message).__name__} came to an engine that runs already")
            if not self._suspicion.seeking:
                self._begin_held()

    def step(self) -> None:
        """One step of the engine, and what came of it; where it has nothing to do, a short wait for grammars.

        Raises:
            EngineError: the engine is broken, whatever it is asked.
        """
        if self._compiling and not self._suspicion.seeking:
            self._begin_compiled()
            if not self._served:
                return
        try:
            self._llm.engine.step()
        except Exception as error:
            self._doubt(error)
        self._tell()
        if self._suspicion.settled(self._served):
            self._acquit()
        if self._held and not self._suspicion.seeking:
            self._begin_held()

    def _begin_held(self) -> None:
        held, self._held = self._held, []
        for submit in held:
            if self._compiled(submit):
                self._begin(submit)
            else:
                self._compiling.append((submit, monotonic()))

    def _compiled(self, submit: Submit) -> bool:
        """Whether its grammar, if it has one, is compiled, or found to be wrong; it begins where it was not begun."""
        grammar = submit.params.grammar
        return grammar is None or self._llm.engine.grammars.begin(grammar).done()

    def _begin_compiled(self) -> None:
        compiling, self._compiling = self._compiling, []
        for submit, since in compiling:
            if self._compiled(submit):
                self._begin(submit)
            elif monotonic() - since > COMPILE_WAIT_S:
                self._give_up(submit)
                late = untried(f"those before it took more than {COMPILE_WAIT_S:g} s")
                self._send(Untried(id=submit.id, message=str(late)))
            else:
                self._compiling.append((submit, since))
        if self._compiling and not self._served:
            sleep(COMPILE_POLL_S)

    def _give_up(self, submit: Submit) -> None:
        """What nobody waits for is not compiled: others would queue behind it."""
        grammar = submit.params.grammar
        if grammar is not None and all(other.params.grammar != grammar for other, _ in self._compiling):
            self._llm.engine.grammars.give_up(grammar)

    def _begin(self, submit: Submit) -> None:
        try:
            self._served[submit.id] = Served(self._llm, submit)
        except TrialFailed as error:
            self._send(Untried(id=submit.id, message=str(error)))
        except RequestError as error:
            self._send(Refused(id=submit.id, message=str(error)))
        except Exception as error:  # whatever it is, it is this request's
            self._send(Broken(id=submit.id, message=_said(error)))
        else:
            self._send(Accepted(id=submit.id))

    def _abort(self, request_id: int) -> None:
        self._held = [submit for submit in self._held if submit.id != request_id]
        for place, (submit, _) in enumerate(self._compiling):
            if submit.id == request_id:
                del self._compiling[place]
                self._give_up(submit)
                break
        self._suspicion.forget(request_id)
        served = self._served.pop(request_id, None)
        if served is not None:
            served.end()

    def _tell(self) -> None:
        for request_id, served in list(self._served.items()):
            try:
                self._tell_of(request_id, served)
            except RequestError as error:  # its grammar left no token to go on with
                self._abort(request_id)
                self._send(Refused(id=request_id, message=str(error)))
            except Exception as error:  # nothing can be made of its tokens: nobody else's matter
                self._abort(request_id)
                self._send(Broken(id=request_id, message=_said(error)))

    def _tell_of(self, request_id: int, served: Served) -> None:
        pieces = served.take()
        for piece in pieces:
            self._send(piece)
        if pieces:
            self._suspicion.saw_progress(request_id)
            if pieces[-1].finish_reason is not None:
                del self._served[request_id]

    def _doubt(self, error: Exception) -> None:
        """A step raised. The engine rebuilds itself; if that does not help, the youngest request stands aside."""
        suspect = self._suspicion.after(error, list(self._served))
        if suspect is not None:
            served = self._served.pop(suspect)
            served.end()
            self._suspicion.bench(suspect, served)

    def _acquit(self) -> None:
        """Those that stood aside come back, but for the culprit."""
        message, culprit, innocent = self._suspicion.verdict()
        if culprit is not None:
            self._send(Broken(id=culprit, message=message))
        for served in innocent:
            self._begin_again(served)
        if not self._served:
            self._llm.engine.step()  # nothing runs: it only puts its pages in order

    def _begin_again(self, served: Served) -> None:
        request_id = served.submit.id
        try:
            served.begin()
        except Exception as error:  # such as its grammar, which was not kept and could not be compiled once more
            self._send(Broken(id=request_id, message=_said(error)))
        else:
            self._served[request_id] = served


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:2000]
