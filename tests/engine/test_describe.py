from __future__ import annotations

import json
from dataclasses import replace

from engine.tiny import engine, tiny_drafter, tiny_target


def test_describe_is_plain_data_and_leaves_nothing_out() -> None:
    target = replace(tiny_target(), notes=("rope_pairs is not used",))
    described = json.loads(json.dumps(engine(target, tiny_drafter(target)).describe()))
    assert described["target_notes"] == ["rope_pairs is not used"]
    assert described["target"]["num_layers"] == 3
    assert described["drafter"]["aux_boundaries"]
    assert described["engine"]["k"] == 4
