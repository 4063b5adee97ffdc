"""Outpace: EAGLE-3 speculative decoding, built to be never slower than plain decoding and to say why.

Settings and errors come at once; what needs torch is imported when it is first asked for, so that commands which only
compute or print start without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from outpace.config import EngineConfig, SamplingParams
from outpace.errors import (
    CheckpointError,
    ConfigError,
    DrafterError,
    EngineError,
    OutpaceError,
    RequestError,
)
from outpace.grammar import Grammar
from outpace.version import __version__ as __version__

if TYPE_CHECKING:
    from outpace.engine.llm import LLM
    from outpace.engine.results import Chunk, RequestStats, Result

__all__ = [
    "LLM",
    "CheckpointError",
    "Chunk",
    "ConfigError",
    "DrafterError",
    "EngineConfig",
    "EngineError",
    "Grammar",
    "OutpaceError",
    "RequestError",
    "RequestStats",
    "Result",
    "SamplingParams",
]

_LAZY = {
    "LLM": "outpace.engine.llm",
    "Chunk": "outpace.engine.results",
    "RequestStats": "outpace.engine.results",
    "Result": "outpace.engine.results",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'outpace' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
