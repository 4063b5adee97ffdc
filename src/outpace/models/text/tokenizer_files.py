"""A tokenizer from a checkpoint's directory: tokenizer.json does the work, three other files say what it leaves out.

They are read as transformers' PreTrainedTokenizerFast reads them, with which the tests compare. (Its add_bos_token has
no effect beside a tokenizer.json.) Which tokens end an answer is decided in `ends`.

    tokenizer.json             the backend: vocabulary, merges, normalizer, pre-tokenizer, decoder
    tokenizer_config.json      names of the special tokens, tokens to add, the chat template
    special_tokens_map.json    the names, in checkpoints whose tokenizer_config.json lists no added tokens
    chat_template.jinja/.json  the chat template, if it is not in tokenizer_config.json
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from outpace.errors import CheckpointError
from outpace.models.fields import MAX_JSON_BYTES, check_size, read_json
from outpace.models.text.tokenizer_parts import TokenizerParts

MAX_TOKENIZER_BYTES = 256 << 20

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
NO_CODE = "tokenizer_config.json: auto_map is ignored: code that a checkpoint brings is never run"
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


def read_directory(path: Path) -> TokenizerParts | None:
    """The tokenizer of a checkpoint's directory; None if there is no tokenizer.json.

    Raises:
        CheckpointError: a file is broken or too large, or two of them disagree about a token's id.
    """
    if not (path / "tokenizer.json").is_file():
        return None
    config = optional_json(path / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= optional_json(path / "special_tokens_map.json")
    backend = _backend(path / "tokenizer.json")
    named = {name: token for name in NAMES if (token := added_token(config.get(name))) is not None}
    _add_tokens(backend, config, path)
    extra = (config.get(key) for key in ("extra_special_tokens", "additional_special_tokens"))
    listed = (added_token(token) for tokens in extra if isinstance(tokens, list) for token in tokens)
    _add_special(backend, [*named.values(), *(token for token in listed if token is not None)])
    special = {name: token.content for name, token in named.items()}
    return TokenizerParts(
        backend=backend,
        special_tokens=special,
        chat_template=read_template(path, config),
        notes=() if config.get("auto_map") is None else (NO_CODE,),
    )


def _backend(path: Path) -> tokenizers.Tokenizer:
    check_size(path, MAX_TOKENIZER_BYTES)
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the backend raises plain Exception
        raise CheckpointError(f"{path} cannot be read as a tokenizer: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _add_tokens(backend: tokenizers.Tokenizer, config: Mapping[str, Any], path: Path) -> None:
    """Adds what `added_tokens_decoder` has and tokenizer.json has not, and checks the ids of both."""
    listed = config.get("added_tokens_decoder") or {}
    try:
        wanted = {int(index): token for index, token in listed.items() if isinstance(token, dict)}
    except (AttributeError, ValueError) as error:
        raise CheckpointError(f"{path}/tokenizer_config.json: added_tokens_decoder must map ids: {error}") from error
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for index, entry in sorted(wanted.items()):
        token = added_token(entry)
        if token is None:
            continue
        if token.content not in known:
            backend.add_tokens([token])
        if (found := backend.token_to_id(token.content)) != index:
            raise CheckpointError(
                f"{path}/tokenizer_config.json: token {token.content!r} is {index} there and {found} in tokenizer.json"
            )


def _add_special(backend: tokenizers.Tokenizer, tokens: list[AddedToken]) -> None:
    """Makes these control tokens, unless the backend already knows them as added ones."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    backend.add_special_tokens([token for token in tokens if token.content not in known])


def added_token(token: Any) -> AddedToken | None:
    """A token as these files write one: its text, or an object with its flags.

    Raises:
        CheckpointError: the text has lone surrogates.
    """
    flags = {"special": True, "normalized": False}
    content = token
    if isinstance(token, dict):
        flags = {flag: bool(token[flag]) for flag in _FLAGS if flag in token}
        content = token.get("content")
    if not isinstance(content, str):
        return None
    try:
        return AddedToken(content, **flags)
    except UnicodeEncodeError as error:
        raise CheckpointError(
            f"tokenizer_config.json or special_tokens_map.json: token {content!r} is no Unicode text, since it has "
            "lone surrogates; correct it there"
        ) from error


def read_template(path: Path, config: Mapping[str, Any]) -> str | None:
    """The file chat_template.jinja wins, as in transformers; of several named templates the one called default."""
    file = path / "chat_template.jinja"
    if file.is_file():
        check_size(file, MAX_JSON_BYTES)
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from error
    template = config.get("chat_template") or optional_json(path / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        template = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None


def optional_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty if the file is absent."""
    return read_json(path) if path.is_file() else {}
