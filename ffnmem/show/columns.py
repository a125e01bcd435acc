"""How values read, wherever they are shown: one registry, by the names that results declare."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from ..core.sheets import NEGATIVE, Column, guess_column

PLACE = ("layer", "neuron")
Derived = Callable[[Any, Any], list[Any]]


def neuron_pairs(result: Any, rows: Any) -> list[tuple[int, int] | None]:
    """(layer, neuron) of each row; None where it is of none."""
    pairs = zip(rows["layer"].tolist(), rows["neuron"].tolist(), strict=True)
    return [None if isna else pair for pair, isna in zip(pairs, rows["neuron"].isna(), strict=True)]


def from_column(name: str) -> Derived:
    """The values of another column."""
    return lambda _result, rows: rows[name].tolist()


TOKENS = 8  # of a neuron
FIRED = ("difference", "coefficient_after", "peak", "coefficient")
"""Columns of the coefficients that neurons had somewhere, the first of those that a table has."""


def end_tokens(end: int, fired: bool = True) -> Derived:
    """The tokens that neurons promote (+1) or suppress (-1) as they fired; where no coefficient is there, or not
    ``fired``, in general."""

    def tokens(result: Any, rows: Any) -> list[list[str]]:
        if hasattr(result, "store"):
            return side_tokens("promotes" if end > 0 else "suppresses")(result, rows)
        if result.model is None:
            return [[] for _ in range(len(rows))]
        column = next((name for name in FIRED if name in rows), None) if fired else None
        pairs = neuron_pairs(result, rows)
        signs = [end] * len(rows) if column is None else [-end if value < 0 else end for value in rows[column]]
        ends = [
            (*at, "value", "promoted" if sign > 0 else "suppressed")
            for at, sign in zip(pairs, signs, strict=True)
            if at is not None
        ]
        # What stands for tokens is above everything that is shown.
        found = import_module("ffnmem.vocabulary.projections").end_tokens(
            result.model, ends, TOKENS, lens=getattr(result, "lens", "logit")
        )
        known = iter(ends)
        return [[] if at is None else found[next(known)] for at in pairs]

    return tokens


def side_tokens(name: str) -> Derived:
    """Tokens of the sides of neurons of a store, "fires_at" or "promotes": of the side whose sign the coefficients
    have, where some are there, else of the stronger one."""

    def tokens(result: Any, rows: Any) -> list[list[str]]:
        store = result.store
        if store is None or not (store.projected or name == "fires_at"):
            return [[] for _ in range(len(rows))]
        found, coefficients = [], rows.get("coefficient", [None] * len(rows))
        for place, coefficient in zip(neuron_pairs(result, rows), coefficients, strict=True):
            one = store.neuron(place)
            sign = "negative" if (coefficient or 0) < 0 else "positive"
            side = one.sides[0] if coefficient is None else one.side(sign)
            found.append([text for text, _ in getattr(side, name)[:TOKENS]])
        return found

    return tokens


def made_by(result: Any, rows: Any) -> list[list[tuple[str, float]]]:
    """The sources of nodes of a circuit, and what each adds."""
    return [result.sources.get(name, []) for name in rows["id"]]


def each(names: str, *args: Any, **about: Any) -> dict[str, Column]:
    """A column of the same kind for every name; its head is the name in words."""
    return {name: Column(name.replace("_", " "), *args, **about) for name in names.split()}


COLUMNS: Mapping[str, Column] = {
    "neuron": Column("neuron", "neuron", derive=neuron_pairs, needs=PLACE, leads="neuron"),
    **each("token target foil other_token says raised", "token", leads="token"),
    "answer": Column("answer", "token"),
    **each("promoted suppressed", "token", limit=24, least=20, leads="token"),
    **each("promoting suppressing", "neuron", left=False, leads="neuron"),
    **dict.fromkeys(
        ("promoted_score", "suppressed_score", "promoting_score", "suppressing_score"),
        Column("score", "number", sign=True),
    ),
    "fired_at": Column("fired at", "token", limit=20, derive=from_column("token"), needs=("token",), leads="token"),
    **each(
        "layer position rank neurons facts tokens size runs strongest_layer positions connections_in connections_out",
        "count",
    ),
    "coefficient": Column("coefficient", "number", note=NEGATIVE),
    **each("attention ffn ffn_bias attention_bias", "number", places=3, sign=True),
    "peak_position": Column("at", "count"),
    "together": Column("together", "number", places=3, sign=True, bars="steps"),
    **each("sum_so_far", "number", places=3),
    **each("logit attribution change score", "number", sign=True, colour=True, bars=True),
    **each("written written_there exact direct loss cosine", "number", sign=True),
    **each(
        "identity share share_low share_high influence bias_share faithfulness completeness sufficiency necessity "
        "without worth",
        "percent",
    ),
    **each("random random_low random_high random_without random_without_low random_without_high", "percent"),
    **each("alike alike_low alike_high", "percent"),
    **each("probability probability_before probability_after clean corrupted", "probability"),
    **each("rank_before rank_after", "count"),
    "in_pairs": Column("in pairs", "percent", derive=from_column("pairs"), needs=("pairs",)),
    "slot": Column("neuron", derive=lambda _, rows: ["bias" if n < 0 else str(n) for n in rows["neuron"]]),
    "total": Column("total effect", "percent"),
    "carried": Column("through FFNs", "percent"),
    "carried_over": Column("brought by all firings", "percent"),
    "likeliest": Column("the model says", "tokens"),
    "cpr": Column("mean faithfulness (CPR)", "number"),
    "cmd": Column("mean distance from 1 (CMD)", "number"),
    "spearman": Column("rank correlation", "number"),
    "opposite": Column("of opposite sign", "count"),
    "peak": Column("largest", "number", note=NEGATIVE),
    "n": Column("facts", "count"),
    **each("count", "count"),
    "condition": Column("condition", "number", digits=3),
    **each("effective_rank", "number", places=1),
    "n_documents": Column("documents", "count"),
    "n_tokens": Column("tokens", "count"),
    **each("first meaning hardly_used", wraps=True),
    **each("never_fired experts", "count"),
    "n_sequences": Column("sequences", "count"),
    "firing_rate_50": Column("median", "percent"),
    **{f"firing_rate_{end}": Column(f"{end}%", "percent") for end in (5, 25, 75, 95)},
    **each("least median most", "percent"),
    **each("error", "small"),
    "relative_error": Column("error", "percent"),
    **each("promotes", "tokens", wraps=True, derive=end_tokens(1), needs=PLACE, leads="token", style="adds"),
    **each("suppresses", "tokens", wraps=True, derive=end_tokens(-1), needs=PLACE, leads="token", style="takes"),
    **each("value_promotes", "tokens", wraps=True, derive=end_tokens(1, fired=False), needs=PLACE, leads="token"),
    **each("fires_at", "tokens", wraps=True, derive=side_tokens("fires_at"), needs=PLACE, leads="token"),
    "firing_rate": Column("fires", "probability"),
    "described_as": Column("described as", wraps=True),
    "kurtosis": Column("kurtosis", "number", places=2),
    "deviations": Column("std above mean", "number", places=1, sign=True),
    "effect": Column("on its stronger side"),
    "hits": Column("examples", "count"),
    "largest": Column("largest", "number", places=2),
    "chance": Column("by chance", "probability"),
    "lift": Column("lift", "number", places=1),
    **each("q", "number", digits=2),
    "made_by": Column("made by", "tokens", wraps=True, needs=("id",), derive=made_by),
    **each("written_by", "tokens"),
    "reads": Column("read", "number", sign=True),
    **each("fires dead stuck saturated flat linear", "percent"),
    "is": Column("is", wraps=True),
    "listed": Column("role"),
    **each("same moved permuted new silent scored", "count"),
    "correlation": Column("correlation", "number", places=3, sign=True),
    **each("baseline excess", "number", places=3),
    **each("universal agreement key_change gate_change value_change", "percent"),
    "change_median": Column("change", "percent"),
    "change_max": Column("most", "percent"),
    "loss_first": Column("loss of the first", "number", places=4),
    "loss_second": Column("of the second", "number", places=4),
    "kl": Column("KL", "small"),
    **each("key_cosine gate_cosine value_cosine", "number", places=4, sign=True),
    "value_norm_ratio": Column("length", "number", places=3),
    **each("monosemantic polysemantic unclear inactive examples", "count"),
    "description": Column("description", wraps=True),
    "accuracy": Column("accuracy", left=False),
    "other": Column("another's", left=False),
    "contexts": Column("contexts", "count"),
    "groups": Column("fires at", "tokens", wraps=True),
    "null": Column("by chance", "number"),
    **each("meanings", "number", places=2),
    "meanings_low": Column("95% from", "number", places=2),
    "meanings_high": Column("to", "number", places=2),
    **{name: Column(name, "count") for name in ("d_model", "d_vocab", "n_layers", "parameters")},
    "flops": Column("FLOPs a token", "count"),
    "flops_share": Column("share", "percent"),
    "activation": Column("activation", stays=True),
    "cosine_rms": Column("rms", "number", places=3),
    "cosine_q999": Column("99.9%", "number", places=3),
    "cosine_max": Column("largest", "number", places=3, sign=True),
    "max_neuron": Column("of", "count"),
    "max_other": Column("and", "count"),
    **dict.fromkeys(("matched_q999", "matched_max"), Column("random", "number", places=3)),
    "entropy_rank": Column("entropy rank", "number", places=1),
    "isotropic_entropy_rank": Column("random", "number", places=1),
    "capacity_q50": Column("capacity", "percent"),
    "isotropic_capacity_q50": Column("random", "percent"),
    **{f"q{q}": Column("median" if q == 50 else f"{q}%", "number", places=3, sign=True) for q in (5, 50, 95)},
    "null_low": Column("random 2.5%", "number", places=3, sign=True),
    "null_high": Column("97.5%", "number", places=3, sign=True),
    "beyond": Column("beyond", "percent"),
    "value": Column("value", left=False),  # each row of another statistic
    **each("context", "context"),
    **each("residual_held_out at_random", "number", places=3),
    "held_out_low": Column("low", "number", places=3),
    "held_out_high": Column("high", "number", places=3),
    **each("reader words lost_with lost_without", "number", places=3, sign=True),
    "reader_low": Column("low", "number", places=3, sign=True),
    "reader_high": Column("high", "number", places=3, sign=True),
    **each("strength perplexity", "number", digits=3),
    "repeated": Column("repeated", "percent"),
    "auroc": Column("chosen by", "number", places=3),
    "held_out": Column("other half", "number", places=3),
    "word": Column("detector of", "token"),
    **each(
        "prompt subject target_true target_new reason beginning before after tried warning failure metrics "
        "continuation",
        "text",
        wraps=True,
    ),
    "true>": Column("true target", "probability", colour=True),
    "target>": Column("new target", "probability", colour=True),
    "of_norm": Column("of the weights' norm", "percent"),
    "new_share": Column("moved", "percent", derive=from_column("moved"), needs=("moved",)),
    **each("rise", "percent"),
    "uses": Column("uses", "tokens", wraps=True),
    "delta": Column("edit vector ÷ written", "number", digits=2),
    "stretch": Column("lengthened ×", "number", digits=3),
    "rarity": Column("rarity of the subject", "number", digits=2),
    "unseen": Column("said in other contexts", "percent"),
    "drift_kl": Column("KL", "small"),
    "drift_perplexity": Column("perplexity ×", "number", places=4),
    "drift_loss": Column("loss", "number", places=3),
}
"""What names stand for in the declarations of results; other names read by what they hold."""


NUMBERS = ("number", "count", "percent", "probability", "small")


def reads_as(kind: str, value: Any) -> bool:
    """Whether a value reads as one of a kind: no text as a number, and no fraction as a count."""
    if kind == "count" and isinstance(value, float):
        return not math.isfinite(value) or value.is_integer()
    return not isinstance(value, str if kind in NUMBERS else int if kind == "context" else ())


def column_of(name: str, values: Iterable[Any]) -> Column:
    """How the values of a column read, by its name or by what it holds."""
    known = COLUMNS.get(name)
    some = [value for value in values if value is not None]
    if known is not None and all(reads_as(known.kind, value) for value in some):
        return known
    if some and all(isinstance(value, list | tuple) and not any(isinstance(x, int) for x in value) for value in some):
        return Column(name.replace("_", " "), "tokens", wraps=True)
    return guess_column(name.replace("_", " "), some)
