"""Tool calls out of an answer's text, as parts of what its client is told."""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass

from outpace.models.text.tool_calls import CallArguments, CallEnd, CallStart, Content, ToolCallParser
from outpace.server.asking.tools import Offer

_LETTERS = string.ascii_letters + string.digits


@dataclass(slots=True, kw_only=True)
class CallPart:
    """A part of one call; the first has its id and its name."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class Calling:
    """Reads one answer.

    Args:
        offer: what may be called.
        early: tell calls while they are written. Such a call may break off; without, what is no whole call is text.
    """

    def __init__(self, offer: Offer, *, early: bool) -> None:
        self._offer = offer
        self._parser = ToolCallParser(offer.form, offer.names, early=early)
        self._any_complete = False

    def read(self, text: str, finish_reason: str | None) -> tuple[str, list[CallPart], str | None]:
        """More of the answer: its own text, parts of calls with at most one a call, and how it ended, if it did."""
        events = self._parser.push(text)
        if finish_reason is not None:
            events += self._parser.finish()
        said, calls = [], dict[int, CallPart]()
        for event in events:
            if isinstance(event, Content):
                said.append(event.text)
            elif event.index < self._offer.most_calls:
                self._note(calls, event)
        if finish_reason == "stop" and self._any_complete:
            finish_reason = "tool_calls"
        return "".join(said), list(calls.values()), finish_reason

    def _note(self, calls: dict[int, CallPart], event: CallStart | CallArguments | CallEnd) -> None:
        match event:
            case CallStart(index=index, name=name):
                calls[index] = CallPart(index=index, id=_new_id(), name=name)
            case CallArguments(index=index, text=text):
                calls.setdefault(index, CallPart(index=index)).arguments += text
            case CallEnd(complete=complete):
                self._any_complete |= complete


def _new_id() -> str:
    """Nine letters and digits: Mistral's templates take no other ids in a conversation's past."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))
