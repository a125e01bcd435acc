"""A checkpoint that is not what its config says is refused: each tensor of each architecture, and each layer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning, ModelError
from ffnmem.models import loading
from ffnmem.models.architectures import DESCRIBED
from ffnmem.models.loading import read_checkpoint

from ..architectures import DECODERS, EVERY, MIXTURES
from ..helpers import build_gpt2, refuses

WEIGHTS = "model.safetensors"


def read(folder: Path) -> Any:
    return read_checkpoint(folder, torch.float32)


def write(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Put tensors in the place of those of a checkpoint."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS, {"format": "pt"})


def put(folder: Path, **fields: Any) -> None:
    """Change fields of a config."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))


# -- eight ways to be another model, of every architecture -------------------------------------------------------------


class Checkpoint:
    """What a folder holds, to be changed: its tensors, its config, and one tensor of the first layer."""

    def __init__(self, name: str, folder: Path) -> None:
        model = DECODERS[name]()
        model.save_pretrained(folder)
        self.folder = folder
        self.tensors = load_file(folder / WEIGHTS)
        self.config = json.loads((folder / "config.json").read_text())
        paths = DESCRIBED[type(model).__name__].paths
        self.blocks = f"{paths['blocks']}."
        self.prefix = self.blocks.partition(".")[0]
        self.tensor = f"{self.blocks}0.{paths['out']}.weight"
        self.mixture = name in MIXTURES  # whose tensors Hugging Face joins, and then names no more
        if self.tensor not in self.tensors:
            own = [name for name in self.tensors if "experts.0." in name]  # stored one by one, or together
            self.tensor = (own or [name for name in self.tensors if name.endswith("experts.down_proj")])[0]
        self.layers = type(model.config).attribute_map.get("num_hidden_layers", "num_hidden_layers")
        assert self.config[self.layers] == 2

    def set_layers(self, layers: int) -> None:
        """Have the config ask for another number of layers."""
        for key in ("layer_types", "attention_layers", "no_rope_layers"):
            if self.config.get(key):
                self.config[key] = (self.config[key] * 2)[:layers]
        if "attention_types" in self.config:
            self.config["attention_types"] = [[["global"], layers]]
        self.config[self.layers] = layers

    def refuse(self, tokenizer: Any, *named: str) -> None:
        """Write it, and see that it is refused in one line."""
        write(self.folder, self.tensors)
        (self.folder / "config.json").write_text(json.dumps(self.config))
        with refuses(ModelError, ValueError, str(self.folder), *(() if self.mixture else named)):
            fm.load(self.folder, tokenizer=tokenizer)


def rename(c: Checkpoint) -> None:
    c.tensors[f"{c.tensor[:-1]}T"] = c.tensors.pop(c.tensor)


def store_twice(c: Checkpoint) -> None:
    c.tensors[c.tensor.removeprefix(f"{c.prefix}.")] = c.tensors[c.tensor] + 1


def drop_layer(c: Checkpoint) -> None:
    c.tensors = {name: tensor for name, tensor in c.tensors.items() if not name.startswith(f"{c.blocks}1.")}


