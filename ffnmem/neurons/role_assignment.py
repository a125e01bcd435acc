"""``roles``: what part each neuron plays, by the papers' rules, from its weights and from when it fires."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float64

from ..core.defaults import SEQUENCES_READ
from ..core.errors import InputError, counted, quoted
from ..core.neuron_names import LayerName
from ..core.progress import Progress
from ..core.provenance import Provenance
from ..core.types import TEXT_ROLES, Basis, Count, Number, Range, RoleName, Seed, checked
from ..models.model import Model
from ..prompts.means import over_all_tokens
from ..scanning.store import Store
from ..show.result import Result
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

    name: RoleName
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
@dataclass(frozen=True, eq=False, repr=False)
class Roles(Result):
    """What part each neuron plays. Made by :func:`ffnmem.roles`, which says what the columns mean.

    Attributes:
        neurons: one row a neuron; ``attrs`` has thresholds as used, settings, null_space, partition_null (what random
            directions have), provenance.
        role: only neurons of this role are listed; empty: those of all roles.
        model: which one; None of what was loaded without it.
    """

    heading = "role"
    tables: ClassVar = {
        "counts": "*",
        "first_roles": "|*",
        "clearest": "listed neuron statistic value triggers value_promotes",
    }
    main, uncut, only_shown = "neurons", "counts first_roles", "clearest"

    neurons: pd.DataFrame
    role: str
    provenance: Provenance
    model: Model | None = None

    @property
    def roles(self) -> list[Role]:
        """The roles that it tells about, in order of precedence; those of text are told with a store alone."""
        return [role for role in ROLES if role.column in self.neurons]

    @property
    def counts(self) -> pd.DataFrame:
        """How many neurons of each layer a role applies to; a neuron counts for every role that does."""
        by_layer = self.neurons.groupby("layer")
        flags: dict[str, pd.Series] = {role.name: by_layer[role.column].sum() for role in self.roles}
        return self.by_role({**flags, NONE: (self.neurons["role"] == NONE).groupby(self.neurons["layer"]).sum()})

    @property
    def first_roles(self) -> pd.DataFrame:
        """How many neurons of each layer have a role as their first."""
        firsts = self.neurons.groupby(["layer", "role"]).size().unstack("role", fill_value=0)
        return self.by_role({name: firsts.get(name) for name in (*(role.name for role in self.roles), NONE)})

    def by_role(self, counts: Mapping[str, pd.Series | None]) -> pd.DataFrame:
        """A row a role, a column a layer, and one of all layers."""
        layers = self.neurons["layer"].unique()
        rows = [[0] * len(layers) if one is None else one.astype(int).tolist() for one in counts.values()]
        found = pd.DataFrame(rows, columns=[str(layer) for layer in layers])
        found.insert(0, "role", list(counts))
        return found.assign(all=found.iloc[:, 1:].sum(axis=1))

    def of(self, role: RoleName, top: Count | None = None) -> pd.DataFrame:
        """The neurons to which a role applies, the clearest cases of its statistic first; dead ones in order.

        Raises InputError for a role of text where there is no store.
        """
        its = next(one for one in ROLES if one.name == role)
        check_roles(role, "is_dead" in self.neurons or None)
        found = self.neurons[self.neurons[its.column]]
        return found.loc[found[its.statistic].abs().sort_values(ascending=False, kind="stable").index].head(top)

    def clearest(self, top: Count | None = None) -> pd.DataFrame:
        """The clearest neurons of each role; about ``top`` in all, with the role that they are ``listed`` for, its
        statistic and that one's value."""
        asked = [role for role in self.roles if self.role in ("", role.name)]
        each = None if top is None else max(1, top // max(1, sum(self.neurons[role.column].any() for role in asked)))
        found = [self.of(one.name, each).assign(listed=one.name, statistic=one.statistic) for one in asked]
        found = [one.assign(value=one[its.statistic]) for its, one in zip(asked, found, strict=True)]
        return pd.concat(found, ignore_index=True)[["listed", *self.neurons.columns]]

    def shown_neurons(self, top: Count | None = None) -> pd.DataFrame:
        """All neurons, of ``role`` if one is asked for; or the clearest."""
        return self.clearest(top) if top is not None or self.role else self.neurons

    @property
    def verdict(self) -> str:
        """How many neurons have a role, and which."""
        having = int((self.neurons["role"] != NONE).sum())
        counts = zip(self.roles, self.counts["all"], strict=False)
        each = ", ".join(f"{number:,} {role.name}" for role, number in counts if number)
        return f"Of {counted(len(self.neurons), 'neuron')} {having:,} have a role{': ' * bool(each)}{each}."


def check_roles(role: str | None = None, store: object = None) -> None:
    """Raise InputError for a role that only text tells, where there is none."""
    if role in TEXT_ROLES and store is None:
        raise InputError(f"role {quoted(role)} needs text: give a store, a scan of the model (--store DIR)")


@checked
def roles(
    model: Model,
    store: Store | None = None,
    *,
    layer: LayerName | None = None,
    role: RoleName | None = None,
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
) -> Roles:
    """What part each neuron plays: prediction, position, entropy, ...

    Assigns roles by the rules of the papers. From weights (Gurnee et al. 2024): prediction and suppression neurons
    raise and lower a small set of tokens (kurtosis and skew of the cosines between value and vocabulary), partition
    neurons split the vocabulary (their variance), entropy neurons of the last two layers write much that moves no
    logit. With a store, a scan of the model, also (Voita et al. 2023): dead, position and token-detector neurons (a
    gated neuron fires where its gate is open), and of gated neurons the sign and the size of what they write, which
    weights can only guess. A neuron counts for every role that applies to it.

    Note:
        From weights alone (cos over the vocabulary between W_U and vᵢ, processed as the papers do it, see ``basis``):

        - *prediction*, *suppression*: kurtosis (the fourth standardised moment, 3 of a normal distribution) above
          ``kurtosis``, with positive, negative skew; of a gated neuron with the skew turned as below.
        - *partition*: variance above ``partition``, and above what 99.9% of random directions have: a random variance
          is about 1/d_model, more where W_U has main directions, so that in narrow models chance alone passes 0.005.
        - *entropy*: in the last two layers, ‖vᵢ‖ above 90% and variance below 90% of its layer's neurons. The paper
          picks by eye from those; its program has these percentiles, beyond which no neuron serves as a baseline.
          Beside it stands ``null_share``, ρ = ‖V₀ᵀvᵢ‖/‖vᵢ‖ (V₀: W_U's last ``null_dimension`` singular vectors,
          default d_model/64, the published 12 of GPT-2 small).

        With a store of the model, and from its own text (``n_sequences`` of it are read again). A neuron fires where
        its pre-activation is above 0, which for ReLU, GELU and SiLU is where its coefficient is; a gated one where its
        gate is open:

        - *dead*: never fired in the whole scan. A gate of SiLU or GELU lets something through while it is closed: what
          the neuron writes all the same, √E[mᵢ²]·‖vᵢ‖, stands beside it as ``write_norm``.
        - *position*: I(fires; position) above ``position`` nats, less its bias.
        - *token-detector*: at most ``types`` tokens make up ``coverage`` of its firings, and so do the tokens at which
          it fires ``coverage`` of the time; of tokens that the reading holds 10 times or more.

        Of a gated neuron, act(g·x)(k·x)v, key and value may be turned round together, and one made longer as the other
        becomes shorter, without a change of what it does, so no role may depend on that. The skew does, and the
        value's length. With a store both are taken with the coefficient: the skew times the sign of E[mᵢ³], which is
        that of the skew, over tokens and vocabulary, of what the neuron adds to logits; and √E[mᵢ²]·‖vᵢ‖ as the
        length. Weights alone know ‖kᵢ‖·‖vᵢ‖, and the sign of cos(gᵢ, kᵢ), which the coefficient has at inputs along
        the gate: a guess, since inputs have directions in common that weights do not know of. Columns have the stored
        sign.

        With an RMSNorm nothing is centred over d_model, and (1, …, 1) is no null direction. Values have the gain of a
        norm behind the FFN (Gemma 2) in them; that norm sets how long the FFN's write is, so that norms only compare
        neurons of one layer, which is what the rule of entropy neurons does.

    Args:
        model: from :func:`ffnmem.load`.
        store: the folder of a scan of the model, for the roles that need text.
        layer: only this layer; -1 is the last. [default: all]
        role: list only neurons of this role.
        basis: of the cosines: folded, as the papers do it (the final gain folded into W_U, centred over d_model and
            vocabulary, values centred, over d_model under LayerNorm only), or raw, as they are; ρ is always folded.
        kurtosis: of prediction and suppression neurons, at least.
        partition: variance of partition neurons, at least.
        position: nats of information on the position that positional neurons have, at least.
        types: how many tokens a token detector detects, at most.
        coverage: the share of firings at these tokens, and of these tokens that make it fire, at least.
        null_dimension: how many last singular vectors of W_U are its near-null space. [default: d_model/64]
        n_sequences: how many sequences of the store's text to read. In Python, None for all.
        seed: of the sequences read, and of the random directions.
        progress: told ("weights", neurons done, in all) and ("text", sequences done, in all).

    Returns:
        A :class:`Roles`. Its ``neurons`` have layer, neuron, role (the first that applies in the order of ``ROLES``, or
        "none"), statistic and value (what decided; for "none" empty and NaN), ``is_…`` for every role, value_norm,
        cosine_mean, cosine_variance, cosine_skew, cosine_kurtosis, null_share, io_cosine; of a gated model
        gate_io_cosine (cos(gᵢ, vᵢ)), gate_key_cosine (cos(gᵢ, kᵢ)) and key_norm; with a store also firing_rate (whole
        scan), write_norm (√E[mᵢ²]·‖vᵢ‖), of a gated model coefficient_sign (of E[mᵢ³]), position_information,
        position_p, firings (of the reading), covering_types, covered_types, trigger_share and triggers (tokens, of
        detectors). NaN where a value is zero.

    Raises:
        OutOfRangeError: no such layer. InputError: another model's store, a role that needs one, senseless thresholds.

    Source: Gurnee et al. 2024 (2401.12181); Stolfo et al. 2024 (2406.16254); Voita et al. 2023 (2309.04827).

    Example:
        $ ffnmem roles
        $ ffnmem roles --store runs/atlas --plot roles.png
        $ ffnmem roles --layer -1 --role partition --json
    """
    check_roles(role, store)
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
    corpus = {} if store is None else {"corpus": store.manifest["corpus"]["hash"]}
    head = {"thresholds": asdict(thresholds), "settings": settings}
    frame.attrs = {**head, **about, "provenance": model.provenance(**corpus).to_dict()}
    known = {name: value for name, value in settings.items() if name not in ("layers", "prepend_bos")}
    return Roles(frame, role or "", model.provenance(**corpus, **known, **asdict(thresholds)), model)


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
