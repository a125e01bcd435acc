"""Geva et al. 2021: keys as patterns, values as predictions, layers as compositions; with the sub-updates of 2022."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..core.errors import InputError, counted, listed
from ..core.number_text import format_share
from ..core.progress import Progress
from ..core.types import Basis, Count, Seed, checked
from ..models.model import Model
from ..models.turns import in_turn
from ..plots import shapes
from ..scanning.store import Store
from .agreement import CONFIDENT, agreement_table, agreements, confident_table
from .composition import (
    CASES,
    FREQUENT,
    SHARES,
    SHORT,
    composition_table,
    read_positions,
    refinement_table,
    update_table,
)
from .figures import Scale, Series, curves, spread, stack
from .prefixes import CONFIDENCE, RESAMPLES, Places, random_places
from .study import Figure, Study, StudyProtocol
from .triggers import LEAST, REMOVED, change_table, prefix_table, removal_trials

TOO_SMALL = "give a corpus with more text, or a longer context"
SHOWN = 3  # prefixes a key in the table of prefixes
GREEN, SKY, ORANGE, BLUE = shapes.GREEN, shapes.SKY, shapes.TAKES, shapes.ADDS
CASE_COLOURS = dict(zip(CASES, (BLUE, SKY, GREEN, ORANGE), strict=True))
SHARE_COLOURS = dict(zip(SHARES, (BLUE, GREEN, ORANGE), strict=True))

PROTOCOL = StudyProtocol(
    paper="Geva, Schuster, Berant and Levy 2021, Transformer Feed-Forward Layers Are Key-Value Memories (arXiv "
    "2012.14913); sub-updates after Geva, Caciularu, Wang and Goldberg 2022, Transformer Feed-Forward Layers Build "
    "Predictions by Promoting Concepts in the Vocabulary Space (arXiv 2203.14680)",
    published={
        "model": "Baevski and Auli 2019: 16 layers, d_model 1024, d_mlp 4096, ReLU, some 268,000 words",
        "corpus": "WikiText-103: its training set for trigger examples, its validation set for composition",
        "removal": "100 random keys a layer, top 50 trigger examples each (figure 3)",
        "effect of removal": "last token −65% in layer 1 to −20% in layer 16; first and random −10% to −20%",
        "agreement": "of the value's top token with the one after the top trigger (figure 4): near 0 in layers 1–10, "
        "up to 3.5% above; a random token 0.0004%",
        "confident values": "the 100 of the highest probability: 97 in layers 11–16, 46 agree with a top 50 trigger",
        "positions": "4,000 random examples of the validation set (figures 7–11)",
        "active memories": "10% to 50% of a layer's memories have a coefficient above 0 (figure 7)",
        "zero agreement": "at least about 68% of examples in every layer (figure 8)",
        "where memories agree": "60% predict a stop word, 43% have a prefix of fewer than 5 tokens",
        "refinement": "a third of the answers stand in the bottom layers, more and more from layer 10 on (figure 9)",
        "basis": "v·E, without a final norm's gain (basis='raw' here)",
    },
    main=("effect of removal", "agreement", "zero agreement"),
    tables={
        "summary": ("The main numbers by layer", "Every column is explained at its own table."),
        "changes": (
            "What removing a token does to a key's coefficient",
            "Relative change (m' − m)/m, averaged over a key's prefixes and then over keys; the interval is over keys. "
            "Below −100% the coefficient turns negative, which the paper's ReLU cannot. Prefixes begin where a "
            "sequence of the store does, the paper's where a sentence does; keys without one of at least three tokens "
            "are left out.",
        ),
        "prefixes": ("Trigger prefixes of the keys drawn", f"The {SHOWN} best of each key."),
        "agreement": (
            "Values against what follows their keys' triggers",
            "All keys. The trigger is a key's best kept prefix that a token follows. By chance, if what follows were "
            "drawn: unigram, from the corpus's tokens; shuffled, from what follows the layer's other keys; uniform, "
            "from the vocabulary. A trigger has a positive coefficient, of gated neurons too: what they do where it is "
            "negative, and the opposite of their value is written, is not looked at.",
        ),
        "confident": (
            "The values of the highest probability",
            f"At most {CONFIDENT}. Agreeing: how many of the key's kept triggers are followed by the prediction.",
        ),
        "composition": (
            "How layers compose their memories",
            "A layer's prediction is the token that its FFN's output, bias included, promotes most; a memory is active "
            "where its coefficient is above 0; of gated memories, whose coefficients have both signs, that is where "
            "they write their value and not its opposite: half of them by chance. zero_agreement: no value of the "
            "layer has that top token (the paper's); …_active: no active memory's has; …_shuffled: nor would those of "
            "another position. frequent_share and short_share are of the positions where some memory of "
            "the layer agrees.",
        ),
        "refinement": (
            "How layers refine the model's prediction",
            "The residual stream before and after each FFN is read through the final norm, whose bias can make a third "
            "token win where residual and FFN agree, unlike in the paper: such a case counts as composition.",
        ),
        "updates": (
            "How few sub-updates make up a layer's output",
            "Output: sub-updates by falling |mᵢ|·‖vᵢ‖ until 1 − ‖y − y_k‖²/‖y‖² reaches the share, y = Σmᵢvᵢ without "
            "its bias, with the gain of a norm behind the FFN if there is one; random: the same in random order, as "
            "expected; weight: until Σ|mᵢ|·‖vᵢ‖ does. Numbers are quantiles over positions; part is the median's share "
            "of the layer's neurons.",
        ),
    },
    figures=(
        Figure(
            "changes",
            "Change of a key's coefficient when a token of its trigger prefix is removed",
            curves(
                "changes",
                *(
                    Series("change", f"{name} token", colour, low="low", high="high", where={"removed": name})
                    for name, colour in zip(REMOVED, (BLUE, GREEN, ORANGE), strict=True)
                ),
            ),
            "change of the coefficient",
            "The paper's figure 3: the last token matters most, and less in upper layers (−65% to −20%).",
            percent=True,
        ),
        Figure(
            "agreement",
            "Keys whose value's top token is the next token of their top trigger",
            curves(
                "agreement",
                Series("agreement", "agreement, with its 95% interval", BLUE, low="low", high="high"),
                Series("shuffled", "other keys' next tokens", ORANGE, "--"),
                Series("uniform", "a random token", "", ":"),
            ),
            "keys",
            "The paper's figure 4: close to 0 in layers 1 to 10, then up to 3.5%.",
            percent=True,
        ),
        Figure(
            "ranks",
            "Rank of the trigger's next token in the value's prediction",
            spread(
                "agreement",
                "rank",
                Series("random_rank_50", "a token drawn from the corpus, median", ORANGE, "--"),
                of="keys",
                scale=Scale(log=True),
            ),
            "rank in the value's prediction",
            "The paper's figure 5: ranks become better from layer to layer.",
        ),
        Figure(
            "active",
            "Memories with a coefficient above 0 at a position",
            spread("composition", "active_share", of="positions"),
            "memories of the layer",
            "The paper's figure 7: 10% to 50% of a layer's memories (of a ReLU model).",
            percent=True,
        ),
        Figure(
            "zero_agreement",
            "Positions where the layer predicts what none of its memories predicts",
            curves(
                "composition",
                *(
                    Series(name, label, colour, low=f"{name}_low", high=f"{name}_high")
                    for name, label, colour in (
                        ("zero_agreement", "no memory of the layer", BLUE),
                        ("zero_agreement_active", "no active memory", GREEN),
                    )
                ),
                Series("zero_agreement_shuffled", "no active memory of another position", ORANGE, "--"),
                scale=Scale(top=1.0),
            ),
            "positions",
            "The paper's figure 8: at least about 68% in every layer, of all memories.",
            percent=True,
        ),
        Figure(
            "match",
            "Positions where the residual's top token is the model's answer",
            curves(
                "refinement", Series("match", colour=BLUE, low="match_low", high="match_high"), scale=Scale(top=1.0)
            ),
            "positions",
            "The paper's figure 9: about a third in the bottom layers, growing fast from layer 10 of 16.",
            percent=True,
        ),
        Figure(
            "probability",
            "Probability of the model's answer, read off the residual",
            spread(
                "refinement", "probability", Series("probability", "mean", ORANGE), of="positions", scale=Scale(top=1.0)
            ),
            "probability of the model's answer",
            "The paper's figure 10: near 0 in lower layers, a median of .6 to .8 in the last.",
        ),
        Figure(
            "cases",
            "Whose prediction stands after the layer",
            stack(lambda study: {name: study.table("refinement")[name] for name in CASES}, CASE_COLOURS),
            "positions",
            "The paper's figure 11: the residual's in most cases, rarely the FFN's own.",
            percent=True,
            legend="stacked",
        ),
        Figure(
            "updates",
            "Sub-updates that make up a layer's output",
            curves(
                "updates",
                *(
                    Series(
                        "needed_50",
                        f"{share:.0%} of the {what}",
                        colour,
                        style,
                        *ends,
                        where={"measure": measure, "share": share},
                    )
                    for measure, what, style, ends in (
                        ("output", "output", "-", ("needed_25", "needed_75")),
                        ("weight", "weights", ":", ("", "")),
                    )
                    for share, colour in SHARE_COLOURS.items()
                ),
                Series(
                    "needed_50",
                    f"{SHARES[0]:.0%} of the output, in random order",
                    style="--",
                    where={"measure": "random", "share": SHARES[0]},
                ),
                scale=Scale(log=True),
            ),
            "largest sub-updates",
            "By |mᵢ|·‖vᵢ‖ as in Geva et al. 2022. Lines: medians over positions, solid for the squared error "
            "explained, dotted for the sum of weights, dashed in random order; bands: half of the positions.",
        ),
    ),
)


@checked
@in_turn
def study(
    model: Model,
    store: Store,
    *,
    progress: Progress | None = None,
    seed: Seed = 0,
    keys: Count = 64,
    prefixes: Count = 25,
    n_sequences: Count = 4000,
    updates: Count = 1000,
    basis: Basis = "folded",
) -> Study:
    """Geva et al.'s protocols on a model, over the text of a store.

    Args:
        model: from :func:`ffnmem.load`. store: a scan of it; its top examples are the keys' trigger prefixes.
        progress: called as (phase, done, total).
        seed: of the keys, the tokens removed and the positions.
        keys: drawn in each layer for the removal of tokens. prefixes: the best of each, as many as the store has.
        n_sequences: random ones of the corpus; composition is looked at at one random position of each.
        updates: at so many of these positions sub-updates are counted.
        basis: of the projections of values and FFN outputs, ``"folded"`` or ``"raw"`` (the paper's).

    Returns:
        A :class:`Study` with the tables ``summary``, ``changes``, ``prefixes``, ``agreement``, ``confident``,
        ``composition``, ``refinement`` and ``updates``, and a figure for each of the paper's 3, 4, 5 and 7 to 11.

    Raises:
        InputError: another model's store, or settings that cannot be.
    """
    store.check_model(model)
    places = random_places(store, n_sequences, seed)
    check_text(store, places, n_sequences)
    trials = removal_trials(model, store, keys=keys, prefixes=prefixes, seed=seed, progress=progress)
    if not any(len(trial.frame) for trial in trials):
        raise InputError(
            f"none of the keys drawn has a trigger prefix of {LEAST} tokens or more in {store.folder}: {TOO_SMALL}"
        )
    found = agreements(model, store, basis=basis, seed=seed, progress=progress)
    if not any((agreement.following >= 0).any() for agreement in found):
        raise InputError(f"no token follows the trigger prefix of any key in {store.folder}: {TOO_SMALL}")
    tops = [agreement.values.token for agreement in found]
    readings = read_positions(
        model, places, tops, lead=store.sequences.lead, updates=updates, basis=basis, progress=progress
    )
    frames = {
        "changes": change_table(trials, seed),
        "prefixes": prefix_table(store, trials, SHOWN),
        "agreement": agreement_table(found, store, model.d_vocab),
        "confident": confident_table(found, model, store),
        "composition": composition_table(readings, tops, store, seed),
        "refinement": refinement_table(readings, seed),
        "updates": update_table(readings, model),
    }
    frames["summary"] = summary(frames)
    return Study(
        name="geva2021",
        frames=frames,
        found=compare_with_paper(model, frames, keys=keys, prefixes=prefixes, basis=basis)
        | {"corpus": corpus_words(store), "positions": f"{len(places):,} random sequences, a position of each"},
        settings={
            "keys": keys,
            "prefixes": prefixes,
            "n_sequences": n_sequences,
            "positions": len(places),
            "updates": min(updates, len(places)),
            "basis": basis,
            "seed": seed,
            **fixed(store),
        },
        provenance={**store.provenance, "basis": basis, "study_seed": seed},
    )


def check_text(store: Store, places: Places, n_sequences: int) -> None:
    """Raise InputError where a store's text is too small for any of it, before the work."""
    if len(places) < min(2, n_sequences):
        raise InputError(
            f"{store.folder} has {len(places)} sequence{'s' * (len(places) != 1)} with text, and the positions looked "
            f"at are one of each: {TOO_SMALL}"
        )
    longest = max(int(store.sequences.lengths(unit).max()) for unit in store.sequences.units) - store.sequences.lead
    if longest < LEAST:
        raise InputError(
            f"the longest sequence of {store.folder} has {longest} token{'s' * (longest != 1)}, and a prefix from "
            f"which one is removed takes {LEAST}: {TOO_SMALL}"
        )


def fixed(store: Store) -> dict[str, Any]:
    """What the numbers depend on besides the study's own settings: the store's, and what is the same for all."""
    return {
        "prefixes kept by the store": store.settings.k,
        "shortest prefix for removal": LEAST,
        "frequent tokens": FREQUENT,
        "short prefix": SHORT,
        "intervals": f"{CONFIDENCE:.0%}: bootstrap of {RESAMPLES} for means, Wilson for shares",
        "corpus": corpus_words(store),
        "context": store.settings.context,
        "prepend_bos": store.settings.prepend_bos,
    }


def summary(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """The main numbers by layer."""
    change = frames["changes"].pivot_table("change", "layer", "removed")
    change = change.reindex(columns=["first", "random", "last"])
    change.columns = [f"without_{name}" for name in change.columns]
    agreement = frames["agreement"].set_index("layer")[["agreement", "shuffled", "rank_50"]]
    composition = frames["composition"].set_index("layer")
    composition = composition[["active_share", "zero_agreement", "zero_agreement_active", "zero_agreement_shuffled"]]
    refinement = frames["refinement"].set_index("layer")
    refinement = refinement[["match", "probability", "residual", "agreement", "composition", "ffn"]]
    refinement = refinement.rename(
        columns={name: f"case_{name}" for name in ("residual", "agreement", "composition", "ffn")}
    )
    rows = frames["updates"]
    needed = rows[rows["measure"] == "output"].pivot_table("needed_50", "layer", "share")
    needed.columns = [f"updates_{100 * share:.0f}" for share in needed.columns]
    joined = agreement.join([change, composition, refinement, needed])
    order = [*change.columns, *agreement.columns, *composition.columns, *refinement.columns, *needed.columns]
    return joined[order].reset_index()


def corpus_words(store: Store) -> str:
    """Which text a store is of, and how much of it."""
    corpus = store.manifest["corpus"]
    return f"{corpus['source']}: {store.n_tokens:,} tokens in {counted(corpus['documents'], 'document')}"


def compare_with_paper(
    model: Model, frames: dict[str, pd.DataFrame], *, keys: int, prefixes: int, basis: Basis
) -> dict[str, str]:
    """What the study has of what the paper has, by subject."""
    summary, confident, composition = frames["summary"], frames["confident"], frames["composition"]
    layers = model.n_layers
    upper = min(-(-layers * 10 // 16), layers - 1)  # the paper's layers 11 to 16 of 16
    above, agreeing = int((confident["layer"] >= upper).sum()), int((confident["agreeing"] > 0).sum())
    agrees = composition["positions"] * (1 - composition["zero_agreement"])
    frequent, short = (
        float(np.nansum(composition[name] * agrees) / max(agrees.sum(), 1))
        for name in ("frequent_share", "short_share")
    )
    ffn, widths = model.ffn[0], sorted({ffn.d_mlp for ffn in model.ffn})
    return {
        "model": f"{model.name}: {layers} layers, d_model {ffn.d_model}, d_mlp {listed(widths)}, {ffn.activation}, "
        f"{model.d_vocab:,} tokens",
        "removal": f"{keys} random keys a layer, top {prefixes} trigger examples each",
        "effect of removal": "; ".join(
            f"{name} token {from_to(summary[f'without_{name}'], sign=True)}" for name in REMOVED[::-1]
        ),
        "agreement": f"{from_to(summary['agreement'])}; by chance at most {format_share(summary['shuffled'].max())}",
        "confident values": f"the {len(confident)} of the highest probability: {above} in layers {upper} to "
        f"{layers - 1}, {agreeing} agree with a kept trigger",
        "active memories": f"{from_to(composition['active_share'])}, averaged over positions",
        "zero agreement": f"{format_share(summary['zero_agreement'].min())} of positions at least, "
        f"{format_share(summary['zero_agreement'].max())} at most",
        "where memories agree": f"{frequent:.0%} predict one of the {FREQUENT} most frequent tokens, {short:.0%} have "
        f"a prefix of fewer than {SHORT} tokens",
        "refinement": f"the residual's top token is the model's answer: {from_to(summary['match'])}",
        "basis": basis,
    }


def from_to(shares: pd.Series, sign: bool = False) -> str:
    """Shares, or with ``sign`` changes, from the first layer to the last."""
    known = shares.dropna()
    if not len(known):
        return "–"
    first, last = (format_share(float(known.iloc[place]), 0 if sign else 1, sign) for place in (0, -1))
    return f"{first} in layer {known.index[0]} to {last} in layer {known.index[-1]}"
