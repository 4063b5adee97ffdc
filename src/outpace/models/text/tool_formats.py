"""How model families spell tool calls, as data, and which one a chat template teaches."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """What stands around calls; the calls themselves are JSON objects with a name and arguments, if not said here."""

    name: str
    opening: str
    """Begins a call, or a list of them; after any text."""
    closing: str = ""
    """Ends it; models that leave it out are understood."""
    separator: str = ""
    """Between calls that follow one opening."""
    listed: bool = False
    """The calls are a JSON list."""
    bare: bool = False
    """An answer may also begin with the first call, without the opening."""
    named: bool = False
    """A call may also be spelled `name[ARGS]{…}`."""
    key: Literal["arguments", "parameters"] = "arguments"
    """What a call's arguments stand under."""
    numbered: bool = False
    """A call is spelled `functions.name:0<|tool_call_argument_begin|>{…}`, counting a conversation's calls."""
    section: tuple[str, ...] = ()
    """Begins and ends all calls; says nothing, and is no part of the text wherever it stands."""
    special: tuple[str, ...] = ()
    """Tokens that decoding leaves out as special, and that are to be kept in the text: `Answer(…, kept=…)`."""

    def describe(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


HERMES = ToolFormat(
    name="hermes",
    opening="<tool_call>",
    closing="</tool_call>",
    special=("<tool_call>", "</tool_call>"),
)
"""Hermes, Qwen2.5, Qwen3. Their tags are tokens, in some checkpoints special ones."""
LLAMA3 = ToolFormat(
    name="llama3",
    opening="<|python_tag|>",
    separator=";",
    bare=True,
    key="parameters",
    special=("<|python_tag|>",),
)
"""Llama 3.1 and later: the whole answer is a call, or several with semicolons between them."""
MISTRAL = ToolFormat(
    name="mistral",
    opening="[TOOL_CALLS]",
    closing="]",
    separator=",",
    listed=True,
    named=True,
    special=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
)
"""Mistral: a list of calls, or in newer models a name and its arguments behind each opening."""

KIMI = ToolFormat(
    name="kimi",
    opening="<|tool_call_begin|>",
    closing="<|tool_call_end|>",
    numbered=True,
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    special=(
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
)
"""Kimi-K2 and K2.5: a section of calls behind the text."""

FORMATS = {form.name: form for form in (HERMES, LLAMA3, MISTRAL, KIMI)}


def tool_format(chat_template: str | None) -> ToolFormat | None:
    """The format that a chat template writes calls in; None if it knows none that is understood here.

    The template decides and not the architecture: most models of these architectures were never taught to call.
    """
    template = chat_template or ""
    if "tools" not in template:
        return None
    if KIMI.opening in template:
        return KIMI
    if "<tool_call>" in template:
        return None if "<function=" in template else HERMES  # Qwen3-Coder's calls are not JSON
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    if "<|python_tag|>" in template or ("ipython" in template and '"parameters"' in template):
        return LLAMA3
    return None
