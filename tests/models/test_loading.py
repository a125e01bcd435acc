"""Every source of a model, and everything that is no source."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
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


def test_a_loaded_models_folder_gives_its_tokenizer(tiny_folder: Path, tiny: fm.Model) -> None:
    """A model that knows where it came from should not need the tokenizer told."""
    original = transformers.AutoModelForCausalLM.from_pretrained(tiny_folder)
    model = fm.load(original)
    assert model.tokenize(PROMPT) == tiny.tokenize(PROMPT)
    assert model.name == str(tiny_folder)


def test_a_bridge_is_borrowed(tiny_folder: Path, tiny: fm.Model) -> None:
    """A copy would miss the hooks and edits that its owner makes, which is why they passed a bridge."""
    bridge = TransformerBridge.boot_transformers(str(tiny_folder), device="cpu")
    model = fm.load(bridge)
    assert model.bridge is bridge
    assert model.fingerprint == tiny.fingerprint
    for layer in range(2):
        assert model.ffn[layer].values.data_ptr() == bridge.blocks[layer].mlp.W_out.data_ptr()


def test_all_sources_give_the_same_numbers(tiny_folder: Path, tiny: fm.Model) -> None:
    """The way a model came in would change what is measured."""
    bridge = TransformerBridge.boot_transformers(str(tiny_folder), device="cpu")
    expected = fm.capture(tiny, PROMPT).coefficients[1]
    for source in (tiny_folder, bridge, transformers.AutoModelForCausalLM.from_pretrained(tiny_folder)):
        assert allclose(fm.capture(fm.load(source), PROMPT).coefficients[1], expected, 1e-6)


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


def test_unknown_names() -> None:
    """A misspelt name would end in a traceback of the hub's client, or in silence while it retries."""
    for name in ("nosuchmodel", "nosuch/model", "no such name!"):
        with refuses(ModelNotFoundError, FileNotFoundError, repr(name), "atlas"):
            fm.load(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("atals", "atlas"),
        ("Atlas", "atlas"),
        ("atlas2", "atlas"),
        ("gtp2", "gpt2"),
        ("gpt2-meduim", "gpt2-medium"),
        ("smolm2", "smollm2"),
    ],
)
def test_a_misspelt_name_is_met_with_the_one_that_was_meant(name: str, meant: str) -> None:
    """Who mistypes the embedded model would look for a network that it does not need."""
    with refuses(ModelNotFoundError, FileNotFoundError, f"no model {name!r} (perhaps {meant!r} was meant)"):
        fm.load(name)


@pytest.mark.parametrize("source", ["./nosuch", "/no/such", "~/no/such", "a/b/c", "", "  ", Path("nosuch")], ids=repr)
def test_unknown_folders(source: str | Path) -> None:
    """A path would be sent to the hub as if it were a model's name."""
    with refuses(ModelNotFoundError, FileNotFoundError, "no model folder", repr(str(source))):
        fm.load(source)


def test_folder_without_config(tmp_path: Path) -> None:
    """The message would be about anything but the missing file."""
    with refuses(ModelNotFoundError, FileNotFoundError, str(tmp_path), "config.json"):
        fm.load(tmp_path)


def test_file_instead_of_folder(tiny_folder: Path) -> None:
    """Naming the weights' file is the natural mistake."""
    with refuses(ModelNotFoundError, FileNotFoundError, "model.safetensors", "folder"):
        fm.load(tiny_folder / "model.safetensors")


def truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def break_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 200)


def empty_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def unknown_kind(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "never heard of"}')


def other_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "n_embd": 32}))


@pytest.mark.parametrize(
    "damage",
    [truncate, break_header, empty_weights, remove_weights, break_config, unknown_kind, other_shape],
    ids=lambda damage: damage.__name__,
)
def test_broken_folders(folder: Path, damage: Callable[[Path], None]) -> None:
    """A download that broke off would end in a traceback, or worse, in random weights."""
    damage(folder)
    with refuses(ModelError, ValueError, str(folder)):
        fm.load(folder)


def test_nan_weights(tokenizer: Any, tmp_path: Path) -> None:
    """Every number would be NaN, and nothing say why."""
    original = build_gpt2()
    with torch.no_grad():
        original.transformer.h[1].mlp.c_proj.weight[3, 4] = float("nan")
    with refuses(ModelError, ValueError, "transformer.h.1.mlp.c_proj.weight"):
        fm.load(original, tokenizer=tokenizer)
    original.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with refuses(ModelError, ValueError, str(tmp_path), "transformer.h.1.mlp.c_proj.weight"):
        fm.load(tmp_path)


def test_pickles_are_never_opened(folder: Path, tiny_hf: Any) -> None:
    """Unpickling somebody's checkpoint runs their code."""
    (folder / "model.safetensors").unlink()
    torch.save(tiny_hf.state_dict(), folder / "pytorch_model.bin")
    with refuses(ModelError, ValueError, str(folder), "pickled", "safetensors"):
        fm.load(folder)


def test_encoder_decoder_folder(tokenizer: Any, tmp_path: Path) -> None:
    """Its weights would be read before anyone sees that it is of the wrong kind."""
    transformers.T5Config(vocab_size=300, d_model=16, num_layers=1).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with refuses(UnsupportedModelError, ValueError, str(tmp_path), "encoder-decoder"):
        fm.load(tmp_path)


def test_no_tokenizer(tiny_hf: Any, folder: Path) -> None:
    """Prompts would be split by an empty vocabulary that some tokenizer classes come up with."""
    with refuses(InputError, ValueError, "tokenizer=", "GPT2LMHeadModel"):
        fm.load(tiny_hf)
    for file in folder.glob("token*"):
        file.unlink()
    with refuses(InputError, ValueError, "tokenizer", str(folder)):
        fm.load(folder)
    with refuses(InputError, ValueError, "tokenizer", str(folder)):
        fm.load(transformers.AutoModelForCausalLM.from_pretrained(folder))


