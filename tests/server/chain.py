"""A small target whose tokens nearly always follow one another as a test wants, and a drafter that knows most of it.

The state of a token is a unit vector of its own, so a head is a table of what follows what. Attention adds a little of
everything before, so that log-probabilities (and sampled answers) show it if an engine mixes up its cache. The drafter
walks the same table, and is wrong behind the tokens that it is told to be wrong behind, so runs of accepted drafts are
long and end where a test knows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

from models.checkpoints import make_checkpoint
from outpace.models.drafter import Drafter
from outpace.models.drafters.checkpoint import save_drafter
from outpace.models.registry import load_target
from outpace.models.source import locate
from server.models import TEMPLATE

START, END = "<|im_start|>", "<|im_end|>"
WIDTH = 320
"""Of the state, and rows of the head: more than the tokenizer has tokens."""
CONTEXT = 2048
SURE = 9.0
"""Logit of what follows; all others are around 0."""


def make_chain(
    directory: Path, chains: Sequence[Sequence[str]], *, special: Sequence[str] = (), template: str = TEMPLATE
) -> list[int]:
    """Writes a target.

    Args:
        directory: is made.
        chains: texts whose tokens follow one another: the bytes of a character, or a word as one added token. No token
            but the end may be in two of them. Behind the last one of a chain comes its first; behind those in none, one
            of the first chain.
        special: further tokens that decoding leaves out.
        template: of chats.

    Returns:
        What follows each token.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in (START, END, *special)])
    words = [word for chain in chains for word in chain if len(word) > 1]
    backend.add_tokens([tokenizers.AddedToken(word, normalized=False) for word in words if word not in special])
    follows = _follows(backend, chains)
    table_VV = torch.randn(WIDTH, WIDTH)
    table_VV[backend.get_vocab_size() :] = -30.0
    table_VV[backend.token_to_id(START)] = -30.0
    table_VV[torch.tensor(follows), torch.arange(WIDTH)] = SURE
    _write(directory, table_VV, backend.token_to_id(END))
    backend.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": END, "chat_template": template, "tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return follows


def _follows(backend: tokenizers.Tokenizer, chains: Sequence[Sequence[str]]) -> list[int]:
    known: dict[int, int] = {}
    for chain in chains:
        ids = [i for word in chain for i in backend.encode(word).ids]
        for token, following in zip(ids, ids[1:] + ids[:1], strict=True):
            if token == backend.token_to_id(END):
                continue
            assert token not in known, f"token {token} is followed by two"
            known[token] = following
    first = [i for word in chains[0] for i in backend.encode(word).ids]
    return [known.get(token, first[token % len(first)]) for token in range(WIDTH)]


def _write(directory: Path, table_VV: Tensor, end: int) -> None:
    model = make_checkpoint(
        directory,
        "llama",
        vocab_size=WIDTH,
        hidden_size=WIDTH,
        max_position_embeddings=CONTEXT,
        num_hidden_layers=3,
        bos_token_id=None,
        eos_token_id=end,
        tie_word_embeddings=False,
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            elif "o_proj" in name or "down_proj" in name:
                parameter.mul_(0.07)
        model.model.embed_tokens.weight.copy_(torch.eye(WIDTH) * WIDTH**0.5)
        model.lm_head.weight.copy_(table_VV / WIDTH**0.5)
    model.save_pretrained(directory)


@torch.no_grad()
def make_chain_drafter(
    model: Path, directory: Path, follows: Sequence[int], wrong_behind: Collection[int], **options: Any
) -> None:
    """Writes a drafter that goes on rightly from every token but some; `options` are those of `Drafter.create`."""
    target = load_target(locate(str(model)), dtype=torch.float32, device="cpu").model
    drafter = Drafter.create(target, draft_ids=None, intermediate_size=WIDTH, **options)
    one, scale = torch.eye(WIDTH), WIDTH**0.5
    tap = drafter.wiring.aux_boundaries.index(0)  # before any layer: the token alone
    assert drafter.fc is not None
    drafter.fc.weight.zero_()[:, tap * WIDTH : (tap + 1) * WIDTH] = one
    for parameter in drafter.attention.parameters():
        parameter.zero_()
    to = [(following + 1) % 256 if i in wrong_behind else following for i, following in enumerate(follows)]
    gate, up = drafter.mlp.gate_up.weight.chunk(2)
    gate.copy_(one)
    up.copy_(one)
    gain = torch.nn.functional.silu(torch.tensor(scale)) * scale
    drafter.mlp.down.weight.copy_((one[:, to] - one) * scale / gain)
    drafter.lm_head.weight.copy_(target.lm_head.weight)
    save_drafter(drafter, directory)
