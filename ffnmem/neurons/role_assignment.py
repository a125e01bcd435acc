"""``roles``: what part each neuron plays, by the papers' rules, from its weights and from when it fires."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import numpy as np
import pandas as pd
from jaxtyping import Float64

from ..core.defaults import SEQUENCES_READ
from ..core.errors import InputError, check_count, quoted
from ..core.neuron_names import LayerName
from ..core.progress import Progress
from ..core.sheets import Column, Origin, Promoted, Sheet, Table, promoted_column, rows
from ..core.types import Basis, Count, Number, Range, Seed, checked
from ..models.model import Model
from ..prompts.means import over_all_tokens
from ..scanning.store import Store
from .counting import FiringCounts, count_firings, position_information, token_detection
from .overlap import memory_sides, neuron_cosines, side_rows
from .unembedding import (
    cosine_moments,
    null_dimension,
    null_space,
    read_unembedding,
    read_values,
    variance_null,
)

# The rules: statistics and thresholds become roles, and nothing is measured here.

LATE, LONG, FLAT = 2, 0.9, 0.1
"""Layers in which entropy neurons are sought, and the quantiles of their layer beyond which they lie."""


@checked
@dataclass(frozen=True)
class Thresholds:
    """The papers' numbers: where each role begins; see :func:`roles`."""

    kurtosis: Number = 10.0
    partition: Number = 0.005
    position: Number = 0.05
    types: Count = 5
    coverage: Annotated[float, Range(above=0, most=1)] = 0.95
    null_dimension: int | None = None

    def resolved(self, d_model: int) -> Thresholds:
        """With what depends on the model's width filled in."""
        dimension = null_dimension(d_model) if self.null_dimension is None else self.null_dimension
        return replace(self, null_dimension=dimension)


class Evidence:
    """What the rules of roles look at: statistics of all neurons of some layers, and where each role begins.

    Args:
        statistics: of :func:`weight_statistics`, or joined with :func:`firing_statistics`. ``attrs["partition_null"]``,
            where given, is what the threshold of partition is raised to: what random directions have is no role.
        at: the thresholds, resolved. n_layers: of the model, to know which layers are late.
    """

    def __init__(self, statistics: pd.DataFrame, at: Thresholds, n_layers: int) -> None:
        self.frame, self.at, self.n_layers = statistics, at, n_layers
        self.partition = max(at.partition, statistics.attrs.get("partition_null", 0.0))
        # Of a gated neuron the value's length and direction say nothing alone: the key's can take them over.
        self.length, self.skew = self["value_norm"], self["cosine_skew"]
        if "gate_key_cosine" in statistics:
            told = "write_norm" in statistics
            self.length = self["write_norm"] if told else self.length * self["key_norm"]
            self.skew = self.skew * (self["coefficient_sign"] if told else np.sign(self["gate_key_cosine"]))
        self.peaked = self["cosine_kurtosis"] > at.kurtosis

    def __getitem__(self, name: str) -> np.ndarray:
        return self.frame[name].to_numpy()

    def quantile(self, values: np.ndarray, share: float) -> np.ndarray:
        """Of each neuron, a quantile of its layer's values."""
        return pd.Series(values, self.frame.index).groupby(self.frame["layer"]).transform("quantile", share).to_numpy()


@dataclass(frozen=True)
class Role:
    """One role: its name, the statistic that decides, to which neurons it applies, and whether it needs a store."""

    name: str
    statistic: str
    applies: Callable[[Evidence], np.ndarray]
    needs_store: bool = False

    @property
    def column(self) -> str:
        return "is_" + self.name.replace("-", "_")


def is_entropy(e: Evidence) -> np.ndarray:
    variance = e["cosine_variance"]
    long, flat = e.length > e.quantile(e.length, LONG), variance < e.quantile(variance, FLAT)
    return (e["layer"] >= e.n_layers - LATE) & long & flat