CASES: dict[str, tuple[Callable[[Checkpoint], Any], str]] = {
    "a tensor missing": (lambda c: c.tensors.pop(c.tensor), "missing {0}"),
    "a tensor renamed": (rename, "missing {0}; unexpected {1}T"),
    "a tensor cut": (lambda c: c.tensors.update({c.tensor: c.tensors[c.tensor][:-1]}), "of another shape {0} ["),
    "a tensor too many": (lambda c: c.tensors.update({f"{c.tensor}s": torch.ones(3)}), "unexpected {0}s"),
    "a tensor twice": (store_twice, "the same weight twice"),
    "a layer missing": (drop_layer, "missing"),
    "a layer more in the config": (lambda c: c.set_layers(3), "missing"),
    "a layer less in the config": (lambda c: c.set_layers(1), "unexpected"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", EVERY)
def test_every_architecture_in_eight_ways(name: str, case: str, tokenizer: Any, tmp_path: Path) -> None:
    """Random numbers would stand in place of what is missing, and what is too many be dropped, without a word."""
    checkpoint = Checkpoint(name, tmp_path)
    damage, says = CASES[case]
    damage(checkpoint)
    checkpoint.refuse(tokenizer, says.format(checkpoint.tensor, checkpoint.tensor[:-1]))


@pytest.mark.parametrize("name", EVERY)
def test_every_tensor_of_every_architecture(name: str, tokenizer: Any, tmp_path: Path) -> None:
    """Dropped, renamed by a byte or cut short, three of them at a time, one of each name, whatever its layer."""
    checkpoint = Checkpoint(name, tmp_path)
    whole = checkpoint.tensors
    names = list({re.sub(r"\.\d+\.", ".N.", key): key for key in sorted(whole)}.values())
    for dropped, renamed, cut in zip(names, names[1:] + names[:1], names[2:] + names[:2], strict=True):
        other = renamed[:-1] + chr(ord(renamed[-1]) ^ 1)
        rest = {key: tensor for key, tensor in whole.items() if key not in (dropped, renamed)}
        checkpoint.tensors = {**rest, other: whole[renamed], cut: whole[cut][:-1]}
        now = [key.replace("embed_out.", "lm_head.") for key in (dropped, renamed, other, cut)]  # Pythia's of today
        checkpoint.refuse(tokenizer, *now[:2], f"unexpected {now[2]}; of another shape {now[3]} [")


# -- what is rightly absent or beside ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GPT-2", "GPT-Neo", "StarCoder", "OPT", "Bloom", "Falcon 7B", "MPT", "Gemma"])
def test_saved_from_the_model_without_its_unembedding(name: str, tmp_path: Path) -> None:
    """Tied unembeddings are not stored, and the hub has many models saved without the prefix of the whole; GPT-2, which
    everyone tries first, with the masks of an old version besides."""
    model = DECODERS[name]()
    model.save_pretrained(tmp_path)
    old = {f"h.{i}.attn.{mask}": torch.ones(1, 1, 32, 32) for i in range(2) for mask in ("bias", "masked_bias")}
    write(tmp_path, model.base_model.state_dict() | (old if name == "GPT-2" else {}))
    found = read(tmp_path).state_dict()
    assert all(torch.equal(found[key], tensor) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", ["GPT-2", "GPT-Neo", "GPT-J", "CodeGen", "Pythia", "Llama", "Phi 2", "Falcon 7B"])
def test_masks_and_angles_of_old_versions(name: str, tmp_path: Path) -> None:
    """Pythia, GPT-J and others on the hub have them: what is computed was once saved too."""
    model = DECODERS[name]()
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    attentions = {match[1] for key in tensors if (match := re.match(r"(.*\.(attn|attention|self_attn))\.", key))}
    assert attentions or name == "Falcon 7B"
    for path in attentions:
        names = ("rotary_emb.inv_freq",) if path.endswith("self_attn") else ("bias", "masked_bias", "causal_mask")
        for inside in names:
            tensors[f"{path}.{inside}"] = torch.ones(1, 1, 32, 32)
    write(tmp_path, tensors)
    found = read(tmp_path).state_dict()
    assert all(torch.equal(found[key], tensor) for key, tensor in model.state_dict().items())


def test_an_unembedding_that_is_not_tied(tmp_path: Path) -> None:
    """The config's word counts: a model whose unembedding is its own has lost it."""
    build_gpt2().save_pretrained(tmp_path)  # tied, so that none is stored
    put(tmp_path, tie_word_embeddings=False)
    with refuses(ModelError, ValueError, "missing lm_head.weight"):
        read(tmp_path)


def test_an_unembedding_beside_one_that_is_tied(tmp_path: Path) -> None:
    """Hugging Face takes the other matrix without a word, and the config says that there is none."""
    build_gpt2().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    tied = tensors["transformer.wte.weight"]
    write(tmp_path, {**tensors, "lm_head.weight": tied.clone()})
    assert torch.equal(read(tmp_path).lm_head.weight, tied)
    write(tmp_path, {**tensors, "lm_head.weight": tied + 1})
    with pytest.warns(FfnmemWarning, match=r"tie_word_embeddings.*files hold another one"):
        assert torch.equal(read(tmp_path).lm_head.weight, tied + 1)


# -- shards -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path: Path, tokenizer: Any) -> Path:
    """A checkpoint in several files."""
    build_gpt2().save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    tokenizer.save_pretrained(tmp_path / "shards")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    return tmp_path / "shards"


def test_shards(shards: Path, tiny: fm.Model) -> None:
    assert fm.load(shards).fingerprint == tiny.fingerprint


def test_shards_that_lack_something(shards: Path) -> None:
    """A file that was not copied, a tensor that its file does not have, a list that names another file."""
    last = sorted(shards.glob("*.safetensors"))[-1]
    tensors = load_file(last)
    lost = next(iter(tensors))
    save_file({name: tensor for name, tensor in tensors.items() if name != lost}, last, {"format": "pt"})
    with refuses(ModelError, ValueError, str(shards), f"missing {lost}"):
        fm.load(shards)
    last.unlink()
    with refuses(ModelError, ValueError, str(shards), last.name):
        fm.load(shards)


def test_a_weight_in_two_shards(shards: Path) -> None:
    """The later shard's would be taken in silence."""
    first, *_, last = sorted(shards.glob("*.safetensors"))
    twice = {name: tensor + 1 for name, tensor in load_file(first).items()}
    save_file({**load_file(last), **twice}, last, {"format": "pt"})
    with refuses(ModelError, ValueError, str(shards), "the same weight twice"):
        fm.load(shards)


@pytest.mark.parametrize("index", ["[]", '{"weight_map": {"a": 3}}', "{"])
def test_a_list_of_shards_that_is_none(shards: Path, index: str) -> None:
    (shards / f"{WEIGHTS}.index.json").write_text(index)
    with refuses(ModelError, ValueError, str(shards)):
        fm.load(shards)


# -- sizes out of range -----------------------------------------------------------------------------------------------


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
    ("field", "value", "named"),
    [
        ("n_embd", 10**9, ""),
        ("n_inner", 10**9, "mlp.c_fc.weight [16, 64] instead of [16, 1000000000]"),
        ("n_positions", 10**7, "wpe.weight"),
        ("n_positions", 10**9, "n_positions 1000000000"),
        ("n_layer", 10**9, "n_layer 1000000000"),
        ("n_head", 0, ""),
        ("n_embd", -16, ""),
        ("n_embd", None, ""),
        ("vocab_size", 10**400, ""),
    ],
)
def test_absurd_sizes(folder: Path, field: str, value: Any, named: str) -> None:
    """Terabytes would be asked for, or a loop run for hours, before anyone sees that the sizes are wrong."""
    put(folder, **{field: value})
    with refuses(ModelError, ValueError, str(folder), named[:60]):
        read(folder)


@pytest.mark.usefixtures("never_read")
@pytest.mark.parametrize("name", ["GPT-J", "CodeGen"])
def test_absurd_tables(name: str, tmp_path: Path) -> None:
    """No tensor's shape depends on this number, but tables that Hugging Face makes beside the weights do."""
    DECODERS[name]().save_pretrained(tmp_path)
    put(tmp_path, rotary_dim=10**9)
    with refuses(ModelError, ValueError, str(tmp_path), "tables", "GiB", "embed_positions"):
        read(tmp_path)
