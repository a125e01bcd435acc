"""``polysemanticity``: which neurons of a store are one concept and which many; and what a store keeps of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from ..core.defaults import MEANING_BUDGET, MEANING_DRAWS
from ..core.errors import InputError, check_choice, check_count, counted
from ..core.neuron_names import LayerName
from ..core.progress import Progress
from ..core.types import VERDICTS, Count, Draws, Seed, SignOrBoth, Verdict, Whole, checked
from ..models.model import Model
from ..scanning.neuron_sides import NEGATIVE
from ..scanning.store import Store
from ..show.result import Result
from .concepts import saved_meanings, settled
from .measuring import measure_neurons, opened
from .verdicts import RULE, Rule

KEY = ("layer", "neuron", "sign")
LEAST_BUDGET = 1000

ORDERS: dict[str, dict[str, bool]] = {
    "monosemantic": {"meanings_high": True, "ms_low": False},
    "polysemantic": {"meanings_low": False, "ms_low": False},
    "unclear": {"examples": False, "meanings_low": False},
    "inactive": {},
}
"""By verdict, the columns that make a neuron clear, and whether the smallest come first."""


def verdict_counts(table: pd.DataFrame) -> pd.DataFrame:
    """How many neurons of each layer and sign have each verdict.

    Args:
        table: of :func:`ffnmem.polysemanticity`.

    Returns:
        One row a layer and sign: layer, sign, neurons, monosemantic, polysemantic, unclear, inactive.

    Raises:
        InputError: another table.
    """
    check_table(table)
    groups = table.groupby(["layer", "sign"], sort=True)["verdict"]
    counts = groups.value_counts().unstack(fill_value=0).reindex(columns=list(VERDICTS), fill_value=0)
    counts.insert(0, "neurons", groups.size())
    counts.columns.name = None
    # "positive" before "negative", which the alphabet has the other way round
    return counts.sort_index(ascending=[True, False]).reset_index()


def clearest(table: pd.DataFrame, verdict: str, top: int | None = None) -> pd.DataFrame:
    """The rows of a verdict, the clearest first: polysemantic by the lower end of their number of meanings,
    monosemantic by its upper end and then by MS, unclear by examples; ties by layer and neuron.

    Raises:
        InputError: an unknown verdict, or another table.
    """
    check_table(table)
    order = ORDERS[check_choice("verdict", verdict, VERDICTS)]
    rows = table[table["verdict"] == verdict].sort_values(["layer", "neuron"], kind="stable")
    for name, ascending in reversed(order.items()):
        rows = rows.sort_values(name, ascending=ascending, kind="stable")
    return rows if top is None else rows.head(check_count("top", top))


def check_table(table: pd.DataFrame) -> None:
    """Raise InputError unless the table has what a verdict is told by."""
    needed = {"layer", "neuron", "sign", "verdict", *(name for order in ORDERS.values() for name in order)}
    missing = sorted(needed - set(table.columns))
    if missing:
        raise InputError(f"the table has no column {missing[0]}: give one of polysemanticity")


def kept_verdicts(store: Store, sign: str) -> pd.DataFrame | None:
    """Layer, neuron, sign, verdict and number of meanings, where the store keeps a table of the sign."""
    found = opened(store, sign, {})
    if found is None:
        return None
    names = ["layer", "neuron", "sign", "verdict", "meanings"]
    table: pd.DataFrame = found[0].rows.to_table(columns=names).to_pandas()
    return table


LISTED = ("monosemantic", "polysemantic")


@checked
@dataclass(frozen=True, eq=False, repr=False)
class Polysemanticity(Result):
    """Which neurons are one concept, and which many. Made by :func:`ffnmem.polysemanticity`.

    Attributes:
        neurons: one row a neuron and sign; ``attrs`` has the provenance.
        asked: the verdict whose neurons are listed; empty: monosemantic and polysemantic ones.
        provenance: of the store, and the settings.
        store: where they come from; None of what was loaded without it.
    """

    heading = "asked"
    tables: ClassVar = {
        "counts": "layer sign neurons monosemantic polysemantic unclear inactive",
        "unclear": "why neurons",
        "clearest": "neuron sign groups meanings meanings_low meanings_high | examples why",
    }
    main, uncut, only_shown = "neurons", "counts unclear", "clearest"

    neurons: pd.DataFrame
    asked: str
    provenance: dict[str, Any]
    store: Store | None = None

    @property
    def counts(self) -> pd.DataFrame:
        """How many neurons of each layer have each verdict."""
        return verdict_counts(self.neurons)

    @property
    def unclear(self) -> pd.DataFrame:
        """Why it is unclear whether neurons have one meaning or several."""
        reasons = self.neurons.query("verdict == 'unclear'")["why"].value_counts()
        return reasons.rename("neurons").rename_axis("why").reset_index()

    def clearest(self, top: Count | None = None) -> pd.DataFrame:
        """The clearest neurons of each verdict; about ``top`` in all."""
        asked = [self.asked] if self.asked else LISTED
        each = None if top is None else -(-top // len(asked))
        return pd.concat([clearest(self.neurons, verdict, each) for verdict in asked], ignore_index=True)

    def shown_neurons(self, top: Count | None = None) -> pd.DataFrame:
        """All neurons, of the verdict if one is asked for; or the clearest."""
        return self.clearest(top) if top is not None or self.asked else self.neurons

    def shown_clearest(self, top: Count | None = None) -> dict[str, pd.DataFrame]:
        """The clearest of them; of each group of examples with alike inputs the token that fires the neuron most, and
        the group's share of the activation."""
        rows = self.clearest(top)
        rows = rows.assign(groups=[self.groups(*at) for at in zip(*(rows[name] for name in KEY), strict=True)])
        rows = rows if (rows["sign"] == NEGATIVE).any() else rows.drop(columns="sign")
        return {f"{name.capitalize()} neurons": some for name, some in rows.groupby("verdict", sort=False)}

    def groups(self, layer: int, neuron: int, sign: str) -> list[tuple[str, str]]:
        """The meanings of a neuron, each by its first token, with its share; empty where the store keeps none."""
        kept = () if self.store is None else saved_meanings(self.store, layer, neuron, k=1, context=0)
        return [
            (own[0], f"{share:.0%}")
            for one in kept
            if one.sign == sign
            for own, share in zip(one.triggers, one.table["share"], strict=True)
        ]

    @property
    def verdict(self) -> str:
        """How many neurons have one meaning, and how many several."""
        one, several, unclear, inactive = (int((self.neurons["verdict"] == name).sum()) for name in VERDICTS)
        return (
            f"Of {counted(len(self.neurons), 'neuron')} {one:,} have one meaning and {several:,} several; of "
            f"{unclear:,} it is unclear, and {inactive:,} never fire."
        )


