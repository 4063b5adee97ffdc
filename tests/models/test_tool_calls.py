"""Tool calls as the served families spell them, cut at every place, broken in every place, and against `json`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.chat_templates import CHATML, QWEN3
from models.chat_templates import LLAMA3 as LLAMA3_TEMPLATE
from models.tool_templates import HERMES_TOOLS, KIMI_TOOLS, LLAMA31_TOOLS, MISTRAL_TOOLS, QWEN3_TOOLS, QWEN25_TOOLS
from models.whole_calls import ToolCall, calls_of, parse_tool_calls
from outpace.models.text.json_scan import MAX_DEPTH, JsonScanner
from outpace.models.text.tool_calls import (
    MAX_CALL_CHARACTERS,
    MAX_CALLS,
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    ToolCallParser,
    ToolEvent,
)
from outpace.models.text.tool_formats import FORMATS, HERMES, KIMI, LLAMA3, MISTRAL, ToolFormat, tool_format

ARGUMENTS = '{"city": "Köln {\\"x\\"} \\u00e9", "days": [1, -2.5e3, null, {"a": true}]}'
WEATHER = ToolCall("weather", ARGUMENTS)
TIME = ToolCall("time", "{}")
HERMES_CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'

KIMI_SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
KIMI_CALL = f"<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|>"

WELL_FORMED: list[tuple[ToolFormat, str, str, tuple[ToolCall, ...]]] = [
    (HERMES, HERMES_CALL, "", (WEATHER,)),
    (HERMES, f"Let me see.\n\n{HERMES_CALL}\n", "Let me see.", (WEATHER,)),
    (
        HERMES,
        f'a < b <tool {HERMES_CALL}\n<tool_call>{{"arguments":{{}},"name":"time"}}</tool_call> done ',
        "a < b <tool done ",
        (WEATHER, TIME),
    ),
    (HERMES, '<tool_call>{"id": {"arguments": "x", "name": 7}, "name": "time", "parameters": {}}', "", (TIME,)),
    (HERMES, '<tool_call>{"name":"time","arguments":{}}\n<tool_call>{"name":"time","arguments":{}}', "", (TIME, TIME)),
    (HERMES, '{"name": "time", "arguments": {}}', '{"name": "time", "arguments": {}}', ()),
    (HERMES, '<tool_call>{"name":"time","arguments":{}}</tool_ call>', "</tool_ call>", (TIME,)),
    (HERMES, '<tool_call>{"name":"time","arguments":{}}</tool_call', "", (TIME,)),
    (HERMES, " \n no call \n", " \n no call \n", ()),
    (LLAMA3, f'{{"name": "weather", "parameters": {ARGUMENTS}}}', "", (WEATHER,)),
    (LLAMA3, '\n{"type": "function", "name": "time", "parameters": {}}\n', "", (TIME,)),
    (LLAMA3, '<|python_tag|>{"name": "time", "parameters": {}}', "", (TIME,)),
    (
        LLAMA3,
        f'{{"name":"time","parameters":{{}}}}; {{"name":"weather","parameters":{ARGUMENTS}}}',
        "",
        (TIME, WEATHER),
    ),
    (LLAMA3, 'Sure: {"name": "time", "parameters": {}}', 'Sure: {"name": "time", "parameters": {}}', ()),
    (LLAMA3, 'Sure.<|python_tag|>{"name": "time", "parameters": {}}', "Sure.", (TIME,)),
    (MISTRAL, f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ARGUMENTS}}}]', "", (WEATHER,)),
    (
        MISTRAL,
        'ok [1] [TOOL_CALLS][{"name": "time", "arguments": {}, "id": "abc"},\n{"arguments": {}, "name": "time"}] x',
        "ok [1] x",
        (TIME, TIME),
    ),
    (MISTRAL, f"[TOOL_CALLS]weather[ARGS]{ARGUMENTS}[TOOL_CALLS]time{{}}", "", (WEATHER, TIME)),
    (MISTRAL, "[TOOL_CALLS]time[CALL_ID]a1[ARGS]{}", "", (TIME,)),
    (KIMI, f"Let me see.{KIMI_SECTION[0]}{KIMI_CALL}{KIMI_SECTION[1]}", "Let me see.", (WEATHER,)),
    (
        KIMI,
        f"a <|tool_call {KIMI_SECTION[0]}\n{KIMI_CALL}\n"
        f"<|tool_call_begin|>functions.time:1<|tool_call_argument_begin|>{{}}<|tool_call_end|>{KIMI_SECTION[1]}\n",
        "a <|tool_call",
        (WEATHER, TIME),
    ),
    (KIMI, f"{KIMI_CALL}", "", (WEATHER,)),
    (KIMI, "<|tool_call_begin|> time:3 <|tool_call_argument_begin|> {}", "", (TIME,)),
    (KIMI, "no call: functions.time:0 {}", "no call: functions.time:0 {}", ()),
]
"""Format, text, its content, its calls. White space beside a call is layout, but for text that follows it."""

BROKEN: list[tuple[ToolFormat, str]] = [
    (HERMES, "<tool_call>no</tool_call>"),
    (HERMES, '<tool_call>{"name": "time"}</tool_call>'),
    (HERMES, '<tool_call>{"arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "a", "name": "time", "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "time", "arguments": "{}"}</tool_call>'),
    (HERMES, '<tool_call>{"name": "time", "arguments": [1]}</tool_call>'),
    (HERMES, '<tool_call>{"name": "time", "arguments": null}</tool_call>'),
    (HERMES, '<tool_call>["time"]</tool_call>'),
    (HERMES, '<tool_call>{"name": "' + "x" * 300 + '", "arguments": {}}</tool_call>'),
    (HERMES, "  <tool_call>  "),
    (HERMES, "<tool_call><tool_cal"),
    (LLAMA3, '{"city": "Köln"}'),
    (LLAMA3, '{"name": "Köln", "inhabitants": 1000000}'),
    (LLAMA3, "{ not JSON }"),
    (LLAMA3, '<|python_tag|>brave_search.call(query="x")'),
    (LLAMA3, "  \n"),
    (MISTRAL, "[TOOL_CALLS] []"),
    (MISTRAL, "[TOOL_CALLS] 12"),
    (MISTRAL, "[TOOL_CALLS] [7]"),
    (MISTRAL, "[TOOL_CALLS] just words"),
    (MISTRAL, "[TOOL_CALLS]two words{}"),
    (MISTRAL, "[TOOL_CALLS]" + "x" * 2000),
    (KIMI, "<|tool_call_begin|>functions.time:0{}<|tool_call_end|>"),
    (KIMI, "<|tool_call_begin|>functions.time:zero<|tool_call_argument_begin|>{}<|tool_call_end|>"),
    (KIMI, "<|tool_call_begin|>:0<|tool_call_argument_begin|>{}"),
    (KIMI, "<|tool_call_begin|>functions.time:0<|tool_call_argument_begin|>[]"),
    (KIMI, "<|tool_call_begin|>functions.time:0<|tool_call_arg"),
]
"""No call comes of these, whenever it is told."""

LATE_BROKEN = [
    (HERMES, '<tool_call>{"name": "time", "arguments": {"a": 1,}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "time", "arguments": {}, "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "time", "arguments": {"a": "x\ny"}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "time", "arguments": {"a": 01}}'),
    (HERMES, 'x <tool_call>{"name": "time", "arguments": {"a": "'),
    (LLAMA3, '{"name": "time", "parameters": {}'),
    (MISTRAL, '[TOOL_CALLS] [{"name": "time", "arguments": {"a": tru}}]'),
    (MISTRAL, "[TOOL_CALLS]time[ARGS]{]"),
    (KIMI, '<|tool_call_begin|>functions.time:0<|tool_call_argument_begin|>{"a": 1,}<|tool_call_end|>'),
]
"""The break comes when the name and a part of the arguments are read already."""


def merged(events: Sequence[ToolEvent]) -> list[ToolEvent]:
    """Neighbours of one kind joined."""
    result: list[ToolEvent] = []
    for event in events:
        match result[-1:], event:
            case [Content(before)], Content(text):
                result[-1] = Content(before + text)
            case [CallArguments(index, before)], CallArguments(_, text):
                result[-1] = CallArguments(index, before + text)
            case _:
                result.append(event)
    return result


def told(pieces: Sequence[str], form: ToolFormat, **options: Any) -> list[ToolEvent]:
    parser = ToolCallParser(form, **options)
    events = [event for piece in pieces for event in parser.push(piece)]
    return merged(events + parser.finish())


@pytest.mark.parametrize(("form", "text", "content", "calls"), WELL_FORMED)
def test_calls_are_found(form: ToolFormat, text: str, content: str, calls: tuple[ToolCall, ...]) -> None:
    assert parse_tool_calls(text, form) == (content, calls)
    events = told([text], form)
    assert calls_of(events) == (content, calls)
    assert [event.complete for event in events if isinstance(event, CallEnd)] == [True] * len(calls)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(("form", "text"), [case[:2] for case in WELL_FORMED] + BROKEN + LATE_BROKEN)
def test_where_the_pieces_end_changes_nothing(form: ToolFormat, text: str, early: bool) -> None:
    whole = told([text], form, early=early)
    assert told(list(text), form, early=early) == whole
    for place in range(len(text) + 1):
        assert told([text[:place], text[place:]], form, early=early) == whole


@pytest.mark.parametrize(("form", "text"), BROKEN)
def test_what_is_no_call_is_the_text_it_is(form: ToolFormat, text: str) -> None:
    assert parse_tool_calls(text, form) == (text, ())
    assert told([text], form) == [Content(text)]


@pytest.mark.parametrize(("form", "text"), LATE_BROKEN)
def test_a_call_that_breaks_after_it_was_told(form: ToolFormat, text: str) -> None:
    assert parse_tool_calls(text, form) == (text, ())
    events = told(list(text), form)
    assert CallStart(0, "time") in events
    assert CallEnd(0, False) in events
    shown = "".join(event.text for event in events if isinstance(event, Content | CallArguments))
    assert len(shown) < len(text)
    assert text.endswith(shown.removeprefix("x"))


def test_the_name_comes_first_and_then_the_arguments_as_they_come() -> None:
    parser = ToolCallParser(HERMES)
    assert parser.push('Hm. <tool_call>{"name": "time", "argu') == [Content("Hm.")]
    assert parser.push('ments": ') == []
    assert parser.push('{"zone') == [CallStart(0, "time"), CallArguments(0, '{"zone')]
    assert parser.push('": 1') == [CallArguments(0, '": 1')]
    assert parser.push("} ") == [CallArguments(0, "}")]
    assert parser.push("}\n</tool") == [CallEnd(0, True)]
    assert parser.push("_call>\n") == []
    assert parser.finish() == []


def test_content_is_not_held_back_longer_than_it_must() -> None:
    parser = ToolCallParser(HERMES)
    assert parser.push("a <tool") == [Content("a")]
    assert parser.push("s b") == [Content(" <tools b")]


@pytest.mark.parametrize("form", [HERMES, LLAMA3, MISTRAL, KIMI], ids=lambda form: form.name)
def test_only_functions_that_were_offered_are_called(form: ToolFormat) -> None:
    for text in (text for case, text, _, calls in WELL_FORMED if case == form and calls):
        shown = text
        for token in form.section:
            shown = shown.replace(token, "")
        assert parse_tool_calls(text, form, {"other"}) == (shown, ())
        assert told([text], form, names={"other"}) == [Content(shown)]
        assert parse_tool_calls(text, form, {"time", "weather"}) == parse_tool_calls(text, form)


def test_a_broken_call_does_not_hide_the_next() -> None:
    text = f"<tool_call>{{no}}</tool_call>\n{HERMES_CALL}"
    assert parse_tool_calls(text, HERMES) == ("<tool_call>{no}</tool_call>", (WEATHER,))
    text = f'<tool_call>{{"name": "time", "arguments": {{,}}\n{HERMES_CALL}'
    events = told(list(text), HERMES)
    assert [event for event in events if isinstance(event, CallEnd)] == [CallEnd(0, False), CallEnd(1, True)]


def test_calls_are_bounded() -> None:
    one = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
    content, calls = parse_tool_calls(one * (MAX_CALLS + 2), HERMES)
    assert (content, calls) == (one * 2, (TIME,) * MAX_CALLS)
    long = '<tool_call>{"name": "time", "arguments": {"a": "' + "x" * MAX_CALL_CHARACTERS + '"}}</tool_call>'
    assert parse_tool_calls(long, HERMES) == (long, ())
    deep = '<tool_call>{"name": "time", "arguments": {"a": ' + "[" * MAX_DEPTH
    assert parse_tool_calls(deep, HERMES) == (deep, ())


def test_the_work_grows_with_the_text_alone() -> None:
    start = time.process_time()
    for text in (
        "<tool_call>x" * 20_000,
        '<tool_call>{"name": "time", "arguments": {"a": "' + "y" * 250_000,
        " \n" * 120_000,
    ):
        assert parse_tool_calls(text, HERMES) == (text, ())
    assert told([" "] * 100_000, HERMES) == [Content(" " * 100_000)]
    assert time.process_time() - start < 20


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    arguments=st.dictionaries(st.text(max_size=5), VALUES, max_size=3),
    form=st.sampled_from([HERMES, LLAMA3, MISTRAL, KIMI]),
    ascii_only=st.booleans(),
    data=st.data(),
)
def test_any_arguments_come_through(
    arguments: dict[str, Any], form: ToolFormat, ascii_only: bool, data: st.DataObject
) -> None:
    spelled = json.dumps(arguments, ensure_ascii=ascii_only)
    call = f'{{"name": "f", "parameters": {spelled}}}'
    text = form.opening + (f"[{call}]" if form.listed else call) + form.closing * (not form.listed)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    expected = [CallStart(0, "f"), CallArguments(0, spelled), CallEnd(0, True)]
    assert told(pieces, form) == told(pieces, form, early=False) == expected


@settings(max_examples=500, deadline=None)
@given(text=st.text('{}[]":,\\u0a1.-e tn', max_size=30) | VALUES.map(json.dumps))
def test_the_scanner_takes_what_json_takes(text: str) -> None:
    text = '{"a":' + text + "}"
    scanner = JsonScanner()
    valid = all(not (place and not scanner.depth) and scanner.feed(c) for place, c in enumerate(text))
    try:
        json.loads(text, parse_constant=lambda name: pytest.fail(name))
        expected = True
    except json.JSONDecodeError:
        expected = False
    assert (valid and not scanner.depth) == expected


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (HERMES_TOOLS, HERMES),
        (QWEN25_TOOLS, HERMES),
        (KIMI_TOOLS, KIMI),
        (QWEN3_TOOLS, HERMES),
        (LLAMA31_TOOLS, LLAMA3),
        (MISTRAL_TOOLS, MISTRAL),
        (CHATML, None),
        (QWEN3, None),
        (LLAMA3_TEMPLATE, LLAMA3),
        (QWEN25_TOOLS + "<function=", None),
        (None, None),
    ],
)
def test_the_template_says_how_calls_are_spelled(template: str | None, form: ToolFormat | None) -> None:
    assert tool_format(template) == form


def test_formats_are_plain_data() -> None:
    for name, form in FORMATS.items():
        assert json.loads(json.dumps(form.describe()))["name"] == name
