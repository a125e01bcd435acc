"""Edits as files: their factors with checksums, whole models in Hugging Face's layout, PEFT adapters."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from .._version import __version__
from ..core.checked_files import Form, HeadedTensors, write_tensors
from ..core.errors import FfnmemError, FileError, InputError, UnsupportedModelError, listed
from ..core.files import appearing, check_destination, check_new_folder, readable, user_path, write_whole
from ..core.plain_values import plain_value
from ..core.provenance import Provenance
from ..facts.fact import Fact
from ..models.configs import is_cached, locate, quiet
from ..models.hooks import listening
from ..models.layer_pass import Counterparts, network_around
from ..models.loading import open_tokenizer
from ..models.model import AGREE, HALF, Model
from ..models.turns import in_turn
from .applying import check_fits, with_edit
from .edit_record import EditedLayer, EditRecord, Record

# Edits as files: their factors as safetensors, everything else as one JSON header, each part with its checksum.

KIND, SCHEMA = "edit", 1
FACTORS = ("left", "right")
FORM = Form(KIND, SCHEMA, "edit: edit.save and ffnmem edit -o write one")


def save_edit(edit: EditRecord, path: str | Path) -> Path:
    """Write an edit; the file appears whole or not at all.

    Args:
        edit: which.
        path: of the file, ``eiffel.safetensors``.

    Returns: The path.

    Raises: FileError: it cannot be written. InputError: numbers or provenance that no file can hold.
    """
    target = check_destination(path)
    arrays = {f"{c.layer}.{name}": getattr(c, name).numpy() for c in edit.changes for name in FACTORS}
    header = {
        "kind": KIND,
        "schema": SCHEMA,
        "ffnmem": __version__,
        "method": edit.method,
        "fingerprint": edit.fingerprint,
        "facts": [fact.to_dict() for fact in edit.facts],
        "targets": list(edit.targets),
        "settings": edit.settings,
        "numbers": columns_of(edit.numbers),
        "provenance": plain_value(edit.provenance.record(), "provenance"),
        "under": list(edit.under),
        "parts": list(edit.parts),
        "warnings": list(edit.warnings),
    }
    write_tensors(target, header, arrays, allow_nan=False, ensure_ascii=False)
    return target


def load_edit(path: str | Path, kind: type[Record]) -> Record:
    """The edit in a file that :func:`save_edit` wrote, to the last bit.

    Args:
        path: of the file.
        kind: what to make of it.

    Raises: FileError: no such file, another kind of file, one of a newer ffnmem, or a damaged one.
    """
    place = user_path(path)
    file = HeadedTensors(place, FORM, f"there is no file {path}: edit.save and ffnmem edit -o write one")
    header = file.header
    layers = sorted({int(name.partition(".")[0]) for name in header["checksums"]})
    if set(file.shapes) != {f"{layer}.{name}" for layer in layers for name in FACTORS}:
        raise FileError(f"{path} is damaged: each layer has {' and '.join(FACTORS)}, not {listed(sorted(file.shapes))}")
    changed = [{name: file.array(f"{layer}.{name}") for name in FACTORS} for layer in layers]
    try:
        edit = kind(
            changes=tuple(
                EditedLayer(layer, *(torch.from_numpy(factors[name]) for name in FACTORS))
                for layer, factors in zip(layers, changed, strict=True)
            ),
            fingerprint=header["fingerprint"],
            method=header["method"],
            facts=tuple(Fact.from_dict(record) for record in header["facts"]),
            targets=tuple(header["targets"]),
            settings=header["settings"],
            numbers=frame_of(header["numbers"]),
            provenance=Provenance.of(header["provenance"]),
            under=tuple(header["under"]),
            parts=tuple(header["parts"]),
            warnings=tuple(header.get("warnings", ())),
        )
    except FfnmemError as error:
        raise FileError(f"{path} is no edit that can be read: {error}") from None
    if len(edit.parts) == 1 and edit.parts != (edit.digest,):
        raise FileError(f"{path} is damaged: its factors are not those of edit {edit.parts[0]}")
    return edit


def columns_of(frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """A table as JSON holds it: by column its kind and its values, missing ones as null, infinite ones as text."""
    return {
        str(name): {
            "kind": column.dtype.kind if column.dtype.kind in "ifb" else "O",
            "values": [None if missing(value) else plain_value(value, f"numbers.{name}") for value in column.tolist()],
        }
        for name, column in frame.items()
    }


def frame_of(columns: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """The table that :func:`columns_of` took apart."""
    kinds = {"i": "int64", "f": "float64", "b": "bool"}
    found = {}
    for name, column in columns.items():
        values, kind = column["values"], kinds.get(column["kind"])
        if kind == "float64":
            values = [math.nan if value is None else float(value) for value in values]
        found[name] = pd.Series(values, dtype=kind) if kind else pd.Series(values)
    return pd.DataFrame(found)


def missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


# Edited models for other programs: as a plain Hugging Face checkpoint, and as a PEFT adapter.

PROBE = 8  # tokens


@in_turn
def export(edit: EditRecord, model: Model, folder: str | Path) -> Path:
    """Write a model with an edit as a plain Hugging Face checkpoint, which ``transformers`` loads like any other.

    The weights written are those of ``edit.applied(model)``, bit for bit, with the other edits that the model has now.

    Args:
        edit: made for the model; applied or not, which stays as it is.
        model: which.
        folder: a new one.

    Returns: The folder, which appears whole or not at all.

    Raises:
        FileError: the folder holds something already or cannot be made. ModelError: an edit of another model.
        UnsupportedModelError: a model that its Hugging Face class, filled with its weights, does not give again.
    """
    path = check_new_folder(folder)
    with with_edit(edit, model):
        network: Any = plain_network(model)
        with appearing(path) as place, quiet():
            network.save_pretrained(place)
            plain_tokenizer(model).save_pretrained(place)
            for file in place.glob("*.safetensors"):
                readable(file)
    return path


def plain_network(model: Model) -> nn.Module:
    """A Hugging Face model of its own class around a model's weights, checked against it."""
    network: Any
    network, _ = network_around(model, model.dtype, attention="eager")
    network.tie_weights()
    generation = getattr(model.hf_model, "generation_config", None)
    if generation is not None:
        network.generation_config = copy.deepcopy(generation)
    check_same_logits(network, model)
    return network


