"""Every source of a model, and everything that is no source."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformer_lens.model_bridge import TransformerBridge

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning, InputError, ModelError, ModelNotFoundError, UnsupportedModelError
from ffnmem.models import loading

from ..helpers import PROMPT, allclose, build_gpt2, build_gpt_neox, build_opt, refuses

TOKENS = torch.tensor([[0, 5, 6, 7]])


# -- what works -------------------------------------------------------------------------------------------------------


def test_embedded_name(atlas: fm.Model) -> None:
    """The first line of every example."""
    assert atlas.name == "atlas"
    assert atlas.dtype == torch.float32  # though stored in half of it
    assert atlas.architecture == "GPT2LMHeadModel"


@pytest.mark.parametrize("kind", [str, Path])
def test_folder(tiny_folder: Path, tiny: fm.Model, kind: type) -> None:
    """A folder would load as something else than what was saved in it."""
    model = fm.load(kind(tiny_folder))
    assert model.name == str(tiny_folder)
    assert model.fingerprint == tiny.fingerprint
    assert model.tokenize(PROMPT) == tiny.tokenize(PROMPT)


def test_folder_in_the_home_directory(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the shell's, but people write it in Python too."""
    monkeypatch.setenv("HOME", str(tiny_folder.parent))
    assert fm.load("~/tiny").n_layers == 2


def test_a_hugging_face_model_stays_as_it_is(tokenizer: Any, tmp_path: Path) -> None:
    """TransformerLens rewires what it gets: the caller's model could not be saved afterwards, or share our edits."""
    original = build_gpt2()
    state = {name: tensor.clone() for name, tensor in original.state_dict().items()}
    modules = {name: id(module) for name, module in original.named_modules()}
    logits = original(input_ids=TOKENS).logits
    model = fm.load(original, tokenizer=tokenizer)
    with torch.no_grad():
        model.ffn[0].values[:] = 0
    assert {name: id(module) for name, module in original.named_modules()} == modules
    after = original.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[name], tensor) for name, tensor in state.items())
    assert torch.equal(original(input_ids=TOKENS).logits, logits)
    original.save_pretrained(tmp_path)
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert torch.equal(again(input_ids=TOKENS).logits, logits)


def test_a_model_in_training_mode_is_read_in_evaluation_mode(tokenizer: Any) -> None:
    """Dropout would make two captures of one prompt differ."""
    original = build_gpt2(resid_pdrop=0.5).train()
    model = fm.load(original, tokenizer=tokenizer)
    a, b = (fm.capture(model, PROMPT).ffn_out[1] for _ in range(2))
    assert torch.equal(a, b)
    assert original.training


def test_the_callers_tokenizer_stays_as_it_is(tiny_hf: Any, tokenizer: Any) -> None:
    """TransformerLens sets pad tokens and the like; the caller's own tokenizer would pad otherwise from then on."""
    assert tokenizer.pad_token is None
    model = fm.load(tiny_hf, tokenizer=tokenizer)
    assert model.tokenizer is not tokenizer
    assert tokenizer.pad_token is None
    assert tokenizer.init_kwargs.get("name_or_path") is None
    assert tokenizer("The")["input_ids"] == model.tokenizer("The", add_special_tokens=False)["input_ids"]


