"""Gurnee et al. 2024: what values do to the vocabulary, and the roles of neurons by layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..core.defaults import SEQUENCES_READ
from ..core.errors import counted
from ..core.number_text import format_share
from ..core.progress import Progress
from ..core.token_text import visible
from ..core.types import Basis
from ..models.model import Model
from ..models.turns import in_turn
from ..neurons.role_assignment import APPLIES, known_roles, role_counts, roles, strongest
from ..plots.neuron_kinds import percentiles
from ..plots.neuron_kinds import roles as plot_roles
from ..plots.shapes import ADDS, ATTENTION, MOST_TICKS, TAKES, titled
from ..scanning.store import Store
from ..vocabulary.projections import project
from .prefixes import share_interval
from .study import Figure, Study, tables_of

PAPER = "Gurnee et al. 2024, Universal Neurons in GPT2 Language Models (arXiv 2401.12181)"
PUBLISHED: Mapping[str, Any] = {
    "models": "GPT-2 small, GPT-2 medium (five seeds each) and Pythia 160M",
    "weights": "final gain folded in, W_U centred over d_model and vocabulary, values centred (basis 'folded')",
    "prediction and suppression": "kurtosis of cos(W_U, v) above 10, by the sign of the skew",
    "kurtosis": "the fourth standardised moment, 3 of a normal distribution, here too",
    "partition": "variance of cos(W_U, v) above 0.005",
    "finding": "prediction neurons grow more frequent from the middle of the model on; at the end suppression neurons "
    "take over",
}
STATISTICS = ("value_norm", "cosine_variance", "cosine_skew", "cosine_kurtosis", "null_share", "io_cosine")
GATE_STATISTICS = ("gate_io_cosine", "gate_key_cosine")  # of gated models
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
EXAMPLES = 10  # neurons of each role
PROMOTED = 8
TABLES = {
    "summary": (
        APPLIES.capitalize(),
        "A neuron may count for several roles. Entropy neurons are looked for in the last layer only.",
    ),
    "signs": (
        "Prediction against suppression by layer",
        "Of the neurons whose kurtosis is above the threshold, the share with negative skew, with its 95% Wilson "
        "interval; the paper finds that it jumps in the last layers. Of gated neurons the skew is taken times the "
        "sign of E[m³], which strong coefficients decide; either sign occurs of many.",
    ),
    "statistics": (
        "Statistics of cos(W_U, v) and of the weights by layer",
        "Quantiles over the neurons of a layer; the kurtosis of a normal distribution is 3. The sign of "
        "a gated neuron's skew and of its gate's cosines is a convention.",
    ),
    "strongest": (
        "The clearest neurons of each role",
        "By the statistic that decides; promoted and suppressed are the ends of the value's projection, which a "
        "negative coefficient exchanges.",
    ),
    "neurons": (
        "Every neuron with its roles and statistics",
        "The columns of fm.roles.",
    ),
}


@in_turn
def study(
    model: Model,
    store: Store,
    *,
    progress: Progress | None = None,
    seed: int = 0,
    n_sequences: int | None = SEQUENCES_READ,
    basis: Basis = "folded",
    kurtosis: float = 10.0,
    partition: float = 0.005,
    io: float = 0.5,
) -> Study:
    """Roles by layer, and the statistics behind them.

    Of gated neurons as :func:`ffnmem.roles` has them: prediction and suppression by the skew that a value has with
    its coefficient's sign.

    Args:
        model: from :func:`ffnmem.load`. store: a finished scan of it.
        progress: told ("weights", neurons done, in all) and ("text", sequences done, in all).
        seed: of the sequences read.
        n_sequences: how many sequences of the store's text to read, for the roles that depend on text; None for all.
        basis, kurtosis, partition, io: as in :func:`ffnmem.roles`, whose other thresholds keep their defaults.

    Returns:
        Tables ``summary`` (neurons that each role applies to, by layer), ``signs``
        (prediction against suppression), ``statistics`` (quantiles by layer), ``strongest`` (the clearest neurons of
        each role, with what they promote and suppress), ``neurons`` (all); figures ``roles``, ``kurtosis``, ``skew``,
        ``variance``, ``signs``, ``norm_variance``.

    Raises:
        InputError: another model's store, or settings out of range.

    Source: Gurnee et al. 2024 (2401.12181), §5; Stolfo et al. 2024 (2406.16254), figure 2a.
    """
    frame = roles(
        model,
        store,
        basis=basis,
        kurtosis=kurtosis,
        partition=partition,
        io=io,
        n_sequences=n_sequences,
        seed=seed,
        progress=progress,
    )
    thresholds = frame.attrs["thresholds"]
    signs = sign_table(frame, kurtosis)
    summary = role_counts(frame, flags=True)
    summary.insert(1, "neurons", frame.groupby("layer").size().to_numpy())
    frames = {
        "summary": summary,
        "signs": signs,
        "statistics": statistic_table(frame),
        "strongest": strongest_table(model, frame),
        "neurons": frame.assign(triggers=frame["triggers"].map(spelled)),
    }
    return Study(
        name="gurnee2024",
        paper=PAPER,
        tables=tables_of(frames, TABLES),
        figures=figures(model, frame, signs, thresholds),
        settings={
            **frame.attrs["settings"],
            **thresholds,
            "n_sequences": n_sequences,
            "partition_null": frame.attrs["partition_null"],
            "frequency_null": frame.attrs["frequency_null"],
            "frequency_reach": frame.attrs["frequency_reach"],
        },
        provenance=frame.attrs["provenance"],
        published=PUBLISHED,
        conclusion=conclusion(signs, len(frame), summary),
    )


def conclusion(signs: pd.DataFrame, neurons: int, summary: pd.DataFrame) -> str:
    """What was found, from the table of signs."""
    peaked, suppression = int(signs["peaked"].sum()), int(signs["suppression"].sum())
    partition = int(summary["partition"].sum()) if "partition" in summary else 0
    text = (
        f"{format_share(peaked / neurons)} of {neurons:,} neurons promote or suppress a small set of tokens: "
        f"{peaked:,}, of which {suppression:,} suppress."
    )
    if peaked:
        most = signs.loc[signs["peaked"].idxmax()]
        last = signs.iloc[-1]
        text += f" Most of them are in layer {int(most['layer'])} ({int(most['peaked']):,})"
        if last["peaked"]:
            text += f"; of those in the last layer {format_share(float(last['suppression_share']))} suppress"
        text += "."
    return f"{text} {counted(partition, 'neuron')} {'parts' if partition == 1 else 'part'} the vocabulary in two."


def figures(
    model: Model, frame: pd.DataFrame, signs: pd.DataFrame, thresholds: Mapping[str, Any]
) -> tuple[Figure, ...]:
    spread = partial(percentiles, frame)
    return (
        Figure(
            "roles",
            "First roles by layer",
            partial(plot_roles, frame),
            "Each neuron counts once, for the first role that applies to it: fewer than in the summary.",
        ),
        Figure(
            "kurtosis",
            "Kurtosis of cos(W_U, v) by layer",
            lambda ax: spread("cosine_kurtosis", ax, thresholds["kurtosis"]),
            "The paper's rises in the second half of the model: there neurons predict small sets of tokens.",
        ),
        Figure(
            "skew",
            "Skew of cos(W_U, v) by layer",
            lambda ax: spread("cosine_skew", ax),
            "The paper's is positive (prediction) until the last layers, where it turns negative (suppression).",
        ),
        Figure(
            "variance",
            "Variance of cos(W_U, v) by layer",
            lambda ax: spread("cosine_variance", ax, max(thresholds["partition"], frame.attrs["partition_null"])),
            "Partition neurons raise one half of the vocabulary and lower the other. The threshold is the published "
            "one, or what 99.9% of random directions stay below, if that is more.",
        ),
        Figure("signs", "Prediction and suppression neurons by layer", partial(draw_signs, signs)),
        Figure(
            "norm_variance",
            "Norm and variance in the last layer",
            partial(draw_norm_variance, frame, model.n_layers - 1),
            "Entropy neurons have long values that hardly move any logit: below and to the right of the others "
            "(Stolfo et al. 2024, figure 2a). Of gated neurons, whose keys can take over any length, the length of "
            "what they write is drawn.",
        ),
    )


def sign_table(frame: pd.DataFrame, kurtosis: float) -> pd.DataFrame:
    """By layer: neurons with a high kurtosis, prediction and suppression, and the share of suppression among them."""
    rows = []
    for layer, part in frame.groupby("layer"):
        high, negative = int((part["cosine_kurtosis"] > kurtosis).sum()), int(part["is_suppression"].sum())
        share, low, end = share_interval(negative, high)
        counts = {"peaked": high, "prediction": int(part["is_prediction"].sum()), "suppression": negative}
        rows.append({"layer": layer, **counts, "suppression_share": share, "share_low": low, "share_high": end})
    return pd.DataFrame(rows)


def statistic_table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a layer and statistic: its mean and quantiles over the layer's neurons."""
    by_layer = frame.groupby("layer")
    parts = []
    for name in (*STATISTICS, *(extra for extra in GATE_STATISTICS if extra in frame)):
        part = by_layer[name].quantile(list(QUANTILES)).unstack()
        part.columns = [f"q{100 * quantile:g}" for quantile in QUANTILES]
        part.insert(0, "mean", by_layer[name].mean())
        part.insert(0, "statistic", name)
        parts.append(part.reset_index())
    return pd.concat(parts, ignore_index=True)


