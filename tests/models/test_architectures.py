"""Every described architecture through every part of ffnmem, and what others are told."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version

import ffnmem as fm
from ffnmem.core.errors import UnsupportedModelError
from ffnmem.models import layout, loading
from ffnmem.models.architectures import DESCRIBED, Refusal, setting

from ..architectures import DECODERS, EVERY, MIXTURES
from ..helpers import PROMPT, allclose, build, refuses
from .examining import HUGGING_FACE, PARTS, Examined

# What TransformerLens cannot run from a version of transformers on, for a part that it reads and that is gone.
NO_BRIDGE = {"CodeGen": "5.24"}


@pytest.fixture(scope="module", params=DECODERS)
def examined(request: pytest.FixtureRequest, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Examined:
    return Examined(request.param, tmp_path_factory.mktemp("architecture"), tokenizer)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_works(examined: Examined, part: str) -> None:
    """See :mod:`tests.models.examining` for what is compared with what."""
    PARTS[part](examined)


def test_its_bridge_is_the_same_model(examined: Examined) -> None:
    """TransformerLens' numbers would be of another model, with an intervention, an edit or none."""
    model, tokens = examined.model, examined.capture.tokens
    if examined.name in MIXTURES:
        with refuses(UnsupportedModelError, ValueError, "its experts run as one FFN"):
            model.to_bridge()
        return
    if Version(transformers.__version__) >= Version(NO_BRIDGE.get(examined.name, "999")):
        with refuses(UnsupportedModelError, ValueError, "does not run under TransformerLens"):
            model.to_bridge()
        return
    own, bridge = model.hf_model, model.to_bridge()
    assert fm.load(bridge).fingerprint == model.fingerprint
    for block in (fm.intervene(model, {(0, 3): 5.0}, positions=-1), examined.rome.applied(model), nullcontext()):
        with block, torch.no_grad():
            assert allclose(bridge(tokens), own(input_ids=tokens).logits, HUGGING_FACE)
    assert model.hf_model is own


def test_every_description_is_tried() -> None:
    """A description that no model of the table has would be believed, not tested."""
    tried = {type(build_decoder()).__name__ for build_decoder in DECODERS.values()}
    assert tried == set(DESCRIBED)


@pytest.fixture
def undescribed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if ffnmem had never heard of any architecture."""
    for module in (layout, loading):
        monkeypatch.setattr(module, "DESCRIBED", {})


@pytest.mark.usefixtures("undescribed")
@pytest.mark.parametrize(
    "name", ["GPT-2", "OPT", "Pythia", "GPT-J", "Llama", "Qwen 3", "Gemma 2", "OLMo 2", "Granite", "Cohere"]
)
def test_others_are_read_by_the_names_of_their_parts(name: str, tokenizer: Any) -> None:
    """Whatever TransformerLens boots and is put together in a usual way works, and is exact too."""
    model = fm.load(DECODERS[name](), tokenizer=tokenizer, dtype="float64")
    assert not model.layout.described
    capture = fm.capture(model, PROMPT)
    assert max(fm.decompose(capture, layer).attrs["error"] for layer in range(2)) < 1e-12
    assert fm.attribute(capture).error < 1e-10


@pytest.mark.usefixtures("undescribed")
@pytest.mark.parametrize(
    ("name", "what"),
    [("Bloom", "state its activation"), ("MPT", "state its activation")],
)
def test_what_is_put_together_otherwise_is_refused(name: str, what: str, tokenizer: Any) -> None:
    """A multiplier that nobody told of would make every attribution wrong and nothing say so."""
    with refuses(UnsupportedModelError, ValueError, what):
        fm.load(DECODERS[name](), tokenizer=tokenizer)


@pytest.mark.parametrize("name", EVERY)
def test_half_precision_works(name: str, tokenizer: Any) -> None:
    """A model that loads would fail at its first capture, deep inside a library."""
    capture = fm.capture(fm.load(DECODERS[name](), tokenizer=tokenizer, dtype="bfloat16"), PROMPT)
    assert max(fm.decompose(capture, layer).attrs["error"] for layer in range(2)) < 2e-2
    assert fm.attribute(capture).error < 0.1


def test_clipping_is_refused_where_it_matters(tokenizer: Any) -> None:
    """Clipped values are no linear map of the stream, so paths through attention would not add up; all else does."""
    model = fm.load(build("Olmo", clip_qkv=0.1), tokenizer=tokenizer, dtype="float64")
    capture = fm.capture(model, PROMPT)
    assert fm.attribute(capture).error < 1e-10
    with refuses(UnsupportedModelError, ValueError, "clip_qkv"):
        fm.attribute_paths(capture)


def test_settings_inside_settings() -> None:
    config = SimpleNamespace(a=SimpleNamespace(b=3), c={"d": 0}, e=False)
    found = [setting(config, field) for field in ("a.b", "c.d", "e", "a.x", "x.y", "")]
    assert found == [3, 0, False, None, None, None]
    assert Refusal("e", "", when=False).applies(config)
    assert not Refusal("e", "").applies(config)
    assert not Refusal("x", "", when=False).applies(config)


def test_what_runs_otherwise_has_another_fingerprint(tokenizer: Any) -> None:
    """An edit or a store of a model would be taken for that of another one with the same weights."""
    found = {
        fm.load(build("Gemma2", head_dim=8, **changes), tokenizer=tokenizer).fingerprint
        for changes in ({}, {"sliding_window": 4}, {"attn_logit_softcapping": 7.0}, {"final_logit_softcapping": 3.0})
    }
    assert len(found) == 4


def test_a_sliding_window_is_restarted_whole(tokenizer: Any) -> None:
    """A cache of four positions would have forgotten what a later layer reads."""
    model = fm.load(build("Mistral", sliding_window=4), tokenizer=tokenizer, dtype="float64")
    trace = fm.trace_fact(model, PROMPT, "Eiffel Tower", noise=2.0, samples=2, kinds=("state",))
    assert allclose(trace.indirect("state")[-1, -1], trace.total, 1e-6)


def test_several_layers_of_one_edit_are_refused_behind_a_norm(tokenizer: Any) -> None:
    """MEMIT hands on what is missing from layer to layer, which a norm behind the FFN would change."""
    model = fm.load(DECODERS["Gemma 2"](), tokenizer=tokenizer)
    fact = fm.Fact("Eiffel Tower", "city", "The city of the {}", "Paris", "Rome")
    options: dict[str, Any] = {
        "moment": fm.editing.second_moment(model, [PROMPT] * 4),
        "contexts": ("{}",),
        "force": True,
    }
    with refuses(UnsupportedModelError, ValueError, "layers=1"):
        fm.editing.memit(model, [fact], layer=1, layers=2, **options)
    edit = fm.editing.memit(model, [fact], layer=1, layers=1, **options)
    assert [change.layer for change in edit.changes] == [1]


def test_a_model_in_memory_needs_no_architectures_field(tokenizer: Any) -> None:
    """A model in memory has none, and TransformerLens goes by it."""
    model = build("Olmo2")
    assert not model.config.architectures
    assert fm.load(model, tokenizer=tokenizer).gated
    assert not model.config.architectures  # the caller's own stays as it is