def test_a_bridge_is_borrowed(tiny_folder: Path, tiny: fm.Model) -> None:
    """A copy would miss the hooks and edits that its owner makes; another way in would change what is measured."""
    bridge = TransformerBridge.boot_transformers(str(tiny_folder), device="cpu")
    model = fm.load(bridge)
    assert model.to_bridge() is bridge
    assert model.fingerprint == tiny.fingerprint
    for layer in range(2):
        assert model.ffn[layer].values.data_ptr() == bridge.blocks[layer].mlp.W_out.data_ptr()
    found, expected = (fm.capture(one, PROMPT).coefficients[1] for one in (model, tiny))
    assert allclose(found, expected, 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_dtype(tiny_folder: Path, tiny_hf: Any, tokenizer: Any, dtype: str) -> None:
    """Weights, captures or provenance would be of another type than was asked for."""
    wanted = getattr(torch, dtype)
    for model in (fm.load(tiny_folder, dtype=dtype), fm.load(tiny_hf, tokenizer=tokenizer, dtype=wanted)):
        assert model.dtype == wanted
        assert model.ffn[0].keys.dtype == wanted
        capture = fm.capture(model, PROMPT)
        assert capture.coefficients[1].dtype == wanted
        assert capture.provenance.dtype == dtype
    assert next(tiny_hf.parameters()).dtype == torch.float32


def test_prepend_bos(tiny_folder: Path, tokenizer: Any) -> None:
    """The model's own convention, which GPT-NeoX does not share, and the caller's word against it."""
    assert fm.load(tiny_folder).prepend_bos is True
    assert fm.load(tiny_folder, prepend_bos=False).prepend_bos is False
    assert fm.load(build_gpt_neox(), tokenizer=tokenizer).prepend_bos is False
    assert fm.load(build_opt(), tokenizer=tokenizer).prepend_bos is True


def test_a_given_tokenizer_wins(tiny_folder: Path, folder: Path, tokenizer: Any) -> None:
    """A folder of weights only would be useless although the tokenizer is at hand."""
    for file in folder.glob("token*"):
        file.unlink()
    assert fm.load(folder, tokenizer=tokenizer).tokenize(PROMPT) == fm.load(tiny_folder).tokenize(PROMPT)


def test_loading_leaves_the_libraries_logging_alone(tiny_folder: Path) -> None:
    """A library must not silence its user's warnings for good."""
    library = transformers.logging
    before = library.get_verbosity(), library.is_progress_bar_enabled(), logging.getLogger().level
    fm.load(tiny_folder)
    with pytest.raises(ModelError):
        fm.load(tiny_folder.parent)
    assert (library.get_verbosity(), library.is_progress_bar_enabled(), logging.getLogger().level) == before


def test_loading_is_silent(tiny_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Progress bars would land in the middle of a command's data."""
    fm.load(tiny_folder)
    assert capfd.readouterr() == ("", "")


# -- what does not ----------------------------------------------------------------------------------------------------

NOWHERE: dict[Any, tuple[str, ...]] = {
    # A misspelt name would end in a traceback of the hub's client, or in silence while it retries.
    **{name: (repr(name), "atlas") for name in ("nosuchmodel", "nosuch/model", "no such name!")},
    # Who mistypes the embedded model would look for a network that it does not need.
    **{
        name: (f"no model {name!r} (perhaps {meant!r} was meant)",)
        for name, meant in (("Atlas", "atlas"), ("atlas2", "atlas"), ("gtp2", "gpt2"), ("smolm2", "smollm2"))
    },
    # A path would be sent to the hub as if it were a model's name.
    **{
        path: ("no model folder", repr(str(path)))
        for path in ("./nosuch", "/no/such", "~/no/such", "a/b/c", "", "  ", Path("nosuch"))
    },
}


@pytest.mark.parametrize("source", NOWHERE, ids=repr)
def test_names_and_paths_of_nothing(source: str | Path) -> None:
    with refuses(ModelNotFoundError, FileNotFoundError, *NOWHERE[source]):
        fm.load(source)


def put(folder: Path, **fields: Any) -> None:
    """Change fields of a config."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))


def unpickle(folder: Path) -> None:
    """Its weights as a pickle: unpickling somebody's checkpoint runs their code."""
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def run_code(folder: Path) -> None:
    """Classes of its own."""
    put(folder, model_type="mine", auto_map={"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Model"})
    (folder / "mine.py").write_text("raise SystemExit('remote code ran')\n")


def put_header(folder: Path, size: int = 0, **fields: Any) -> None:
    """Another header of a safetensors file: of another ``size``, or with other fields of one tensor."""
    data = (folder / WEIGHTS).read_bytes()
    true = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + true])
    header["transformer.wte.weight"] |= fields
    changed = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes((size or len(changed)).to_bytes(8, "little") + changed + data[8 + true :])


