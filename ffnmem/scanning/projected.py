"""What the neurons of a store write, in tokens: its table where it has one, else the answer of the model scanned."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..core.checked_files import Form, open_parquet, parsed, reading
from ..core.errors import FfnmemError, FileError, InputError, ModelError
from ..core.progress import Progress
from ..core.types import Basis
from ..models.loading import load
from ..models.model import Model
from ..vocabulary.lenses import JacobianLens, Lens, describe_lens, load_lens
from ..vocabulary.projections import COLUMNS, Projector, choose_neurons, plain_frame, project_blocks
from ..vocabulary.vectors import SIDES
from .tables import write_row_groups

# The two keys of gated neurons are read in tokens beside their values; a classic one's key is a question to the model.

SCHEMA_VERSION = 2
METADATA = b"ffnmem.projection"
FORM = Form("", SCHEMA_VERSION, "table of what neurons write")
ORDER = ["rank", "_strength", "layer", "neuron", "side", "sign"]
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
    sides, k = sides_kept(model.gated), min(PROMOTED, model.d_vocab)
    provenance = model.provenance(basis=BASIS, lens=describe_lens(None)).to_dict()
    about = json.dumps({"schema": SCHEMA_VERSION, "k": k, "sides": sides, "provenance": provenance})
    tables = project_blocks(model, choose_neurons(model, None, None), sides, BASIS, None, k, "auto", progress)
    coded = [name for name in COLUMNS if name not in ("token_id", "score")]  # hardly any of these come twice
    write_row_groups(path, tables, coded, {METADATA: about.encode()}, write_page_checksum=True, store_schema=True)


@contextmanager
def stored(path: Path) -> Iterator[tuple[pq.ParquetFile, dict[str, Any]]]:
    """An open table and what it says about itself; raises FileError for any other file, and for a broken one.

    What is read from it stands in a block of :func:`.checked_files.reading`.
    """
    with open_parquet(path) as file:
        metadata = file.schema_arrow.metadata or {}
        if METADATA not in metadata or tuple(file.schema_arrow.names) != COLUMNS:
            raise FORM.none(path)
        yield file, FORM.fit(path, parsed(path, metadata[METADATA]))


def search_values(path: Path, text: str, limit: int) -> pd.DataFrame:
    """The rows of a table whose token contains a text, upper and lower case alike: at most ``limit``, best rank first,
    of equal ranks the largest \\|score\\|. Raises FileError."""
    found = []
    with stored(path) as (file, about):
        for group in range(file.num_row_groups):
            with reading(path):
                part = file.read_row_group(group)
            tokens = part["token"].combine_chunks()  # asked once a word
            mask = pc.take(pc.match_substring(tokens.dictionary, text, ignore_case=True), tokens.indices)
            found.append(part.filter(mask))
    frame = plain_frame(pa.concat_tables(found).unify_dictionaries(), about["provenance"])
    ordered = frame.assign(_strength=-frame["score"].abs()).sort_values(ORDER, kind="stable", ignore_index=True)
    result = ordered.drop(columns="_strength").head(limit)
    result.attrs = frame.attrs
    return result


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
