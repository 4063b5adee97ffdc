"""Every dialect resolves to the wiring its trainer meant, and what contradicts itself or the target is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from models.drafters import DIALECTS, MadeDrafter, make_drafter, small_target, small_target_config
from outpace.errors import DrafterError
from outpace.models.drafter import Drafter
from outpace.models.drafters.checkpoint import load_drafter
from outpace.models.drafters.draft_ids import resolve_draft_ids
from outpace.models.drafters.taps import default_boundaries, resolve_taps
from outpace.models.fields import Fields
from outpace.models.wiring import DrafterWiring

IDS = "eagle_aux_hidden_state_layer_ids"
CONFIG = small_target_config()


def load(made: MadeDrafter, **options: Any) -> Drafter:
    return load_drafter(made.directory, small_target(), dtype=torch.float32, device="cpu", **options)


def wiring(made: MadeDrafter, **options: Any) -> DrafterWiring:
    return load(made, **options).wiring


@pytest.fixture
def specforge(tmp_path: Path) -> MadeDrafter:
    return make_drafter(tmp_path, "specforge", CONFIG)


@pytest.fixture
def speculators(tmp_path: Path) -> MadeDrafter:
    return make_drafter(tmp_path, "speculators", CONFIG)


NAMES = {
    "mla_reduced": "mla",
    "safeailab_safetensors": "safeailab",
    "specforge_plain": "specforge",
    "modelopt_old": "modelopt",
    "modelopt_new": "modelopt",
    "eagle31": "specforge",
    "norm_before_fc": "specforge",
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_is_recognised_and_shown(tmp_path: Path, dialect: str) -> None:
    made = make_drafter(tmp_path, dialect, CONFIG)
    drafter = load(made)
    found = drafter.wiring
    assert found.dialect == NAMES.get(dialect, dialect)
    assert (found.prefix, found.aux_boundaries) == (made.prefix, (2, 4, 5))
    assert (found.embedding, found.lm_head, found.max_positions) == ("target", "own", 64)
    if "d2t" in made.tensors:
        assert found.d2t == "offset"
        assert torch.equal(drafter.target_ids_V, made.tensors["d2t"] + torch.arange(40))
    else:
        assert found.d2t == "none"
        assert torch.equal(drafter.target_ids_V, torch.arange(131))
    described = json.loads(json.dumps(found.describe()))
    assert described["aux_boundaries"] == [2, 4, 5]
    assert any("boundaries 2, 4, 5" in sentence for sentence in described["sentences"])


def test_taps_left_out_are_the_default_and_said_so(tmp_path: Path) -> None:
    found = wiring(make_drafter(tmp_path, "safeailab", CONFIG))
    assert found.aux_boundaries == (2, 4, 5)
    assert "default" in found.aux_source


def taps(num_layers: int = 30, num_taps: int | None = 3, override: tuple[int, ...] | None = None, **config: Any) -> Any:
    return resolve_taps(Fields(config, "config.json"), num_layers, num_taps, override)


def test_fields_name_inputs_or_outputs() -> None:
    assert taps(eagle_config={IDS: [1, 14, 26]}).boundaries == (2, 15, 27)
    assert taps(aux_hidden_states_layer_ids=[1, 14, 26]).boundaries == (2, 15, 27)
    assert taps(**{IDS: [2, 15, 27]}).boundaries == (2, 15, 27)
    assert taps(**{IDS: [0, 15, 30]}).boundaries == (0, 15, 30)
    assert taps(eagle_config={IDS: [-1, 14, 29]}).boundaries == (0, 15, 30)
    assert taps(eagle_config={IDS: [14, 26, 1]}).boundaries == (2, 15, 27)
    assert taps(eagle_config={IDS: []}).boundaries == (2, 15, 27)


def test_two_fields_may_say_the_same() -> None:
    assert taps(eagle_config={IDS: [1, 14, 26]}, **{IDS: [2, 15, 27]}).boundaries == (2, 15, 27)
    with pytest.raises(DrafterError, match=r"layer inputs \[1, 14, 26\].*layer outputs \[1, 14, 26\]"):
        taps(eagle_config={IDS: [1, 14, 26]}, **{IDS: [1, 14, 26]})


def test_the_users_taps_win_in_their_order() -> None:
    assert taps(override=(27, 15, 2), eagle_config={IDS: [3, 4, 5]}).boundaries == (27, 15, 2)


@pytest.mark.parametrize("config", [{IDS: [1, 14, 26]}, {"eagle_config": {IDS: [2, 15, 27]}}])
def test_ids_of_the_other_convention_are_pointed_out(config: dict[str, Any]) -> None:
    assert "try aux_boundaries=(2, 15, 27)" in taps(**config).notes[-1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eagle_config": {IDS: [1, 14, 30]}}, "31 is outside 0 … 30"),
        ({"eagle_config": {IDS: [-2, 14, 26]}}, "-1 is outside 0 … 30"),
        ({IDS: [2, 15, 15]}, "named twice"),
        ({IDS: [2, 15]}, "are 2, but fc.weight takes 3"),
        ({IDS: "2,15,27"}, "must be a list"),
        ({IDS: [2, 15, True]}, "must be a list"),
        ({"num_layers": 4}, r"boundaries \[1, 2\].* are 2, but fc.weight takes 3"),
        ({"num_taps": 5}, "are 3, but fc.weight takes 5"),
        ({"num_taps": None}, "no fc.weight to join them"),
        ({"override": (2, 15, 31)}, "31 is outside"),
    ],
)
def test_wrong_taps_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DrafterError, match=message):
        taps(**settings)


@given(st.integers(1, 200))
def test_default_taps_exist(num_layers: int) -> None:
    boundaries = default_boundaries(num_layers)
    assert boundaries == tuple(sorted(set(boundaries)))
    assert all(0 <= b <= num_layers for b in boundaries)


@st.composite
def vocabularies(draw: st.DrawFn) -> tuple[Tensor, int]:
    """Ascending target ids, two of them neighbours as in every real vocabulary, and the vocabulary's size."""
    size = draw(st.integers(4, 60))
    ids = draw(st.sets(st.integers(0, size - 1), min_size=2, max_size=size - 1))
    return torch.tensor(sorted({*ids, 1, 2})), size


