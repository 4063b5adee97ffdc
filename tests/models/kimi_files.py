"""A small made-up vocabulary in the files that Kimi's checkpoints have, for tests."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from models.tool_templates import KIMI_TOOLS
from models.vocabularies import NORMAL, byte_level_metadata
from outpace.models.text.stream import BYTE_OF

WHOLE = (" photosynthesis", "漢字漢字漢字", "\n\n\n\n\n", "😀😁")
"""Tokens that no merge makes: a text's piece is one only if it is the whole piece."""
CALL_TOKENS = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
SPECIAL_TOKENS = ("[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>")
POISON = "import pathlib\npathlib.Path(__file__).with_name('it-ran').write_text('it ran')\n"
"""A Python file of a checkpoint that tells whether it was run."""


@cache
def ranks() -> Mapping[bytes, int]:
    """Bytes, what was joined of them without regard to words, and tokens that no merge makes."""
    metadata = byte_level_metadata()
    types = metadata["tokenizer.ggml.token_type"]
    names = [name for name, kind in zip(metadata["tokenizer.ggml.tokens"], types, strict=True) if kind == NORMAL]
    tokens = [bytes(BYTE_OF[character] for character in name) for name in names]
    tokens += [token.encode() for token in WHOLE]
    return {token: rank for rank, token in enumerate(dict.fromkeys(tokens))}


def control_tokens() -> dict[str, int]:
    """All 256, by name."""
    first = len(ranks())
    named = dict(enumerate((*SPECIAL_TOKENS, *CALL_TOKENS), first))
    named |= {first + 254: "[UNK]", first + 255: "[PAD]"}
    return {named.get(index, f"<|reserved_token_{index}|>"): index for index in range(first, first + 256)}


def tokenizer_config() -> dict[str, Any]:
    """tokenizer_config.json."""
    shown = {name: index for name, index in control_tokens().items() if not name.startswith("<|reserved")}
    return {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "added_tokens_decoder": {
            str(index): {
                "content": name,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": name not in CALL_TOKENS,
            }
            for name, index in shown.items()
        },
        "chat_template": KIMI_TOOLS,
    }


def write_kimi(directory: Path, **changes: Any) -> Path:
    """Writes the tokenizer's files, among them Python that must not run."""
    lines = [base64.b64encode(token) + b" " + str(rank).encode() for token, rank in ranks().items()]
    (directory / "tiktoken.model").write_bytes(b"\n".join(lines) + b"\n")
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config() | changes))
    (directory / "tokenization_kimi.py").write_text(POISON)
    return directory
