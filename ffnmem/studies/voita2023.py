"""Voita et al. 2023: dead neurons, token detectors and positional neurons by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int64
from matplotlib.axes import Axes

from ..core.defaults import SEQUENCES_READ
from ..core.errors import counted
from ..core.number_text import format_share
from ..core.progress import Progress
from ..models.model import Model
from ..models.turns import in_turn
from ..neurons.counting import (
    Detection,
    FiringCounts,
    PositionInformation,
    count_firings,
    position_information,
    token_detection,
)
from ..neurons.role_assignment import Thresholds, reading_settings
from ..neurons.unembedding import Unembedding, cosine_moments, read_unembedding, read_values
from ..plots import shapes
from ..scanning.store import Store
from .figures import Scale, Series, curves, stack
from .gurnee2024 import ends, spelled
from .prefixes import share_interval
from .study import Figure, Study, StudyProtocol

CATEGORIES = ((1, 5), (6, 20), (21, 100), (101, 500))
MORE, BEYOND = "more than 500", "not by those looked at"
ENOUGH = 50  # tokens at a position, for its firing rate to count in a pattern
EXTREME = 0.05  # how near to 0 or 1 a rate counts as there
SMOOTH = 5  # positions averaged before crossings are counted
PROMOTED = 8
STRONGEST = 8  # positional neurons in the table of rates
SHADES = ("#08306B", "#2171B5", "#6BAED6", "#BDD7E7", "#E3E8EE", "#F5F5F5")
COVERING = (*(f"{low} to {high}" for low, high in CATEGORIES), MORE, BEYOND)
PATTERNS = {"oscillatory": "#7B5EA7", "both extremes": "#C8382D", "one extreme": "#4C9F50", "other": "#F0C000"}
"""The paper's colours."""
SUPPRESSING, OTHERS = "that suppress their triggers", "others"
NO_DETECTORS, NO_POSITIONAL = "no token detectors", "no positional neurons"


def split_detectors(study: Study) -> dict[str, Any]:
    """Token detectors by layer, by whether they suppress their triggers."""
    summary = study.table("summary")
    against = summary["detectors"] * summary["suppressing"].fillna(0)
    return {SUPPRESSING: against, OTHERS: summary["detectors"] - against}


def shares_covered(study: Study) -> dict[str, Any]:
    """Shares of neurons by layer, by how many tokens make up their firings."""
    covering = study.table("covering")
    return {name: covering.loc[covering["tokens"] == name, "share"].to_numpy() for name in COVERING}


def count_patterns(study: Study) -> dict[str, Any]:
    """Positional neurons by layer, by pattern."""
    rows = study.table("positional")
    return {
        name: [((rows["layer"] == layer) & (rows["pattern"] == name)).sum() for layer in study.layers]
        for name in PATTERNS
    }


def paint_rates(ax: Axes, study: Study) -> None:
    """The firing rate by position of the neurons that tell most about it."""
    for (layer, neuron), part in study.table("rates").groupby(["layer", "neuron"], sort=False):
        shapes.curve(ax, part["position"], part["rate"], f"{layer}.{neuron}")
    ax.set_ylim(-0.02, 1.02)
    if not len(study.table("rates")):
        shapes.say(ax, NO_POSITIONAL)


