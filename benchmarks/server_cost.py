"""The claim: over HTTP a stream's first token comes at most 1 ms later, and batch 1 decodes at most 2% slower.

    python benchmarks/server_cost.py                              smollm2 and its drafter, ~2 minutes on two CPU cores
    python benchmarks/server_cost.py --shape llama-8b             random weights, plain decoding, ~3 minutes on an H200
    python benchmarks/server_cost.py --shape llama-8b --k 3       the same with drafts, whose acceptance is simulated

One chat at a time is streamed by `LLM` in this process, and by `outpace serve` with the same settings to a client on
this machine, in mirrored order, without reuse of prefixes and each round with a prompt of its own. The client writes
bytes that were made before, over one connection that stands, and reads what comes.

An engine's own first token may vary by more than the server adds, so that is not found as a difference of both ways:
the engine's process says how long it took for each request (`engine_s` of the server's log), and `added` under
`first_token_ms` is the client's time without it and without making token ids of the chat, which `LLM` does too. It
holds all else, the client's and the kernel's part of it included; `no_server` is what these alone come to: the same
client and a process that answers at once. `parts_ms` are medians of one request after the other: `read` until the
engine was sent it (token ids included, `token_ids`), `engine`, `between` the two processes, there and back, and
`outside`: the client, the kernel, and HTTP's own reading and writing. `difference` is the plain one of both ways.

While the other ways are measured, a server rests: what its processes need leaves the caches, and a first token takes
longer than where requests follow each other closely. `--in-a-row 3 --max-tokens 8 --rounds 10` is the other end: each
way streams three short answers, a millisecond apart, of which the third counts. `--awake` lets nobody sleep
(outpace serve --awake): where the kernel is told, that counts for all ways, which run on the same cores.

`added_us_per_token` is the difference from the first token to the end, where `server_over_engine` is the quotient of
both speeds. `first_byte_ms` is the response's first event, which comes before any token while the engine is at work.
With --shape a checkpoint is written to a temporary folder first (transformers is needed).
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice, product
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from outpace import LLM, SamplingParams
from outpace.errors import EngineError
from outpace.lab.bench.own_server import own_server
from outpace.lab.shapes.dense import SHAPES
from outpace.lab.timing import bench_line
from outpace.lab.timing.rounds import interleave, paired_difference, paired_ratio, ratio_as_dict, spread_ms
from outpace.lab.written import significant
from outpace.models.drafter import Drafter
from outpace.models.drafters.checkpoint import save_drafter
from outpace.models.registry import load_target
from outpace.models.source import locate
from outpace.server.monitoring.recent import MOST

MAX_CONTEXT = 2048
SPECIAL = ("<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ENGINE, SERVER, NOTHING = "engine", "server", "no_server"
WARM_UP = 2
PAUSE_S = 0.001
"""Between chats in a row, as clients and networks take: without it a server is still at the end of the last one."""
AWAKE_S = 86_400
"""For as long as the other ways take, too; the server ends with the script."""
AT_ONCE = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while connection.recv(1 << 16):
    connection.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n" + b"data: \\n\\n" * 5 + b"0\\r\\n\\r\\n")
"""
"""A server that does nothing, for as long as its only client is there."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_line.parser(__doc__, shape=None, rounds=20)
    parser.add_argument("--model", default="smollm2", help="a target with a shipped drafter (default smollm2)")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="tokens of an answer (default 128)")
    parser.add_argument("--prompt-words", type=int, default=40, metavar="N", help="words of a prompt (default 40)")
    parser.add_argument("--k", type=int, default=0, metavar="N", help="--shape: drafts a cycle (default 0)")
    parser.add_argument("--acceptance", type=float, default=0.8, metavar="X", help="--shape: of a draft (default 0.8)")
    parser.add_argument(
        "--in-a-row", type=int, default=1, metavar="N", help="of so many chats one after the other the last counts"
    )
    parser.add_argument("--awake", action="store_true", help="nobody sleeps, as with outpace serve --awake")
    args = parser.parse_args(argv)
    if not 1 <= args.in_a_row <= (most := MOST // (WARM_UP + 1)):
        parser.error(f"--in-a-row is {args.in_a_row}; it must be 1 … {most}")
    if not 1 <= args.rounds <= (most := MOST // args.in_a_row - WARM_UP):
        parser.error(f"--rounds is {args.rounds}; with --in-a-row {args.in_a_row} it must be 1 … {most}")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    line = bench_line.Line("server_cost", args)
    with tempfile.TemporaryDirectory() as folder:
        model, drafter = (args.model, "auto") if args.shape is None else write_models(Path(folder), args)
        line.print(**compare(model, drafter, args))


@dataclass(frozen=True, slots=True)
class Streamed:
    """One answer; seconds from the request on."""

    first_byte_s: float
    first_token_s: float
    end_s: float
    tokens: int
    encode_s: float = 0.0
    """Of `first_token_s`, what the chat's token ids took: of the engine alone."""
    server: dict[str, float] | None = None
    """What the server says of it."""

    @property
    def per_token_s(self) -> float:
        """Behind the first."""
        return (self.end_s - self.first_token_s) / (self.tokens - 1)


