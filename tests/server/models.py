"""A tiny random target with a byte-level tokenizer and a chat template, and a drafter for it, on disk."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from models.checkpoints import make_checkpoint
from outpace.models.drafter import Drafter
from outpace.models.drafters.checkpoint import save_drafter
from outpace.models.registry import load_target
from outpace.models.source import locate

SPECIAL = ("<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCAB = 256 + len(SPECIAL)
CONTEXT = 2048


def make_model(directory: Path) -> Path:
    """A model whose tokens are bytes: nearly every answer has characters of several tokens, and broken ones."""
    make_checkpoint(
        directory,
        "llama",
        vocab_size=VOCAB,
        max_position_embeddings=CONTEXT,
        num_hidden_layers=3,
        bos_token_id=None,
        eos_token_id=257,
        tie_word_embeddings=False,
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in SPECIAL])
    backend.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": SPECIAL[1], "chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def make_drafter(model: Path, directory: Path) -> Path:
    """A random drafter: now and then it is right."""
    target = load_target(locate(str(model)), dtype=torch.float32, device="cpu").model
    save_drafter(Drafter.create(target, draft_ids=None), directory)
    return directory
