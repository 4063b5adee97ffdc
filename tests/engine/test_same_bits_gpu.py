"""On a GPU in bf16: a plain step's logits are, to the bit, those of a verify that reaches the same position."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.tiny import tiny_config
from outpace.models.target import Target
from outpace.speculation.pair import Pair
from outpace.speculation.span import Span
from outpace.speculation.state import State
from outpace.speculation.verify import verify

pytestmark = pytest.mark.gpu

PAGE, NUM_PAGES = 64, 40
START = 900


class Reader:
    """Prefills and then reads on, some tokens at a time."""

    def __init__(self, rows: int) -> None:
        config = tiny_config(
            vocab_size=4096, hidden_size=512, num_heads=8, num_kv_heads=2, head_dim=64, intermediate_size=1536,
            max_positions=4096,
        )  # fmt: skip
        target = Target(config, dtype=torch.bfloat16, device="cuda")
        torch.manual_seed(3)
        for name, parameter in target.named_parameters():
            torch.nn.init.ones_(parameter) if "norm" in name else torch.nn.init.normal_(parameter, std=0.04)
        self.rows = rows
        self.pair = Pair.allocate(target, None, num_pages=rows * NUM_PAGES + 1, page_size=PAGE, dtype=torch.bfloat16)
        self.state = State.allocate(
            max_rows=rows, pages_per_row=NUM_PAGES, num_pages=rows * NUM_PAGES + 1, max_k=0, drafter=None,
            history=0, dtype=torch.bfloat16, device=torch.device("cuda"),
        )  # fmt: skip
        self.table_BP = torch.arange(1, rows * NUM_PAGES + 1, device="cuda").view(rows, NUM_PAGES)

    @torch.inference_mode()
    def logits(self, tokens_BT: Tensor, num_each: int) -> Tensor:
        """Logits of the tokens from `START` on, [B, N, V]; those before are prefilled at once."""
        found, position = [], 0
        for part in (tokens_BT[:, :START], *tokens_BT[:, START:].split(num_each, dim=1)):
            rows_B = torch.arange(self.rows, device="cuda")
            start_B = torch.full((self.rows,), position, device="cuda")
            span = Span.of(self.table_BP, start_B, part.shape[1], PAGE)
            done = verify(self.pair, self.state, rows_B, part.contiguous(), span, with_features=False, with_logits=True)
            found.append(done.logits_BSV)
            position += part.shape[1]
        return torch.cat(found[1:], dim=1)


@pytest.mark.parametrize(("rows", "num_each"), [(1, 4), (1, 8), (8, 4), (8, 8), (16, 4)])
def test_plain_steps_have_the_bits_of_verifies(rows: int, num_each: int) -> None:
    reader = Reader(rows)
    tokens_BT = torch.randint(4096, (rows, START + 64), device="cuda")
    plain = reader.logits(tokens_BT, 1)
    assert torch.equal(reader.logits(tokens_BT, num_each), plain)
