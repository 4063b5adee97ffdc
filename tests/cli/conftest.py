from __future__ import annotations

from cli.fakes import llm

__all__ = ["llm"]