@checked
def polysemanticity(
    store: Store,
    model: Model | None = None,
    *,
    layers: LayerName | Iterable[LayerName] | None = None,
    sign: SignOrBoth = "positive",
    verdict: Verdict | None = None,
    seed: Seed = 0,
    draws: Draws = MEANING_DRAWS,
    budget: Whole | None = MEANING_BUDGET,
    rule: Rule = RULE,
    progress: Progress | None = None,
) -> Polysemanticity:
    """Is a neuron one concept or many: verdicts on all neurons.

    Says of every neuron of a store whether it is one concept or many, and how sure that is. The model reads again what
    the FFN was given where a neuron fires most and at random places where it fires strongly; examples with alike inputs
    make a meaning. The effective number of meanings counts them by their share of the activation.

    Polysemantic is a neuron whose 95% interval of it lies above 1.35. Monosemantic is one whose number is at most that
    in 20 examples or more, and whose interval ends by it, or by what so many examples of one meaning leave possible
    (1.50 of 20 examples, 1.35 of 32). Unclear is one where the interval does not say, where examples are few, or no
    more alike than chance; inactive one whose coefficient never had the sign.

    What was found of all layers is kept in the store: a neuron's card shows it, and the same command is then immediate.

    Note:
        The examples are the sequences with a neuron's largest coefficients and random ones in which the coefficient
        reaches half of its largest. Whitened inputs whose cosine is above that of unrelated ones (1.7 standard
        deviations) are grouped by average linkage.

        A gated neuron's coefficient takes both signs as its key does, and which is the positive one is a convention:
        each sign is a side of its own, worth ``sign="both"``. On either side a neuron may have two kinds of examples,
        an open gate with a key of that sign and a closed one with a key of the other; they read other inputs, and count
        as other meanings where they are strong enough.

    Args:
        store: the folder of a scan.
        model: the one scanned; default: what the store was opened with, or what is loaded by its name.
        layers: only this layer, or these. [default: all]
        sign: which coefficients: where the neuron fires, where its coefficient is negative, or both; then a neuron has
            a row for each.
        verdict: list only neurons of this verdict. [default: monosemantic and polysemantic ones]
        seed: of every random step after the scan.
        draws: of bootstrap and null each, 20 or more.
        budget: tokens to read again at most for examples, 0 for no limit; the store's random sequences, which all
            neurons share, come on top. Where it does not reach, sequences are preferred that give the neurons with
            fewest examples another. Fewer layers leave more for each.
        rule: of the verdict.
        progress: called as (phase, done, total) with the phases "read" (tokens) and "meanings" (neurons).

    Returns:
        A :class:`Polysemanticity`. Its ``neurons`` have layer, neuron, sign, examples (how many), and for each measure
        its value and ``_low``, ``_high`` (95%, by a bootstrap over sequences), ``_null`` (its mean by chance) and
        ``_p`` (of something as notable by chance):

        - ``meanings``: the effective number (exp of the entropy of activation shares) of groups of alike examples.
        - ``ms``: mean cosine of whitened inputs weighted by activations; one meaning is near 1, unrelated inputs 0.
        - ``firing_rate`` (of a coefficient of the sign), ``kurtosis`` (excess, of coefficients of either sign).

        Then verdict (monosemantic, polysemantic, unclear, inactive) and why it is unclear.

    Raises:
        OutOfRangeError: no such layer. InputError: another model's store, or settings out of range. ModelError: the
            model cannot be loaded by its name.

    Source: Pach et al. 2025 for MS; meanings and the verdict are ours, calibrated by
        ``benchmarks/planted/calibrate.py``.

    Example:
        $ ffnmem polysemanticity --store runs/atlas
        $ ffnmem polysemanticity --store runs/atlas --verdict polysemantic --top 20
        $ ffnmem polysemanticity --store runs/atlas --layers 0 --sign both --csv
    """
    if budget and budget < LEAST_BUDGET:
        raise InputError(f"budget must be at least {LEAST_BUDGET:,}, or 0 for no limit, not {budget:,}")
    neurons = measure_neurons(
        store, model, layers, sign=sign, seed=seed, draws=draws, budget=budget or None, rule=rule, progress=progress
    )
    return Polysemanticity(neurons, verdict or "", settled(neurons.attrs["provenance"]), store)
