"""How often a wiring's first draft is the target's next token, over answers that the target wrote itself.

One forward of the target gives the features of every boundary, and one of the drafter all first drafts of an answer at
once, so a wiring costs a moment and dozens can be tried.

Legend: S tokens of an answer with its prompt, F features of all boundaries (L + 1 of width H), P pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.engine.devices import default_page_size
from outpace.kernels.attention import PagedAttend
from outpace.kernels.kv import places
from outpace.lab.wirings.variant import Variant, readings, rewired
from outpace.models.drafter import Drafter
from outpace.models.target import Target
from outpace.speculation.pair import Pair

WORTH_Z = 3.0
"""Standard errors by which one wiring has to beat another: of some twenty that are tried, hardly one does by luck."""


@dataclass(frozen=True, slots=True)
class Text:
    """An answer behind its prompt, and what the target's layers made of it."""

    tokens_S: Tensor
    num_prompt: int
    features_SF: Tensor


@dataclass(frozen=True, slots=True)
class Score:
    """Of one wiring: for every token of the answers whether the first draft had it."""

    variant: Variant
    hits: Tensor

    @property
    def acceptance(self) -> float:
        return float(self.hits.double().mean())

    def z_over(self, other: Score) -> float:
        """By how many standard errors it is better: over the tokens that only one of the two had (McNemar)."""
        gained = int((self.hits & ~other.hits).sum())
        lost = int((~self.hits & other.hits).sum())
        return (gained - lost) / math.sqrt(max(1, gained + lost))


@torch.no_grad()
def read_texts(target: Target, answers: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Text]:
    """Runs the target over (prompt, answer) pairs and keeps all its features."""
    device = target.embed.weight.device
    boundaries = tuple(range(target.config.num_layers + 1))
    texts = []
    for prompt, answer in answers:
        tokens_S = torch.tensor([*prompt, *answer], device=device)
        pair, table_BP, positions_BS, slots_BS = _room(target, None, len(tokens_S))
        start_B = torch.zeros(1, dtype=torch.int64, device=device)
        attend = PagedAttend(pair.cache, table_BP, start_B, slots_BS, target.config.windows)
        _, features_BSF = target(tokens_S[None], positions_BS, attend, boundaries)
        assert features_BSF is not None
        texts.append(Text(tokens_S, len(prompt), features_BSF[0]))
    return texts


class Scorer:
    """Measures wirings of one drafter; none twice.

    Args:
        drafter: not packed.
        target: what it drafts for.
        texts: of `read_texts`.
    """

    def __init__(self, drafter: Drafter, target: Target, texts: Sequence[Text]) -> None:
        self._drafter, self._target, self._texts = drafter, target, texts
        self.num_layers = target.config.num_layers
        self.scores: dict[Variant, Score] = {}

    @torch.no_grad()
    def score(self, variant: Variant) -> Score:
        """Of one wiring."""
        if variant not in self.scores:
            drafter = rewired(self._drafter, self._target, variant)
            ids_V = readings(self._drafter)[variant.ids]
            hits = [_hits(drafter, self._target, text, variant, ids_V) for text in self._texts]
            self.scores[variant] = Score(variant, torch.cat(hits).cpu())
        return self.scores[variant]


def _hits(drafter: Drafter, target: Target, text: Text, variant: Variant, ids_V: Tensor) -> Tensor:
    """For each token of the answer but the first, which prefill chose, and those that a larger shift cannot reach."""
    width = target.config.hidden_size
    taps = [text.features_SF[:, boundary * width : (boundary + 1) * width] for boundary in variant.boundaries]
    fused_BSH = drafter.fuse(torch.cat(taps, -1)[None])
    num = len(text.tokens_S) - variant.shift
    pair, table_BP, positions_BS, slots_BS = _room(target, drafter, num)
    assert pair.drafter_cache is not None
    start_B = torch.zeros(1, dtype=torch.int64, device=ids_V.device)
    attend = PagedAttend(pair.drafter_cache, table_BP, start_B, slots_BS, (None,))
    tokens_BS = text.tokens_S[None, variant.shift :]
    _, out_BSH = drafter(tokens_BS, fused_BSH[:, :num].contiguous(), positions_BS, attend)
    wanted = text.tokens_S[text.num_prompt + 1 :]
    guessed = ids_V[drafter.logits(out_BSH[0, text.num_prompt - variant.shift : num - 1]).argmax(-1)]
    return guessed == wanted


def _room(target: Target, drafter: Drafter | None, num_tokens: int) -> tuple[Pair, Tensor, Tensor, Tensor]:
    """Pages for one text, its page table, positions and slots."""
    weight = target.embed.weight
    page_size = default_page_size(weight.device)
    num_pages = -(-num_tokens // page_size)
    pair = Pair.allocate(target, drafter, num_pages=num_pages + 1, page_size=page_size, dtype=weight.dtype)
    table_BP = torch.arange(1, num_pages + 1, device=weight.device)[None]
    start_B = torch.zeros(1, dtype=torch.int64, device=weight.device)
    positions_BS, slots_BS = places(start_B, num_tokens, None, table_BP, page_size)
    return pair, table_BP, positions_BS, slots_BS
