"""What the target knows about a batch: its tapped hidden states and, where a draft can be judged, what it says next.

Both are recomputed from the token ids at every batch. Stored features of ten million tokens would take tens of
gigabytes; the target's forward costs a small part of the drafter's seven steps.

Legend: B rows, T positions a row, F tapped features, V vocabulary, Vd draft vocabulary, N positions with a label.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from outpace.models.layers import Attend
from outpace.models.target import Target
from outpace.training.conversations import Ints
from outpace.training.dataset import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One batch as the drafter studies it.

    The distribution at position s is the target's for token s + 1. It is not renormalised over the draft vocabulary:
    what lies outside is missing from `probs_NV` and so counts as missed.
    """

    tokens_BT: Tensor
    features_BTF: Tensor
    probs_NV: Tensor
    """The target's probabilities of the draft ids, [N, Vd], in `features_BTF`'s dtype."""
    best_N: Tensor
    """Draft id of the target's most likely token, -1 where it lies outside the draft vocabulary."""
    anchors: tuple[Tensor, ...]
    """Of each step j: flat places (row · T + t) whose draft number j is judged, int64."""
    labels: tuple[Tensor, ...]
    """Of each step j, beside `anchors`: the label 0 … N-1 of position t + 1 + j."""
    num_tokens: int


def runs(batch: Batch) -> Ints:
    """How many tokens after position t the target wrote without a break, int64 [B, T].

    Draft number j after position t (j = 0 is the first) is a guess of token t + 2 + j, made from true tokens up to
    t + 1 + j: it is judged where all of t + 1 … t + 2 + j are assistant tokens, that is where runs ≥ j + 2.
    """
    T = batch.tokens_BT.shape[1]
    counts = np.zeros(batch.tokens_BT.shape, dtype=np.int64)
    for t in range(T - 2, -1, -1):
        counts[:, t] = np.where(batch.assistant_BT[:, t + 1], counts[:, t + 1] + 1, 0)
    return counts


class Teacher:
    """A frozen target that makes lessons for a drafter with the given taps and draft vocabulary."""

    def __init__(
        self,
        target: Target,
        *,
        taps: tuple[int, ...],
        target_ids_V: Tensor,
        num_steps: int,
        chunk_rows: int = 4096,
    ) -> None:
        self.target, self.taps, self.num_steps, self.chunk_rows = target, taps, num_steps, chunk_rows
        self.device = target.embed.weight.device
        self.target_ids_V = target_ids_V.to(self.device)
        self.draft_ids = torch.full((target.config.vocab_size,), -1, dtype=torch.int64, device=self.device)
        self.draft_ids[self.target_ids_V] = torch.arange(len(target_ids_V), device=self.device)
        self.attend = causal_attend(target.config.windows)

    @torch.no_grad()
    def teach(self, batch: Batch) -> Lesson:
        """Runs the target over the batch. Index lists are made on the host, so the device is never waited for."""
        counts = runs(batch)
        labelled = np.flatnonzero((counts >= 1) & batch.assistant_BT)
        label_of = np.full(counts.size, -1, dtype=np.int64)
        label_of[labelled] = np.arange(len(labelled))
        anchors = [np.flatnonzero(counts >= step + 2) for step in range(self.num_steps)]
        labels = [label_of[places + 1 + step] for step, places in enumerate(anchors)]
        tokens_BT = self._upload(batch.tokens_BT)
        positions_BT = torch.arange(tokens_BT.shape[1], device=self.device).expand_as(tokens_BT)
        hidden_BTH, features_BTF = self.target(tokens_BT, positions_BT, self.attend, self.taps)
        assert features_BTF is not None
        probs_NV, best_N = self._distributions(hidden_BTH.flatten(0, 1)[self._upload(labelled)])
        return Lesson(
            tokens_BT=tokens_BT,
            features_BTF=features_BTF,
            probs_NV=probs_NV,
            best_N=best_N,
            anchors=tuple(self._upload(places) for places in anchors),
            labels=tuple(self._upload(places) for places in labels),
            num_tokens=batch.num_tokens,
        )

    def _upload(self, array: Ints) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def _distributions(self, hidden_NH: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities of the draft ids and the draft id of the best token, a chunk of rows at a time."""
        N = len(hidden_NH)
        probs_NV = hidden_NH.new_empty(N, len(self.target_ids_V))
        best_N = torch.empty(N, dtype=torch.int64, device=self.device)
        for first in range(0, N, self.chunk_rows):
            rows = slice(first, first + self.chunk_rows)
            logits = self.target.logits(hidden_NH[rows]).float()
            total = logits.logsumexp(-1, keepdim=True)
            probs_NV[rows] = (logits[:, self.target_ids_V] - total).exp()
            best_N[rows] = self.draft_ids[logits.argmax(-1)]
        return probs_NV, best_N


def causal_attend(windows: tuple[int | None, ...]) -> Attend:
    """`attend` for whole sequences that begin at position 0, each layer with its window."""

    def attend(layer: int, q_BTND: Tensor, k_BTND: Tensor, v_BTND: Tensor) -> Tensor:
        window, T = windows[layer], q_BTND.shape[1]
        mask = None if window is None or window >= T else _band(T, window, q_BTND.device)
        out = F.scaled_dot_product_attention(
            q_BTND.transpose(1, 2),
            k_BTND.transpose(1, 2),
            v_BTND.transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=True,
        )
        return out.transpose(1, 2)

    return attend


def _band(T: int, window: int, device: torch.device) -> Tensor:
    ahead = torch.arange(T, device=device)[:, None] - torch.arange(T, device=device)
    return (ahead >= 0) & (ahead < window)
