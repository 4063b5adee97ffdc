"""A chat template: messages → the text that the model was trained to see, as transformers renders it.

Templates are programs in Jinja; `chat_sandbox` says how they are kept harmless. Whatever goes wrong while one is
rendered is an error of the request (`RequestError`), so that a broken template or odd messages never stop a server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from outpace.errors import RequestError
from outpace.models.text.chat_limits import BUDGET, Budget
from outpace.models.text.chat_sandbox import ChatEnvironment, Verbatim
from outpace.models.text.typescript import declarations

MAX_TEMPLATE_CHARACTERS = 256 << 10
MAX_OUTPUT_CHARACTERS = 16 << 20
MAX_TOOLS = 128
DECLARED = "tools_ts_str"
"""The variable in which Kimi-K2.5's template takes `typescript.declarations`; without it, it shows JSON."""
_MAX_DEPTH = 32
MEDIA = ("image", "video", "audio", "file")
"""What the types of a message's parts hold that are no text: image_url, input_audio, video, …"""

Message = Mapping[str, Any]


class ChatTemplate:
    """One template. It is compiled when it is first rendered, since many models never chat."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], *, sorts_tools: bool = False) -> None:
        self.source, self._sorts_tools = source, sorts_tools
        self._special_tokens = dict(special_tokens)
        self._compiled: jinja2.Template | None = None

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for a conversation.

        Args:
            messages: at least one; each an object with a text `role` and, as a rule, a text `content`. Keys whose
                value is None are left out, as transformers does.
            add_generation_prompt: end with the opening of the assistant's answer.
            continue_final_message: end within the last message instead, so that the answer goes on with it.
            tools: functions that the model may call, as the template expects them: as a rule
                `{"type": "function", "function": {"name": …, "description": …, "parameters": a JSON schema}}`; at most
                128. A template that knows no tools ignores them.
            documents: texts to answer from, likewise.
            variables: what else this template looks at, such as `enable_thinking`.

        Raises:
            RequestError: the messages do not fit the template (its own words are passed on), the template is
                broken, or rendering exceeds the limits here or in `chat_limits`.
        """
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "a prompt ends with an opening or within its last message: choose one of "
                "add_generation_prompt and continue_final_message"
            )
        listed = _plain_objects("tools", tools)
        if listed and self._sorts_tools:
            listed = _sorted(listed)
        given: dict[str, Any] = {
            **self._special_tokens,
            **_plain(dict(variables or {}), _MAX_DEPTH, "a template variable"),
            "messages": _plain_messages(messages),
            "tools": listed,
            "documents": _plain_objects("documents", documents),
            "add_generation_prompt": add_generation_prompt,
        }
        if listed and DECLARED in self.source and (declared := declarations(listed)) is not None:
            given[DECLARED] = declared
        try:
            text = self._written(given)
            return _cut_within(text, given["messages"][-1]) if continue_final_message else text
        except RequestError:
            raise
        except Exception as error:  # a template can raise anything that Python can
            raise RequestError(f"the messages do not fit the model's chat template: {_said(error)}") from error

    def _written(self, variables: dict[str, Any]) -> str:
        if self._compiled is None:
            self._compiled = _compile(self.source)
        chunks: list[str] = []
        size = 0
        for chunk in self._compiled.generate({**variables, BUDGET: Budget()}):
            chunks.append(chunk)
            size += len(chunk)
            if size > MAX_OUTPUT_CHARACTERS:
                raise RequestError(f"the rendered conversation exceeds {MAX_OUTPUT_CHARACTERS} characters; shorten it")
        return "".join(chunks)


def _compile(source: str) -> jinja2.Template:
    if len(source) > MAX_TEMPLATE_CHARACTERS:
        raise RequestError(
            f"the model's chat template has {len(source)} characters; at most {MAX_TEMPLATE_CHARACTERS} are compiled: "
            "give the prompt as a text"
        )
    try:
        return ChatEnvironment().compile_counted(source)
    except Exception as error:  # deeply nested templates break the parser or Python's compiler in their own ways
        raise RequestError(f"the model's chat template is broken, give the prompt as a text: {_said(error)}") from error


def _plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise RequestError("messages must be a list of at least one message, such as {'role': 'user', 'content': 'Hi'}")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(f"messages[{index}] must be an object with a text role: user, assistant or system")
        _refuse_media(message.get("content"), f"messages[{index}].content")
    return [
        {str(key): _plain(value, _MAX_DEPTH, "a message") for key, value in message.items() if value is not None}
        for message in messages
    ]


def _refuse_media(content: Any, where: str) -> None:
    """A template would write an image's place into the prompt, and nothing would stand there."""
    for place, part in enumerate(content if isinstance(content, list | tuple) else ()):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(kind, str) and any(name in kind for name in MEDIA):
            raise RequestError(
                f"{where}[{place}] is of type {kind!r}: language models are served, which read text alone"
            )


def _plain_objects(name: str, objects: Sequence[Mapping[str, Any]] | None) -> list[Any] | None:
    if objects is None:
        return None
    if not isinstance(objects, list | tuple) or not all(isinstance(item, Mapping) for item in objects):
        raise RequestError(f"{name} must be a list of objects")
    if len(objects) > MAX_TOOLS:
        raise RequestError(f"{name} holds {len(objects)} objects; there may be {MAX_TOOLS}")
    return [_plain(item, _MAX_DEPTH, f"{name}[{place}]") for place, item in enumerate(objects)]


def _cut_within(text: str, message: Message) -> str:
    """The rendered conversation up to the end of its last message's own text, as transformers cuts it."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [part["text"] for part in content if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
        content = texts[-1] if texts else None
    if not isinstance(content, str) or not content.strip() or content.strip() not in text:
        raise RequestError("the last message cannot be continued: the model's chat template does not show its content")
    start = text.rindex(content.strip())
    kept = content.lstrip() if text.startswith(content.lstrip(), start) else content.strip()
    return text[: start + len(kept)]


def _plain(value: Any, depth: int, what: str) -> Any:
    """A copy made of JSON's own types, so that a template never holds an object with methods of ours."""
    if not depth:
        raise RequestError(f"{what} is nested more than {_MAX_DEPTH} deep; make it flatter")
    if value is None or type(value) in (str, int, float, bool, Verbatim):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth - 1, what) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth - 1, what) for item in value]
    raise RequestError(f"{what} holds a {type(value).__name__}; texts, numbers, lists and objects are possible")


def _sorted(value: Any) -> Any:
    """The same with the keys of every object in order."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def _said(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= 500 else text[:500] + " …"
