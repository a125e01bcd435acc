"""What ``ffnmem attribute`` shows on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..reports.tables import Prediction, predictions
from .tables import (
    ADDS,
    TAKES,
    OneLine,
    decimals,
    explain_negatives,
    labelled,
    number,
    percent,
    plain_table,
    probability,
    prompt_line,
    token,
    token_line,
)
from .tokens import PROMOTED, PROMOTES, promoted

if TYPE_CHECKING:
    from ..attribution import Attribution
    from ..captures import Capture
    from ..models import Model

PREDICTIONS = 5


def heading(capture: Capture, found: Attribution, neurons: pd.DataFrame, layers: list[int]) -> Table:
    """The prompt, the model's top tokens, the target (and foil), and how much the memories wrote of its logit."""
    roles = {found.target_ids[0]: "target"} | ({} if found.foil_id is None else {found.foil_id: "foil"})
    ranked = predictions(capture, found.position, roles, PREDICTIONS)
    top = [
        token(p.chip.token, "bold" if p.role else "").append(f" {probability(p.probability)}", "dim")
        for p in ranked
        if p.rank <= PREDICTIONS
    ]
    after = token(found.tokens[found.position], "bold underline")
    rows: dict[str, RenderableType] = {
        "prompt": prompt_line(found.tokens, found.position, capture.starts_with_bos),
        "after": after.append(f", position {found.position} of 0 to {len(found.tokens) - 1}", "default"),
        "next": OneLine(top[:PREDICTIONS]),
        **{p.role: described(p) for p in sorted(ranked, key=lambda p: p.role, reverse=True) if p.role},
    }
    if found.foil is not None:
        rows["logit"] = Text(f"{found.logit:.3f}, the target's minus the foil's")
    rows["memories"] = Text(written(found, neurons, layers))
    return labelled(rows)


def described(prediction: Prediction) -> Text:
    """A token with its rank, logit and probability."""
    line = token(prediction.chip.token, "bold")
    numbers = f"   rank {prediction.rank:,}, logit {prediction.logit:.3f}, {probability(prediction.probability)}"
    return line.append(numbers)


def written(found: Attribution, neurons: pd.DataFrame, layers: list[int]) -> str:
    """How much of the logit all FFN neurons wrote, and how much those listed."""
    parts = found.components
    ffn = float(parts.loc[parts["component"] == "ffn", "logit"].sum())
    count = found.neuron_logits[0].numel()
    where = "" if not layers else f" (of layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))})"
    listed = f"the {len(neurons):,} below{where} {float(neurons['logit'].sum()):+.3f}"
    cap = dict(found.provenance.settings).get("soft_cap")
    before = "" if cap is None else f" (before the soft cap of {cap:g})"
    return f"all {count:,} wrote {ffn:+.3f} of the logit {found.logit:.3f}{before}, {listed}"


def neuron_table(model: Model, found: Attribution, neurons: pd.DataFrame) -> Table:
    """The top neurons, and the tokens that their values promote, as many as fit."""
    table = plain_table("neuron", "coefficient", "logit", "share", PROMOTES, left=["neuron"], wraps=[PROMOTES])
    tokens = promoted(model, neurons, PROMOTED)
    logit_places, m_places = decimals(neurons["logit"]), decimals(neurons["coefficient"])
    named = [found.target, *([] if found.foil is None else [found.foil])]
    for row in neurons.itertuples():
        table.add_row(
            f"{row.layer}.{row.neuron}",
            number(row.coefficient, m_places),
            Text(number(row.logit, logit_places, sign=True), ADDS if row.logit >= 0 else TAKES),
            percent(row.share),
            token_line(tokens[row.layer, row.neuron], named),
        )
    explain_negatives(table, neurons["coefficient"])
    return table


def ledger(found: Attribution) -> Table:
    """Every component by layer, the sum so far, and what it all comes to beside the model's own logit."""
    parts = found.components
    kinds = [
        kind for kind in parts["component"].unique() if parts.loc[parts["component"] == kind, "layer"].notna().all()
    ]
    table = plain_table("component", *kinds, "together", "sum so far", left=["component"])
    places = decimals([*parts["logit"], found.logit], digits=5)
    total = 0.0
    for name, group in parts.groupby(row_names(parts), sort=False):
        cells = dict(zip(group["component"], group["logit"], strict=True))
        total += float(group["logit"].sum())
        shown = [number(cells[kind], places, sign=True) if kind in cells else "" for kind in kinds]
        table.add_row(str(name), *shown, number(group["logit"].sum(), places, sign=True), number(total, places))
    blanks = [""] * (len(kinds) + 1)
    table.add_section()
    table.add_row("sum", *blanks, number(float(found.sums[0]), places), style="bold")
    table.add_row("model's logit", *blanks, number(found.logit, places), style="bold")
    table.add_row("error", *blanks, f"{found.error:.1e}", style="dim")
    return table


def row_names(parts: pd.DataFrame) -> list[str]:
    """The ledger's row of each component: its layer, or itself where it has none."""
    return [
        component if pd.isna(layer) else f"layer {layer}"
        for component, layer in zip(parts["component"], parts["layer"], strict=True)
    ]
