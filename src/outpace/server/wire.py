"""What the HTTP side and the engine process say to each other: typed messages in length-prefixed msgpack frames.

A frame is four bytes of length, most significant first, and a message. Nothing but the types below is ever decoded; a
message of another type, with unknown fields, or above `MAX_FRAME` ends the connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Literal, TypeVar

import msgspec

from outpace.config import SamplingParams
from outpace.errors import OutpaceError
from outpace.types import TokenLogprobs

MAX_FRAME = 64 << 20
"""Bytes of one message: a prompt of ten million tokens fits."""
_PREFIX = 4


class WireError(OutpaceError):
    """A frame is too large, or is no message that this side takes; or a message cannot be written as one."""


class _Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    pass


class Start(_Message, frozen=True, kw_only=True):
    """The first thing that an engine process hears: what to load, arguments of `LLM`, and how to wait."""

    model: str
    drafter: str | None
    dtype: str
    device: str
    aux_boundaries: tuple[int, ...] | None
    options: dict[str, Any]
    awake: float = 0.0
    """Seconds without work that it looks for messages before it sleeps, if the model is on a GPU."""


class Submit(_Message, frozen=True, kw_only=True):
    """A request. Its seed is set, so that doing it over gives the same answer."""

    id: int
    prompt_ids: list[int]
    params: SamplingParams
    kept: tuple[str, ...] = ()
    """Special tokens that its text shows."""


class Abort(_Message, frozen=True, kw_only=True):
    """Nobody waits for this request any more."""

    id: int


class Aborted(_Message, frozen=True, kw_only=True):
    """An `Abort` was heard: nothing of this request is in the engine any more."""

    id: int


class AskState(_Message, frozen=True, kw_only=True):
    """Asks for a `State` with the same number."""

    ask: int


class Ready(_Message, frozen=True, kw_only=True):
    """The model is loaded; what `LLM.describe` says of it, and the machine's fingerprint."""

    settings: dict[str, Any]


class CannotStart(_Message, frozen=True, kw_only=True):
    """Loading failed, and would fail again: what was asked for is wrong."""

    message: str


class Accepted(_Message, frozen=True, kw_only=True):
    """The engine took a request."""

    id: int


class Refused(_Message, frozen=True, kw_only=True):
    """The engine did not take a request, or its grammar left no token to go on with: the caller's fault."""

    id: int
    message: str


class Untried(_Message, frozen=True, kw_only=True):
    """A request's grammar could not be tried for want of time, memory or processes: it may be sent again."""

    id: int
    message: str


class Broken(_Message, frozen=True, kw_only=True):
    """A request made the engine raise: it alone is given up."""

    id: int
    message: str


class Tally(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What speculation came to for one request so far: see `RequestStats`."""

    cycles: int = 0
    emitted: int = 0
    drafted_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()
    reused: int = 0
    simulated: bool = False
    lossy: bool = False


class Piece(_Message, frozen=True, kw_only=True):
    """What one request has written since its last piece: whole characters, all tokens."""

    id: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: Literal["stop", "length"] | None
    tally: Tally
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One a token, if they were asked for."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """One a prompt token, if they were asked for: with the first piece, and many of them in pieces before it."""
    first_s: float | None = None
    """Of the first token's: seconds that it took the engine process, from when it began the request."""


class State(_Message, frozen=True, kw_only=True):
    """How the engine is now."""

    ask: int
    pages: dict[str, int]
    k: int
    """Of the last decision."""
    why: str
    weighed: dict[str, Any] | None
    """The k that `why` speaks of, what it would bring and where it breaks even; None where nothing was weighed."""
    control: dict[str, Any]
    graphs: dict[str, Any]
    """What of the cycles is a graph, or why nothing is."""
    phases: list[dict[str, Any]]
    """Where the time of cycles goes: see `PhaseLog`."""
    preempted: int
    """How often a request gave its pages back and started over."""


class Beat(_Message, frozen=True, kw_only=True):
    """The engine gets on: see `pulse`."""


class Stalled(_Message, frozen=True, kw_only=True):
    """The engine does not get on, and what its ranks are doing: no sign of life."""

    message: str


class Lost(_Message, frozen=True, kw_only=True):
    """The engine process is going down, and why."""

    message: str


ToEngine = Start | Submit | Abort | AskState
FromEngine = (
    Ready | CannotStart | Accepted | Refused | Untried | Broken | Piece | Aborted | State | Beat | Stalled | Lost
)
Message = ToEngine | FromEngine


Expected = TypeVar("Expected")


class Frames(Generic[Expected]):
    """Messages out of bytes, however these were cut up on the way.

    Args:
        messages: the types that this side takes.
    """

    def __init__(self, messages: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Expected] = msgspec.msgpack.Decoder(messages)
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Expected]:
        """The messages that are complete now.

        Raises:
            WireError: a frame is too large or no message.
        """
        self._rest += data
        while len(self._rest) >= _PREFIX:
            size = int.from_bytes(self._rest[:_PREFIX], "big")
            if size > MAX_FRAME:
                raise WireError(f"a frame of {size} bytes came; at most {MAX_FRAME} are taken")
            end = _PREFIX + size
            if len(self._rest) < end:
                return
            frame = bytes(self._rest[_PREFIX:end])
            del self._rest[:end]
            yield self._decoded(frame)

    def _decoded(self, frame: bytes) -> Expected:
        try:
            return self._decoder.decode(frame)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise WireError(f"a frame of {len(frame)} bytes is no message: {error}") from error


def pack(message: Message) -> bytes:
    """A message as one frame.

    Raises:
        WireError: it is above `MAX_FRAME`, or holds what msgpack cannot: a lone surrogate, a number of over 64 bits.
    """
    try:
        body = msgspec.msgpack.encode(message)
    except (msgspec.MsgspecError, OverflowError, ValueError) as error:
        raise WireError(f"the message cannot be written: {error}") from error
    if len(body) > MAX_FRAME:
        raise WireError(f"a message of {len(body)} bytes is too large; at most {MAX_FRAME} are sent")
    return len(body).to_bytes(_PREFIX, "big") + body
