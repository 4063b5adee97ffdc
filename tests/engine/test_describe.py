from __future__ import annotations

import json
from dataclasses import replace

from engine.tiny import engine, tiny_drafter, tiny_target
from models.byte_pieces import byte_tokenizer
from models.tool_templates import QWEN25_TOOLS
from outpace.models.linear import pack


def test_describe_is_plain_data_and_leaves_nothing_out() -> None:
    target = replace(tiny_target(), notes=("rope_pairs is not used",))
    described = json.loads(json.dumps(engine(target, tiny_drafter(target)).describe()))
    assert described["target_notes"] == ["rope_pairs is not used"]
    assert described["target"]["num_layers"] == 3
    assert described["drafter"]["aux_boundaries"]
    assert described["engine"]["k"] == 4
    assert described["tool_calls"] is None


def test_describe_says_how_tool_calls_are_spelled() -> None:
    tokenizer = byte_tokenizer([b"x"], chat_template=QWEN25_TOOLS)
    described = json.loads(json.dumps(engine(replace(tiny_target(), tokenizer=tokenizer)).describe()))
    assert described["tool_calls"]["name"] == "hermes"
    assert described["tool_calls"]["opening"] == "<tool_call>"


def test_describe_names_who_computes_what() -> None:
    target = tiny_target()
    llm = engine(target, tiny_drafter(target))
    assert llm.describe()["kernels"]["products"].startswith("PyTorch in float32: 0 of ")
    pack(llm.target.model)
    llm.drafter.pack()  # type: ignore[union-attr]
    described = llm.describe()
    assert described["kernels"]["products"] == "oneDNN in float32, weights in its own layout"
    assert "experts" not in described["kernels"]
    assert described["parallel"]["size"] == 1
    assert described["parallel"]["sums"] == "none: the model lies on one device"
