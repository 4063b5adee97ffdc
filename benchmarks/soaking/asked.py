"""What clients send: sound requests in every way of choosing tokens, and nonsense."""

from __future__ import annotations

import json
from typing import Any

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
NONSENSES: tuple[tuple[str, bytes], ...] = tuple(
    (path, body if isinstance(body, bytes) else json.dumps(body).encode())
    for path, body in (
        (COMPLETE, b"{"),
        (COMPLETE, b"\xff\xfe"),
        (COMPLETE, b"[" * 5000),
        (COMPLETE, {"model": "soak"}),
        (COMPLETE, {"model": "soak", "prompt": ""}),
        (COMPLETE, {"model": "soak", "prompt": [1 << 31]}),
        (COMPLETE, {"model": "soak", "prompt": "a", "temperature": -1}),
        (COMPLETE, {"model": "soak", "prompt": "a", "max_tokens": 1 << 40}),
        (COMPLETE, {"model": "soak", "prompt": "a", "n": 1000}),
        (COMPLETE, {"model": "soak", "prompt": "a", "nonsense": 1}),
        (COMPLETE, {"model": "another", "prompt": "a"}),
        (CHAT, {"model": "soak", "messages": [{"role": "nobody", "content": "a"}]}),
        (CHAT, {"model": "soak", "messages": []}),
        ("/nowhere", {}),
    )
)
RAW = (
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000,
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n{",
)
"""What is no HTTP, or stops in the middle."""


def requests() -> list[tuple[str, dict[str, Any]]]:
    """What is asked, in every way of choosing tokens."""
    styles: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0.9, "seed": 7},
        {"temperature": 1.2, "top_p": 0.9, "seed": 8, "presence_penalty": 1.0},
        {"temperature": 0.7, "top_k": 20, "seed": 9, "frequency_penalty": 0.5, "min_tokens": 5},
        {"temperature": 0, "speculation": "off"},
        {"temperature": 0.8, "seed": 10, "stop": ["e", "ab"], "logit_bias": {"65": 2.0}},
    ]
    asked: list[tuple[str, dict[str, Any]]] = []
    for number in range(24):
        style = styles[number % len(styles)]
        body = {"model": "soak", "max_tokens": 12 + 12 * (number % 7), **style}
        text = f"The number {number // 2} is " + "so much larger than all the others " * (number % 3)
        if number % 4 == 0:
            asked.append((CHAT, body | {"messages": [{"role": "user", "content": text}]}))
        else:
            asked.append((COMPLETE, body | {"prompt": text}))
    return asked
