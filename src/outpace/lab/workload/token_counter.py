"""A tokenizer by its model's name, to count with where a server does not."""

from __future__ import annotations

from outpace.errors import ConfigError
from outpace.models.gguf.file import GgufFile
from outpace.models.source import locate
from outpace.models.text.tokenizer import Tokenizer


def read_tokenizer(name: str) -> Tokenizer:
    """Of a directory, a .gguf file, a hub id or an alias.

    Raises:
        CheckpointError: there is no such model, or its tokenizer is broken.
        ConfigError: it has none.
    """
    source = locate(name)
    if source.kind == "directory":
        found = Tokenizer.from_directory(source.path)
    else:
        found = Tokenizer.from_gguf_fields(GgufFile(source.path).metadata, source.path)
    if found is None:
        raise ConfigError(f"--tokenizer {name} has no tokenizer; name a directory with tokenizer.json, or a .gguf file")
    return found
