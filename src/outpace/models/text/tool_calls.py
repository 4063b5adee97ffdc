"""Tool calls in a model's text, found while it arrives: content before and between, then names, then arguments.

    text ─► ToolCallParser.push ─► Content | CallStart | CallArguments | CallEnd

Every character is looked at once, so where the pieces begin and end changes nothing. White space beside a call is
layout and is dropped. What is no well-formed call comes out as the plain text it is: without exception if not `early`,
since a call is then told when it is complete. An `early` name is told once its arguments begin, and each character of
them as it comes: if the call breaks after that, `CallEnd.complete` is false and the rest is content.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from outpace.models.text.call_readers import CallReader, NamedReader, ObjectReader, kimi_name, mistral_name
from outpace.models.text.json_scan import SPACE
from outpace.models.text.stop_strings import StopStrings
from outpace.models.text.tool_formats import ToolFormat

MAX_CALLS = 128
"""In one answer; further ones are text."""
MAX_CALL_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True)
class Content:
    """Text of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The `index`-th call of the answer, from 0 on."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next part of a call's arguments; all parts joined are one JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """Not complete: the answer ended within the arguments, or they are no JSON."""

    index: int
    complete: bool


ToolEvent = Content | CallStart | CallArguments | CallEnd


class ToolCallParser:
    """One answer's text in, events out.

    Args:
        form: how the model spells calls.
        names: the functions that were offered; a call of another one is text. None takes any.
        early: tell calls while they are written.
    """

    def __init__(self, form: ToolFormat, names: Collection[str] | None = None, *, early: bool = True) -> None:
        self._form, self._names, self._early = form, names, early
        self._search = StopStrings((form.opening, *form.section))
        self._state = "start" if form.bare else "content"
        """start, content; opened, next (a call must follow), call, after (a call)."""
        self._in_list = False
        self._space: list[str] = []
        """White space at the end of the content, which belongs to a call if one follows."""
        self._follows_call = False
        """Nothing but white space came since the last call."""
        self._raw: list[str] = []
        """What came since the opening or the last call and was not told: text, if no call comes of it."""
        self._size = 0
        self._reader: CallReader | None = None
        self._told = False
        """The call that is read was announced."""
        self._num_calls = 0
        self._events: list[ToolEvent] = []

    def push(self, text: str) -> list[ToolEvent]:
        """What is certain now that this text came."""
        place = 0
        while place < len(text):
            if self._state == "content":
                shown, place = self._search.push(text, place)
                self._say(shown)
                if self._search.matched == self._form.opening:
                    self._open(self._search.matched)
            elif self._take(text[place]):
                place += 1
        self._tell_arguments()
        return self._told_events()

    def finish(self) -> list[ToolEvent]:
        """What was held back, at the answer's end."""
        if self._state == "call" and self._told:
            self._break_off()
        if self._state != "after":
            self._say("".join(self._raw) + self._search.finish())
        if (space := "".join(self._space)) and not self._follows_call:
            self._events.append(Content(space))
        return self._told_events()

    def _take(self, character: str) -> bool:
        """Reads a character outside of content; False: it is to be looked at again, in the state that this led to."""
        if self._state == "call":
            return self._take_of_call(character)
        if character in SPACE:
            self._raw.append(character)
            return True
        if self._state == "after":
            return self._take_after(character)
        if character == "{" and self._num_calls < MAX_CALLS:
            return self._begin(ObjectReader(self._names))
        if self._state == "opened" and self._form.listed and character == "[":
            self._raw.append(character)
            self._state, self._in_list = "next", True
            return True
        named = self._form.named or self._form.numbered
        if self._state == "opened" and named and character.isalpha() and self._num_calls < MAX_CALLS:
            return self._begin(NamedReader(self._names, kimi_name if self._form.numbered else mistral_name))
        self._give_up()
        return False

    def _take_of_call(self, character: str) -> bool:
        reader = self._reader
        assert reader is not None
        self._size += 1
        num_before = len(reader.arguments)
        if self._size > MAX_CALL_CHARACTERS or not reader.feed(character):
            self._give_up()
            return False
        if not self._told or len(reader.arguments) == num_before:
            self._raw.append(character)
        if not self._told and reader.name is not None and reader.arguments and (self._early or reader.done):
            self._events.append(CallStart(self._num_calls, reader.name))
            self._told, self._raw = True, []
        if reader.done:
            self._tell_arguments()
            self._events.append(CallEnd(self._num_calls, True))
            self._end_call()
            self._raw, self._state = [], "after"
        return True

    def _take_after(self, character: str) -> bool:
        """Behind a call: a separator, the closing, or text."""
        form = self._form
        closed = "".join(self._raw).lstrip(SPACE)
        if not closed and form.separator == character and (self._in_list or not form.listed):
            self._raw.append(character)
            self._state = "next"
            return True
        ends = self._in_list or not form.listed
        if ends and form.closing.startswith(closed + character):
            self._raw.append(character)
            if form.closing == closed + character:
                self._raw, self._state, self._in_list = [], "content", False
            return True
        self._give_up()
        return False

    def _open(self, opening: str) -> None:
        self._raw, self._space = [*self._space, opening], []
        self._state, self._in_list = "opened", False

    def _begin(self, reader: CallReader) -> bool:
        self._reader, self._told, self._size, self._state = reader, False, 0, "call"
        return False

    def _give_up(self) -> None:
        """No call comes of what was read: it is content, and what follows is looked at anew."""
        if self._state == "call" and self._told:
            self._break_off()
        raw, was_after = "".join(self._raw), self._state == "after"
        self._raw, self._state, self._in_list = [], "content", False
        if was_after:  # the beginning of a closing may be that of an opening
            raw, _ = self._search.push(raw)
        self._say(raw)

    def _break_off(self) -> None:
        self._tell_arguments()
        self._events.append(CallEnd(self._num_calls, False))
        self._end_call()

    def _end_call(self) -> None:
        self._reader, self._told, self._follows_call = None, False, True
        self._num_calls += 1

    def _tell_arguments(self) -> None:
        if self._told and self._reader is not None and self._reader.arguments:
            self._events.append(CallArguments(self._num_calls, "".join(self._reader.arguments)))
            self._reader.arguments = []

    def _say(self, text: str) -> None:
        shown = text.rstrip(SPACE)
        if shown:
            self._events.append(Content("".join(self._space) + shown))
            self._space, self._follows_call = [], False
        self._space.append(text[len(shown) :])

    def _told_events(self) -> list[ToolEvent]:
        events, self._events = self._events, []
        return events