@given(vocabularies())
def test_offsets_and_ids_are_told_apart(vocabulary: tuple[Tensor, int]) -> None:
    ids, size = vocabulary
    offsets = ids - torch.arange(len(ids))
    t2d = torch.zeros(size, dtype=torch.bool)
    t2d[ids] = True
    for marks in (t2d, None) if len(ids) < size else (t2d,):
        offset, absolute = (resolve_draft_ids(d2t, marks, len(ids), size) for d2t in (offsets, ids))
        assert (offset.kind, absolute.kind) == ("offset", "absolute")
        assert torch.equal(offset.target_ids_V, ids)
        assert torch.equal(absolute.target_ids_V, ids)


def test_ids_in_another_order_are_read_with_t2d() -> None:
    ids, t2d = torch.tensor([7, 2, 5]), torch.zeros(9, dtype=torch.bool)
    t2d[ids] = True
    for d2t, kind in ((ids - torch.arange(3), "offset"), (ids, "absolute")):
        found = resolve_draft_ids(d2t, t2d, 3, 9)
        assert (found.kind, found.target_ids_V.tolist()) == (kind, [7, 2, 5])
        assert "not in ascending order" in found.notes[0]


def test_unfilled_maps_are_pointed_out_or_refused() -> None:
    zeros = torch.zeros(4, dtype=torch.int64)
    assert "all zeros" in resolve_draft_ids(zeros, None, 4, 9).notes[-1]
    with pytest.raises(DrafterError, match="disagree"):
        resolve_draft_ids(zeros, torch.zeros(9, dtype=torch.bool), 4, 9)


def marks(*ids: int, size: int = 9) -> Tensor:
    t2d = torch.zeros(size, dtype=torch.bool)
    t2d[list(ids)] = True
    return t2d