def compare(model: str, drafter: str, args: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {"max_context": MAX_CONTEXT, "max_rows": 4, "control": "fixed"}
    if args.shape is not None:
        options |= {"k": args.k} | ({"simulate_acceptance": (args.acceptance,)} if args.k else {})
    flags = ["--drafter", drafter, "--device", args.device, "--dtype", args.dtype, "--no-prefix-reuse"]
    for name, value in options.items():
        flags += [f"--{name.replace('_', '-')}", str(value[0] if isinstance(value, tuple) else value)]
    flags += ["--awake", str(AWAKE_S)] if args.awake else []
    bench_line.say("starting the engine and the server")
    named = None if drafter == "none" else drafter
    with own_server(model, flags) as url, connected(url) as server, answering_at_once() as nothing:
        llm = LLM(model, drafter=named, device=args.device, dtype=args.dtype, prefix_reuse=False, **options)
        ways = {
            ENGINE: partial(in_process, llm),
            SERVER: partial(over_http, server, model),
            NOTHING: partial(over_http, nothing, model),
        }
        numbers = {name: count() for name in ways}

        def measure(name: str) -> Streamed:
            for _ in range(args.in_a_row):
                time.sleep(PAUSE_S)
                number = next(numbers[name])  # the same prompt for all in a round
                answer = ways[name](f"{number}: {'word ' * args.prompt_words}", number, args.max_tokens)
            return answer

        interleave(list(ways), WARM_UP, measure)
        done = interleave(list(ways), args.rounds, measure, lambda n: bench_line.say(f"round {n} of {args.rounds}"))
        found = dict(zip(ways, done, strict=True))
        said = said_of(url, (WARM_UP + args.rounds) * args.in_a_row)[args.in_a_row - 1 :: args.in_a_row][WARM_UP:]
        found[SERVER] = [replace(answer, server=one) for answer, one in zip(found[SERVER], said, strict=True)]
        return {**figures(found), "model": llm.describe()}


def said_of(url: str, num_requests: int) -> list[dict[str, float]]:
    """What a server says of its requests, the oldest first; it notes the last one just after its answer."""
    while True:
        with urlopen(f"{url}/v1/outpace/state") as response:
            recent: list[dict[str, float]] = json.load(response)["recent"]
        if len(recent) == num_requests:
            return recent[::-1]
        time.sleep(0.01)


def figures(found: dict[str, list[Streamed]]) -> dict[str, Any]:
    """What the server added, by rounds."""

    def of(name: str, field: str) -> list[float]:
        return [getattr(answer, field) for answer in found[name]]

    first = {name: of(name, "first_token_s") for name in found}
    each = {name: of(name, "per_token_s") for name in (ENGINE, SERVER)}
    encode = of(ENGINE, "encode_s")
    parts = [parts_of(answer) for answer in found[SERVER]]
    alike = [part["engine"] + encoding for part, encoding in zip(parts, encode, strict=True)]
    slower = paired_ratio(each[ENGINE], each[SERVER])
    return {
        "first_token_ms": {name: spread_ms(seconds) for name, seconds in first.items()}
        | {"added": _added(alike, first[SERVER], 1e3), "difference": _added(first[ENGINE], first[SERVER], 1e3)},
        "parts_ms": {name: spread_ms([part[name] for part in parts]) for name in parts[0]}
        | {"token_ids": spread_ms(encode)},
        "first_byte_ms": spread_ms(of(SERVER, "first_byte_s")),
        "added_us_per_token": _added(each[ENGINE], each[SERVER], 1e6),
        "tok_s": {name: significant(1.0 / median(seconds)) for name, seconds in each.items()},
        "server_over_engine": ratio_as_dict(slower),
        "tokens": found[SERVER][0].tokens,
    }


def parts_of(answer: Streamed) -> dict[str, float]:
    """Where the time to a first token goes, in seconds."""
    assert answer.server is not None
    first_token, read, engine = (answer.server[name] for name in ("first_token_s", "sent_s", "engine_s"))
    outside = answer.first_token_s - first_token
    return {"outside": outside, "read": read, "between": first_token - read - engine, "engine": engine}


def _added(without: list[float], served: list[float], unit: float) -> dict[str, Any]:
    """By the server, in parts of a second."""
    scaled = ([unit * seconds for seconds in times] for times in (served, without))
    return ratio_as_dict(paired_difference(*scaled))


def _messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def in_process(llm: LLM, text: str, seed: int, max_tokens: int) -> Streamed:
    """By the engine alone, its text included."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=seed)
    began = time.perf_counter()
    prompt_ids = llm.encode(_messages(text))
    encoded = time.perf_counter()
    first, tokens = 0.0, 0
    for chunk in llm.stream(prompt_ids, params):
        tokens += len(chunk.token_ids)
        first = first or time.perf_counter()
    return Streamed(first - began, first - began, time.perf_counter() - began, tokens, encode_s=encoded - began)


def over_http(connection: socket.socket, model: str, text: str, seed: int, max_tokens: int) -> Streamed:
    """By the server. The first event is the role; behind the last token come how it ended, usage and the end."""
    options = {"max_tokens": max_tokens, "ignore_eos": True, "temperature": 0, "seed": seed}
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps({"model": model, "messages": _messages(text)} | options | stream).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n"
    request = f"{head}Content-Type: application/json\r\n\r\n".encode() + body
    began = time.perf_counter()
    connection.sendall(request)
    times = [at - began for at in arrivals(connection)]
    return Streamed(times[0], times[1], times[-3], max_tokens)


def arrivals(connection: socket.socket) -> Iterator[float]:
    """When each event of a response came that is sent in chunks."""
    mark, rest, part = b"data: ", b"", b""
    begun = False
    while not (rest + part).endswith(b"0\r\n\r\n"):
        rest = (rest + part)[-(len(mark) - 1) :]
        part = connection.recv(1 << 16)
        if not part or not (begun or part.startswith(b"HTTP/1.1 200")):
            raise EngineError(f"the server said {part[:2000]!r}")
        begun = True
        for _ in range((rest + part).count(mark)):
            yield time.perf_counter()


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    """A connection that stands, as clients keep theirs."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


@contextmanager
def answering_at_once() -> Iterator[socket.socket]:
    """A connection to a server that does nothing."""
    with subprocess.Popen([sys.executable, "-c", AT_ONCE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with connected(f"http://127.0.0.1:{int(process.stdout.readline())}") as connection:
            yield connection


def write_models(folder: Path, args: argparse.Namespace) -> tuple[str, str]:
    """A target of the shape with random weights, and with --k a drafter for it; where they are."""
    import transformers

    bench_line.say(f"writing random weights of {args.shape}")
    device, dtype = bench_line.place(args)
    shape = SHAPES[args.shape]()
    config = transformers.LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=shape.tie_embeddings,
        bos_token_id=None,
        eos_token_id=shape.vocab_size - 1,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(folder / "model")
    del model
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the engine and the server share the rest
    write_tokenizer(folder / "model", shape.vocab_size)
    if not args.k:
        return str(folder / "model"), "none"
    target = load_target(locate(str(folder / "model")), dtype=dtype, device=device).model
    num_ids = min(args.draft_vocab, shape.vocab_size)
    drafter = Drafter.create(target, draft_ids=torch.arange(num_ids) * shape.vocab_size // num_ids)
    save_drafter(drafter, folder / "drafter")
    return str(folder / "model"), str(folder / "drafter")


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Bytes and made-up words: whatever such a model writes is text, and has as many pieces as that of a real one."""
    vocabulary = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    letters = product("abcdefghijklmnopqrstuvwxyz", repeat=4)
    words = (f"\u0120{''.join(four)}" for four in letters)  # the first character stands for a space
    vocabulary |= {word: 256 + i for i, word in enumerate(islice(words, vocab_size - 256 - len(SPECIAL)))}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": SPECIAL[1], "chat_template": CHATML, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    bench_line.run(main)
