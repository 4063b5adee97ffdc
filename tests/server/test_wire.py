"""Messages survive the wire however it cuts them; everything else ends the connection."""

from __future__ import annotations

import pickle
from contextlib import suppress
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.config import SamplingParams
from outpace.server import wire
from outpace.server.wire import Abort, Accepted, AskState, Frames, FromEngine, Piece, Start, Submit, Tally, WireError

PARAMS = SamplingParams(temperature=0.5, stop_token_ids=(1, 2), stop=("a", "ü"), logit_bias={3: -1.5}, bad_words=[[4]])
TO_ENGINE = [
    Start(model="m", drafter=None, dtype="auto", device="cpu", aux_boundaries=(0, 1), options={"k": 3}),
    Submit(id=7, prompt_ids=[1, 2, 3], params=PARAMS),
    Abort(id=7),
    AskState(ask=1 << 40),
]


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def read(data: bytes) -> list[wire.ToEngine]:
    frames: Frames[wire.ToEngine] = Frames(wire.ToEngine)
    return list(frames.feed(data))


@given(cuts=st.lists(st.integers(0, 400)))
def test_messages_come_whole_however_they_are_cut(cuts: list[int]) -> None:
    data = b"".join(map(wire.pack, TO_ENGINE))
    frames: Frames[wire.ToEngine] = Frames(wire.ToEngine)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    found = [m for a, b in pairwise(places) for m in frames.feed(data[a:b])]
    assert found == TO_ENGINE


def test_a_piece_comes_back_with_its_types() -> None:
    piece = Piece(
        id=1, text="é", token_ids=(5, 6), finish_reason="stop", tally=Tally(cycles=2, emitted=3, drafted_at=(2, 1))
    )
    frames: Frames[FromEngine] = Frames(FromEngine)
    assert list(frames.feed(wire.pack(piece))) == [piece]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x80",
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode({"type": "Nonsense"}),
        msgspec.msgpack.encode({"type": "Abort"}),
        msgspec.msgpack.encode({"type": "Abort", "id": "7"}),
        msgspec.msgpack.encode({"type": "Abort", "id": 7, "more": 1}),
        msgspec.msgpack.encode({"type": "Submit", "id": 7, "prompt_ids": [1], "params": {"max_tokens": 0}}),
        msgspec.msgpack.encode({"type": "Submit", "id": 7, "prompt_ids": [None], "params": {}}),
        b"\x91" * 100_000,
        pickle.dumps(TO_ENGINE[2].id),
        wire.pack(Accepted(id=1))[4:],  # a message, but for the other side
        wire.pack(Abort(id=1))[4:] + b"\x00",
    ],
)
def test_what_is_no_message_is_an_error(body: bytes) -> None:
    with pytest.raises(WireError, match="is no message"):
        read(frame(body))


@given(st.binary(max_size=200))
def test_noise_is_a_wire_error_or_waits_for_more(data: bytes) -> None:
    with suppress(WireError):
        read(data)


def test_too_large_a_frame_is_refused_before_it_is_there() -> None:
    with pytest.raises(WireError, match=f"at most {wire.MAX_FRAME}"):
        read((wire.MAX_FRAME + 1).to_bytes(4, "big"))


def test_too_large_a_message_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_FRAME", 100)
    with pytest.raises(WireError, match="too large"):
        wire.pack(Submit(id=1, prompt_ids=[1] * 100, params=PARAMS))


@pytest.mark.parametrize("wrong", [{"prompt_ids": [1 << 64]}, {"kept": ("\ud800",)}])
def test_what_msgpack_cannot_hold_is_not_sent(wrong: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="cannot be written"):
        wire.pack(Submit(**{"id": 1, "prompt_ids": [1], "params": PARAMS} | wrong))
