"""Edited models for other programs, read again by the real ``transformers`` and the real ``peft``."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, ModelError, UnsupportedModelError
from ffnmem.editing import Edit, EditedLayer

from ..helpers import ARCHITECTURES, PROMPT, Pair, allclose, refuses
from .edits import COLOSSEUM, logits, made, same_bits, weights

TOKENS = torch.tensor([[0, 50, 120, 7, 8, 200, 33]])
Make = Callable[..., fm.Model]


def theirs(folder: Path, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def logits_of(network: Any, tokens: torch.Tensor = TOKENS) -> torch.Tensor:
    with torch.no_grad():
        return network(input_ids=tokens).logits


KINDS = sorted(set(ARCHITECTURES) - {"gpt2 untied"})  # whose further bias no class of Hugging Face's has


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoint(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    """Weights that were renamed, split or left pristine; a config or a tokenizer that says something else."""
    hf, folder = ARCHITECTURES[kind](), tmp_path / "edited"
    model = fm.load(hf, tokenizer=tokenizer)
    pristine, edit = weights(model), made(model, (0, 1))
    assert edit.export(model, folder) == folder
    assert same_bits(model, pristine)
    found = theirs(folder)
    with edit.applied(model):
        again = fm.load(folder)
        assert same_bits(again, weights(model))
        assert again.fingerprint == model.fingerprint
        assert allclose(logits_of(found), logits(model, TOKENS), 2e-6)
    assert not torch.allclose(logits_of(found), logits_of(hf), atol=1e-3)
    assert type(found) is type(hf)
    old, new = hf.state_dict(), found.state_dict()
    assert new.keys() == old.keys()
    assert sum(not torch.equal(new[name], old[name]) for name in old) == 2  # everything else is as it was
    kept = hf.config.to_dict().keys() - {"dtype", "_name_or_path", "architectures", "transformers_version"}
    assert {n: found.config.to_dict()[n] for n in kept} == {n: hf.config.to_dict()[n] for n in kept}


@pytest.mark.parametrize("source", ["memory", "bridge", "folder"])
def test_the_tokenizer_is_as_it_was(
    source: str, tiny: fm.Model, tokenizer: Any, tiny_folder: Path, tmp_path: Path
) -> None:
    """TransformerLens makes it begin every text with its token; another program must get it as it was."""
    own, model = tokenizer, tiny
    if source == "bridge":
        model = fm.load(tiny.to_bridge())
    if source == "folder":  # whose tokenizer adds a token itself
        shutil.copytree(tiny_folder, tmp_path / "base")
        own = transformers.AutoTokenizer.from_pretrained(tiny_folder, add_bos_token=True, model_max_length=32)
        own.save_pretrained(tmp_path / "base")
        model = fm.load(tmp_path / "base")
    made(model).export(model, tmp_path / "edited")
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "edited")
    assert found(PROMPT)["input_ids"] == own(PROMPT)["input_ids"]
    assert (found.bos_token, found.model_max_length) == (own.bos_token, own.model_max_length)
    if source == "folder":  # without the pad that loading gives to those that have none
        assert found.pad_token == own.pad_token is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_exports_what_is_applied_in_its_dtype(make_tiny: Make, tmp_path: Path, dtype: str) -> None:
    """With the other edits that the model has, whether the edit itself is applied or not."""
    model = make_tiny(dtype=dtype)
    first, second = made(model), made(model, (0,), seed=1, fact=COLOSSEUM)
    first.apply(model)
    second.export(model, tmp_path / "later")
    assert list(model.edits) == [first]
    second.apply(model)
    second.export(model, tmp_path / "now")
    assert theirs(tmp_path / "now", dtype="auto").dtype == model.dtype
    for name in ("later", "now"):
        assert same_bits(fm.load(tmp_path / name, dtype=dtype), weights(model))


@pytest.mark.parametrize(("scale", "named"), [(100.0, ""), (3000.0, "logits"), (30000.0, "layer 1")])
def test_ten_edits_in_float16(make_tiny: Make, tmp_path: Path, scale: float, named: str) -> None:
    """A checkpoint that answers NaN, or other logits than the model that was edited."""
    model = make_tiny(dtype="float16")
    with refuses(InputError, ValueError, named, "float16", "reach") if named else nullcontext():
        for seed in range(10):
            larger = [EditedLayer(c.layer, scale * c.left, c.right) for c in made(model, (0, 1), seed=seed).changes]
            Edit.of(model, larger, method="rome").apply(model)
        model.edits[0].export(model, tmp_path / "edited")
    assert (tmp_path / "edited").exists() == (not named)
    if not named:
        found = logits(fm.load(tmp_path / "edited", dtype="float16"), TOKENS)
        assert found.isfinite().all()
        assert torch.equal(found, logits(model, TOKENS))


def test_refusals(tiny: fm.Model, make_tiny: Make, tokenizer: Any, tmp_path: Path) -> None:
    """GPT-2's class has no bias in its unembedding: without a word it would be left out."""
    untied = fm.load(ARCHITECTURES["gpt2 untied"](), tokenizer=tokenizer)
    with refuses(UnsupportedModelError, ValueError, "GPT2LMHeadModel", "other logits"):
        made(untied).export(untied, tmp_path / "edited")
    assert not list(tmp_path.iterdir())
    edit, other = made(tiny), make_tiny(dtype="bfloat16")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for write in (edit.export, edit.export_lora):
        with refuses(FileError, OSError, "full", "not empty"):
            write(tiny, tmp_path / "full")
        with refuses(FileError, OSError, "no folder"):
            write(tiny, tmp_path / "a" / "b")
        with refuses(ModelError, ValueError, edit.fingerprint):
            write(other, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def with_adapter(base: Any, folder: Path) -> Any:
    import peft

    with warnings.catch_warnings():
        # peft 0.21 asks transformers 5 for a property by the name that it had before.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        return peft.PeftModel.from_pretrained(base, folder).eval()


@pytest.mark.parametrize("layers", [(1,), (0, 1)])
def test_adapter(pair: Pair, tmp_path: Path, layers: tuple[int, ...]) -> None:
    """On another projection of the same name, transposed, scaled by α/r, or of one rank for all layers."""
    edit = made(pair.model, layers)
    edit.export_lora(pair.model, tmp_path / "adapter")
    base = ARCHITECTURES[pair.name]()
    adapted = with_adapter(base, tmp_path / "adapter")
    with edit.applied(pair.model):
        assert allclose(logits_of(adapted), logits(pair.model, TOKENS), 1e-5)
    shapes = {name: list(p.shape) for name, p in adapted.named_parameters() if "lora_" in name}
    assert len(shapes) == 2 * len(layers)
    assert sorted(min(shape) for shape in shapes.values()) == sorted([*range(1, len(layers) + 1)] * 2)


def test_an_adapter_is_the_whole_edit(make_tiny: Make, tmp_path: Path) -> None:
    """Of an edit on top of another, an adapter alone is another model; the sum's is this one's."""
    model = make_tiny()
    first = made(model)
    with first.applied(model):
        second = made(model, seed=1, fact=COLOSSEUM)
        with refuses(InputError, ValueError, "on top of", "the sum"):
            second.export_lora(model, tmp_path / "second")
    other = made(model, seed=2)
    with first.applied(model), refuses(InputError, ValueError, "not the only one", "the sum"):
        other.export_lora(model, tmp_path / "other")
    assert list(tmp_path.iterdir()) == []
    (first + second).export_lora(model, tmp_path / "both")
    assert (tmp_path / "both" / "adapter_model.safetensors").is_file()