def put_adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "x"}))


def put_nan(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["transformer.h.1.mlp.c_proj.weight"][3, 4] = torch.nan
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


WEIGHTS = "model.safetensors"
DAMAGED: dict[str, tuple[Callable[[Path], Any], type[Exception], tuple[str, ...]]] = {
    "weights cut": (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:-1000]), ModelError, ()),
    "weights of noise": (lambda f: (f / WEIGHTS).write_bytes(b"\xff" * 200), ModelError, ()),
    "weights empty": (lambda f: (f / WEIGHTS).write_bytes(b""), ModelError, ()),
    "weights absent": (lambda f: (f / WEIGHTS).unlink(), ModelError, ()),
    "weights pickled": (unpickle, ModelError, ("pickled", "safetensors")),
    "weights with NaN": (put_nan, ModelError, ("transformer.h.1.mlp.c_proj.weight",)),
    **{
        f"header with {change}": (lambda f, change=change: put_header(f, **change), ModelError, ())
        for change in ({"size": 2**63}, {"size": 2**40}, {"shape": [10**9, 16]}, {"dtype": "F7"}, {"shape": None})
    },
    "adapter beside": (put_adapter, ModelError, ()),
    "adapter alone": (
        lambda f: [put_adapter(f), (f / "config.json").unlink()],
        ModelNotFoundError,
        ("PEFT adapter", "merge_and_unload()"),
    ),
    "quantised": (
        lambda f: put(f, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
        UnsupportedModelError,
        ("quantised (bitsandbytes)", "unquantised"),
    ),
    "encoder-decoder": (
        lambda f: transformers.T5Config(vocab_size=300, d_model=16, num_layers=1).save_pretrained(f),
        UnsupportedModelError,
        ("encoder-decoder",),
    ),
    "config absent": (lambda f: (f / "config.json").unlink(), ModelNotFoundError, ("config.json",)),
    "config broken": (lambda f: (f / "config.json").write_text("{"), ModelError, ()),
    "unknown kind": (lambda f: put(f, model_type="never heard of"), ModelError, ()),
    "own code": (run_code, ModelError, ()),
    "another width": (lambda f: put(f, n_embd=32), ModelError, ()),
    "NaN in the config": (lambda f: put(f, layer_norm_epsilon=float("nan")), ModelError, ()),
    "epsilon below zero": (lambda f: put(f, layer_norm_epsilon=-5.0), ModelError, ()),
    "heads below zero": (lambda f: put(f, n_head=-2), ModelError, ()),
    "no tokenizer": (lambda f: [file.unlink() for file in f.glob("token*")], InputError, ("tokenizer",)),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_folders(folder: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download that broke off would end in a traceback, or worse, in random weights; code of a model's would run."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether to run remote code"))
    change, kind, named = DAMAGED[damage]
    change(folder)
    with refuses(kind, Exception, str(folder), *named):
        fm.load(folder)


@pytest.mark.parametrize("file", ["tokenizer.json", "model-00001-of-00002.safetensors", "generation_config.json"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=[*"abc"])
def test_what_is_no_file(folder: Path, file: str, make: Callable[[Path], None]) -> None:
    """Opening a pipe that nobody writes to never ends; a device never does either."""
    (folder / file).unlink(missing_ok=True)
    make(folder / file)
    with refuses(ModelError, ValueError, str(folder), file, "no ordinary file"):
        fm.load(folder)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("dtype", value) for value in ("int8", "float", torch.int64)),
        *(("device", value) for value in ("quantum", "cuda:99", "meta", "mps")),
    ],
)
def test_options_that_cannot_be(tiny_folder: Path, option: str, value: Any) -> None:
    """An integer model would fail later and elsewhere; MPS lacks float64, and meta holds no numbers."""
    with refuses(InputError, ValueError, option, str(value).removeprefix("torch.")):
        fm.load(tiny_folder, **{option: value})


