"""A tokenizer from a GGUF file's metadata: byte-level BPE (`gpt2`) and SentencePiece BPE (`llama`).

The file names its pre-tokenizer only by a keyword; what each keyword means is written in the tokenizer.json of the
model it was made for, and repeated here. An unknown keyword is refused: any other split would yield wrong tokens
without a sign. `smollm` splits digits one by one before the byte-level split.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from outpace.errors import CheckpointError
from outpace.models.fields import Fields
from outpace.models.gguf.file import select
from outpace.models.text.tokenizer_parts import TokenizerParts

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """How a text is cut before the merges. Without a pattern it is GPT-2's, which the backend knows."""

    pattern: str | None = None
    digits: bool = False
    """Every digit stands alone."""
    nfc: bool = False
    """Unicode is composed first."""
    whole_words: bool = False
    """A piece that is a token is that token, whatever the merges would make of it."""
    add_bos: bool = False
    """Unless the file says otherwise."""


_SPLITS = {
    "gpt-2": _Split(),
    "default": _Split(),
    "smollm": _Split(digits=True),
    "qwen2": _Split(pattern=_LLAMA3.replace("{1,3}", ""), nfc=True),
    "tekken": _Split(pattern=_TEKKEN, whole_words=True),
} | dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _Split(pattern=_LLAMA3, whole_words=True, add_bos=True))

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_NAMED = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "pad": "padding_token_id"}
_SPACE = "\u2581"
_NO_TOKEN = 0xFFFFFFFF


def read_gguf_tokenizer(metadata: Mapping[str, Any], path: Path) -> TokenizerParts | None:
    """The tokenizer that a file's metadata describes; None if it has no vocabulary.

    Raises:
        CheckpointError: an unsupported tokenizer or pre-tokenizer, or a vocabulary that contradicts itself.
    """
    fields = select(metadata, "tokenizer.ggml.", path)
    kind = fields.get("model")
    if kind in (None, "none", "no_vocab"):
        return None
    tokens = _tokens(fields)
    types = _types(fields, len(tokens))
    special = _special_tokens(fields, tokens)
    if kind == "gpt2":
        backend, add_bos = _byte_level(fields, tokens)
    elif kind == "llama":
        backend, add_bos = _sentencepiece(fields, tokens, types, special.get("unk_token"))
    else:
        raise CheckpointError(
            f"{fields.origin}: model is {kind!r}; gpt2 (byte-level BPE) and llama (SentencePiece BPE) are supported"
        )
    _add_tokens(backend, tokens, types, set(special.values()))
    _frame(
        backend,
        special.get("bos_token") if fields.flag("add_bos_token", add_bos) else None,
        special.get("eos_token") if fields.flag("add_eos_token", False) else None,
    )
    template = metadata.get("tokenizer.chat_template")
    return TokenizerParts(
        backend=backend,
        special_tokens=special,
        chat_template=template if isinstance(template, str) else None,
    )


def _tokens(fields: Fields) -> list[str]:
    tokens = _strings(fields, "tokens")
    if len(set(tokens)) != len(tokens):
        first: dict[str, int] = {}
        twice = next(token for i, token in enumerate(tokens) if first.setdefault(token, i) != i)
        raise CheckpointError(f"{fields.origin}: the token {twice!r} comes twice; convert the model again")
    return tokens


def _strings(fields: Fields, name: str) -> list[str]:
    value = fields.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CheckpointError(f"{fields.origin}: {name} must be a list of texts; convert the model again")
    return value


def _check_length(fields: Fields, name: str, value: Any, size: int) -> None:
    if not isinstance(value, np.ndarray) or len(value) != size:
        raise CheckpointError(f"{fields.origin}: {name} must hold one number for each of the {size} tokens")


def _types(fields: Fields, size: int) -> list[int]:
    types = fields.get("token_type")
    if types is None:
        return [_NORMAL] * size
    _check_length(fields, "token_type", types, size)
    return [int(kind) for kind in types]