PROTOCOL = StudyProtocol(
    paper="Voita, Ferrando and Nalmpantis 2023, Neurons in Large Language Models: Dead, N-gram, Positional (arXiv "
    "2309.04827)",
    published={
        "models": "OPT 125M to 66B (ReLU)",
        "text": "over 20M tokens for dead neurons, over 5M for the rest; texts of 2048 tokens for positions",
        "fires": "coefficient above 0",
        "token detector": "1 to 5 tokens make up 95% of firings, as do covered tokens (fired at 95% of the time)",
        "positional": "mutual information of firing and position above 0.05",
        "dead": "many in the first half of larger models, over 70% in some layers of the 66B one; none in the second",
        "detectors": "only in the first half; 5351 in the 66B model; over 80% suppress the tokens that trigger them",
    },
    main=("dead", "detectors", "positional"),
    tables={
        "summary": (
            "Dead, token-detecting and positional neurons by layer",
            "dead and firing_rate (mean of those that fired) are of the whole scan; tokens are those that a detector "
            "of the layer covers, new_tokens those that no layer below covers, new_to_previous those that the layer "
            "before does not; suppressing is the share of detectors that write away from their tokens. Of a gated "
            "neuron dead means that its gate never opened: with SiLU or GELU it may write all the same (see fm.roles).",
        ),
        "covering": (
            "How many tokens make up a neuron's firings",
            "Shares of the neurons that fired, by the fewest tokens that make up 95% of their firings, or what is set "
            "as coverage. Tokens too rare to be counted one by one are needed of some; how many at least follows from "
            "how rare they are.",
        ),
        "detectors": (
            "Token detectors",
            "trigger_cosine is the mean cos(W_U, v) over the tokens that a detector covers, less the mean over the "
            "vocabulary: negative where it suppresses them. Of gated neurons it is times the sign of the mean "
            "coefficient, and promoted and suppressed are what they are with a coefficient of that sign.",
        ),
        "positional": (
            "Positional neurons",
            "The pattern is sorted by rule here, by eye in the paper: both extremes, if the firing rate comes within "
            "5% of 0 and of 1; oscillatory, if it then crosses one half three times or more; one extreme; other.",
        ),
        "rates": (
            "Firing rates by position of the strongest positional neurons",
            f"Of the {STRONGEST} that tell most about it, at positions with {ENOUGH} tokens or more.",
        ),
    },
    figures=(
        Figure(
            "dead",
            "Neurons that never fired",
            curves("summary", Series("dead_share", colour=shapes.FFN), scale=Scale(none="every neuron fired")),
            "dead neurons",
            "Figure 1a. GELU hardly lets a neuron die; the paper's models have ReLU. A gated neuron is dead if its "
            "gate never opened.",
            percent=True,
        ),
        Figure(
            "firing_rate",
            "How often a neuron that is not dead fires",
            curves("summary", Series("firing_rate", colour=shapes.FFN)),
            "mean firing rate",
            "Figure 1b.",
            percent=True,
        ),
        Figure(
            "covering",
            "How many tokens make up a neuron's firings",
            stack(shares_covered, dict(zip(COVERING, SHADES, strict=True))),
            "share of the neurons that fired",
            "Figure 2, which shows the first half of each model.",
            percent=True,
            legend="stacked",
        ),
        Figure(
            "detectors",
            "Token detectors by layer",
            stack(
                split_detectors,
                {SUPPRESSING: shapes.TAKES, OTHERS: SHADES[3]},
                Scale(whole=True, top=1.0, none=NO_DETECTORS),
            ),
            "neurons",
            "Figure 3a.",
            legend="stacked",
        ),
        Figure(
            "tokens",
            "Tokens that have a detector",
            curves(
                "summary",
                Series("tokens_so_far", "so far", "", "--"),
                Series("tokens", "in the layer", shapes.FFN),
                Series("new_tokens", "new in the layer", shapes.TAKES),
                scale=Scale(whole=True, top=1.0, none=NO_DETECTORS),
            ),
            "tokens with a detector",
            "Figures 3b and 4.",
        ),
        Figure(
            "positional",
            "Positional neurons by layer",
            stack(count_patterns, PATTERNS, Scale(whole=True, top=1.0, none=NO_POSITIONAL)),
            "positional neurons",
            "Figure 8.",
            legend="stacked",
        ),
        Figure(
            "patterns",
            "When the strongest positional neurons fire",
            paint_rates,
            "firing rate",
            "Figure 7.",
            f"position (those with {ENOUGH} tokens or more)",
            percent=True,
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
    types: int = 5,
    coverage: float = 0.95,
    position: float = 0.05,
    min_count: int = 10,
) -> Study:
    """Dead, token-detecting and positional neurons by layer.

    A neuron fires where its pre-activation is above 0: of the paper's ReLU, and of GELU and SiLU, that is where its
    coefficient is. A gated neuron's pre-activation is its gate's, so it fires where its gate is open, and is dead if
    that never was; its coefficient has the sign of its key there. Whether a detector suppresses its tokens depends on
    that sign, of which the scan has the mean.

    Args:
        model: from :func:`ffnmem.load`. store: a finished scan of it; dead neurons and firing rates are the scan's.
        progress: told ("text", sequences done, in all).
        seed: of the sequences read.
        n_sequences: how many sequences of the store's text to read for tokens and positions; None for all.
        types, coverage: of token detectors, see :func:`ffnmem.neurons.counting.token_detection`.
        position: the mutual information, in nats, above which a neuron is positional.
        min_count: how often a token must occur in the reading to count as covered by a neuron.

    Returns:
        Tables ``summary`` (by layer), ``covering`` (how many tokens make up a neuron's firings), ``detectors``,
        ``positional``, ``rates`` (by position, of the strongest of these); figures ``dead``, ``firing_rate``,
        ``covering``, ``detectors``, ``tokens``, ``positional``, ``patterns``.

    Raises:
        InputError: another model's store, or settings out of range.

    Source: Voita et al. 2023 (2309.04827), figures 1 to 4, 7 and 8.
    """
    Thresholds(types=types, coverage=coverage, position=position, min_count=min_count).resolved(model.d_model)
    firing = count_firings(model, store, n_sequences=n_sequences, seed=seed, progress=progress)
    found = {
        layer: token_detection(firing, layer, types=types, coverage=coverage, min_count=min_count)
        for layer in firing.layers
    }
    information = {layer: position_information(firing.at_position[layer], firing.positions) for layer in firing.layers}
    detectors = detector_table(model, found, {layer: written_signs(model, store, layer) for layer in firing.layers})
    positional = positional_table(firing, information, position)
    summary = summary_table(store, found, detectors, positional)
    settings = {
        "n_sequences": n_sequences,
        "seed": seed,
        "types": types,
        "coverage": coverage,
        "position": position,
        "min_count": min_count,
        "activation": model.ffn[0].activation,
        "tokens_scanned": store.n_tokens,
        **reading_settings(store, firing),
    }
    return Study(
        name="voita2023",
        frames={
            "summary": summary,
            "covering": covering_table(store, found),
            "detectors": detectors,
            "positional": positional,
            "rates": rate_table(firing, positional.head(STRONGEST)),
        },
        found=compare_with_paper(model, store, summary, settings),
        settings=settings,
        provenance=model.provenance(corpus=store.manifest["corpus"]["hash"]).to_dict(),
    )


def compare_with_paper(
    model: Model, store: Store, summary: pd.DataFrame, settings: Mapping[str, Any]
) -> dict[str, str]:
    """What the study has of what the paper has, by subject."""
    neurons, detectors = int(summary["neurons"].sum()), int(summary["detectors"].sum())
    most = summary.loc[summary["dead_share"].idxmax()]
    first = int(summary["detectors"][summary["layer"] < (len(summary) + 1) // 2].sum())
    against = float((summary["detectors"] * summary["suppressing"].fillna(0)).sum())
    dead = f"{int(summary['dead'].sum()):,} of {neurons:,}"
    if most["dead"]:
        dead += f", most in layer {int(most['layer'])} ({format_share(float(most['dead_share']))})"
    found = {
        "models": f"{model.name} ({model.ffn[0].activation})",
        "text": f"{store.n_tokens:,} tokens for dead neurons, {settings['tokens_read']:,} for the rest",
        "fires": "pre-activation above 0",
        "token detector": f"1 to {settings['types']} tokens make up {settings['coverage']:.0%} of firings",
        "positional": f"{counted(int(summary['positional'].sum()), 'neuron')} with mutual information of firing and "
        f"position above {settings['position']:g}",
        "dead": dead,
        "detectors": "none",
    }
    if detectors:
        found["detectors"] = (
            f"{detectors:,}, {format_share(first / detectors)} in the first half; {format_share(against / detectors)} "
            "suppress the tokens that trigger them"
        )
    return found


# -- tables ------------------------------------------------------------------------------------------------------------


def summary_table(
    store: Store, found: Mapping[int, Detection], detectors: pd.DataFrame, positional: pd.DataFrame
) -> pd.DataFrame:
    """One row a layer."""
    rows = []
    below: set[int] = set()
    previous: set[int] = set()
    for layer, detection in found.items():
        stats = store.stats(layer)
        dead = stats["dead"].to_numpy(bool)
        n = len(dead)
        tokens = {token for ids in detection.triggers.values() for token in ids}
        mine = detectors[detectors["layer"] == layer]
        share, low, high = share_interval(len(mine), n)
        rows.append(
            {
                "layer": layer,
                "neurons": n,
                "dead": int(dead.sum()),
                "dead_share": float(dead.mean()),
                "firing_rate": float(stats["firing_rate"][~dead].mean()),
                "detectors": len(mine),
                "detector_share": share,
                "detector_low": low,
                "detector_high": high,
                "suppressing": float(mine["suppresses"].mean()) if len(mine) else float("nan"),
                "tokens": len(tokens),
                "new_tokens": len(tokens - below),
                "new_to_previous": len(tokens - previous),
                "tokens_so_far": len(tokens | below),
                "positional": int((positional["layer"] == layer).sum()),
            }
        )
        below, previous = below | tokens, tokens
    return pd.DataFrame(rows)


def covering_table(store: Store, found: Mapping[int, Detection]) -> pd.DataFrame:
    """One row a layer and category: how many neurons that fired, and which share."""
    rows = []
    for layer, detection in found.items():
        alive = ~np.isnan(detection.share)  # fired in the reading
        covering, at_least = detection.covering[alive], detection.at_least[alive]
        many = at_least > CATEGORIES[-1][1]
        by_category = [int(((covering >= low) & (covering <= high)).sum()) for low, high in CATEGORIES]
        counts = dict(zip(COVERING, (*by_category, many.sum(), (np.isnan(covering) & ~many).sum()), strict=True))
        total = max(int(alive.sum()), 1)
        rows += [
            {"layer": layer, "tokens": name, "neurons": int(count), "share": count / total}
            for name, count in counts.items()
        ]
    return pd.DataFrame(rows)


def written_signs(model: Model, store: Store, layer: int) -> Float64[np.ndarray, " d_mlp"]:
    """1 where a neuron that fires writes its value, −1 where the opposite.

    Of gated ones, the sign of the mean coefficient where the gate is open: a shut one turns the sign.
    """
    if not model.gated:
        return np.ones(model.ffn[layer].d_mlp)
    stats, total = store.stats(layer), np.zeros(model.ffn[layer].d_mlp)
    for case in ("gate_pos_linear_pos", "gate_pos_linear_neg"):
        share, mean = (stats[f"{name}_{case}"].to_numpy(np.float64) for name in ("share", "mean"))
        total += np.where(share > 0, share * np.nan_to_num(mean), 0.0)
    return np.where(total < 0, -1.0, 1.0)


def detector_table(
    model: Model, found: Mapping[int, Detection], signs: Mapping[int, Float64[np.ndarray, " d_mlp"]]
) -> pd.DataFrame:
    """One row a detector: what triggers it, what it promotes and suppresses, and whether that is its triggers."""
    columns = ("layer", "neuron", "triggers", "trigger_share", "trigger_cosine", "suppresses", "promoted", "suppressed")
    rows = []
    unembedding = read_unembedding(model) if any(detection.triggers for detection in found.values()) else None
    for layer, detection in found.items():
        if unembedding is None or not detection.triggers:
            continue
        neurons = pd.DataFrame({"layer": layer, "neuron": list(detection.triggers)})
        tokens = ends(model, neurons, PROMOTED)
        cosines = trigger_cosines(model, unembedding, layer, detection)
        for neuron, ids in detection.triggers.items():
            sign = float(signs[layer][neuron])
            cosine = sign * cosines[neuron]
            up, down = ("promoted", "suppressed") if sign > 0 else ("suppressed", "promoted")
            row = (
                layer, neuron, spelled(model.token_strings(ids)), float(detection.share[neuron]), cosine, cosine < 0,
                spelled(tokens[layer, neuron, up]), spelled(tokens[layer, neuron, down]),
            )  # fmt: skip
            rows.append(dict(zip(columns, row, strict=True)))
    return pd.DataFrame(rows, columns=list(columns))


def trigger_cosines(model: Model, unembedding: Unembedding, layer: int, detection: Detection) -> dict[int, float]:
    """Mean cos(W_U, v) over each detector's tokens, less the mean over the vocabulary."""
    neurons = list(detection.triggers)
    values = read_values(model, layer, unembedding.basis)[neurons]
    mean = cosine_moments(values, unembedding.units)["mean"]
    found = {}
    for row, (neuron, ids) in enumerate(detection.triggers.items()):
        tokens = unembedding.tokens[ids].double()
        value = values[row].double()
        cosine = (tokens @ value) / (tokens.norm(dim=-1) * value.norm()).clamp_min(1e-300)
        found[neuron] = float(cosine.mean()) - float(mean[row])
    return found


def positional_table(
    firing: FiringCounts, information: Mapping[int, PositionInformation], threshold: float
) -> pd.DataFrame:
    """One row a positional neuron, the most informative first."""
    columns = ("layer", "neuron", "information", "p", "lowest_rate", "highest_rate", "crossings", "pattern")
    rows = []
    for layer, measured in information.items():
        rates = firing_rates(firing, layer)[1]
        for neuron in np.flatnonzero(measured.information > threshold).tolist():
            rate = rates[:, neuron]
            values = (float(measured.information[neuron]), float(measured.p[neuron]))
            rows.append(dict(zip(columns, (layer, neuron, *values, *pattern(rate)), strict=True)))
    frame = pd.DataFrame(rows, columns=list(columns))
    return frame.sort_values("information", ascending=False, kind="stable", ignore_index=True)


def rate_table(firing: FiringCounts, neurons: pd.DataFrame) -> pd.DataFrame:
    """The firing rates of some neurons, a row a position."""
    parts = []
    for row in neurons.itertuples():
        used, rates = firing_rates(firing, row.layer)
        parts.append(
            pd.DataFrame({"layer": row.layer, "neuron": row.neuron, "position": used, "rate": rates[:, row.neuron]})
        )
    return (
        pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["layer", "neuron", "position", "rate"])
    )


def firing_rates(
    firing: FiringCounts, layer: int
) -> tuple[Int64[np.ndarray, " used"], Float64[np.ndarray, "used d_mlp"]]:
    """The positions that have enough tokens, and every neuron's firing rate there."""
    used = np.flatnonzero(firing.positions >= ENOUGH)
    return used, firing.at_position[layer][used] / firing.positions[used][:, None]


def pattern(rate: Float64[np.ndarray, " used"]) -> tuple[float, float, int, str]:
    """The lowest and highest firing rate over positions, how often it crosses one half, and the pattern's name."""
    if not len(rate):
        return float("nan"), float("nan"), 0, "other"
    low, high = float(rate.min()), float(rate.max())
    smooth = np.convolve(rate, np.ones(SMOOTH) / SMOOTH, mode="valid") if len(rate) >= SMOOTH else rate
    crossings = int(np.count_nonzero(np.diff(smooth > 0.5)))
    extremes = (low <= EXTREME) + (high >= 1 - EXTREME)
    if extremes == 2:
        return low, high, crossings, "oscillatory" if crossings >= 3 else "both extremes"
    return low, high, crossings, "one extreme" if extremes else "other"
