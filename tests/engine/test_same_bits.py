"""In 16 bits on a CPU too, a plain step computes a token's logits to the bit as a verify of several tokens does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.tiny import VOCAB, tiny_target
from outpace.models.linear import Linear
from outpace.models.onednn import can_pack
from outpace.speculation.pair import Pair
from outpace.speculation.span import Span
from outpace.speculation.state import State
from outpace.speculation.verify import verify

PAGE, NUM_PAGES = 16, 42
WIDE = 1536
"""More inputs than oneDNN sums alike for one row and for several."""

needs_bf16 = pytest.mark.skipif(
    not can_pack(torch.empty(1, 1, dtype=torch.bfloat16)), reason="oneDNN packs no bf16 weights on this CPU"
)


class Steps:
    """A random packed target in bf16, run over given tokens in forwards of any length."""

    def __init__(self, num_kv_heads: int) -> None:
        target = tiny_target(
            hidden_size=192,
            max_positions=1024,
            num_heads=3,
            num_kv_heads=num_kv_heads,
            head_dim=64,
            intermediate_size=WIDE,
        ).model.to(torch.bfloat16)
        with torch.no_grad():
            for layer in target.modules():
                if isinstance(layer, Linear):
                    layer.weight.normal_(0.0, layer.in_features**-0.5)
        target.pack()
        self.pair = Pair.allocate(target, None, num_pages=NUM_PAGES, page_size=PAGE, dtype=torch.bfloat16)
        self.state = State.allocate(
            max_rows=1,
            pages_per_row=NUM_PAGES,
            num_pages=NUM_PAGES,
            max_k=15,
            drafter=None,
            history=0,
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
        )
        self.table_BP = torch.arange(1, NUM_PAGES)[None]

    @torch.inference_mode()
    def logits(self, tokens: Tensor, num_each: int, start: int) -> Tensor:
        """Logits of the tokens from `start` on, [N, V]; those before are prefilled at once."""
        parts = [tokens[:start], *tokens[start:].split(num_each)]
        found, position = [], 0
        for part in parts:
            rows_B, start_B = torch.tensor([0]), torch.tensor([position])
            span = Span.of(self.table_BP, start_B, len(part), self.pair.cache.page_size)
            done = verify(self.pair, self.state, rows_B, part[None], span, with_features=False)
            found.append(self.pair.target.logits(done.hidden_BSH)[0])
            position += len(part)
        return torch.cat(found[1:])


@needs_bf16
@pytest.mark.parametrize("num_kv_heads", [1, 3])
def test_plain_steps_have_the_bits_of_verifies(num_kv_heads: int) -> None:
    tokens = torch.randint(VOCAB, (640,))  # more than a split of the attention kernel holds
    steps = Steps(num_kv_heads)
    plain_NV = steps.logits(tokens, 1, start=20)
    for num_each in (2, 5, 16):
        assert torch.equal(plain_NV, steps.logits(tokens, num_each, start=20)), num_each


@needs_bf16
@pytest.mark.parametrize("num_inputs", [576, 1025, WIDE, 4096])
def test_a_row_alone_has_the_bits_it_has_among_others(num_inputs: int) -> None:
    layer = Linear(num_inputs, 256, bias=True, dtype=torch.bfloat16)
    with torch.no_grad():
        layer.weight.normal_(0.0, num_inputs**-0.5)
        assert layer.bias is not None
        layer.bias.normal_()
        layer.pack()
        x = torch.randn(1, 200, num_inputs, dtype=torch.bfloat16)
        among = torch.cat([layer(part) for part in x.split(5, 1)], 1)
        alone = torch.cat([layer(part) for part in x.split(1, 1)], 1)
        assert torch.equal(alone, among)
        assert torch.equal(layer(x[0, 0]), among[0, 0])
