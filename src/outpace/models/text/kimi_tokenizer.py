"""Kimi's tokenizer, which its checkpoints publish as data for tiktoken beside a Python file that is never run.

    tiktoken.model         a line a token: its bytes in base64, and its rank, which is its id and its merge priority
    tokenizer_config.json  names of the control tokens behind them; unnamed ones up to 256 are reserved
    chat_template.jinja    (or in tokenizer_config.json) the chat template

The split and the rest that only that Python file says are written here. tiktoken joins the neighbours whose union has
the lowest rank. So does the backend, which wants pairs: a token gets every pair of tokens that it can be made of, and
their order is its rank. That several pairs make the same token changes nothing. What lies within a token's bytes was
joined in the order in which those bytes alone would be, since nothing was joined across their ends; so only one of its
pairs ever stands side by side.

Source: moonshotai's Kimi-K2-Instruct on the hub, `tokenization_kimi.py`, class TikTokenTokenizer.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

from outpace.errors import CheckpointError
from outpace.models.fields import check_size
from outpace.models.text.stream import BYTE_OF
from outpace.models.text.tokenizer_files import (
    MAX_TOKENIZER_BYTES,
    NAMES,
    NO_CODE,
    added_token,
    optional_json,
    read_template,
)
from outpace.models.text.tokenizer_parts import TokenizerParts

VOCABULARY = "tiktoken.model"
MAX_TOKEN_BYTES = 1024
"""Longer ones are refused: how a token may be merged takes the square of its length to find out."""
NUM_CONTROL = 256
"""Ids behind the vocabulary that are control tokens."""
MAX_RUN = 25_000
MAX_PIECE = 400_000
"""Characters; longer texts are cut there before they are encoded."""

_OTHER_CAPITALS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_OTHER_SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_OTHER_CAPITALS}*{_OTHER_SMALL}+{_CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_OTHER_CAPITALS}+{_OTHER_SMALL}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""A text's pieces, which are encoded one by one; Chinese characters stay among themselves."""

_CHARACTER = {byte: character for character, byte in BYTE_OF.items()}
_RUNS = re.compile(r"\s+|\S+")
_CLASSES = re.compile(r"tokenization_(kimi|moonshot)\.TikTokenTokenizer")


def read_kimi(path: Path) -> TokenizerParts | None:
    """The tokenizer of a checkpoint's directory; None if there is no tiktoken.model.

    Raises:
        CheckpointError: a file is broken or too large, the two disagree, or it is another model's, whose split nobody
            says in data.
    """
    file = path / VOCABULARY
    if not file.is_file():
        return None
    config = optional_json(path / "tokenizer_config.json")
    _check_class(config, file)
    ranks = _read_ranks(file)
    backend = _backend(ranks)
    named = {name: token for name in NAMES if (token := added_token(config.get(name))) is not None}
    _add_control(backend, len(ranks), config, {token.content for token in named.values()}, path)
    special = {name: token.content for name, token in named.items()}
    for name, content in special.items():
        if (backend.token_to_id(content) or 0) < len(ranks):
            raise CheckpointError(
                f"{path}/tokenizer_config.json: {name} {content!r} is no control token: added_tokens_decoder must give "
                f"it an id in {len(ranks)} … {len(ranks) + NUM_CONTROL - 1}"
            )
    notes = () if config.get("auto_map") is None else (NO_CODE,)
    return TokenizerParts(
        backend=backend,
        special_tokens=special,
        chat_template=read_template(path, config),
        notes=(*notes, f"{VOCABULARY} is read natively, split as Kimi-K2 splits"),
        max_run=MAX_RUN,
        sorts_tools=True,
        numbers_calls=True,
    )


