"""Chat templates that are told more than messages, against transformers' rendering; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from models.byte_pieces import byte_tokenizer
from models.chat_templates import CHATML, LLAMA3, MISTRAL, QWEN3
from models.tool_templates import LLAMA31_TOOLS, QWEN3_TOOLS, TOOL_TEMPLATES
from models.whole_calls import ToolCall, parse_tool_calls
from outpace.errors import RequestError
from outpace.models.text.chat_limits import Budget
from outpace.models.text.chat_template import MAX_TOOLS, ChatTemplate
from outpace.models.text.past_calls import with_numbered_ids
from outpace.models.text.tool_formats import tool_format

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather <now>, é.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Köln", "Oslo"]},
                "days": {"type": "array", "items": {"type": "integer"}},
                "unit": {"type": ["string", "null"], "default": None},
            },
            "required": ["city"],
        },
    },
}
TIME: dict[str, Any] = {
    "type": "function",
    "function": {"name": "time", "description": "Tells the time.", "parameters": {"type": "object", "properties": {}}},
}
USER = {"role": "user", "content": "How is it in Köln?"}
CALLING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "abc123def",
            "type": "function",
            "function": {"name": "weather", "arguments": {"city": "Köln", "days": [1]}},
        }
    ],
}
TOLD = {"role": "tool", "name": "weather", "tool_call_id": "abc123def", "content": '{"sun": true}'}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [{"role": "system", "content": "Be brief."}, USER],
    [USER, CALLING, TOLD],
    [USER, CALLING, TOLD, {"role": "assistant", "content": "Sunny."}, USER],
]


@pytest.fixture(scope="module")
def oracle() -> PreTrainedTokenizerFast:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "</s>": 1}, unk_token="<s>"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL)


def render(source: str, messages: Any = (USER,), **options: Any) -> str:
    return ChatTemplate(source, SPECIAL).render(messages, **options)


@pytest.mark.parametrize("tools", [None, [WEATHER], [WEATHER, TIME]], ids=["none", "one", "two"])
@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("name", TOOL_TEMPLATES)
def test_tools_are_shown_as_by_transformers(
    name: str, messages: list[dict[str, Any]], tools: list[Any] | None, oracle: PreTrainedTokenizerFast
) -> None:
    source = TOOL_TEMPLATES[name]
    expected = oracle.apply_chat_template(
        messages, tools=tools, chat_template=source, tokenize=False, add_generation_prompt=True
    )
    assert render(source, messages, tools=tools) == expected
    assert tools is None or "Tells the weather <now>, é." in expected


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "llama3.1", "mistral", "kimi"])
def test_calls_are_read_as_the_template_writes_them(name: str) -> None:
    source = TOOL_TEMPLATES[name]
    without = render(source, [USER], tools=[WEATHER], add_generation_prompt=False)
    past = with_numbered_ids([USER, CALLING]) if name == "kimi" else [USER, CALLING]
    said = render(source, past, tools=[WEATHER], add_generation_prompt=False)[len(without) :]
    for around in (
        "<|im_start|>assistant",
        "<|im_end|>",
        "<|start_header_id|>assistant<|end_header_id|>",
        "<|eot_id|>",
        "</s>",
        "<|im_assistant|>assistant<|im_middle|>",
    ):
        said = said.replace(around, "")
    form = tool_format(source)
    assert form is not None
    content, calls = parse_tool_calls(said, form)
    assert content.strip() == ""
    assert calls == (ToolCall("weather", '{"city": "Köln", "days": [1]}'),)


def test_variables_reach_the_template(oracle: PreTrainedTokenizerFast) -> None:
    for source, variables in ((QWEN3_TOOLS, {"enable_thinking": False}), (LLAMA31_TOOLS, {"date_string": "today"})):
        expected = oracle.apply_chat_template(
            [USER], chat_template=source, tokenize=False, add_generation_prompt=True, **variables
        )
        assert render(source, variables=variables) == expected != render(source)
    assert render("{{ messages[0].role }}", variables={"messages": [], "outpace budget": 1}) == "user"


def test_documents_reach_the_template() -> None:
    documents = [{"title": "A", "text": "a"}]
    assert render("{% for d in documents %}{{ d.title }}: {{ d.text }}{% endfor %}", documents=documents) == "A: a"


@settings(max_examples=100, deadline=None)
@given(content=st.text(" ab\n<|im_end|>", max_size=12), source=st.sampled_from([CHATML, LLAMA3, MISTRAL, QWEN3]))
def test_a_last_message_is_continued_as_by_transformers(
    content: str, source: str, oracle: PreTrainedTokenizerFast
) -> None:
    messages = [USER, {"role": "assistant", "content": "x" + content}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    expected = oracle.apply_chat_template(messages, chat_template=source, tokenize=False, **options)
    assert render(source, messages, **options) == expected
    assert expected.endswith(("x" + content.rstrip(), "x" + content))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": {}}, "tools must be a list of objects"),
        ({"tools": "x"}, "tools must be a list of objects"),
        ({"tools": [WEATHER, "time"]}, "tools must be a list of objects"),
        ({"tools": [TIME] * (MAX_TOOLS + 1)}, f"tools holds {MAX_TOOLS + 1} objects; there may be {MAX_TOOLS}"),
        ({"tools": [{"x": object()}]}, r"tools\[0\] holds a object"),
        ({"documents": [1]}, "documents must be a list of objects"),
        ({"variables": {"x": {1}}}, "a template variable holds a set"),
        ({"continue_final_message": True}, "choose one of"),
        (
            {"continue_final_message": True, "add_generation_prompt": False, "messages": [CALLING]},
            "cannot be continued",
        ),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        render(QWEN3_TOOLS, **options)


def test_deep_schemas_are_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100):
        schema = {"properties": schema}
    with pytest.raises(RequestError, match=r"tools\[0\] is nested more than"):
        render(QWEN3_TOOLS, tools=[schema])


@pytest.mark.parametrize("name", TOOL_TEMPLATES)
def test_as_many_tools_as_there_may_be_stay_far_below_the_budget(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[Budget] = []
    monkeypatch.setattr("outpace.models.text.chat_template.Budget", lambda: budgets.append(Budget()) or budgets[-1])
    wordy = {"type": "function", "function": {**WEATHER["function"], "description": "x" * 4000}}
    messages = [item for n in range(100) for item in ({"role": "user", "content": f"{n}?"}, CALLING, TOLD)]
    render(TOOL_TEMPLATES[name], messages, tools=[wordy] * MAX_TOOLS)
    assert budgets[0].used < 0.25


def test_the_tokenizer_passes_everything_on() -> None:
    tokenizer = byte_tokenizer([b"x"], chat_template="{{ tools[0].name }}{{ 'x' * n }}{{ add_generation_prompt }}")
    options: dict[str, Any] = {"tools": [{"name": "f"}], "variables": {"n": 2}}
    assert tokenizer.render_chat([USER], False, **options) == "fxxFalse"
    assert tokenizer.encode_chat([USER], **options) == tokenizer.encode("fxxTrue")