@pytest.mark.parametrize(
    ("d2t", "t2d", "message"),
    [
        (None, None, "the head proposes 3 tokens, the target has 9, and there is no d2t"),
        (None, marks(1, 2, 3), "no d2t"),
        (torch.tensor([1, 1]), None, r"d2t has shape \[2\], but there are 3 draft tokens"),
        (torch.tensor([[1, 1, 1]]), None, r"d2t has shape \[1, 3\]"),
        (torch.tensor([1.0, 1.0, 1.0]), None, "whole numbers"),
        (torch.tensor([1, 1, 1]), marks(1, 2, 3, size=8), r"t2d has shape \[8\], but there are 9 target tokens"),
        (torch.tensor([1, 1, 1]), marks(1, 2, 4), r"disagree: t2d marks 3 target ids, first \[1, 2, 4\]"),
        (torch.tensor([1, 1, 1]), marks(1, 2, 3, 4), "disagree"),
        (torch.tensor([0, 7, 7]), None, "names target ids 0 … 9; the target has 0 … 8"),
        (torch.tensor([-1, 0, 0]), None, "names target ids -1 … 2"),
        (torch.tensor([1, 0, 0]), None, "target id 1 to more than one"),
    ],
)
def test_wrong_maps_are_refused(d2t: Tensor | None, t2d: Tensor | None, message: str) -> None:
    with pytest.raises(DrafterError, match=message):
        resolve_draft_ids(d2t, t2d, 3, 9)


def test_a_whole_vocabulary_needs_no_map() -> None:
    assert resolve_draft_ids(None, None, 9, 9).kind == "none"
    with pytest.raises(DrafterError, match="t2d leaves out 1 of 9"):
        resolve_draft_ids(None, marks(0, 1, 2, 3, 4, 5, 6, 7), 9, 9)


def test_a_copy_of_the_targets_embeddings_is_shared(specforge: MadeDrafter) -> None:
    target = small_target()
    made = specforge.rewrite({"embed_tokens.weight": target.embed.weight.detach()})
    drafter = load_drafter(made.directory, target, dtype=torch.float32, device="cpu")
    assert drafter.embed is target.embed
    assert "has a copy" in drafter.wiring.embedding_source
    own = load_drafter(made.directory, small_target(), dtype=torch.float32, device="cpu")
    assert own.wiring.embedding == "own"


def test_names_may_begin_with_model(specforge: MadeDrafter) -> None:
    expected = load(specforge).fc
    renamed: dict[str, Tensor | None] = dict.fromkeys(specforge.tensors)
    for name, tensor in specforge.tensors.items():
        renamed[name if name in ("d2t", "t2d", "lm_head.weight") else f"model.{name}"] = tensor
    found = load(specforge.rewrite(renamed)).fc
    assert expected is not None
    assert found is not None
    assert torch.equal(found.weight, expected.weight)


def test_training_leftovers_are_not_needed(speculators: MadeDrafter) -> None:
    made = speculators.rewrite({"verifier_norm.weight": torch.ones(48), "verifier_lm_head.weight": torch.ones(40, 48)})
    assert wiring(made).dialect == "speculators"


def test_what_speculators_and_vllm_read_differently_is_said(speculators: MadeDrafter) -> None:
    found = wiring(speculators.rewrite(norm_before_residual=None))
    assert not found.norm_before_residual
    assert any("vLLM assumes true" in note for note in found.notes)


def test_a_verifier_of_another_kind_is_said(speculators: MadeDrafter) -> None:
    described = {"verifier": {"name_or_path": "x", "architectures": ["Qwen3ForCausalLM"]}}
    assert any("Qwen3ForCausalLM" in note for note in wiring(speculators.rewrite(speculators_config=described)).notes)


def test_a_position_limit_left_out_is_transformers_default(specforge: MadeDrafter) -> None:
    found = wiring(specforge.rewrite(max_position_embeddings=None))
    assert found.max_positions == 2048
    assert "default" in found.max_positions_source


def test_biases_promised_but_absent_are_said(specforge: MadeDrafter) -> None:
    assert any("attention_bias" in note for note in wiring(specforge.rewrite(attention_bias=True)).notes)


def test_one_tap_without_fc_is_taken_as_it_is(specforge: MadeDrafter) -> None:
    drafter = load(specforge.rewrite({"fc.weight": None}, eagle_config={IDS: [6]}))
    features = torch.randn(1, 2, 48)
    assert drafter.wiring.aux_boundaries == (7,)
    assert drafter.fuse(features) is features


@pytest.mark.parametrize("num_taps", [1, 2, 5])
def test_the_number_of_taps_follows_fc(tmp_path: Path, num_taps: int) -> None:
    boundaries = tuple(range(1, num_taps + 1))
    made = make_drafter(tmp_path, "eagle31", CONFIG, boundaries=boundaries)
    assert wiring(made).aux_boundaries == boundaries