NONE = "none"
ROLES = (
    Role("dead", "firing_rate", lambda e: e["dead"].astype(bool), needs_store=True),
    Role("position", "position_information", lambda e: e["position_information"] > e.at.position, needs_store=True),
    Role("entropy", "null_share", is_entropy),
    Role("prediction", "cosine_kurtosis", lambda e: e.peaked & (e.skew > 0)),
    Role("suppression", "cosine_kurtosis", lambda e: e.peaked & (e.skew < 0)),
    Role("partition", "cosine_variance", lambda e: e["cosine_variance"] > e.partition),
    Role("token-detector", "trigger_share", lambda e: e["detects"].astype(bool), needs_store=True),
)
"""In order of precedence: a neuron's primary role is the first one that applies. Names are those of ``RoleName``."""


def assign(statistics: pd.DataFrame, thresholds: Thresholds, n_layers: int) -> pd.DataFrame:
    """Roles from statistics (see :class:`Evidence`), as the table of :func:`roles` without its attrs.

    Roles that need a store are there where the statistics of its text are.
    """
    evidence = Evidence(statistics, thresholds, n_layers)
    known = [role for role in ROLES if not role.needs_store or "dead" in statistics]
    masks = [role.applies(evidence) for role in known]
    values = [statistics[role.statistic].to_numpy(np.float64) for role in known]
    head = pd.DataFrame(
        {
            "layer": statistics["layer"],
            "neuron": statistics["neuron"],
            "role": np.select(masks, [role.name for role in known], NONE).astype(object),
            "statistic": np.select(masks, [role.statistic for role in known], "").astype(object),
            "value": np.select(masks, values, np.nan),
            **{role.column: mask for role, mask in zip(known, masks, strict=True)},
        }
    )
    return head.join(statistics.drop(columns=["layer", "neuron", "dead", "detects"], errors="ignore"))


