"""``ffnmem project``: what memories stand for, in tokens, for one, for all, and the other way round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

import ffnmem as fm

from ..core.types import Basis
from ..show.records import emit
from .options import Layer, LensName, Neurons, Output, Top, WeightsChoice, option_group

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
    token's own embedding moves the pre-activation, which says nothing about context. "project token" asks which neurons
    stand for a token.

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