def plain_tokenizer(model: Model) -> Any:
    """The tokenizer as it was before TransformerLens read it again so that it begins every text with its token.

    From its own files where they are at hand. A tokenizer that was only in memory is written so that it adds no token.
    """
    origin = model.tokenizer.init_kwargs.get("name_or_path") or ""
    for source in (origin, locate(model.name)[1]) if model.name else (origin,):
        if source and (Path(source).is_dir() or is_cached(source)):
            found = open_tokenizer(model.name, source, local=True)
            if found.get_vocab() == model.tokenizer.get_vocab():
                return found
    found = copy.deepcopy(model.tokenizer)
    if found.init_kwargs.get("is_local") and found.init_kwargs.get("add_bos_token"):
        # Read again from a folder that is gone: the one that loading made for a tokenizer without a folder of its own.
        # That happens only to tokenizers that do not add the token by themselves.
        found.init_kwargs.pop("add_bos_token")
        found.add_bos_token = False
    return found


def check_same_logits(network: Any, model: Model) -> None:
    """Raise UnsupportedModelError where the network is another model: a bias of its own, norms folded into weights."""
    tokens = torch.arange(min(PROBE, model.d_vocab), device=model.device).unsqueeze(0)
    final: list[Tensor] = []
    with listening(outputs=[(model.layout.final_norm, lambda out: final.append(out.detach()))]):
        model.body(tokens)
    with torch.no_grad():
        found = network(input_ids=tokens, use_cache=False).logits
    expected = model.logits_of(final[0])
    if not bool(expected.isfinite().all()):
        largest = max(float(ffn.values.detach().abs().max()) for ffn in model.ffn)
        raise InputError(
            f"{model.name} with its edits gives NaN or infinite logits in {str(model.dtype)[6:]}, where values reach "
            f"{largest:.3g}: load it in float32, where they have room, or take edits back"
        )
    off = float((found - expected).abs().max() / expected.abs().max().clamp(min=1.0))
    if not off <= AGREE.get(model.dtype, HALF):
        raise UnsupportedModelError(
            f"{model.name}: a {type(network).__name__} with its weights gives other logits (off by {off:.1g}), so it "
            "cannot be written as one: it has weights that this class does not have, hooks, or folded norms"
        )


@in_turn
def export_lora(edit: EditRecord, model: Model, folder: str | Path) -> Path:
    """Write an edit as a PEFT adapter (LoRA) on the down projections of its layers.

    ``peft.PeftModel.from_pretrained(base, folder)`` gives the logits of the edited model, up to float32's rounding.
    LoRA adds (α/r) B A to a weight: here A is ``left``, B ``rightᵀ`` and α = r, whatever each layer's rank.

    Args:
        edit: made for the model; applied or not, which stays as it is.
        model: which.
        folder: a new one.

    Returns: The folder, which appears whole or not at all.

    Raises: FileError: the folder holds something already or cannot be made. ModelError: an edit of another model.
        InputError: an edit made on top of others, or a model that has others: their sum can be exported.

    Source: Hu et al. 2021 (2106.09685), eq. 3, for LoRA; Meng et al. 2022 (2202.05262), eq. 2, for the rank-one change.
    """
    from safetensors.torch import save

    path = check_new_folder(folder)
    check_fits(edit, model)
    others = [held.title for held in model.edits if held.digest != edit.digest]
    if edit.under or others:
        what = f"made on top of {listed(edit.under, 3)}" if edit.under else f"not the only one ({listed(others, 3)})"
        raise InputError(
            f"{edit.title} is {what}: an adapter of it alone would not give this model: export the sum, first + second"
        )
    names = projection_names(model)
    tensors, ranks = {}, {}
    for change in edit.changes:
        name = names[change.layer]
        tensors[f"base_model.model.{name}.lora_A.weight"] = change.left.float()
        tensors[f"base_model.model.{name}.lora_B.weight"] = change.right.T.float().contiguous()
        ranks[name] = change.rank
    with appearing(path) as place:
        write_whole(place / "adapter_config.json", json.dumps(adapter_config(model, ranks), indent=2) + "\n")
        write_whole(place / "adapter_model.safetensors", save(tensors, {"format": "pt"}))
    return path


def projection_names(model: Model) -> list[str]:
    """By layer, the down projection's name in the Hugging Face model."""
    network, _ = network_around(model, model.dtype)
    names = Counterparts(model, network).names
    return [names[id(ffn.project_out)] for ffn in model.ffn]


def adapter_config(model: Model, ranks: dict[str, int]) -> dict[str, Any]:
    """What PEFT needs to know. Whole names select these modules alone; each has its own rank as its α."""
    rank = max(ranks.values())
    others = {name: found for name, found in ranks.items() if found != rank}
    conv1d = not isinstance(model.ffn[0].project_out, nn.Linear)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.name,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": rank,
        "rank_pattern": others,
        "alpha_pattern": others,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": conv1d,
        "target_modules": list(ranks),
    }
