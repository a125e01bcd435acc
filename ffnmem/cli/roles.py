"""``ffnmem roles``: what part each neuron plays."""

from __future__ import annotations

from functools import partial

import ffnmem as fm

from ..core.defaults import SEQUENCES_READ
from ..core.errors import InputError
from ..core.types import TEXT_ROLES, Basis, RoleName
from ..show.records import emit
from .figures import save_axes
from .options import Count, Layer, Output, Plot, Seed, StoreFolder, Top, WeightsChoice
from .progress import show_progress


def roles(
    *,
    store: StoreFolder | None = None,
    layer: Layer | None = None,
    role: RoleName | None = None,
    top: Top = 3,
    basis: Basis = "folded",
    sequences: Count = SEQUENCES_READ,
    seed: Seed = 0,
    plot: Plot | None = None,
    model: WeightsChoice = WeightsChoice(),
    output: Output = Output(),
) -> None:
    """What part each neuron plays: prediction, position, entropy, …

    Assigns roles by the rules of the papers. From weights: prediction and suppression neurons raise and lower a small
    set of tokens (kurtosis and skew of the cosines between value and vocabulary), partition neurons split the
    vocabulary (their variance), entropy neurons write where no logit moves; strengthening and weakening neurons write
    along, or against, what they read (ffnmem geometry has the finer classes of gated neurons). With --store, a scan of
    the model, also: dead, position, token-frequency and token-detector neurons (a gated neuron fires where its gate is
    open), and of gated neurons the sign and the size of what they write, which weights can only guess. A neuron counts
    for every role that applies to it; the help of fm.roles has every rule and its source.

    Examples
      ffnmem roles
      ffnmem roles --store runs/atlas --plot roles.png
      ffnmem roles --layer -1 --role partition --top 20 --json

    --json has the counts by layer (applies: of every role that applies, as the table; layers: of a neuron's first role
    alone), the clearest neurons of each role, the thresholds and the provenance. --csv has one row a neuron with all
    roles and statistics; with --role only those of that role, the clearest first.

    Args:
        store: A scan of the model, for the roles that need text.
        layer: Only this layer; -1 is the last. [default: all]
        role: Only neurons of this role.
        basis: folded, as the papers process the weights, or raw.
        sequences: How many sequences of the store's text to read.
    """
    from ..neurons.role_assignment import clearest, roles_dict, roles_sheet, strongest  # these need torch
    from ..vocabulary.projections import promoted_tokens

    if role in TEXT_ROLES and store is None:
        raise InputError(f"--role {role} needs text: give --store DIR, a scan of the model")
    scanned = None if store is None else fm.open_store(store)
    loaded = model.load()
    with show_progress() as report:
        frame = fm.roles(loaded, scanned, layer=layer, basis=basis, n_sequences=sequences, seed=seed, progress=report)
    listed = clearest(frame, role, top)
    places = listed[["layer", "neuron"]].drop_duplicates()
    emit(
        frame if role is None else strongest(frame, role, len(frame)),
        output.form,
        sheet=lambda: roles_sheet(frame, listed, promoted_tokens(loaded, places)),
        data=lambda: roles_dict(frame, listed),
    )
    if plot is not None:
        save_axes([partial(fm.plots.roles, frame)], plot)
