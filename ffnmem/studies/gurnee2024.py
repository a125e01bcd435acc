"""Gurnee et al. 2024: what values do to the vocabulary, and the roles of neurons by layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..core.defaults import SEQUENCES_READ
from ..core.errors import counted, quoted
from ..core.number_text import format_share
from ..core.progress import Progress
from ..core.token_text import visible
from ..core.types import Basis
from ..models.model import Model
from ..models.turns import in_turn
from ..neurons.role_assignment import APPLIES, known_roles, role_counts, roles, strongest
from ..plots import neuron_kinds, shapes
from ..scanning.store import Store
from ..vocabulary.projections import project
from .figures import Painter, Scale
from .prefixes import share_interval
from .study import Figure, Study, StudyProtocol

STATISTICS = ("value_norm", "cosine_variance", "cosine_skew", "cosine_kurtosis", "null_share", "io_cosine")
GATE_STATISTICS = ("gate_io_cosine", "gate_key_cosine")  # of gated models
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
EXAMPLES = 10  # neurons of each role
PROMOTED = 8


def paint_roles(ax: Axes, study: Study) -> None:
    """First roles, stacked."""
    neuron_kinds.roles(study.table("neurons"), ax)


def quantiles_of(statistic: str, *thresholds: str) -> Painter:
    """Quantiles of a statistic by layer; with settings of the study, a line at the largest of them."""

    def paint(ax: Axes, study: Study) -> None:
        threshold = max((study.settings[name] for name in thresholds), default=None)
        neuron_kinds.percentiles(study.table("neurons"), statistic, ax, threshold)

    return paint


def paint_signs(ax: Axes, study: Study) -> None:
    """Prediction neurons upwards and suppression neurons downwards."""
    signs = study.table("signs")
    scale = Scale(whole=True, top=1.0, none="no neuron's kurtosis is above the threshold")
    if scale.begin(ax, study.layers, signs["peaked"]):
        for name, colour, sign in (("prediction", shapes.ADDS, 1), ("suppression", shapes.TAKES, -1)):
            shapes.stacks(ax, study.layers, {name: sign * signs[name]}, {name: colour})
        shapes.line_at(ax, 0)
        ax.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")


def paint_norm_variance(ax: Axes, study: Study) -> None:
    """Of the last layer, the value's norm (of gated neurons, of what they write) against the variance of its cosines,
    entropy neurons marked."""
    frame = study.table("neurons")
    rows, gated = frame[frame["layer"] == study.layers[-1]], "key_norm" in frame
    marked = rows["is_entropy"].to_numpy(bool)
    norm = rows["write_norm" if gated else "value_norm"]
    for some, label, size, colour in (
        (~marked, "other neurons", 7, shapes.ATTENTION),
        (marked, "entropy neurons", 24, shapes.TAKES),
    ):
        if some.any():
            ax.scatter(norm[some], rows["cosine_variance"][some], s=size, color=colour, linewidths=0, label=label)
    ax.set_yscale("log")
    if gated:
        ax.set_xscale("log")
    ax.set_xlabel("rms length of what a neuron writes" if gated else "norm of the value")


PROTOCOL = StudyProtocol(
    paper="Gurnee et al. 2024, Universal Neurons in GPT2 Language Models (arXiv 2401.12181)",
    published={
        "models": "GPT-2 small, GPT-2 medium (five seeds each) and Pythia 160M",
        "weights": "final gain folded in, W_U centred over d_model and vocabulary, values centred (basis 'folded')",
        "prediction and suppression": "kurtosis of cos(W_U, v) above 10, by the sign of the skew",
        "kurtosis": "the fourth standardised moment, 3 of a normal distribution, here too",
        "partition": "variance of cos(W_U, v) above 0.005",
        "by layer": "prediction neurons grow more frequent from the middle of the model on; at the end suppression "
        "neurons take over",
    },
    main=("prediction and suppression", "by layer", "partition"),
    tables={
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
    },
    figures=(
        Figure(
            "roles",
            "First roles by layer",
            paint_roles,
            note="Each neuron counts once, for the first role that applies to it: fewer than in the summary.",
            legend="",
        ),
        Figure(
            "kurtosis",
            "Kurtosis of cos(W_U, v) by layer",
            quantiles_of("cosine_kurtosis", "kurtosis"),
            note="The paper's rises in the second half of the model: there neurons predict small sets of tokens.",
            legend="",
        ),
        Figure(
            "skew",
            "Skew of cos(W_U, v) by layer",
            quantiles_of("cosine_skew"),
            note="The paper's is positive (prediction) until the last layers, where it turns negative (suppression).",
            legend="",
        ),
        Figure(
            "variance",
            "Variance of cos(W_U, v) by layer",
            quantiles_of("cosine_variance", "partition", "partition_null"),
            note="Partition neurons raise one half of the vocabulary and lower the other. The threshold is the "
            "published one, or what 99.9% of random directions stay below, if that is more.",
            legend="",
        ),
        Figure("signs", "Prediction and suppression neurons by layer", paint_signs, "neurons"),
        Figure(
            "norm_variance",
            "Norm and variance in the last layer",
            paint_norm_variance,
            "variance of cos(W_U, v)",
            "Entropy neurons have long values that hardly move any logit: below and to the right of the others "
            "(Stolfo et al. 2024, figure 2a). Of gated neurons, whose keys can take over any length, the length of "
            "what they write is drawn.",
        ),
    ),
)


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
        frames=frames,
        found=compare_with_paper(model, frame, signs, thresholds),
        settings={
            **frame.attrs["settings"],
            **thresholds,
            "n_sequences": n_sequences,
            "partition_null": frame.attrs["partition_null"],
            "frequency_null": frame.attrs["frequency_null"],
            "frequency_reach": frame.attrs["frequency_reach"],
        },
        provenance=frame.attrs["provenance"],
    )


def compare_with_paper(
    model: Model, frame: pd.DataFrame, signs: pd.DataFrame, thresholds: Mapping[str, Any]
) -> dict[str, str]:
    """What the study has of what the paper has, by subject."""
    peaked, half = int(signs["peaked"].sum()), signs["layer"] < len(signs) // 2
    partition = int(frame["is_partition"].sum())
    found = {
        "models": model.name,
        "weights": f"basis {quoted(frame.attrs['settings']['basis'])}",
        "prediction and suppression": f"kurtosis above {thresholds['kurtosis']:g}: {peaked:,} of "
        f"{counted(len(frame), 'neuron')}",
        "partition": f"variance above {max(thresholds['partition'], frame.attrs['partition_null']):.3g}: "
        f"{counted(partition, 'neuron')}",
        "by layer": "no such neurons",
    }
    if peaked:
        upper = signs[~half]
        found["by layer"] = (
            f"{format_share(float(upper['peaked'].sum()) / peaked)} in the upper half; suppress: "
            f"{format_share(float(signs['suppression'].sum()) / peaked)} of all"
        )
        if signs.iloc[-1]["peaked"]:
            found["by layer"] += f", {format_share(float(signs.iloc[-1]['suppression_share']))} in the last layer"
    return found


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