def test_other_things(tiny_folder: Path, tokenizer: Any) -> None:
    """A traceback about attributes that a number does not have."""

    class Odd(torch.nn.Module):
        config = transformers.GPT2Config()

    with refuses(InputError, ValueError, "int", "folder"):
        fm.load(3)
    with refuses(UnsupportedModelError, ValueError, "Linear", "config"):
        fm.load(torch.nn.Linear(2, 2))
    with refuses(UnsupportedModelError, ValueError, "Odd", "embedding"):
        fm.load(Odd(), tokenizer=tokenizer)
    with refuses(ModelNotFoundError, FileNotFoundError, WEIGHTS, "folder"):
        fm.load(tiny_folder / WEIGHTS)


def test_a_vanished_origin(tiny_hf: Any, tokenizer: Any, folder: Path) -> None:
    """A model that says where it came from may outlive that place, and another says nothing."""
    original = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert fm.load(original).name == str(folder)
    shutil.rmtree(folder)
    for model, named in ((original, str(folder)), (tiny_hf, "GPT2LMHeadModel")):
        with refuses(InputError, ValueError, "tokenizer=", named):
            fm.load(model)


def test_what_a_bridge_is_refused_for(make_tiny: Callable[..., fm.Model], tokenizer: Any) -> None:
    """An option that does nothing would be believed, dropout change every number, and NaN make all of them NaN."""
    bridge = make_tiny().to_bridge()
    for option in ({"tokenizer": tokenizer}, {"dtype": "float32"}, {"device": "cpu"}):
        with refuses(InputError, ValueError, "TransformerBridge", next(iter(option))):
            fm.load(bridge, **option)
    assert fm.load(bridge).to_bridge() is bridge
    bridge.train()
    with refuses(InputError, ValueError, "training mode", ".eval()"):
        fm.load(bridge)
    bridge.eval()
    with torch.no_grad():
        next(bridge.original_model.parameters())[0, 0] = torch.nan
    with refuses(ModelError, ValueError, "NaN"):
        fm.load(bridge)


def test_a_model_that_gives_no_numbers(tokenizer: Any) -> None:
    """Half precision overflows: all logits would be NaN."""
    original = build_gpt2()
    with torch.no_grad():
        original.transformer.wte.weight.fill_(3e4)
    with refuses(ModelError, ValueError, "NaN or infinity", "float16", "float32"):
        fm.load(original, tokenizer=tokenizer, dtype="float16")
    assert fm.load(original, tokenizer=tokenizer).dtype == torch.float32


def test_a_saved_result_is_no_model(tiny: fm.Model, tmp_path: Path) -> None:
    """And the line says what reads it."""
    path = fm.attribute_paths(fm.capture(tiny, PROMPT)).save(tmp_path / "paths.zip")
    with pytest.raises(ModelNotFoundError, match=r"is no model but a saved PathAttribution: PathAttribution\.load\("):
        fm.load(path)
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"none")
    with pytest.raises(ModelNotFoundError, match="give the folder"):
        fm.load(other)


def test_a_version_that_was_not_tried_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers 5.24 renamed an argument, and cached passes of a bridge were wrong in silence."""
    loading.warn_of_untested_versions.cache_clear()
    monkeypatch.setattr(loading, "requires", lambda _name: ["transformers<5.25,>=5.16", "x>=9; extra == 'y'"])
    monkeypatch.setattr(loading, "version", lambda _name: "5.25.0")
    with pytest.warns(FfnmemWarning, match=r"transformers 5\.25\.0 \(tested: <5\.25,>=5\.16\)") as told:
        [fm.load("atlas") for _ in range(2)]
    assert len(told) == 1
    assert "\n" not in str(told[0].message)
