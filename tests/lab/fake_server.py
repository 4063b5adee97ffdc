"""Servers that speak as ours, SGLang and vLLM do, with timings that are known: a transport for httpx2, no network.

Every answer has `tokens` tokens. The first comes `ttft_s` after the request; then a cycle every `cycle_s` emits
`accept_length` tokens. `per_chunk` cycles share a chunk. `slow_after` tokens of context, cycles take twice the time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx2

Engine = Literal["outpace", "vllm", "sglang", "plain"]


class _Body(httpx2.AsyncByteStream):
    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts


@dataclass
class FakeServer(httpx2.AsyncBaseTransport):
    engine: Engine = "plain"
    tokens: int = 61
    prompt_tokens: int = 40
    ttft_s: float = 0.2
    cycle_s: float = 0.02
    accept_length: int = 3
    k: int = 4
    marked: dict[str, Any] = field(default_factory=dict)
    """Of our engine's settings, those under which answers are not what they seem."""
    per_chunk: int = 1
    slow_after: int | None = None
    sends_usage: bool = True
    refuse: tuple[str, ...] = ()
    """Fields that are refused with a 400."""
    fail_every: int | None = None
    """Every so many requests fail with a 500."""
    tells: str = ""
    """How answers tell of speculation: "metrics" (vLLM), "sglext" or "details" (SGLang), "timings" (llama.cpp)."""
    others: int = 0
    """Tokens written for others meanwhile, an answer."""
    slower: float = 1.0
    on_asked: Callable[[int], None] = lambda number: None
    """Told of each request before it is answered, counted from 1."""
    varies: bool = False
    """The same prompt is answered otherwise each time."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    times: list[tuple[float, float]] = field(default_factory=list)
    """When each answer's first and last tokens were sent, by this server's clock."""
    written: int = 0
    cycles: int = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path in ("/v1/chat/completions", "/v1/completions"):
            return self._answer(json.loads(request.content))
        if path == "/v1/models":
            return httpx2.Response(200, json={"data": [{"id": "fake", "owned_by": "somebody", "max_model_len": 8192}]})
        if path == "/metrics" and self.engine != "plain":
            return httpx2.Response(200, text=self.metrics())
        if path == "/server_info" and self.engine == "sglang":
            settings = {
                "version": "0.5.9",
                "speculative_num_draft_tokens": self.k + 1,
                "api_key": "hidden",
                "tp_size": 8,
            }
            return httpx2.Response(200, json=settings)
        if path == "/version" and self.engine == "vllm":
            return httpx2.Response(200, json={"version": "0.21.0"})
        if path == "/v1/outpace/state" and self.engine == "outpace":
            engine = {"k": self.k} | self.marked
            state = {"version": "0.1.0", "settings": {"model": "fake", "engine": engine, "control": {"k": 0}}}
            return httpx2.Response(200, json=state)
        return httpx2.Response(404, json={"detail": "Not Found"})

    def _answer(self, body: dict[str, Any]) -> httpx2.Response:
        self.asked.append(body)
        self.on_asked(len(self.asked))
        said = set(body) | set(body.get("stream_options", {}))
        for name in self.refuse:
            if name in said:
                return httpx2.Response(400, json={"error": {"message": f"{name} is not known here"}})
        if self.fail_every and len(self.asked) % self.fail_every == 0:
            return httpx2.Response(500, json={"error": {"message": "the engine is on fire"}})
        return httpx2.Response(200, stream=_Body(self._stream(body)))

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        options = body.get("stream_options", {})
        running_usage = self.sends_usage and options.get("continuous_usage_stats") and self.engine in ("vllm", "sglang")
        tokens = min(self.tokens, body["max_tokens"])
        yield self._event({"delta": {"role": "assistant", "content": ""}})
        await asyncio.sleep(self.ttft_s * self.slower)
        sent, cycles, began = 0, 0, 0.0
        word = f"word{len(self.asked)} " if self.varies else "word "
        for count, ran in self._chunks(tokens):
            await asyncio.sleep(sum(self._seconds(sent) for _ in range(ran)))
            sent, cycles = sent + count, cycles + ran
            end = {"finish_reason": "length"} if sent == tokens and self.engine == "vllm" else {}
            usage = self._usage(sent, cycles) if running_usage else None
            began = began or asyncio.get_running_loop().time()
            yield self._event({"delta": {"content": word * count}} | end, usage)
        self.times.append((began, asyncio.get_running_loop().time()))
        if self.engine != "vllm":
            usage = self._usage(sent, cycles) if running_usage else None
            yield self._event({"delta": {}, "finish_reason": "length"}, usage)
        if self.tells == "sglext" and body.get("return_spec_tokens_details"):
            yield self._bare({"choices": [], "sglext": self._spoken(cycles)})
        if self.sends_usage and options.get("include_usage"):
            spoken = self._spoken(cycles) if self.tells in ("metrics", "timings") else {}
            yield self._bare({"choices": [], "usage": self._usage(sent, cycles), **spoken})
        yield b"data: [DONE]\n\n"
        self.running -= 1
        self.written += sent + self.others
        self.cycles += cycles

    def _chunks(self, tokens: int) -> Iterator[tuple[int, int]]:
        """(tokens, cycles) of each chunk."""
        yield 1, 0
        left = tokens - 1
        while left:
            count = min(left, self.accept_length * self.per_chunk)
            yield count, -(-count // self.accept_length)
            left -= count

    def _seconds(self, sent: int) -> float:
        slow = self.slow_after is not None and self.prompt_tokens + sent >= self.slow_after
        return self.cycle_s * self.slower * (2.0 if slow else 1.0)

    def _event(self, choice: dict[str, Any], usage: dict[str, Any] | None = None) -> bytes:
        whole = {"choices": [{"index": 0, "finish_reason": None} | choice]}
        return self._bare(whole if usage is None else whole | {"usage": usage})

    def _bare(self, event: dict[str, Any]) -> bytes:
        return f"data: {json.dumps(event)}\n\n".encode()

    def _usage(self, sent: int, cycles: int) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": sent,
            "prompt_tokens_details": {"cached_tokens": 7},
        }
        if self.engine == "outpace" and cycles:
            usage["speculation"] = {
                "accept_length": round((sent - 1) / cycles, 4),
                "cycles": cycles,
                "emitted": sent - 1,
                "drafted": cycles * self.k,
                "accepted": sent - 1 - cycles,
                "drafted_at": [cycles] * self.k,
                "accepted_at": self._accepted_at(cycles),
            }
        if self.tells == "details":
            usage["completion_tokens_details"] = self._spoken(cycles)
        return usage

    def _accepted_at(self, cycles: int) -> list[int]:
        return [cycles if place < self.accept_length - 1 else 0 for place in range(self.k)]

    def _spoken(self, cycles: int) -> dict[str, Any]:
        """Every cycle accepts one draft less than it emits tokens."""
        each = self.accept_length - 1
        accepted, drafted = cycles * each, cycles * self.k
        histogram = [0] * each + [cycles] + [0] * (self.k - each)
        match self.tells:
            case "metrics":
                counts = {"num_spec_steps": cycles, "num_accepted_draft_tokens": accepted, "num_draft_tokens": drafted}
                return {"metrics": {"speculative_decoding": counts | {"acceptance_histogram": histogram}}}
            case "sglext":
                counts = {"spec_verify_ct": cycles, "spec_num_correct_drafts": accepted}
                counts |= {"spec_num_proposed_drafts": drafted}
                return {"spec_tokens_details": counts | {"spec_correct_drafts_histogram": histogram}}
            case "details":
                rejected = drafted - accepted
                return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
            case _:
                return {"timings": {"predicted_n": 61, "draft_n": drafted, "draft_n_accepted": accepted}}

    def metrics(self) -> str:
        emitted = self.cycles * self.accept_length
        accepted = emitted - self.cycles
        if self.engine == "outpace":
            found = {"tokens": self.written, "cycles": self.cycles, "emitted": emitted}
            found |= {"drafted": self.cycles * self.k, "accepted": accepted}
            text = "".join(f"# TYPE outpace_{name} counter\noutpace_{name}_total {n}\n" for name, n in found.items())
            by_place = {"drafted_at": [self.cycles] * self.k, "accepted_at": self._accepted_at(self.cycles)}
            for name, counts_at in by_place.items():
                text += f"# TYPE outpace_{name} counter\n"
                text += "".join(
                    f'outpace_{name}_total{{position="{place}"}} {n}\n' for place, n in enumerate(counts_at)
                )
            return text
        if self.engine == "sglang":
            gauges = {"spec_accept_length": self.accept_length, "spec_accept_rate": self.accept_length / (self.k + 1)}
            text = "".join(
                f'# TYPE sglang:{n} gauge\nsglang:{n}{{engine_type="unified",tp_rank="0"}} {v}\n'
                for n, v in gauges.items()
            )
            name = "sglang:generation_tokens_total"
            return text + f"# TYPE {name} counter\n{name} {self.written}\n"
        name, labels = "vllm:spec_decode_num", '{engine="0",model_name="fake"}'
        counts = {"drafts": self.cycles, "draft_tokens": self.cycles * self.k, "accepted_tokens": accepted}
        text = "".join(f"# TYPE {name}_{n} counter\n{name}_{n}_total{labels} {v}\n" for n, v in counts.items())
        text += f"# TYPE {name}_accepted_tokens_per_pos counter\n"
        for place, there in enumerate(self._accepted_at(self.cycles)):
            text += f'{name}_accepted_tokens_per_pos_total{{engine="0",position="{place}"}} {there}\n'
        return text + f"# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total{labels} {self.written}\n"