LAYER = "midlayer.self_attn"
EAGLE_1 = {f"{LAYER}.{name}_proj.weight": torch.ones(rows, 48) for name, rows in (("q", 48), ("k", 24), ("v", 24))}


@pytest.mark.parametrize(
    ("tensors", "fields", "message"),
    [
        ({"d2t": None, "t2d": None}, {}, "proposes 40 tokens, the target has 131, and there is no d2t"),
        ({"t2d": torch.ones(7, dtype=torch.bool)}, {}, r"t2d has shape \[7\]"),
        ({"fc.weight": torch.ones(48, 100)}, {}, "fc.weight takes 100 features.*hidden size 48"),
        ({"fc.weight": torch.ones(32, 144)}, {}, r"fc.weight has shape \[32, 144\].*48"),
        ({"fc.weight": torch.ones(48, 96)}, {}, "are 3, but fc.weight takes 2"),
        ({"fc.weight": None}, {}, "EAGLE 1 or 2"),
        (EAGLE_1, {}, "q_proj.weight takes 48 features.*EAGLE 1 or 2"),
        ({"norm.weight": None}, {}, "lacks norm.weight"),
        ({"midlayer.hidden_norm.weight": None}, {}, "lacks midlayer.hidden_norm.weight"),
        ({f"{LAYER}.k_proj.weight": torch.ones(12, 96)}, {}, "2 heads of 12 .*k_proj.weight has 12 rows"),
        ({f"{LAYER}.v_proj.weight": torch.ones(12, 96)}, {}, r"v_proj.weight has shape \[12, 96\].*\[24, 96\]"),
        ({"mask_hidden": torch.ones(1, 144)}, {}, "holds mask_hidden"),
        ({"fc.weight": torch.ones(48, 144, dtype=torch.int8)}, {}, "fc.weight is torch.int8"),
        ({"layers.1.mlp.up_proj.weight": torch.ones(2, 2)}, {}, "2 layers"),
        ({}, {"num_hidden_layers": 2}, "num_hidden_layers 2"),
        ({f"{LAYER}.kv_a_proj_with_mqa.weight": torch.ones(22, 48)}, {}, "kv_a_proj_with_mqa.weight takes 48.*EAGLE 1"),
        ({f"{LAYER}.kv_a_proj_with_mqa.weight": torch.ones(22, 96)}, {}, "qk_rope_head_dim is missing"),
        ({}, {"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "no tensor is called kv_a_proj_with_mqa"),
        ({}, {"architectures": ["EagleDeepSeekMTPModel"]}, "EAGLE 1 or an MTP head of DeepSeek"),
        ({}, {"architectures": ["PEagleDraftModel"]}, "P-EAGLE"),
        ({}, {"architectures": 7}, "architectures is 7; it must be a list of class names"),
        ({}, {"architectures": ["LlamaForCausalLMEagle3", 7]}, "it must be a list of class names"),
        ({}, {"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is false"),
        ({}, {"draft_vocab_size": 41}, "draft_vocab_size is 41, but lm_head.weight has 40 rows"),
        ({}, {"hidden_size": 64}, r"hidden_size is 64, but norm.weight has shape \[48\]"),
        ({}, {"target_hidden_size": 64}, "target_hidden_size is 64, the target's hidden size is 48"),
        ({}, {"vocab_size": 130}, "vocab_size is 130, the target's is 131"),
        ({}, {"num_attention_heads": None}, "num_attention_heads is missing"),
        ({}, {"num_key_value_heads": 3}, "3 key heads"),
        ({}, {"head_dim": 16}, "4 heads of 16 .* has 48 rows"),
        ({}, {"num_attention_heads": 10**12}, "num_attention_heads is 1000000000000"),
        ({}, {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({}, {"quantization_config": {"bits": 4}}, "quantization_config"),
        ({}, {"layer_types": ["sliding_attention"]}, "full attention"),
        ({}, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic' is not served"),
        ({}, {"fc_norm": True}, "fc_norm is True, but fc_norm.0.weight is missing"),
        ({"fc_norm.0.weight": torch.ones(48)}, {}, "lacks fc_norm.1.weight"),
        ({"fc_norm.0.weight": torch.ones(48), "input_norm.weight": torch.ones(144)}, {}, "both input_norm and fc_norm"),
        ({"lm_head.weight": None}, {}, "lacks lm_head.weight"),
    ],
)
def test_contradictions_are_refused(
    specforge: MadeDrafter, tensors: dict[str, Tensor | None], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(DrafterError, match=message):
        load(specforge.rewrite(tensors, **fields))


def test_a_width_of_its_own_needs_its_own_embeddings(tmp_path: Path) -> None:
    made = make_drafter(tmp_path, "specforge", CONFIG, hidden_size=32, head_dim=8)
    with pytest.raises(DrafterError, match=r"no embed_tokens\.weight.* 48 wide while its hidden_size is 32"):
        load(made)


def test_a_head_may_be_missing_only_where_the_targets_fits(tmp_path: Path) -> None:
    wide = make_drafter(tmp_path / "a", "lightseek", CONFIG, hidden_size=32, head_dim=8, own_embedding=True)
    with pytest.raises(DrafterError, match="cannot stand in"):
        load(wide.rewrite({"lm_head.weight": None}))
    tied = make_drafter(tmp_path / "b", "lightseek", CONFIG, own_embedding=True, tie_word_embeddings=True)
    with pytest.raises(DrafterError, match="tied: True"):
        load(tied.rewrite({"lm_head.weight": None}))


@pytest.mark.parametrize("size", [{"vocab_size": 200}, {"hidden_size": 64}])
def test_speculators_made_for_another_target_are_refused(speculators: MadeDrafter, size: dict[str, int]) -> None:
    layer = speculators.config["transformer_layer_config"] | size
    with pytest.raises(DrafterError, match=f"{next(iter(size))} is {next(iter(size.values()))}"):
        load(speculators.rewrite(transformer_layer_config=layer))


@pytest.mark.parametrize("fields", [{"speculators_model_type": "dflash"}, {"transformer_layer_config": 3}])
def test_other_speculators_are_refused(speculators: MadeDrafter, fields: dict[str, Any]) -> None:
    with pytest.raises(DrafterError, match=next(iter(fields))):
        load(speculators.rewrite(**fields))


def test_the_taps_of_another_target_are_refused(tmp_path: Path) -> None:
    made = make_drafter(tmp_path, "specforge", CONFIG, boundaries=(2, 16, 29))
    with pytest.raises(DrafterError, match="16 is outside 0 … 8"):
        load(made)
    assert wiring(made, aux_boundaries=(3, 4, 8)).aux_boundaries == (3, 4, 8)


class Command:
    """Unpickling it would run a command."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    made = make_drafter(tmp_path / "drafter", "safeailab", CONFIG)
    (made.directory / "pytorch_model.bin").write_bytes(
        pickle.dumps({"fc.weight": Command(tmp_path / "ran")}, protocol=2)
    )
    with pytest.raises(DrafterError, match="tensors alone"):
        load(made)
    torch.save({"fc.weight": Command(tmp_path / "ran")}, made.directory / "pytorch_model.bin")
    with pytest.raises(DrafterError, match="tensors alone"):
        load(made)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("held", [{"model": {"fc.weight": torch.ones(2)}}, [torch.ones(2)]])
def test_a_training_state_is_no_drafter(tmp_path: Path, held: object) -> None:
    made = make_drafter(tmp_path, "safeailab", CONFIG)
    torch.save(held, made.directory / "pytorch_model.bin")
    with pytest.raises(DrafterError, match="more than named tensors"):
        load(made)


def test_old_pickles_are_read(tmp_path: Path) -> None:
    made = make_drafter(tmp_path, "safeailab", CONFIG)
    torch.save(made.tensors, made.directory / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert wiring(made).dialect == "safeailab"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), "no config.json"),
        (("config.json",), "no safetensors"),
        (("config.json", "model.safetensors"), "not a whole"),
    ],
)
def test_missing_and_broken_files_are_refused(tmp_path: Path, files: tuple[str, ...], message: str) -> None:
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(DrafterError, match=message):
        load_drafter(tmp_path, small_target(), dtype=torch.float32, device="cpu")


def test_a_wrong_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    for name, message in ((str(tmp_path / "nothing"), "there is no model"), (str(tmp_path / "model.gguf"), "GGUF")):
        with pytest.raises(DrafterError, match=message):
            load_drafter(name, small_target(), dtype=torch.float32, device="cpu")