@checked
def roles(
    model: Model,
    store: Store | None = None,
    *,
    layer: LayerName | None = None,
    basis: Basis = "folded",
    kurtosis: float = 10.0,
    partition: float = 0.005,
    position: float = 0.05,
    types: int = 5,
    coverage: float = 0.95,
    null_dimension: int | None = None,
    n_sequences: Count | None = SEQUENCES_READ,
    seed: Seed = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """What part each neuron plays: one row a neuron, with every role that applies and the numbers that decide.

    From weights alone (cos over the vocabulary between W_U and vᵢ, processed as the papers do it, see ``basis``):

    - *prediction*, *suppression*: kurtosis (the fourth standardised moment, 3 of a normal distribution) above
      ``kurtosis``, with positive, negative skew; of a gated neuron with the skew turned as below.
    - *partition*: variance above ``partition``, and above what 99.9% of random directions have: a random variance is
      about 1/d_model, more where W_U has main directions, so that in narrow models chance alone passes 0.005.
    - *entropy*: in the last two layers, ‖vᵢ‖ above 90% and variance below 90% of its layer's neurons. The paper picks
      by eye from those; its program has these percentiles, beyond which no neuron serves as a baseline. Beside it
      stands ``null_share``, ρ = ‖V₀ᵀvᵢ‖/‖vᵢ‖ (V₀: W_U's last ``null_dimension`` singular vectors, default d_model/64,
      the published 12 of GPT-2 small).

    With a store of the model, and from its own text (``n_sequences`` of it are read again; None for all). A neuron
    fires where its pre-activation is above 0, which for ReLU, GELU and SiLU is where its coefficient is; a gated one
    where its gate is open:

    - *dead*: never fired in the whole scan. A gate of SiLU or GELU lets something through while it is closed: what the
      neuron writes all the same, √E[mᵢ²]·‖vᵢ‖, stands beside it as ``write_norm``.
    - *position*: I(fires; position) above ``position`` nats, less its bias.
    - *token-detector*: at most ``types`` tokens make up ``coverage`` of its firings, and so do the tokens at which it
      fires ``coverage`` of the time; of tokens that the reading holds 10 times or more.

    Of a gated neuron, act(g·x)(k·x)v, key and value may be turned round together, and one made longer as the other
    becomes shorter, without a change of what it does, so no role may depend on that. The skew does, and the value's
    length. With a store both are taken with the coefficient: the skew times the sign of E[mᵢ³], which is that of the
    skew, over tokens and vocabulary, of what the neuron adds to logits; and √E[mᵢ²]·‖vᵢ‖ as the length. Weights alone
    know ‖kᵢ‖·‖vᵢ‖, and the sign of cos(gᵢ, kᵢ), which the coefficient has at inputs along the gate: a guess, since
    inputs have directions in common that weights do not know of. Columns have the stored sign.

    With an RMSNorm nothing is centred over d_model, and (1, …, 1) is no null direction. Values have the gain of a norm
    behind the FFN (Gemma 2) in them; that norm sets how long the FFN's write is, so that norms only compare neurons of
    one layer, which is what the rule of entropy neurons does.

    Args:
        model: from :func:`ffnmem.load`.
        store: a finished scan of the model; without it the text's roles and columns are absent.
        layer: only this layer; default all.
        basis: of the cosines: ``"folded"``: final gain folded into W_U, centred over d_model and vocabulary, values
            centred (over d_model under LayerNorm only); ``"raw"``: as they are. ρ is always folded.
        seed: of the sequences read, and of the random directions.
        progress: told ("weights", neurons done, in all) and ("text", sequences done, in all).

    Returns:
        layer, neuron, role (the first that applies in the order of ``ROLES``, or "none"), statistic and value (what
        decided; for "none" empty and NaN), ``is_…`` for every role, value_norm, cosine_mean, cosine_variance,
        cosine_skew, cosine_kurtosis, null_share, io_cosine; of a gated model gate_io_cosine (cos(gᵢ, vᵢ)),
        gate_key_cosine (cos(gᵢ, kᵢ)) and key_norm; with a store also firing_rate (whole scan), write_norm
        (√E[mᵢ²]·‖vᵢ‖), of a gated model coefficient_sign (of E[mᵢ³]), position_information, position_p,
        firings (of the reading), covering_types, covered_types, trigger_share and triggers (tokens, of detectors). NaN
        where a value is zero. ``attrs``: thresholds as used, settings, null_space, partition_null (what random
        directions have), provenance.

    Raises:
        OutOfRangeError: no such layer. InputError: another model's store, an unknown basis, senseless thresholds.

    Source: Gurnee et al. 2024 (2401.12181); Stolfo et al. 2024 (2406.16254); Voita et al. 2023 (2309.04827).
    """
    thresholds = Thresholds(kurtosis, partition, position, types, coverage, null_dimension).resolved(model.d_model)
    layers = list(range(model.n_layers)) if layer is None else [model.layer(layer)]
    if store is not None:
        store.check_model(model)
    frame = weight_statistics(model, layers, basis, thresholds, seed, progress)
    settings: dict[str, Any] = {"basis": basis, "layers": layers, "seed": seed}
    about = dict(frame.attrs)
    if store is not None:
        firing = count_firings(model, store, layers, n_sequences=n_sequences, seed=seed, progress=progress)
        settings |= reading_settings(store, firing)
        frame = frame.join(firing_statistics(model, store, firing, thresholds, frame["value_norm"].to_numpy()))
        frame.attrs = about  # which joining drops
    frame = assign(frame, thresholds, model.n_layers)
    provenance = model.provenance(**({} if store is None else {"corpus": store.manifest["corpus"]["hash"]}))
    head = {"thresholds": asdict(thresholds), "settings": settings}
    frame.attrs = {**head, **about, "provenance": provenance.to_dict()}
    return frame


def reading_settings(store: Store, firing: FiringCounts) -> dict[str, Any]:
    """What the statistics of the text depend on, for the record."""
    return {
        "prepend_bos": store.settings.prepend_bos,
        "context": store.settings.context,
        "sequences_read": len(firing.text),
        "sequences": store.sequences.n_sequences,
        "tokens_read": firing.n_tokens,
        "types_looked_at": len(firing.types),
        "least_count": firing.least_count,
    }


def weight_statistics(
    model: Model,
    layers: Sequence[int],
    basis: Basis,
    thresholds: Thresholds,
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """What weights say: one row a neuron.

    ``attrs["null_space"]`` describes W_U's near-null space, ``attrs["partition_null"]`` the variances of random
    directions.
    """
    folded = read_unembedding(model)
    unembedding = folded if basis == "folded" else read_unembedding(model, basis)
    assert thresholds.null_dimension is not None
    null = null_space(folded, thresholds.null_dimension)
    total, done, frames = sum(model.ffn[layer].d_mlp for layer in layers), 0, []
    for layer in layers:
        sides = {side: side_rows(model, layer, side) for side in memory_sides(model)}
        values, centred = read_values(model, layer, basis), sides["value"]
        moments = cosine_moments(values, unembedding.units)
        columns = {
            "layer": np.full(len(values), layer),
            "neuron": np.arange(len(values)),
            "value_norm": values.double().norm(dim=-1).cpu().numpy(),
            **{f"cosine_{name}": moment for name, moment in moments.items()},
            "null_share": null.share(centred),
        }
        columns |= {f"{name}_cosine": cosine for name, cosine in neuron_cosines(sides).items()}
        if model.gated:
            columns["key_norm"] = sides["key"].double().norm(dim=-1).cpu().numpy()
        frames.append(pd.DataFrame(columns))
        done += len(values)
        if progress is not None:
            progress("weights", done, total)
    frame = pd.concat(frames, ignore_index=True)
    frame.attrs = {
        "partition_null": variance_null(unembedding, seed),
        "null_space": {
            "dimension": thresholds.null_dimension,
            "largest_singular_value": null.largest,
            "median_singular_value": null.median,
        },
    }
    return frame


def firing_statistics(
    model: Model,
    store: Store,
    firing: FiringCounts,
    thresholds: Thresholds,
    value_norms: Float64[np.ndarray, " neurons"],
) -> pd.DataFrame:
    """What text says: one row a neuron of every layer that was read, in order, as ``value_norms`` are."""
    frames, first = [], 0
    for layer in firing.layers:
        stats = store.stats(layer)
        norms, first = value_norms[first : first + len(stats)], first + len(stats)
        mean, std = stats["mean"].to_numpy(), stats["std"].to_numpy()
        cubed = over_all_tokens(third_moment(mean, std, stats["skewness"]), stats)
        information = position_information(firing.at_position[layer], firing.positions)
        detection = token_detection(firing, layer, types=thresholds.types, coverage=thresholds.coverage)
        found = detection.triggers
        columns = {
            "firing_rate": stats["firing_rate"].to_numpy(),
            "dead": stats["dead"].to_numpy(),
            "write_norm": over_all_tokens(np.hypot(mean, std), stats, power=0.5) * norms,
            **({"coefficient_sign": np.sign(cubed)} if model.gated else {}),
            "position_information": information.information,
            "position_p": information.p,
            "firings": firing.fired(layer),
            "covering_types": detection.covering,
            "covered_types": detection.covered,
            "trigger_share": detection.share,
            "detects": detection.detects,
            "triggers": [model.token_strings(found[n]) if n in found else [] for n in range(len(stats))],
        }
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def third_moment(
    mean: Float64[np.ndarray, " n"], std: Float64[np.ndarray, " n"], skewness: pd.Series
) -> Float64[np.ndarray, " n"]:
    """E[m³]: strong coefficients decide its sign. What never varies has no skewness."""
    return skewness.fillna(0.0).to_numpy() * std**3 + 3 * mean * std**2 + mean**3


APPLIES = "neurons that each role applies to, by layer"
"""The title of counts in which a neuron counts for every role that applies to it, so that they may add up to more."""


def known_roles(frame: pd.DataFrame) -> list[Role]:
    """The roles that a table of :func:`roles` tells about, in order of precedence."""
    return [role for role in ROLES if role.column in frame.columns]


def role_counts(frame: pd.DataFrame, flags: bool = False) -> pd.DataFrame:
    """How many neurons of each layer have each role: a row a layer, a column a role.

    Args:
        frame: of :func:`roles`.
        flags: count every role that applies, as :data:`APPLIES` says, instead of the primary one.
    """
    known = known_roles(frame)
    by_layer = frame.groupby("layer")
    if flags:
        counts = by_layer[[role.column for role in known]].sum().astype(np.int64)
        counts.columns = [role.name for role in known]
        counts[NONE] = by_layer["role"].agg(lambda role: int((role == NONE).sum()))
        return counts.reset_index()
    counts = by_layer["role"].value_counts().unstack(fill_value=0)
    names = [*(role.name for role in known), NONE]
    return counts.reindex(columns=names, fill_value=0).astype(np.int64).rename_axis(columns=None).reset_index()


def strongest(frame: pd.DataFrame, role: str, top: int) -> pd.DataFrame:
    """The neurons to which a role applies, the clearest cases of its statistic first; dead ones in order.

    Raises InputError for a role that the table does not tell about.
    """
    known = {found.name: found for found in known_roles(frame)}
    if role not in known:
        need = any(found.name == role and found.needs_store for found in ROLES)
        hint = ": it needs a store" if need else f": choose {' or '.join(repr(name) for name in known)}"
        raise InputError(f"role {quoted(role)} is not in this table{hint}")
    found = frame[frame[known[role].column]]
    order = found[known[role].statistic].abs().sort_values(ascending=False, kind="stable").index
    return found.loc[order].head(check_count("top", top))


def clearest(frame: pd.DataFrame, role: str | None = None, top: int = 3) -> pd.DataFrame:
    """The ``top`` clearest neurons of one role, or of each, with that role in a first column ``listed``."""
    names = [found.name for found in known_roles(frame)] if role is None else [role]
    found = pd.concat([strongest(frame, name, top).assign(listed=name) for name in names])
    return found[["listed", *frame.columns]]


def roles_dict(frame: pd.DataFrame, listed: pd.DataFrame) -> dict[str, Any]:
    """A table of roles as plain values: the counts by layer, the neurons ``listed`` and the settings."""
    return {
        "layers": role_counts(frame).to_dict("records"),
        "applies": role_counts(frame, flags=True).to_dict("records"),
        "neurons": listed.to_dict("records"),
        **frame.attrs,
    }


def roles_sheet(frame: pd.DataFrame, listed: pd.DataFrame, promoted: Promoted) -> Sheet:
    """How many neurons each role applies to by layer, and the neurons ``listed`` (see :func:`clearest`).

    ``promoted``: the tokens that the value of each of these promotes, by (layer, neuron).
    """
    origin = {**frame.attrs["provenance"], "basis": frame.attrs["settings"]["basis"]}
    return Sheet.of(count_table(frame), clearest_table(listed, promoted), Origin(origin))


def count_table(frame: pd.DataFrame) -> Table:
    """A row a role, a column a layer; roles without neurons are named below."""
    counts = role_counts(frame, flags=True)
    names = [name for name in counts.columns if name != "layer"]
    absent = [name for name in names if name != NONE and not counts[name].any()]
    layers = (Column(str(layer), "count") for layer in counts["layer"])
    shown = rows(Column("role", stays=True), *layers, Column("all", "count", stays=True))
    for name in names:
        if name not in absent:
            shown.add(name, *(count or None for count in counts[name].tolist()), int(counts[name].sum()))
    return shown.table(APPLIES, caption=f"none: {', '.join(absent)}" if absent else "")


def clearest_table(listed: pd.DataFrame, promoted: Promoted) -> Table:
    """The clearest neurons, with the tokens that their values promote."""
    statistics = {role.name: role.statistic for role in ROLES}
    return Table.of(
        listed.assign(role=listed["listed"].where(listed["listed"] != listed["listed"].shift(), "")),
        "role",
        Column("neuron", "neuron", left=False, of=("layer", "neuron")),
        Column("statistic", of=lambda row: statistics[row["listed"]].replace("_", " ")),
        Column("value", left=False, of=lambda row: row[statistics[row["listed"]]]),
        promoted_column(promoted, name="value promotes"),
        title="the clearest neurons of each role",
        caption="" if len(listed) else "no neuron has any of these roles",
    )