def strongest_table(model: Model, frame: pd.DataFrame) -> pd.DataFrame:
    """The first neurons of each role by its statistic, with their tokens."""
    found = []
    for role in known_roles(frame):
        rows = strongest(frame, role.name, EXAMPLES)
        if len(rows):
            part = rows[["layer", "neuron"]].assign(role=role.name, statistic=role.statistic)
            found.append(part.assign(value=rows[role.statistic].to_numpy(np.float64)))
    columns = ["role", "layer", "neuron", "statistic", "value"]
    table = pd.concat(found, ignore_index=True)[columns] if found else pd.DataFrame(columns=columns)
    tokens = ends(model, table)
    for sign in ("promoted", "suppressed"):
        table[sign] = [
            spelled(tokens[layer, neuron, sign]) for layer, neuron in zip(table["layer"], table["neuron"], strict=True)
        ]
    return table


def ends(model: Model, rows: pd.DataFrame, k: int = PROMOTED) -> dict[tuple[int, int, str], list[str]]:
    """The k tokens that each neuron promotes and suppresses most, by (layer, neuron, sign)."""
    found: dict[tuple[int, int, str], list[str]] = {}
    for layer, part in rows.groupby("layer"):
        neurons = part["neuron"].drop_duplicates().astype(int).tolist()
        for row in project(model, int(layer), neurons, k=k, side="value").itertuples():
            found.setdefault((int(row.layer), int(row.neuron), str(row.sign)), []).append(str(row.token))
    return found


