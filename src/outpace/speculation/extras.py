"""Extras: what rows with penalties, biases or bans keep on the device. Made when the first such request comes.

The host fills a row when a request enters it; from then on every forward that such a row takes part in counts what it
emitted. What a forward does behind a stop that the host finds late is counted too: that row is over.

Shapes: R rows, the last of them inert, V token ids, J biases, W bad words of T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outpace.config import MAX_BAD_WORD, MAX_BAD_WORDS, MAX_BIASES, SamplingParams
from outpace.kernels.process import Rules
from outpace.speculation.upload import upload
from outpace.types import Past, RowSettings

NOTHING = Past(prompt_ids=(), output_ids=(), stop_ids=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """One line a row; the meaning of each field is `Rules`'. Rows that want nothing have neutral values."""

    repetition_R: Tensor
    frequency_R: Tensor
    presence_R: Tensor
    counts_RV: Tensor
    in_prompt_RV: Tensor
    bias_ids_RJ: Tensor
    bias_values_RJ: Tensor
    stops_RV: Tensor
    stops_from_R: Tensor
    words_RWT: Tensor
    recent_RT: Tensor
    used: set[int] = field(default_factory=set)
    """Rows whose settings are not neutral. Their counts are whatever they are."""

    @classmethod
    def allocate(cls, num_rows: int, vocab_size: int, device: torch.device) -> Extras:
        """Neutral rows: 6 bytes a token id and 21 KB more for each of `num_rows`, the inert one among them."""

        def full(value: float, dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.full((num_rows, *shape), value, dtype=dtype, device=device)

        return cls(
            repetition_R=full(1.0, torch.float32),
            frequency_R=full(0.0, torch.float32),
            presence_R=full(0.0, torch.float32),
            counts_RV=full(0, torch.int32, vocab_size),
            in_prompt_RV=full(False, torch.bool, vocab_size),
            bias_ids_RJ=full(0, torch.int64, MAX_BIASES),
            bias_values_RJ=full(-0.0, torch.float32, MAX_BIASES),
            stops_RV=full(False, torch.bool, vocab_size),
            stops_from_R=full(0, torch.int64),
            words_RWT=full(-1, torch.int64, MAX_BAD_WORDS, MAX_BAD_WORD),
            recent_RT=full(-1, torch.int64, MAX_BAD_WORD - 1),
        )

    def fill(self, filled: Sequence[RowSettings]) -> None:
        """New rows: their settings, and their tokens so far. Who wants nothing costs nothing, in a neutral row.

        An interrupt may come at any point: a row counts as used before it is written and until it is neutral.
        """
        filled = [s for s in filled if s.past is not None or s.row in self.used]
        if not filled:
            return
        self.used.update(s.row for s in filled)
        rows = upload([s.row for s in filled], self.counts_RV.device)
        self._fill_settings(rows, [s.params for s in filled])
        self._fill_past(rows, filled)
        self.used.difference_update(s.row for s in filled if s.past is None)

    def _fill_settings(self, rows: Tensor, params: Sequence[SamplingParams]) -> None:
        device = rows.device
        penalties = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in params]
        values = upload(penalties, device, torch.float32)
        for column, target in enumerate((self.repetition_R, self.frequency_R, self.presence_R)):
            target[rows] = values[:, column]
        pairs = [_bias_of(p) for p in params]
        self.bias_ids_RJ[rows] = upload([[token for token, _ in line] for line in pairs], device)
        self.bias_values_RJ[rows] = upload([[value for _, value in line] for line in pairs], device, torch.float32)
        self.words_RWT[rows] = upload([_words_of(p) for p in params], device)

    def _fill_past(self, rows: Tensor, filled: Sequence[RowSettings]) -> None:
        pasts = [s.past or NOTHING for s in filled]
        self.recent_RT[rows] = upload([_recent_of(past) for past in pasts], rows.device)
        starts = [len(past.prompt_ids) + s.params.min_tokens for s, past in zip(filled, pasts, strict=True)]
        self.stops_from_R[rows] = upload(starts, rows.device)
        for dense in (self.counts_RV, self.in_prompt_RV, self.stops_RV):
            dense.index_fill_(0, rows, 0)
        lines = list(zip((s.row for s in filled), pasts, strict=True))
        self._mark(self.in_prompt_RV, [(row, token) for row, past in lines for token in set(past.prompt_ids)])
        self._mark(self.stops_RV, [(row, token) for row, past in lines for token in past.stop_ids])
        self._count([(row, token) for row, past in lines for token in past.output_ids])

    def _mark(self, dense_RV: Tensor, places: list[tuple[int, int]]) -> None:
        if places:
            rows, tokens = upload(places, dense_RV.device).unbind(1)
            dense_RV[rows, tokens] = torch.ones_like(rows, dtype=torch.bool)

    def _count(self, places: list[tuple[int, int]]) -> None:
        if places:
            rows, tokens = upload(places, self.counts_RV.device).unbind(1)
            self._add(rows, tokens, torch.ones_like(rows))

    def _add(self, rows: Tensor, tokens: Tensor, counts: Tensor) -> None:
        """Integers, so that the order of the additions changes nothing."""
        places = rows * self.counts_RV.shape[1] + tokens
        self.counts_RV.view(-1).scatter_add_(0, places.flatten(), counts.flatten().int())

    def rules(self, rows_B: Tensor) -> Rules:
        """What some rows want, and their past."""
        return Rules(
            repetition_B=self.repetition_R[rows_B],
            frequency_B=self.frequency_R[rows_B],
            presence_B=self.presence_R[rows_B],
            counts_BV=self.counts_RV[rows_B],
            in_prompt_BV=self.in_prompt_RV[rows_B],
            bias_ids_BJ=self.bias_ids_RJ[rows_B],
            bias_values_BJ=self.bias_values_RJ[rows_B],
            stops_BV=self.stops_RV[rows_B],
            stops_from_B=self.stops_from_R[rows_B],
            words_BWT=self.words_RWT[rows_B],
            recent_BT=self.recent_RT[rows_B],
        )

    def add(self, rows_B: Tensor, num_emitted_B: Tensor, tokens_BS: Tensor) -> None:
        """Counts the first `num_emitted_B` of each row's tokens; of the inert row none."""
        num_B1 = (num_emitted_B * (rows_B != len(self.counts_RV) - 1))[:, None]
        emitted_BS = torch.arange(tokens_BS.shape[1], device=rows_B.device) < num_B1
        self._add(rows_B[:, None].expand_as(tokens_BS), tokens_BS, emitted_BS)
        reach_T = torch.arange(self.recent_RT.shape[1], device=rows_B.device)
        tokens = torch.cat((self.recent_RT[rows_B], tokens_BS), dim=1)
        self.recent_RT[rows_B] = tokens.gather(1, num_B1 + reach_T)


def _bias_of(params: SamplingParams) -> list[tuple[int, float]]:
    """The biases, filled up with the last of them."""
    pairs = list(dict(params.logit_bias).items()) or [(0, -0.0)]
    return pairs + pairs[-1:] * (MAX_BIASES - len(pairs))


def _words_of(params: SamplingParams) -> list[list[int]]:
    """The bad words, filled up in front; unused ones behind."""
    words = [[-1] * (MAX_BAD_WORD - len(word)) + list(word) for word in params.bad_words]
    return words + [[-1] * MAX_BAD_WORD] * (MAX_BAD_WORDS - len(words))


def _recent_of(past: Past) -> list[int]:
    reach = MAX_BAD_WORD - 1
    newest = (*past.prompt_ids[-reach:], *past.output_ids)[-reach:]
    return [-1] * (reach - len(newest)) + list(newest)
