"""``ffnmem roles``: what part each neuron plays."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

import ffnmem as fm

from ..core.defaults import SEQUENCES_READ
from ..core.errors import InputError
from ..core.types import ROLE_NAMES, TEXT_ROLES
from ..show.records import emit
from . import click_options as options
from .click_guard import Command
from .click_options import BASES, COUNT, ModelChoice, argument, option
from .figures import save_axes
from .progress import Progress


@click.command(cls=Command, short_help="What part each neuron plays: prediction, position, entropy, …")
@argument("store", required=False)
@option("--layer", type=options.LAYER, metavar="LAYER", help="Only this layer; -1 is the last.  [default: all]")
@option(
    "--role", type=click.Choice(ROLE_NAMES), metavar="ROLE", help=f"Only neurons of this role: {', '.join(ROLE_NAMES)}."
)
@options.top("How many of the clearest neurons of each role to list.", default=3)
@option(
    "--basis",
    type=click.Choice(BASES),
    default="folded",
    metavar="BASIS",
    help="folded, as the papers process the weights, or raw.",
)
@option(
    "--sequences",
    type=COUNT,
    default=SEQUENCES_READ,
    metavar="N",
    help="How many sequences of the store's text to read.",
)
@options.seed("Of the choice of sequences.")
@options.plot("the share of each role by layer")
@options.model
@options.output
def roles(
    store: str | None,
    layer: int | None,
    role: str | None,
    top: int,
    basis: str,
    sequences: int,
    seed: int,
    plot: Path | None,
    choice: ModelChoice,
    form: str,
) -> None:
    """Say what part each neuron of a model plays, by the rules of the papers.

    From weights: prediction and suppression neurons raise and lower a small set of tokens (kurtosis and skew of the
    cosines between value and vocabulary), partition neurons split the vocabulary (their variance), entropy neurons
    write where no logit moves; strengthening and weakening neurons write along, or against, what they read
    (ffnmem geometry has the finer classes of gated neurons). With STORE, a scan of the model, also: dead, position,
    token-frequency and token-detector neurons (a gated neuron fires where its gate is open), and of gated neurons the
    sign and the size of what they write, which weights can only guess. A neuron counts for every role that applies to
    it; the help of fm.roles has every rule and its source.

    \b
    Examples
      ffnmem roles
      ffnmem roles runs/atlas --plot roles.png
      ffnmem roles --layer -1 --role partition --top 20 --json

    --json has the counts by layer (applies: of every role that applies, as the table; layers: of a neuron's first role
    alone), the clearest neurons of each role, the thresholds and the provenance. --csv has one row a neuron with all
    roles and statistics; with --role only those of that role, the clearest first.
    """
    from ..neurons.role_assignment import clearest, roles_dict, roles_sheet, strongest  # these need torch
    from ..vocabulary.projections import promoted_tokens

    if role in TEXT_ROLES and store is None:
        raise InputError(f"--role {role} needs text: give a store of the model, ffnmem roles STORE --role {role}")
    scanned = None if store is None else fm.open_store(store)
    model = choice.load()
    with Progress() as bars:
        frame = fm.roles(
            model, scanned, layer=layer, basis=basis, n_sequences=sequences, seed=seed, progress=bars.report
        )
    listed = clearest(frame, role, top)
    emit(
        None,
        form,
        sheet=lambda: roles_sheet(frame, listed, promoted_tokens(model, listed[["layer", "neuron"]].drop_duplicates())),
        data=lambda: roles_dict(frame, listed),
        frame=lambda: frame if role is None else strongest(frame, role, len(frame)),
    )
    if plot is not None:
        save_axes([partial(fm.plots.roles, frame)], plot)
