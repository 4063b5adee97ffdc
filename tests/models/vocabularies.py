"""Small vocabularies trained on `texts`, as GGUF metadata, for tests that need a tokenizer and no download."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from models.texts import CONTROL, texts

NORMAL, UNKNOWN, CONTROL_TYPE, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
USER_TOKENS = ("<tool_call>", "</tool_call>")


def byte_level_metadata(pre: str = "smollm") -> dict[str, Any]:
    """A byte-level vocabulary whose merges ignore word boundaries, so that a wrong pre-tokenizer is seen at once."""
    return _byte_level() | {"tokenizer.ggml.pre": pre}


def sentencepiece_metadata() -> dict[str, Any]:
    """Llama 2's kind of vocabulary: unknown and control tokens, all bytes, pieces with scores by rank, characters."""
    return dict(_sentencepiece())


@cache
def _byte_level(size: int = 700) -> dict[str, Any]:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=alphabet,
        special_tokens=list(CONTROL),
        max_token_length=6,
        show_progress=False,
    )
    backend.train_from_iterator([_without_control(text) for text in texts()] * 3, trainer)
    model = json.loads(backend.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].__getitem__), *USER_TOKENS]
    types = [CONTROL_TYPE if token in CONTROL else USER_DEFINED if token in USER_TOKENS else NORMAL for token in tokens]
    return _metadata(
        model="gpt2",
        tokens=tokens,
        token_type=np.array(types, np.int32),
        merges=[" ".join(merge) for merge in model["merges"]],
        bos_token_id=tokens.index(CONTROL[0]),
        eos_token_id=tokens.index(CONTROL[1]),
        unknown_token_id=tokens.index(CONTROL[2]),
    )


@cache
def _sentencepiece(size: int = 500) -> dict[str, Any]:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, limit_alphabet=150)
    backend.train_from_iterator([_without_control(text)[:80] for text in texts()], trainer)
    model = json.loads(backend.to_str())["model"]
    merged = ["".join(merge) for merge in model["merges"]]
    pieces = list(dict.fromkeys(merged))
    characters = [token for token in model["vocab"] if token not in set(pieces)]
    head = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [UNKNOWN, CONTROL_TYPE, CONTROL_TYPE] + [BYTE] * 256 + [NORMAL] * (len(pieces) + len(characters))
    scores = [0.0] * len(head) + [-float(rank) for rank in range(len(pieces) + len(characters))]
    return _metadata(
        model="llama",
        tokens=[*head, *pieces, *characters],
        scores=np.array(scores, np.float32),
        token_type=np.array(types, np.int32),
        unknown_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )


def _without_control(text: str) -> str:
    for token in CONTROL:
        text = text.replace(token, "")
    return text


def _metadata(**fields: Any) -> dict[str, Any]:
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items()}
