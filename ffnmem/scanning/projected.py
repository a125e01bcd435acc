"""What the neurons of a store write, in tokens: its table where it has one, else the answer of the model scanned."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ..core.errors import FfnmemError, FileError, InputError, ModelError
from ..core.progress import Progress
from ..core.types import Basis
from ..models.loading import load
from ..models.model import Model
from ..vocabulary.lenses import JacobianLens, Lens, load_lens
from ..vocabulary.projections import Projector, project, stored
from ..vocabulary.vectors import SIDES

# The two keys of gated neurons are read in tokens beside their values; a classic one's key is a question to the model.

PROMOTED = 10  # tokens a side kept of each value
BASIS: Basis = "folded"
AT_ONCE = 10**11
"""Multiplications up to which the model is asked without being told to: a second or two on one core.

A scan ends with the projection of all neurons where that takes no more: ``atlas`` takes 10¹⁰, GPT-2 small 1.4 × 10¹²,
SmolLM2-135M 3.9 × 10¹². A notebook shades a card: one of ``atlas`` takes 2 to 9 × 10⁹, of SmolLM2-135M's layer 20
3 × 10¹¹.
"""


def sides_kept(gated: bool) -> list[str]:
    """The sides of a neuron that a store tells in tokens."""
    return list(SIDES) if gated else ["value"]


def is_quick(model: Model) -> bool:
    """Whether all neurons are projected in about a second: neurons × sides × vocabulary × d_model is at most 10¹¹."""
    neurons = sum(ffn.d_mlp for ffn in model.ffn)
    return neurons * len(sides_kept(model.gated)) * model.d_vocab * model.d_model <= AT_ONCE


def write_values(model: Model, path: Path, progress: Progress | None = None) -> None:
    """The table of all neurons of a model, into a file that appears whole or not at all. Raises FileError."""
    project(model, k=PROMOTED, basis=BASIS, side=sides_kept(model.gated), out=path, progress=progress)


def is_table_of(path: Path, manifest: Mapping[str, Any]) -> bool:
    """Whether a file is the whole table of the model that a manifest names, by its sealed footer; where it is another
    or damaged, it can be made again."""
    if not path.is_file():
        return False
    sides = sides_kept(bool(manifest.get("gated", False)))
    try:
        with stored(path) as (file, about):
            k = about.get("k")
            rows = sum(manifest["d_mlp"]) * len(sides) * 2 * (k if isinstance(k, int) else 0)
            provenance = about["provenance"]
            found = (provenance.get("fingerprint"), provenance.get("basis"), about.get("sides"))
            return found == (manifest["fingerprint"], BASIS, sides) and 0 < rows == file.metadata.num_rows
    except FileError:
        return False


class Source:
    """The model of a store. ``held``: the one given, or loaded by its name when it is first needed."""

    def __init__(self) -> None:
        self.held: Model | None = None
        self.failed: FfnmemError | None = None
        self.projector: Projector | None = None
        self.through: tuple[Model, Lens, JacobianLens | None] | None = None

    def read(self, folder: Path, manifest: Mapping[str, Any]) -> Model:
        """The model as it was scanned; raises ModelError where it cannot be loaded by its name, InputError where what
        has that name now is another one."""
        if self.held is not None and self.held.fingerprint == manifest["fingerprint"]:
            return self.held
        if self.failed is not None:  # a page of cards would ask for it again with each
            raise self.failed
        provenance = manifest["provenance"]
        try:
            model = load(manifest["model"], dtype=provenance["dtype"], prepend_bos=provenance.get("prepend_bos"))
            check_scanned(model, folder, manifest)
        except FfnmemError as error:
            self.failed = error
            raise
        self.held = model
        return model

    def project(self, model: Model, layer: int, neuron: int, lens: JacobianLens | None = None) -> pd.DataFrame:
        """One neuron of a model that was read, as the table has it; its value alone through a Jacobian lens."""
        held = self.projector
        if held is None or held.model is not model or held.lens is not lens:
            sides = sides_kept(model.gated) if lens is None else ["value"]
            held = self.projector = Projector(model, sides, BASIS, min(PROMOTED, model.d_vocab), lens=lens)
        return held.table(layer, [neuron], *held.ends(layer, [neuron])).to_pandas()

    def lens(self, model: Model, lens: Lens) -> JacobianLens | None:
        """A lens by its name, found once: a page of cards asks for it with each. Raises as :func:`load_lens`."""
        if self.through is None or self.through[0] is not model or self.through[1] != lens:
            self.through = (model, lens, load_lens(model, lens))
        return self.through[2]


def check_scanned(model: Model, folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raise InputError if a store is of another model, or of other weights."""
    if model.fingerprint != manifest["fingerprint"]:
        raise InputError(
            f"{folder} is a store of {manifest['model']} {manifest['fingerprint']}, not of {model.name} "
            f"{model.fingerprint}: load the store's model (--model {manifest['model']})"
        )


def lacking(what: str, folder: Path, manifest: Mapping[str, Any], error: FfnmemError) -> ModelError:
    """What is said where ``what`` is asked for that takes the model, which is not there."""
    return ModelError(
        f"{what} need the model {manifest['model']}, which is not at hand ({error}): "
        f"open_store(folder, model=…), or ffnmem neuron … --store {shlex.quote(str(folder))} --model MODEL"
    )