def spelled(tokens: Iterable[str]) -> str:
    """Tokens in one cell of a table: spaces and line ends within them as marks, two spaces between them."""
    return "  ".join(visible(token) for token in tokens)


def draw_signs(signs: pd.DataFrame, ax: Axes) -> Axes:
    """Bars of prediction neurons upwards and of suppression neurons downwards."""
    layers = signs["layer"].to_numpy()
    ax.bar(layers, signs["prediction"], 0.75, color=ADDS, label="prediction")
    ax.bar(layers, -signs["suppression"], 0.75, color=TAKES, label="suppression")
    ax.axhline(0, color="#444444", linewidth=0.8)
    ax.set_xticks(layers[:: 1 + len(layers) // MOST_TICKS])
    most = max(int(signs[["prediction", "suppression"]].to_numpy().max()), 1)
    ax.set_ylim(-1.1 * most, 1.1 * most)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    ax.set_xlabel("layer")
    ax.set_ylabel("neurons")
    total = int(signs["peaked"].sum())
    if total:
        ax.legend(frameon=False, loc="upper left")
    else:
        ax.text(0.5, 0.6, "no neuron's kurtosis is above the threshold", transform=ax.transAxes, ha="center")
    return titled(ax, f"{total:,} neurons promote or suppress small sets of tokens")


def draw_norm_variance(frame: pd.DataFrame, layer: int, ax: Axes) -> Axes:
    """The value's norm (of gated neurons, of what they write) against the variance of its cosines, entropy neurons
    marked."""
    rows = frame[frame["layer"] == layer]
    marked = rows["is_entropy"].to_numpy(bool)
    gated = "key_norm" in rows
    norm, variance = rows["write_norm" if gated else "value_norm"], rows["cosine_variance"]
    ax.scatter(norm[~marked], variance[~marked], s=7, color=ATTENTION, linewidths=0)
    ax.scatter(norm[marked], variance[marked], s=24, color=TAKES, label="entropy neurons")
    ax.set_yscale("log")
    if gated:
        ax.set_xscale("log")
    ax.set_xlabel("rms length of what a neuron writes" if gated else "norm of the value")
    ax.set_ylabel("variance of cos(W_U, v)")
    if marked.any():
        ax.legend(frameon=False)
    return titled(ax, f"Layer {layer}: {int(marked.sum())} of {len(rows):,} are entropy neurons")
