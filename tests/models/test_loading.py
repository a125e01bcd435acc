"""Every source of a model or a config, and everything that is no source."""

from __future__ import annotations

import json
import logging
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import ffnmem as fm
from ffnmem.core.errors import (
    FfnmemError,
    FfnmemWarning,
    InputError,
    ModelError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from ffnmem.models import loading
from ffnmem.models.architectures import DESCRIBED
from ffnmem.models.configs import find_description, read_config
from ffnmem.models.loading import read_checkpoint

from ..architectures import DECODERS, MIXTURES, SWEEP
from ..helpers import PROMPT, allclose, build, build_gpt2, build_gpt_neox, build_opt, refuses

TOKENS = torch.tensor([[0, 5, 6, 7]])
WEIGHTS, TENSOR = "model.safetensors", "transformer.h.1.mlp.c_proj.weight"


def put(folder: Path, **fields: Any) -> None:
    """Change fields of a config."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))


def read(folder: Path) -> Any:
    return read_checkpoint(folder, torch.float32)


def write(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Put tensors in the place of those of a checkpoint."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS, {"format": "pt"})


def change(folder: Path, **more: Tensor) -> None:
    """Put tensors beside those of a checkpoint, or in their place."""
    write(folder, load_file(folder / WEIGHTS) | more)


# -- what works -------------------------------------------------------------------------------------------------------


def test_names_and_folders(atlas: fm.Model, tiny_folder: Path, tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder would load as something else than what was saved in it; `~` is the shell's, but people write it."""
    assert (atlas.name, atlas.dtype, atlas.architecture) == ("atlas", torch.float32, "GPT2LMHeadModel")
    monkeypatch.setenv("HOME", str(tiny_folder.parent))
    for source in (tiny_folder, str(tiny_folder), "~/tiny"):
        model = fm.load(source)
        assert (model.name, model.fingerprint) == (str(source), tiny.fingerprint)
        assert model.tokenize(PROMPT) == tiny.tokenize(PROMPT)


def test_a_hugging_face_model_stays_as_it_is(tokenizer: Any, tmp_path: Path) -> None:
    """So does the tokenizer. Dropout of training mode is off in ours, and our edits are not the caller's."""
    original = build_gpt2(resid_pdrop=0.5)
    logits = original(input_ids=TOKENS).logits
    state = {name: tensor.clone() for name, tensor in original.train().state_dict().items()}
    modules = {name: id(module) for name, module in original.named_modules()}
    model = fm.load(original, tokenizer=tokenizer)
    assert torch.equal(fm.capture(model, PROMPT).ffn_out[1], fm.capture(model, PROMPT).ffn_out[1])
    with torch.no_grad():
        model.ffn[0].values[:] = 0
    assert {name: id(module) for name, module in original.named_modules()} == modules
    assert list(original.state_dict()) == list(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in original.state_dict().items())
    assert original.training
    original.save_pretrained(tmp_path)
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert torch.equal(again(input_ids=TOKENS).logits, logits)
    assert model.tokenizer is not tokenizer
    assert tokenizer.pad_token is None
    assert tokenizer.init_kwargs.get("name_or_path") is None


def test_a_bridge_is_borrowed(tiny_folder: Path, tiny: fm.Model, tokenizer: Any) -> None:
    """Its hooks and edits count, and an option that could do nothing is refused."""
    bridge = TransformerBridge.boot_transformers(str(tiny_folder), device="cpu")
    model = fm.load(bridge)
    assert model.to_bridge() is bridge
    assert model.fingerprint == tiny.fingerprint
    for layer in range(2):
        assert model.ffn[layer].values.data_ptr() == bridge.blocks[layer].mlp.W_out.data_ptr()
    assert allclose(*(fm.capture(one, PROMPT).coefficients[1] for one in (model, tiny)), 1e-6)
    for option in ({"tokenizer": tokenizer}, {"dtype": "float32"}, {"device": "cpu"}):
        with refuses(InputError, ValueError, "TransformerBridge", next(iter(option))):
            fm.load(bridge, **option)
    bridge.train()
    with refuses(InputError, ValueError, "training mode", ".eval()"):
        fm.load(bridge)
    bridge.eval()
    with torch.no_grad():
        next(bridge.original_model.parameters())[0, 0] = torch.nan
    with refuses(ModelError, ValueError, "NaN"):
        fm.load(bridge)


def test_dtype(tiny_folder: Path, tiny_hf: Any, tokenizer: Any) -> None:
    """Weights, captures or provenance would be of another type than was asked for."""
    for dtype in ("float32", "float64", "bfloat16", "float16"):
        wanted = getattr(torch, dtype)
        for model in (fm.load(tiny_folder, dtype=dtype), fm.load(tiny_hf, tokenizer=tokenizer, dtype=wanted)):
            capture = fm.capture(model, PROMPT)
            assert model.dtype == model.ffn[0].keys.dtype == capture.coefficients[1].dtype == wanted
            assert capture.provenance.dtype == dtype
    assert next(tiny_hf.parameters()).dtype == torch.float32


def test_prepend_bos_and_a_tokenizer_of_ones_own(folder: Path, tokenizer: Any) -> None:
    """The model's own convention, which GPT-NeoX does not share, and the caller's word against it."""
    ids = fm.load(folder).tokenize(PROMPT)
    assert ids[0] == 0
    assert fm.load(folder, prepend_bos=False).tokenize(PROMPT) == ids[1:]
    assert fm.load(build_gpt_neox(), tokenizer=tokenizer).prepend_bos is False
    assert fm.load(build_opt(), tokenizer=tokenizer).prepend_bos is True
    for file in folder.glob("token*"):
        file.unlink()
    assert fm.load(folder, tokenizer=tokenizer).tokenize(PROMPT) == ids


def test_loading_is_silent_and_leaves_logging_alone(tiny_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Progress bars would land in the middle of a command's data, or a user's warnings be silenced for good."""
    library = transformers.logging
    before = library.get_verbosity(), library.is_progress_bar_enabled(), logging.getLogger().level
    fm.load(tiny_folder)
    with pytest.raises(ModelError):
        fm.load(tiny_folder.parent)
    assert capfd.readouterr() == ("", "")
    assert (library.get_verbosity(), library.is_progress_bar_enabled(), logging.getLogger().level) == before


# -- what does not ----------------------------------------------------------------------------------------------------

NOWHERE: dict[Any, tuple[str, ...]] = {
    **{name: (repr(name), "atlas") for name in ("nosuchmodel", "nosuch/model")},
    "gtp2": ("no model 'gtp2' (perhaps 'gpt2' was meant)",),
    # A path would be sent to the hub as if it were a model's name.
    **{path: ("no model folder", repr(str(path))) for path in ("./nosuch", "a/b/c", "", Path("nosuch"))},
}


@pytest.mark.parametrize("source", NOWHERE, ids=repr)
def test_names_and_paths_of_nothing(source: str | Path) -> None:
    with refuses(ModelNotFoundError, FileNotFoundError, *NOWHERE[source]):
        fm.load(source)


def test_a_saved_result_is_no_model(tiny: fm.Model, tmp_path: Path) -> None:
    path = fm.attribute_paths(fm.capture(tiny, PROMPT)).save(tmp_path / "paths.zip")
    with refuses(ModelNotFoundError, FileNotFoundError, "a saved PathAttribution: PathAttribution.load("):
        fm.load(path)


def unpickle(folder: Path) -> None:
    """Its weights as a pickle: unpickling somebody's checkpoint runs their code."""
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def run_code(folder: Path) -> None:
    """Classes of its own."""
    put(folder, model_type="mine", auto_map={"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Model"})
    (folder / "mine.py").write_text("raise SystemExit('remote code ran')\n")


def put_adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "x"}))


