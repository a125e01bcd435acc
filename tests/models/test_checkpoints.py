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


# -- ways to be another model ------------------------------------------------------------------------------------------


class Checkpoint:
    """What a folder holds, to be changed: its tensors, its config, and one tensor of the first layer."""

    def __init__(self, name: str, folder: Path) -> None:
        model = DECODERS[name]()
        model.save_pretrained(folder)
        self.folder, self.tensors = folder, load_file(folder / WEIGHTS)
        self.config = json.loads((folder / "config.json").read_text())
        paths = DESCRIBED[type(model).__name__].paths
        self.blocks = f"{paths['blocks']}."
        self.prefix = self.blocks.partition(".")[0]
        self.tensor = f"{self.blocks}0.{paths['out']}.weight"
        self.mixture = name in MIXTURES  # whose tensors Hugging Face joins, and then names no more

    def refuse(self, tokenizer: Any, *says: str) -> None:
        """Write it, and see that it is refused in one line."""
        write(self.folder, self.tensors)
        (self.folder / "config.json").write_text(json.dumps(self.config))
        with refuses(ModelError, ValueError, str(self.folder), *(() if self.mixture else says)):
            fm.load(self.folder, tokenizer=tokenizer)


def store_twice(c: Checkpoint) -> None:
    c.tensors[c.tensor.removeprefix(f"{c.prefix}.")] = c.tensors[c.tensor] + 1


def drop_layer(c: Checkpoint) -> None:
    c.tensors = {name: tensor for name, tensor in c.tensors.items() if not name.startswith(f"{c.blocks}1.")}


CASES: dict[str, tuple[Callable[[Checkpoint], Any], str]] = {
    "a tensor missing": (lambda c: c.tensors.pop(c.tensor), "missing {0}"),
    "a tensor too many": (lambda c: c.tensors.update({f"{c.tensor}s": torch.ones(3)}), "unexpected {0}s"),
    "a tensor twice": (store_twice, "the same weight twice"),
    "a layer missing": (drop_layer, "missing"),
    "a layer more in the config": (lambda c: c.config.update(n_layer=3), "missing"),
    "a layer less in the config": (lambda c: c.config.update(n_layer=1), "unexpected"),
}


@pytest.mark.parametrize("case", CASES)
def test_another_model_than_the_config_says(case: str, tokenizer: Any, tmp_path: Path) -> None:
    """Random numbers would stand in place of what is missing, and what is too many be dropped, without a word."""
    checkpoint = Checkpoint("GPT-2", tmp_path)
    damage, says = CASES[case]
    damage(checkpoint)
    checkpoint.refuse(tokenizer, says.format(checkpoint.tensor))


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


OLD = (
    "Pythia",
    "GPT-2",
    "Bloom",
    "OPT",
    "GPT-J",
    "Llama",
    "GPT-Neo",
    "CodeGen",
    "StarCoder",
    "Phi 2",
    "Falcon 7B",
    "MPT",
)


@pytest.mark.parametrize("name", [*OLD[:4], *(pytest.param(name, marks=pytest.mark.exhaustive) for name in OLD[4:])])
def test_saved_by_old_versions_without_the_prefix_of_the_whole(name: str, tmp_path: Path) -> None:
    """Many models on the hub are saved from the model without its unembedding, where that is tied, and with the masks
    and angles that were once saved, too."""
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


# -- shards -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path: Path, tokenizer: Any) -> Path:
    """A checkpoint in several files."""
    build_gpt2().save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    tokenizer.save_pretrained(tmp_path / "shards")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    return tmp_path / "shards"


def test_shards_are_all_there_and_once(shards: Path, tiny: fm.Model) -> None:
    """A tensor that its file does not have, a file that was not copied, a list that names another file; of a weight in
    two shards, the later one's would be taken in silence."""
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
