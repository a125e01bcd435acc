"""``ffnmem project``: what memories stand for, in tokens, for one, for all, and the other way round."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

import ffnmem as fm

from ..core.types import Basis
from ..show.records import emit
from .options import Layer, LensName, Neurons, Output, TableFile, Top, WeightsChoice, option_group
from .progress import show_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from ..core.sheets import Sheet

Side = Annotated[
    Literal["both", "value", "key", "gate"],
    Parameter(
        help="The value (what the neuron writes), the key (what excites it), the gate (what lets it fire, if gated), "
        "or both: all that it has."
    ),
]

project = App(name="project")


@option_group
class Reading:
    """How vectors are read in tokens.

    Attributes:
        basis: folded: with the gain of the norm between; raw: the bare product with the (un)embedding.
    """

    basis: Basis = "folded"
    lens: LensName = "logit"


@project.default
def project_neurons(
    neurons: Neurons,
    /,
    *,
    side: Side = "both",
    reading: Reading = Reading(),
    top: Top = 10,
    model: WeightsChoice = WeightsChoice(),
    output: Output = Output(),
) -> None:
    """What memories write, and what excites them, in tokens.

    Names the tokens that a neuron's value promotes and suppresses, and those that excite and inhibit its key. A value's
    score is what a coefficient of 1 adds to the token's logit, before the final norm's scale. A key's score is how the
    token's own embedding moves the pre-activation, which says nothing about context. "project all" writes those of a
    whole model to a file, "project search" finds words in it, and "project token" asks which neurons stand for a token.

    Layers in between change what a value comes to say: --lens jacobian reads it as it arrives, which is what counts
    below mid-depth. That is for values alone.

    Examples
      ffnmem project 5.349
      ffnmem project 5.349,5.171 1.786 --side value --top 5
      ffnmem project 0.7 --basis raw --json
      ffnmem project 1.786 --lens jacobian

    --json and --csv have layer, neuron, side, sign, rank, token, token_id, score, basis, lens.
    """
    from ..vocabulary.projections import projection_sheet  # needs torch

    found = fm.project(model.load(), neurons, k=top, side=sides_of(side), **vars(reading))
    emit_table(found, "tokens", projection_sheet, output)


@project.command
def token(
    tokens: list[str],
    /,
    *,
    first_token: bool = False,
    layer: Layer | None = None,
    side: Side = "value",
    reading: Reading = Reading(),
    top: Top = 10,
    model: WeightsChoice = WeightsChoice(),
    output: Output = Output(),
) -> None:
    """The neurons that most promote and suppress a token.

    Of several tokens, on average over them. A token has its leading space: " Paris".

    Examples
      ffnmem project token " Paris" " London"

    --json and --csv have layer, neuron, side, sign, basis, lens, rank, score, and the token's columns last.

    Args:
        tokens: The tokens.
        first_token: Take the first token of a text of several instead of refusing.
        layer: Only neurons of this layer.
    """
    from ..vocabulary.projections import promoters_sheet  # needs torch

    found = fm.vocabulary.promoters(
        model.load(), tokens, layer=layer, first_token=first_token, k=top, side=sides_of(side), **vars(reading)
    )
    emit_table(found, "neurons", promoters_sheet, output)


@project.command
def search(
    text: str,
    /,
    *,
    source: Annotated[str, Parameter(name="--in", metavar="FILE")],
    exact: bool = False,
    side: Side = "both",
    top: Top = 10,
    output: Output = Output(),
) -> None:
    """Find tokens in a file that "project all" wrote.

    Examples
      ffnmem project search paris --in values.parquet

    --json and --csv have layer, neuron, side, sign, rank, token, token_id, score, basis, lens.

    Args:
        text: Part of a token, in any case.
        source: The file.
        exact: The whole token, in this case, with its leading space.
    """
    from ..vocabulary.projections import hits_sheet  # needs torch

    one_side = None if side == "both" else side
    found = fm.vocabulary.search_projection(source, text, side=one_side, exact=exact, limit=top)
    emit_table(found, "tokens", hits_sheet, output)


@project.command(name="all")
def project_all(
    *,
    out: Annotated[TableFile, Parameter(alias="-o")],
    layer: Layer | None = None,
    side: Side = "both",
    reading: Reading = Reading(),
    top: Top = 10,
    model: WeightsChoice = WeightsChoice(),
    output: Output = Output(),
) -> None:
    """Write the tokens of all neurons into a Parquet file.

    Examples
      ffnmem project all --out values.parquet --side value --top 20

    --json and --csv have file, neurons, rows, bytes.

    Args:
        out: The Parquet file.
        layer: Only neurons of this layer.
    """
    import pandas as pd

    from ..core.sheets import Origin, Sheet, Words
    from ..vocabulary.lenses import describe_lens
    from ..vocabulary.vectors import check_sides

    began, loaded, sides = time.monotonic(), model.load(), sides_of(side)
    lens = fm.vocabulary.load_lens(loaded, reading.lens)
    with show_progress() as report:
        path = fm.project(
            loaded, layer, k=top, side=sides, basis=reading.basis, lens=lens or reading.lens, out=out, progress=report
        )
    neurons = sum(loaded.widths) if layer is None else loaded.ffn[loaded.layer(layer)].d_mlp
    names = check_sides(sides, loaded, lens)
    rows, size = neurons * len(names) * 2 * min(top, loaded.d_vocab), path.stat().st_size
    summary = {"file": str(path), "neurons": neurons, "rows": rows, "bytes": size}
    provenance = loaded.provenance(basis=reading.basis, lens=describe_lens(lens)).to_dict()
    words = (
        f"{neurons:,} neurons, {' and '.join(names)}, {top} + {top} tokens: {rows:,} rows, {size / 1e6:,.1f} MB, "
        f"{time.monotonic() - began:.1f} s"
    )
    emit(
        pd.DataFrame([summary]),
        output.form,
        sheet=lambda: Sheet.of(Words.of(str(path), to_copy=True), Words.of(words), Origin(provenance)),
        data=lambda: {**summary, "provenance": provenance},
    )


def sides_of(side: Side) -> tuple[Any, ...] | None:
    """The library's argument: None for all that a neuron has."""
    return None if side == "both" else (side,)


def emit_table(found: pd.DataFrame, name: str, sheet: Callable[[pd.DataFrame], Sheet], output: Output) -> None:
    """A bare table under a name."""
    emit(
        found,
        output.form,
        sheet=lambda: sheet(found),
        data=lambda: {name: found.to_dict("records"), "provenance": found.attrs["provenance"]},
    )