def pieces(text: str, max_run: int) -> Iterator[str]:
    """A text cut where white space, or anything else, runs on for more than `max_run` characters, and at MAX_PIECE."""
    for first in range(0, len(text), MAX_PIECE):
        piece, start = text[first : first + MAX_PIECE], 0
        for run in _RUNS.finditer(piece):
            for cut in range(run.start() + max_run, run.end(), max_run):
                yield piece[start:cut]
                start = cut
        yield piece[start:]


def _check_class(config: Mapping[str, Any], file: Path) -> None:
    """Other models publish a file of this name too, and split otherwise."""
    named = config.get("auto_map")
    classes = named.get("AutoTokenizer") if isinstance(named, dict) else None
    if not _CLASSES.search(str(classes)):
        raise CheckpointError(
            f"{file}: its split is known for Kimi's tokenization_kimi.TikTokenTokenizer alone, but auto_map in "
            f"tokenizer_config.json names {classes!r}; give the checkpoint a tokenizer.json"
        )


def _read_ranks(file: Path) -> dict[bytes, int]:
    """Tokens in the order of their ranks, which are 0, 1, …; every single byte is among them."""
    check_size(file, MAX_TOKENIZER_BYTES)
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            content, index = base64.b64decode(token, validate=True), int(rank)
        except (ValueError, binascii.Error) as error:
            raise CheckpointError(f"{file}, line {number}: {line!r:.60} is no token in base64 and its rank") from error
        if len(content) > MAX_TOKEN_BYTES:
            raise CheckpointError(f"{file}, line {number}: a token of {len(content)} bytes; {MAX_TOKEN_BYTES} are most")
        if index != len(ranks) or content in ranks or not content:
            raise CheckpointError(
                f"{file}, line {number}: token {content!r:.40} has rank {index}; tokens must differ, and their ranks "
                f"go up one by one: here comes {len(ranks)}"
            )
        ranks[content] = index
    missing = [byte for byte in range(256) if bytes((byte,)) not in ranks]
    if missing:
        raise CheckpointError(f"{file}: the byte {missing[0]:#04x} is no token, so that not every text has tokens")
    return ranks


def _backend(ranks: Mapping[bytes, int]) -> tokenizers.Tokenizer:
    spelled = {token: "".join(map(_CHARACTER.__getitem__, token)) for token in ranks}
    merges = [
        (spelled[left], spelled[right])
        for token in ranks
        for cut in range(1, len(token))
        if (left := token[:cut]) in ranks and (right := token[cut:]) in ranks
    ]
    vocabulary = {spelled[token]: rank for token, rank in ranks.items()}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, spell])
    backend.decoder = decoders.ByteLevel()
    return backend


def _add_control(
    backend: tokenizers.Tokenizer, first: int, config: Mapping[str, Any], named: set[str], path: Path
) -> None:
    """Adds the control tokens by their ids; reserved ones give no text, others as they are flagged."""
    listed = config.get("added_tokens_decoder") or {}
    try:
        wanted = {int(index): token for index, token in listed.items()}
    except (AttributeError, ValueError) as error:
        raise CheckpointError(f"{path}/tokenizer_config.json: added_tokens_decoder must map ids: {error}") from error
    for index in wanted:
        if not first <= index < first + NUM_CONTROL:
            raise CheckpointError(
                f"{path}/tokenizer_config.json: added_tokens_decoder has id {index}; control tokens have ids "
                f"{first} … {first + NUM_CONTROL - 1}, behind the {first} of {VOCABULARY}"
            )
    tokens = []
    for index in range(first, first + NUM_CONTROL):
        token = added_token(wanted.get(index)) or AddedToken(f"<|reserved_token_{index}|>", special=True)
        special = token.special or token.content in named
        tokens.append(AddedToken(token.content, normalized=False, special=special))
    backend.add_tokens(tokens)
    for index, token in enumerate(tokens, first):
        if (found := backend.token_to_id(token.content)) != index:
            raise CheckpointError(
                f"{path}/tokenizer_config.json: token {token.content!r} would have id {index} and is {found} already"
            )