def test_a_vanished_origin(tiny_folder: Path, folder: Path) -> None:
    """A model that says where it came from may outlive that place."""
    original = transformers.AutoModelForCausalLM.from_pretrained(folder)
    shutil.rmtree(folder)
    with refuses(InputError, ValueError, "tokenizer=", str(folder)):
        fm.load(original)
    kept = transformers.AutoTokenizer.from_pretrained(shutil.copytree(tiny_folder, folder))
    shutil.rmtree(folder)
    assert fm.load(original, tokenizer=kept).tokenize("The")


@pytest.mark.parametrize("dtype", ["int8", "float", torch.int64], ids=str)
def test_unknown_dtypes(tiny_folder: Path, dtype: Any) -> None:
    """An integer model would fail later and elsewhere."""
    with refuses(InputError, ValueError, "dtype", str(dtype).removeprefix("torch."), "float32"):
        fm.load(tiny_folder, dtype=dtype)


@pytest.mark.parametrize("device", ["quantum", "cuda:99"])
def test_unknown_devices(tiny_folder: Path, device: str) -> None:
    """A message of several lines from inside torch, or a silent fall back to the CPU."""
    with refuses(InputError, ValueError, "device", device):
        fm.load(tiny_folder, device=device)


def test_small_models_stay_on_the_cpu(tiny: fm.Model, tiny_folder: Path) -> None:
    """A tiny model on a GPU is slower, and its numbers are other ones; an explicit device is obeyed."""
    assert tiny.device.type == "cpu"
    assert fm.load(tiny_folder, device="cpu").device.type == "cpu"
    assert fm.load(tiny_folder, device=torch.device("cpu")).device.type == "cpu"


def test_other_things() -> None:
    """A traceback about attributes that a number does not have."""
    with refuses(InputError, ValueError, "int", "folder"):
        fm.load(3)
    with refuses(UnsupportedModelError, ValueError, "Linear", "config"):
        fm.load(torch.nn.Linear(2, 2))


def test_a_bridge_keeps_what_it_has(make_tiny: Callable[..., fm.Model], tokenizer: Any) -> None:
    """An option that does nothing would be believed."""
    bridge = make_tiny().bridge
    for option in ({"tokenizer": tokenizer}, {"dtype": "float32"}, {"device": "cpu"}):
        with refuses(InputError, ValueError, "TransformerBridge", next(iter(option))):
            fm.load(bridge, **option)
    assert fm.load(bridge).bridge is bridge


def test_a_bridge_in_training_or_with_nan_is_refused(make_tiny: Callable[..., fm.Model]) -> None:
    """Dropout would change every number, and NaN make all of them NaN."""
    bridge = make_tiny().bridge
    bridge.train()
    with refuses(InputError, ValueError, "training mode", ".eval()"):
        fm.load(bridge)
    bridge.eval()
    with torch.no_grad():
        next(bridge.original_model.parameters())[0, 0] = torch.nan
    with refuses(ModelError, ValueError, "NaN"):
        fm.load(bridge)


@pytest.mark.parametrize("device", ["meta", "mps", "nowhere"])
def test_devices_that_cannot_be(tiny_hf: Any, tokenizer: Any, device: Any) -> None:
    """MPS lacks float64, so sums would fail halfway; meta holds no numbers."""
    with pytest.raises(InputError):
        fm.load(tiny_hf, tokenizer=tokenizer, device=device)


def test_remote_code_is_never_run(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even asked about: an answer on standard input would be taken."""
    folder = shutil.copytree(tiny_folder, tmp_path / "remote")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text("raise SystemExit('remote code ran')\n")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether to run remote code"))
    with pytest.raises(ModelError):
        fm.load(folder)


def test_weights_that_do_not_fit_their_config(tiny_folder: Path, tmp_path: Path) -> None:
    """Hugging Face points to a report that it does not show."""
    folder = tmp_path / "cut"
    shutil.copytree(tiny_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "n_inner": 32}))
    with refuses(ModelError, ValueError, "cut", "config.json", "c_fc.weight [16, 64] instead of [16, 32]"):
        fm.load(folder)


def test_a_folder_without_a_tokenizer(tiny_hf: Any, tmp_path: Path) -> None:
    tiny_hf.save_pretrained(tmp_path / "bare")
    with refuses(InputError, ValueError, "bare", "tokenizer"):
        fm.load(tmp_path / "bare")


def test_settings_that_do_not_run(folder: Path) -> None:
    """Nothing would be said before the first capture, and then from inside a library."""
    config = json.loads((folder / "config.json").read_text())
    for field, value in (("layer_norm_epsilon", float("nan")), ("n_head", -2)):
        (folder / "config.json").write_text(json.dumps({**config, field: value}))
        with refuses(ModelError, ValueError, str(folder)):
            fm.load(folder)


def test_a_model_that_gives_no_numbers(tokenizer: Any) -> None:
    """Half precision overflows: all logits would be NaN."""
    original = build_gpt2()
    with torch.no_grad():
        original.transformer.wte.weight.fill_(3e4)
    with refuses(ModelError, ValueError, "NaN or infinity", "float16", "float32"):
        fm.load(original, tokenizer=tokenizer, dtype="float16")
    assert fm.load(original, tokenizer=tokenizer).dtype == torch.float32


def test_a_model_without_an_embedding(tokenizer: Any) -> None:
    class Odd(torch.nn.Module):
        config = transformers.GPT2Config()

    with refuses(UnsupportedModelError, ValueError, "Odd", "embedding"):
        fm.load(Odd(), tokenizer=tokenizer)


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
