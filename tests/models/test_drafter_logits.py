"""Drafter logits equal the `speculators` package's, and for the dialects it lacks a plain reading of the tensors."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from models.dense_attend import DenseAttend
from models.drafters import DIALECTS, MadeDrafter, make_drafter, small_target, small_target_config
from models.kimi_files import POISON
from models.speculators_module import chain_logits, make_speculator
from outpace.errors import ConfigError, DrafterError
from outpace.models.arch import RopeConfig
from outpace.models.drafter import Drafter
from outpace.models.drafters.checkpoint import load_drafter, save_drafter
from outpace.models.rope import attention_scale, inverse_frequencies
from outpace.models.target import Target

NUM_STEPS = 4


def load(directory: Path, target: Target, **options: Any) -> Drafter:
    return load_drafter(directory, target, dtype=torch.float32, device="cpu", **options)


def inputs(num_taps: int = 3, num_tokens: int = 12) -> tuple[Tensor, Tensor]:
    """Features [1, S, F] and the token after each of them [1, S]."""
    return torch.randn(1, num_tokens, num_taps * 48), torch.randint(0, 131, (1, num_tokens))


def our_chain(drafter: Drafter, features: Tensor, tokens: Tensor, anchor: int) -> list[Tensor]:
    """Logits [V] of each step of a chain that starts after `anchor`, through a cache, fed the given tokens."""
    attend = DenseAttend([None])
    count = anchor + 1
    hidden, out = drafter(tokens[:, :count], drafter.fuse(features[:, :count]), torch.arange(count)[None], attend)
    logits = [drafter.logits(out[0, -1])]
    for step in range(1, NUM_STEPS):
        position = torch.tensor([[anchor + step]])
        hidden, out = drafter(tokens[:, anchor + step, None], hidden[:, -1:], position, attend)
        logits.append(drafter.logits(out[0, -1]))
    return logits


@pytest.mark.parametrize("norm_before_residual", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
@pytest.mark.parametrize("flags", [{}, {"fc_norm": True, "norm_output": True}, {"norm_before_fc": True}])
def test_logits_equal_those_of_speculators(
    tmp_path: Path, norm_before_residual: bool, model_type: str, flags: dict[str, bool]
) -> None:
    flags = {"norm_before_residual": norm_before_residual} | flags
    theirs = make_speculator(tmp_path, model_type, 40, **flags)
    ours = load(tmp_path, small_target())
    features, tokens = inputs()
    expected = chain_logits(theirs, features, tokens, NUM_STEPS)
    for anchor in (0, 3, 8):
        for step, logits in enumerate(our_chain(ours, features, tokens, anchor)):
            torch.testing.assert_close(logits, expected[step][anchor], atol=1e-4, rtol=0)
    assert torch.equal(ours.target_ids_V, theirs.d2t + torch.arange(40))
    assert ours.wiring.dialect == "speculators"
    assert ours.wiring.norm_before_residual is norm_before_residual


def test_whole_vocabulary_of_speculators(tmp_path: Path) -> None:
    theirs = make_speculator(tmp_path, "llama", 131)
    ours = load(tmp_path, small_target())
    features, tokens = inputs()
    logits = torch.stack(our_chain(ours, features, tokens, 5))
    expected = torch.stack([step[5] for step in chain_logits(theirs, features, tokens, NUM_STEPS)])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    assert (ours.wiring.d2t, ours.wiring.embedding) == ("none", "own")


class PlainReading:
    """The EAGLE-3 layer as its papers and trainers describe it, over a file's tensors, in float64, without a cache."""

    def __init__(self, made: MadeDrafter, target: Target) -> None:
        self.config = made.config | made.config.get("transformer_layer_config", {})
        self.weights = {name.removeprefix(made.prefix): tensor.double() for name, tensor in made.tensors.items()}
        self.embedding = self.weights.get("embed_tokens.weight", target.embed.weight.double())

    def norm(self, name: str, x: Tensor) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"]).rsqrt()
        return x * scale * self.weights[f"{name}.weight"]

    def product(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", torch.zeros(()))

    def fuse(self, features_SF: Tensor) -> Tensor:
        if self.config.get("norm_before_fc"):
            features_SF = self.norm("input_norm", features_SF)
        if self.config.get("fc_norm"):
            taps = features_SF.split(48, -1)
            features_SF = torch.cat([self.norm(f"fc_norm.{i}", tap) for i, tap in enumerate(taps)], -1)
        return self.product("fc", features_SF)

    def turn(self, x_SND: Tensor) -> Tensor:
        """Rotary positions 0, 1, … as complex factors; the pairs are (i, i + D / 2)."""
        S, _, D = x_SND.shape
        if self.config.get("rope_scaling"):
            rope = RopeConfig(theta=self.config["rope_theta"], kind="yarn", factor=8.0, original_max_positions=8)
            speeds, length = inverse_frequencies(rope, D).double(), attention_scale(rope)
        else:
            speeds, length = self.config["rope_theta"] ** (-torch.arange(0, D, 2).double() / D), 1.0
        factors = torch.polar(torch.full((S, 1, D // 2), length).double(), (torch.arange(S)[:, None] * speeds)[:, None])
        turned = torch.complex(*x_SND.chunk(2, -1)) * factors
        return torch.cat((turned.real, turned.imag), -1)

    def latent_attention(self, x_SE: Tensor) -> Tensor:
        """DeepSeek-V3's, keys and values of every head made from the latents; turned pairs lie side by side."""
        config, rank, plain = self.config, self.config["kv_lora_rank"], self.config["qk_nope_head_dim"]
        heads, turned = config["num_attention_heads"], config["qk_rope_head_dim"]
        speeds = config["rope_theta"] ** (-torch.arange(0, turned, 2).double() / turned)
        angles = torch.arange(len(x_SE))[:, None] * speeds
        factors = torch.polar(torch.ones_like(angles), angles)[:, None]

        def turn(x_SND: Tensor) -> Tensor:
            return torch.view_as_real(torch.view_as_complex(x_SND.unflatten(-1, (-1, 2)).contiguous()) * factors)

        q = self.norm("self_attn.q_a_layernorm", self.product("self_attn.q_a_proj", x_SE))
        q_SND = self.product("self_attn.q_b_proj", q).unflatten(-1, (heads, -1))
        latent, shared = self.product("self_attn.kv_a_proj_with_mqa", x_SE).split((rank, turned), -1)
        both = self.product("self_attn.kv_b_proj", self.norm("self_attn.kv_a_layernorm", latent))
        k_SND, v_SND = both.unflatten(-1, (heads, -1)).split((plain, config["v_head_dim"]), -1)
        scores = torch.einsum("snd,tnd->nst", q_SND[..., :plain], k_SND)
        scores += torch.einsum("snpr,tpr->nst", turn(q_SND[..., plain:]), turn(shared[:, None])[:, 0])
        scores = scores / math.sqrt(plain + turned)
        weights = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -torch.inf).softmax(-1)
        return self.product("self_attn.o_proj", torch.einsum("nst,tnd->snd", weights, v_SND).flatten(1))

    def attention(self, x_SE: Tensor) -> Tensor:
        if "self_attn.kv_a_proj_with_mqa.weight" in self.weights:
            return self.latent_attention(x_SE)
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q, k, v = (self.product(f"self_attn.{name}_proj", x_SE) for name in "qkv")
        q = self.turn(q.unflatten(-1, (heads, -1)))
        k = self.turn(k.unflatten(-1, (kv_heads, -1))).repeat_interleave(heads // kv_heads, 1)
        v = v.unflatten(-1, (kv_heads, -1)).repeat_interleave(heads // kv_heads, 1)
        scores_NST = torch.einsum("snd,tnd->nst", q, k) / math.sqrt(q.shape[-1])
        future = torch.ones(scores_NST.shape[1:]).triu(1).bool()
        weights_NST = scores_NST.masked_fill(future, -torch.inf).softmax(-1)
        return self.product("self_attn.o_proj", torch.einsum("nst,tnd->snd", weights_NST, v).flatten(1))

    def layer(self, tokens_S: Tensor, hidden_SH: Tensor) -> tuple[Tensor, Tensor]:
        """What the next step is fed, and logits."""
        normed = self.norm("hidden_norm", hidden_SH)
        joined = torch.cat((self.norm("input_layernorm", self.embedding[tokens_S]), normed), -1)
        residual = normed if self.config.get("norm_before_residual") else hidden_SH
        x = residual + self.attention(joined)
        y = self.norm("post_attention_layernorm", x)
        gate = self.product("mlp.gate_proj", y)
        x = x + self.product("mlp.down_proj", gate * gate.sigmoid() * self.product("mlp.up_proj", y))
        out = self.norm("norm", x)
        return (out if self.config.get("norm_output") else x), out @ self.weights["lm_head.weight"].T

    def chain(self, features: Tensor, tokens: Tensor, anchor: int) -> list[Tensor]:
        hidden = self.fuse(features[0, : anchor + 1].double())
        found = []
        for step in range(NUM_STEPS):
            fed, logits = self.layer(tokens[0, : anchor + 1 + step], hidden)
            found.append(logits[-1].float())
            hidden = torch.cat((hidden, fed[-1:]))
        return found


def assert_reads_plainly(made: MadeDrafter, target: Target, drafter: Drafter) -> None:
    features, tokens = inputs(len(drafter.wiring.aux_boundaries))
    expected = torch.stack(PlainReading(made, target).chain(features, tokens, 4))
    torch.testing.assert_close(torch.stack(our_chain(drafter, features, tokens, 4)), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("own_embedding", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_logits_of_every_dialect(tmp_path: Path, dialect: str, own_embedding: bool) -> None:
    target = small_target()
    made = make_drafter(tmp_path, dialect, target.config, own_embedding=own_embedding)
    assert_reads_plainly(made, target, load(tmp_path, target))


@pytest.mark.parametrize("q_rank", [20, None])
def test_latent_attention_is_that_of_transformers_over_both_states(tmp_path: Path, q_rank: int | None) -> None:
    """With YaRN at Kimi-K2's values, whose two betas are equal."""
    yarn = {"type": "yarn", "factor": 32.0, "original_max_position_embeddings": 16, "beta_fast": 1.0, "beta_slow": 1.0}
    yarn |= {"mscale": 1.0, "mscale_all_dim": 1.0}
    target = small_target()
    overrides = {"rope_theta": 50000.0, "rope_scaling": yarn, "max_position_embeddings": 512, "q_lora_rank": q_rank}
    made = make_drafter(tmp_path, "mla", target.config, **overrides)
    drafter = load(tmp_path, target)
    fields = {name: value for name, value in made.config.items() if name != "architectures"}
    config = DeepseekV3Config(**fields | {"q_lora_rank": q_rank}, attn_implementation="eager")
    theirs = DeepseekV3Attention(config, layer_idx=0)
    first = "q_proj" if q_rank is None else "q_a_proj"
    for name in (first, "kv_a_proj_with_mqa"):
        setattr(theirs, name, torch.nn.Linear(96, getattr(theirs, name).out_features, bias=False))
    prefix = "midlayer.self_attn."
    theirs.load_state_dict({n.removeprefix(prefix): t for n, t in made.tensors.items() if n.startswith(prefix)})
    x, positions = torch.randn(2, 9, 96), torch.arange(9).expand(2, -1) + 3
    rotary = DeepseekV3RotaryEmbedding(config)(x, positions)
    future = torch.full((1, 1, 9, 9), -torch.inf).triu(1)
    with torch.no_grad():
        expected = theirs(hidden_states=x, position_embeddings=rotary, attention_mask=future)[0]
        got = drafter.attention(x, drafter.rotary(positions, x.dtype), DenseAttend([None]), 0)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_a_drafter_with_latents_is_told_of_and_not_saved(tmp_path: Path) -> None:
    target = small_target()
    made = make_drafter(tmp_path / "made", "mla", target.config).rewrite(auto_map={"AutoModel": "draft.Model"})
    (made.directory / "draft.py").write_text(POISON)
    drafter = load(made.directory, target)
    assert drafter.wiring.dialect == "mla"
    assert "latent attention: 16 + 6 elements cached a token, for all heads" in drafter.wiring.sentences()
    assert any("auto_map is ignored" in note for note in drafter.wiring.notes)
    assert not (made.directory / "it-ran").exists()
    with pytest.raises(DrafterError, match="latent attention"):
        save_drafter(drafter, tmp_path / "saved")


def test_a_width_that_is_not_the_targets(tmp_path: Path) -> None:
    target = small_target()
    made = make_drafter(tmp_path, "specforge", target.config, own_embedding=True, hidden_size=32, head_dim=8)
    assert_reads_plainly(made, target, load(tmp_path, target))


def test_biases_are_read_where_they_are(tmp_path: Path) -> None:
    target = small_target()
    made = make_drafter(tmp_path, "specforge", target.config)
    sizes = {"self_attn.q_proj": 48, "self_attn.k_proj": 24, "self_attn.v_proj": 24, "mlp.gate_proj": 56}
    sizes |= {"mlp.up_proj": 56, "self_attn.o_proj": 48, "mlp.down_proj": 48}
    biases: dict[str, Tensor | None] = {f"midlayer.{name}.bias": torch.randn(size) for name, size in sizes.items()}
    made = made.rewrite(biases | {"fc.bias": torch.randn(48)}, attention_bias=True)
    assert_reads_plainly(made, target, load(tmp_path, target))


def test_an_injected_yarn_factor_is_used_and_said(tmp_path: Path) -> None:
    target = small_target()
    scaling = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8}
    made = make_drafter(tmp_path, "modelopt_new", target.config, rope_scaling=scaling)
    drafter = load(tmp_path, target)
    assert_reads_plainly(made, target, drafter)
    assert drafter.wiring.rope.factor == 8.0
    assert any("YaRN factor 8" in note for note in drafter.wiring.notes)


def test_steps_through_a_cache_equal_one_causal_pass(tmp_path: Path) -> None:
    target = small_target()
    make_drafter(tmp_path, "specforge", target.config)
    drafter = load(tmp_path, target)
    features, tokens = torch.randn(3, 9, 144), torch.randint(0, 131, (3, 9))
    hidden, positions = drafter.fuse(features), torch.arange(9).expand(3, -1)
    whole = drafter(tokens, hidden, positions, DenseAttend([None]))
    cache = DenseAttend([None])
    pieces = [(0, 4), (4, 5), (5, 6), (6, 9)]
    steps = [drafter(tokens[:, a:b], hidden[:, a:b], positions[:, a:b], cache) for a, b in pieces]
    for together, parts in zip(whole, zip(*steps, strict=True), strict=True):
        torch.testing.assert_close(torch.cat(parts, 1), together, atol=1e-5, rtol=1e-5)


def test_packing_changes_nothing_and_leaves_the_target_alone(tmp_path: Path) -> None:
    target = small_target()
    make_drafter(tmp_path, "lightseek", target.config).rewrite({"lm_head.weight": None})
    drafter = load(tmp_path, target)
    features, tokens = inputs()
    before = torch.stack(our_chain(drafter, features, tokens, 4))
    drafter.pack()
    assert target.lm_head.prepacked is None
    torch.testing.assert_close(torch.stack(our_chain(drafter, features, tokens, 4)), before, atol=1e-5, rtol=1e-5)
    target.pack()
    torch.testing.assert_close(torch.stack(our_chain(drafter, features, tokens, 4)), before, atol=1e-5, rtol=1e-5)


def test_a_head_of_the_target_is_the_targets(tmp_path: Path) -> None:
    target = small_target()
    made = make_drafter(tmp_path, "lightseek", target.config).rewrite({"lm_head.weight": None})
    drafter = load(tmp_path, target)
    made.tensors["lm_head.weight"] = target.lm_head.weight
    assert_reads_plainly(made, target, drafter)
    assert drafter.wiring.lm_head == "target"
    assert not {"lm_head.weight", "embed.weight"} & {name for name, _ in drafter.named_parameters()}


def logits_of(drafter: Drafter) -> Tensor:
    torch.manual_seed(7)
    features, tokens = inputs(len(drafter.wiring.aux_boundaries))
    return torch.stack(our_chain(drafter, features, tokens, 6))


@pytest.mark.parametrize("shard_bytes", [1 << 30, 20_000])
@pytest.mark.parametrize("dialect", [name for name, kind in DIALECTS.items() if not kind.latent])
def test_what_is_saved_loads_as_it_was(tmp_path: Path, dialect: str, shard_bytes: int) -> None:
    target = small_target()
    make_drafter(tmp_path / "in", dialect, target.config, own_embedding=dialect == "eagle31")
    drafter = load(tmp_path / "in", target)
    save_drafter(drafter, tmp_path / "out", shard_bytes=shard_bytes)
    again = load(tmp_path / "out", target)
    assert torch.equal(logits_of(again), logits_of(drafter))
    assert torch.equal(again.target_ids_V, drafter.target_ids_V)
    kept = {"dialect": "specforge", "prefix": "midlayer.", "aux_source": "", "notes": (), "max_positions_source": ""}
    assert replace(again.wiring, **kept) == replace(drafter.wiring, **kept)
    assert (again.wiring.dialect, again.wiring.prefix) == ("specforge", "midlayer.")


def test_a_second_save_replaces_the_first(tmp_path: Path) -> None:
    target = small_target()
    drafter = Drafter.create(target, draft_ids=torch.arange(3, 90, 2))
    for shard_bytes in (20_000, 60_000, 1 << 30):
        save_drafter(drafter, tmp_path, shard_bytes=shard_bytes)
        assert torch.equal(logits_of(load(tmp_path, target)), logits_of(drafter))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_fresh_drafter_is_saved_as_other_engines_read_it(tmp_path: Path) -> None:
    """SGLang adds one to `eagle_config`'s ids; boundary 0, the embeddings, is id -1 there."""
    target = small_target()
    ids = torch.arange(3, 90, 2)
    drafter = Drafter.create(target, draft_ids=ids, aux_boundaries=(0, 4, 8), max_positions=33)
    save_drafter(drafter, tmp_path)
    again = load(tmp_path, target)
    kept = {"aux_source": "", "max_positions_source": "", "embedding_source": ""}
    assert replace(again.wiring, **kept) == replace(drafter.wiring, **kept)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("d2t"), ids - torch.arange(len(ids)))
        assert file.get_tensor("d2t").dtype == torch.int64
        assert torch.equal(file.get_tensor("t2d").nonzero().flatten(), ids)
        assert "embed_tokens.weight" not in file.keys()  # noqa: SIM118
    text = (tmp_path / "config.json").read_text()
    assert '"LlamaForCausalLMEagle3"' in text
    assert again.wiring.aux_boundaries == (0, 4, 8)


@pytest.mark.parametrize(
    "rope",
    [
        RopeConfig(theta=7e4),
        RopeConfig(kind="linear", factor=4.0),
        RopeConfig(kind="llama3", factor=8.0, original_max_positions=64),
        RopeConfig(kind="yarn", factor=4.0, original_max_positions=64, truncate=False, attention_factor=1.25),
    ],
)
def test_rope_settings_survive_a_save(tmp_path: Path, rope: RopeConfig) -> None:
    target = small_target(small_target_config(rope=rope))
    save_drafter(Drafter.create(target, draft_ids=None), tmp_path)
    assert load(tmp_path, target).wiring.rope == rope


def test_only_the_drafter_learns() -> None:
    target = small_target(small_target_config(tie_embeddings=True))
    drafter = Drafter.create(target, draft_ids=torch.arange(40)).requires_grad_(True)
    features, tokens = inputs()
    hidden, out = drafter(tokens, drafter.fuse(features), torch.arange(12)[None], DenseAttend([None]))
    (drafter.logits(out).square().mean() + hidden.square().mean()).backward()
    assert all(parameter.grad is not None for parameter in drafter.parameters())
    assert not any(parameter.requires_grad for parameter in target.parameters())
    scale = drafter.logits(out).std()
    assert 0.2 < scale < 5.0


def test_a_fresh_drafter_may_have_its_own_width() -> None:
    target = small_target()
    drafter = Drafter.create(target, draft_ids=None, hidden_size=32, num_heads=4, intermediate_size=24)
    assert (drafter.wiring.embedding, drafter.wiring.head_dim) == ("own", 8)
    features, tokens = inputs()
    assert len(our_chain(drafter, features, tokens, 3)[0]) == 131


@pytest.mark.parametrize("num_layers", [1, 2, 3, 4, 6, 7, 30])
def test_taps_of_a_fresh_drafter_exist_and_differ(num_layers: int) -> None:
    target = small_target(small_target_config(num_layers=num_layers))
    boundaries = Drafter.create(target, draft_ids=None).wiring.aux_boundaries
    assert list(boundaries) == sorted(set(boundaries))
    assert boundaries[0] >= 0
    assert boundaries[-1] <= num_layers
    assert num_layers < 7 or boundaries == (2, num_layers // 2, num_layers - 3)


@pytest.mark.parametrize("ids", [[5, 5], [7, 3], [0, 131], [-1, 4], []])
def test_draft_ids_must_be_ids(ids: list[int]) -> None:
    with pytest.raises(ConfigError, match="draft_ids"):
        Drafter.create(small_target(), draft_ids=torch.tensor(ids, dtype=torch.int64))


def test_taps_must_exist() -> None:
    with pytest.raises(DrafterError, match="9 is outside 0 … 8"):
        Drafter.create(small_target(), draft_ids=None, aux_boundaries=(2, 4, 9))


def test_shared_parts_need_one_dtype() -> None:
    with pytest.raises(ConfigError, match="bfloat16"):
        Drafter.create(small_target(), draft_ids=None, dtype=torch.bfloat16)