def _special_tokens(fields: Fields, tokens: list[str]) -> dict[str, str]:
    special = {}
    for name, key in _NAMED.items():
        index = fields.get(key)
        if index is None or index == _NO_TOKEN:
            continue
        if not isinstance(index, int) or not 0 <= index < len(tokens):
            raise CheckpointError(f"{fields.origin}: {key} is {index!r}; the vocabulary has ids 0 to {len(tokens) - 1}")
        special[f"{name}_token"] = tokens[index]
    return special


def _byte_level(fields: Fields, tokens: list[str]) -> tuple[tokenizers.Tokenizer, bool]:
    keyword = fields.get("pre")
    if keyword not in _SPLITS:
        raise CheckpointError(
            f"{fields.origin}: pre, the pre-tokenizer, is {keyword!r}; {', '.join(_SPLITS)} are supported, and any of "
            "them in its place would yield wrong tokens without a sign"
        )
    split = _SPLITS[keyword]
    merges = [_pair(merge) for merge in _strings(fields, "merges")]
    backend = _bpe(fields, tokens, merges, ignore_merges=split.whole_words)
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if split.digits else []
    if split.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(split.pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.pattern is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    return backend, split.add_bos


def _sentencepiece(
    fields: Fields, tokens: list[str], types: list[int], unknown: str | None
) -> tuple[tokenizers.Tokenizer, bool]:
    """SentencePiece's BPE. As in its own code and llama.cpp's, each text between control tokens gets the space."""
    scores = fields.get("scores")
    _check_length(fields, "scores", scores, len(tokens))
    merges = _merges_of_scores(tokens, types, [float(score) for score in scores])
    backend = _bpe(fields, tokens, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    spaces: list[Any] = [normalizers.Replace(" ", _SPACE)]
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if fields.flag("add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend(_SPACE))
        steps.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(spaces)
    backend.decoder = decoders.Sequence(steps)
    return backend, True


def _merges_of_scores(tokens: list[str], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best score first: the order in which SentencePiece joins them.

    Ties are broken as transformers' `generate_merges` does.
    """
    score_of = {token: score for token, kind, score in zip(tokens, types, scores, strict=True) if kind == _NORMAL}
    merges = []
    for token, score in score_of.items():
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        merges += [(score, left, right) for left, right in halves if left in score_of and right in score_of]
    merges.sort(key=lambda merge: (-merge[0], -len(merge[1]), -len(merge[2])))
    return [(left, right) for _, left, right in merges]


def _bpe(fields: Fields, tokens: list[str], merges: list[tuple[str, str]], **options: Any) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges, **options))
    except Exception as error:  # the backend raises plain Exception
        raise CheckpointError(f"{fields.origin}: the vocabulary and its merges disagree: {error}") from error


def _pair(merge: str) -> tuple[str, str]:
    cut = merge.find(" ", 1)
    return (merge[:cut], merge[cut + 1 :]) if cut > 0 else (merge, "")


def _add_tokens(backend: tokenizers.Tokenizer, tokens: list[str], types: list[int], named: Collection[str]) -> None:
    """Control and user-defined tokens are found whole in a text; only control tokens are skipped when decoding."""
    kinds = dict(zip(tokens, types, strict=True))
    control = [token for token, kind in kinds.items() if kind == _CONTROL or token in named]
    whole = [token for token, kind in kinds.items() if kind == _USER_DEFINED and token not in named]
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    backend.add_tokens([AddedToken(token, normalized=False) for token in whole])


def _frame(backend: tokenizers.Tokenizer, bos: str | None, eos: str | None) -> None:
    """Makes `encode(…, add_special=True)` put `bos` before and `eos` after a text; None puts nothing."""
    ids = {token: backend.token_to_id(token) for token in (bos, eos) if token is not None}
    backend.post_processor = processors.TemplateProcessing(
        single=[*([bos] if bos is not None else []), "$A", *([eos] if eos is not None else [])],
        special_tokens=list(ids.items()),
    )