def put_pipe(folder: Path) -> None:
    """In the place of a file: opening a pipe that nobody writes to never ends."""
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "tokenizer.json")


DAMAGED: dict[str, tuple[Callable[[Path], Any], type[Exception], tuple[str, ...]]] = {
    "weights cut": (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:-1000]), ModelError, ()),
    "weights absent": (lambda f: (f / WEIGHTS).unlink(), ModelError, ()),
    "weights pickled": (unpickle, ModelError, ("pickled", "safetensors")),
    "weights with NaN": (lambda f: change(f, **{TENSOR: torch.full((64, 16), torch.nan)}), ModelError, (TENSOR,)),
    "a tensor twice": (lambda f: change(f, **{TENSOR[12:]: torch.ones(64, 16)}), ModelError, ("same weight twice",)),
    "a layer more in the config": (lambda f: put(f, n_layer=3), ModelError, ("missing",)),
    "a layer less in the config": (lambda f: put(f, n_layer=1), ModelError, ("unexpected",)),
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
    "own code": (run_code, ModelError, ()),
    "no tokenizer": (lambda f: [file.unlink() for file in f.glob("token*")], InputError, ("tokenizer",)),
    "a pipe": (put_pipe, ModelError, ("tokenizer.json", "no ordinary file")),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_folders(folder: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download that broke off would end in a traceback, or worse, in random weights; code of a model's would run."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether to run remote code"))
    break_it, kind, says = DAMAGED[damage]
    break_it(folder)
    with refuses(kind, Exception, str(folder), *says):
        fm.load(folder)


class Odd(torch.nn.Module):
    config = transformers.GPT2Config()


@pytest.mark.parametrize(
    ("source", "options", "kind", "says"),
    [
        *(("atlas", {"dtype": dtype}, InputError, ("dtype",)) for dtype in ("int8", "float", torch.int64)),
        *(("atlas", {"device": name}, InputError, ("device", name)) for name in ("quantum", "cuda:99", "meta", "mps")),
        ("atlas", {"device": "gpu"}, InputError, ("device 'gpu' is unknown: cpu or cuda",)),
        (3, {}, InputError, ("int", "folder")),
        (torch.nn.Linear(2, 2), {}, UnsupportedModelError, ("Linear", "config")),
        (Odd(), {"tokenizer": None}, UnsupportedModelError, ("Odd", "embedding")),
        (Path(__file__), {}, ModelNotFoundError, ("give the folder",)),
        (build_gpt2(), {}, InputError, ("GPT2LMHeadModel", "tokenizer=")),
    ],
)
def test_sources_and_options_that_cannot_be(
    source: Any, options: dict[str, Any], kind: type[FfnmemError], says: tuple[str, ...], tokenizer: Any
) -> None:
    """An integer model would fail later and elsewhere; MPS lacks float64, and meta holds no numbers."""
    with refuses(kind, Exception, *says):
        fm.load(source, **{**options, **({"tokenizer": tokenizer} if "tokenizer" in options else {})})


def test_a_model_that_gives_no_numbers(tokenizer: Any) -> None:
    """Half precision overflows: all logits would be NaN."""
    original = build_gpt2()
    with torch.no_grad():
        original.transformer.wte.weight.fill_(3e4)
    with refuses(ModelError, ValueError, "NaN or infinity", "float16", "float32"):
        fm.load(original, tokenizer=tokenizer, dtype="float16")
    assert fm.load(original, tokenizer=tokenizer).dtype == torch.float32


def test_a_layer_that_overflows_on_real_tokens(tokenizer: Any) -> None:
    """Token 0 alone was tried, a pad of zeros: captures had NaN logits, and sums over paths a plausible 0.0."""
    original = build_gpt2()
    with torch.no_grad():
        original.transformer.h[1].mlp.c_proj.weight.fill_(3e4)
        original.transformer.h[1].mlp.c_proj.bias.zero_()
        original.transformer.wte.weight[0].zero_()
    with refuses(ModelError, ValueError, "from layer 1 on in float16", "float32"):
        fm.load(original, tokenizer=tokenizer, dtype="float16")
    model = fm.load(original, tokenizer=tokenizer)
    with torch.no_grad():
        model.hf_model.transformer.h[1].mlp.c_proj.weight.fill_(3e38)
    for layers in (None, [1]):
        with refuses(ModelError, ValueError, "from layer 1 on in float32"):
            fm.capture(model, PROMPT, layers=layers)


def shared_layer(model: Any) -> Any:
    model.transformer.h[1] = model.transformer.h[0]
    return model


def compiled_layer(model: Any) -> Any:
    model.transformer.h[1] = torch.compile(model.transformer.h[1], backend="eager")
    return model


class Packed(torch.Tensor):
    """As torchao's: a tensor of a kind of its own."""


def packed_weight(model: Any) -> Any:
    norm = model.transformer.ln_f
    norm.weight = torch.nn.Parameter(norm.weight.detach().as_subclass(Packed))
    return model


UNREADABLE: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "one module at two places": (shared_layer, ("layers 0 and 1", "copy.deepcopy")),
    "weights that are nowhere": (lambda model: model.to("meta"), ("transformer.wte.weight", "meta", "device_map")),
    "offloaded weights": (accelerate.cpu_offload, ("transformer.wte.weight", "offloaded", "device_map")),
    "a compiled layer": (compiled_layer, ("transformer.h.1", "torch.compile")),
    "weights of a kind of their own": (packed_weight, ("quantised", "ln_f.weight, Packed")),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_models_that_cannot_be_read(what: str, tokenizer: Any) -> None:
    """A NotImplementedError, an AttributeError or an empty AssertionError from inside a library; of a module at two
    places, the first one reported what the second did."""
    change, says = UNREADABLE[what]
    with refuses(UnsupportedModelError, ValueError, "GPT2LMHeadModel", *says):
        fm.load(change(build_gpt2()), tokenizer=tokenizer)


def test_dynamic_quantisation_is_refused(tokenizer: Any) -> None:
    """Its layers have a method where others have a weight."""
    network = build("Llama")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao is deprecated
        torch.ao.quantization.quantize_dynamic(network, {torch.nn.Linear}, dtype=torch.qint8, inplace=True)
    with refuses(UnsupportedModelError, ValueError, "quantised", "q_proj"):
        fm.load(network, tokenizer=tokenizer)


def test_a_compiled_model_is_unwrapped(tokenizer: Any, tiny: fm.Model) -> None:
    model = fm.load(torch.compile(build_gpt2(), backend="eager"), tokenizer=tokenizer)
    assert model.fingerprint == tiny.fingerprint


def test_a_version_that_was_not_tried_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers 5.24 renamed an argument, and cached passes of a bridge were wrong in silence."""
    loading.warn_of_untested_versions.cache_clear()
    monkeypatch.setattr(loading, "requires", lambda _name: ["transformers<5.25,>=5.16", "x>=9; extra == 'y'"])
    monkeypatch.setattr(loading, "version", lambda _name: "5.25.0")
    with pytest.warns(FfnmemWarning, match=r"transformers 5\.25\.0 \(tested: <5\.25,>=5\.16\)") as told:
        [fm.load("atlas") for _ in range(2)]
    assert len(told) == 1


# -- checkpoints that are not what their configs say ------------------------------------------------------------------


@pytest.mark.parametrize("name", SWEEP)
def test_every_tensor_of_every_architecture(name: str, tokenizer: Any, tmp_path: Path) -> None:
    """Dropped, renamed by a byte or cut, three at a time: random numbers would stand in place of what is missing."""
    DECODERS[name]().save_pretrained(tmp_path)
    whole = load_file(tmp_path / WEIGHTS)
    names = list({re.sub(r"\.\d+\.", ".N.", key): key for key in sorted(whole)}.values())
    for dropped, renamed, cut in zip(names, names[1:] + names[:1], names[2:] + names[:2], strict=True):
        other = renamed[:-1] + chr(ord(renamed[-1]) ^ 1)
        rest = {key: tensor for key, tensor in whole.items() if key not in (dropped, renamed)}
        write(tmp_path, {**rest, other: whole[renamed], cut: whole[cut][:-1]})
        now = [key.replace("embed_out.", "lm_head.") for key in (dropped, renamed, other, cut)]  # Pythia's of today
        says = (*now[:2], f"unexpected {now[2]}; of another shape {now[3]} [")
        with refuses(ModelError, ValueError, str(tmp_path), *(() if name in MIXTURES else says)):  # which are joined
            fm.load(tmp_path, tokenizer=tokenizer)


OLD = ("GPT-J", "Llama", "GPT-Neo", "CodeGen", "StarCoder", "Phi 2", "Falcon 7B", "MPT")
MORE = [pytest.param(name, marks=pytest.mark.exhaustive) for name in OLD]


@pytest.mark.parametrize("name", ["Pythia", "GPT-2", "Bloom", "OPT", *MORE])
def test_saved_by_old_versions_without_the_prefix_of_the_whole(name: str, tmp_path: Path) -> None:
    """The hub has many models saved without their tied unembedding, and with masks and angles."""
    model = DECODERS[name]()
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    if model.config.tie_word_embeddings:
        tensors = model.base_model.state_dict()
    for path in {match[1] for key in tensors if (match := re.match(r"(.*\.(attn|attention|self_attn))\.", key))}:
        names = ("rotary_emb.inv_freq",) if path.endswith("self_attn") else ("bias", "masked_bias", "causal_mask")
        tensors |= {f"{path}.{inside}": torch.ones(1, 1, 32, 32) for inside in names}
    write(tmp_path, tensors)
    found = read(tmp_path).state_dict()
    assert all(torch.equal(found[key], tensor) for key, tensor in model.state_dict().items())


def test_whether_an_unembedding_is_tied(tmp_path: Path) -> None:
    """The config's word counts: one of its own is missing, or Hugging Face takes another matrix without a word."""
    build_gpt2().save_pretrained(tmp_path)  # tied, so that none is stored
    put(tmp_path, tie_word_embeddings=False)
    with refuses(ModelError, ValueError, "missing lm_head.weight"):
        read(tmp_path)
    put(tmp_path, tie_word_embeddings=True)
    tensors = load_file(tmp_path / WEIGHTS)
    tied = tensors["transformer.wte.weight"]
    write(tmp_path, {**tensors, "lm_head.weight": tied.clone()})
    assert torch.equal(read(tmp_path).lm_head.weight, tied)
    write(tmp_path, {**tensors, "lm_head.weight": tied + 1})
    with pytest.warns(FfnmemWarning, match=r"tie_word_embeddings.*files hold another one"):
        assert torch.equal(read(tmp_path).lm_head.weight, tied + 1)


@pytest.fixture
def shards(tmp_path: Path, tokenizer: Any) -> Path:
    """A checkpoint in several files."""
    build_gpt2().save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    tokenizer.save_pretrained(tmp_path / "shards")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    return tmp_path / "shards"


def test_shards_are_all_there_and_once(shards: Path, tiny: fm.Model) -> None:
    """A tensor or a file is missing, a list is broken, or a weight lies in two shards."""
    assert fm.load(shards).fingerprint == tiny.fingerprint
    first, *_, last = sorted(shards.glob("*.safetensors"))
    whole, tensors = last.read_bytes(), load_file(last)
    lost = next(iter(tensors))
    save_file({name: tensor for name, tensor in tensors.items() if name != lost}, last, {"format": "pt"})
    with refuses(ModelError, ValueError, str(shards), f"missing {lost}"):
        fm.load(shards)
    save_file(tensors | {name: tensor + 1 for name, tensor in load_file(first).items()}, last, {"format": "pt"})
    with refuses(ModelError, ValueError, str(shards), "the same weight twice"):
        fm.load(shards)
    last.unlink()
    with refuses(ModelError, ValueError, str(shards), last.name):
        fm.load(shards)
    last.write_bytes(whole)
    for index in ("[]", '{"weight_map": {"a": 3}}', "{"):
        (shards / f"{WEIGHTS}.index.json").write_text(index)
        with refuses(ModelError, ValueError, str(shards)):
            fm.load(shards)


@pytest.fixture
def never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where weights would be read, or memory be taken for them."""
    from_files = loading.from_files

    def guarded(*args: Any, **options: Any) -> Any:
        assert options == {"device_map": "meta"}, "memory would have been taken"
        return from_files(*args, **options)

    monkeypatch.setattr(loading, "from_files", guarded)


@pytest.mark.usefixtures("never_read")
@pytest.mark.parametrize(
    ("name", "field", "value", "says"),
    [
        ("GPT-2", "n_inner", 10**9, "mlp.c_fc.weight [16, 64] instead of [16, 1000000000]"),
        ("GPT-2", "n_positions", 10**9, "n_positions 1000000000"),
        ("GPT-2", "n_head", 0, ""),
        ("GPT-2", "vocab_size", 10**400, ""),
        # No tensor's shape depends on this number, but tables that Hugging Face makes beside the weights do.
        ("GPT-J", "rotary_dim", 10**9, "tables"),
    ],
)
def test_absurd_sizes(tmp_path: Path, name: str, field: str, value: Any, says: str) -> None:
    """Terabytes would be asked for, or a loop run for hours, before anyone sees that the sizes are wrong."""
    DECODERS[name]().save_pretrained(tmp_path)
    put(tmp_path, **{field: value})
    with refuses(ModelError, ValueError, str(tmp_path), says[:60]):
        read(tmp_path)


# -- configs without weights ------------------------------------------------------------------------------------------


def test_configs(tmp_path: Path) -> None:
    """Weights would be asked for, or pickled ones beside the config refuse it; a model of the day be too large."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 48}), "utf-8")
    (tmp_path / "pytorch_model.bin").write_bytes(b"not opened")
    for source in (tmp_path, str(tmp_path)):
        name, config = read_config(source)
        assert (name, config.n_embd, config.n_layer) == (str(tmp_path), 48, 12)
    name, config = read_config("atlas")
    assert (name, config.n_embd, config.model_type) == ("atlas", 256, "gpt2")
    own = transformers.LlamaConfig(hidden_size=64)
    assert read_config(own) == ("llama", own)
    own._name_or_path = "org/name"
    assert read_config(own)[0] == "org/name"
    for source, kind, says in (
        (Path(__file__).parent, ModelNotFoundError, "config.json"),
        ("no-such-model", ModelNotFoundError, "atlas"),
        ({"hidden_size": 3}, ModelError, "model_type"),
        (3, InputError, "folder"),
    ):
        with refuses(kind, Exception, says):
            read_config(source)
    large = {"max_position_embeddings": 10_485_760, "rope_theta": 10**9, "num_hidden_layers": 96}
    assert read_config({"model_type": "llama", **large})[1].num_hidden_layers == 96
    for make in DECODERS.values():
        model = make()
        assert find_description(model.config) is DESCRIBED[type(model).__name__]


LARGE = "no model has more"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", ("config.json",)),
        ("[]", ("config.json", "JSON object")),
        ('{"hidden_size": 3}', ("model_type",)),
        ("[" * 100_000, ("config.json", "deeply")),
        ('{"model_type": "gpt2\udcff"}', ("config.json", "utf-8")),
        ({"model_type": "never heard of"}, ("never heard of",)),
        ({"hidden_size": None}, ("hidden_size",)),
        ({"num_hidden_layers": 10**9}, ("num_hidden_layers 1000000000", LARGE)),
        ({"text_config": {"num_heads": 10**5}}, ("num_heads", LARGE)),
        ({"n_positions": 10**8}, ("n_positions", LARGE)),
        ({"model_type": "gpt2", "num_labels": 10**9}, ("num_labels", LARGE)),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 10**9]]}, ("attention_types", LARGE)),
        ({"dtype": "x"}, ("'x'",)),
        ({"hidden_size": 16, "num_attention_heads": 0}, ("zero",)),
    ],
    ids=lambda value: str(value)[:20],
)
def test_broken_configs(content: str | dict[str, Any], says: tuple[str, ...], tmp_path: Path) -> None:
    """A traceback of many lines, or an object for each of a billion layers; in dicts and files."""
    given = content if isinstance(content, str) else {"model_type": "llama", **content}
    text = given if isinstance(given, str) else json.dumps(given)
    (tmp_path / "config.json").write_text(text, "utf-8", errors="surrogateescape")
    with refuses(ModelError, ValueError, str(tmp_path), *says):
        read_config(tmp_path)
    if isinstance(given, dict):
        with refuses(ModelError, ValueError, given["model_type"], *says):
            read_config(given)
