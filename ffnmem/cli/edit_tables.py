"""What ``ffnmem edit`` shows on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.text import Text

from ..show.terminal import (
    ADDS,
    TAKES,
    captioned,
    console,
    decimals,
    labelled,
    number,
    percent,
    plain_table,
    probability,
    provenance_line,
    token,
    token_line,
    user_text,
)
from .tokens import PROMOTED, PROMOTES, promoted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from ..editing.differing import EditDiff
    from ..editing.edit import Edit
    from ..models import Model

TITLES = {"prompt": "the prompt", "paraphrase": "the same in other words", "neighbour": "about neighbours", "other": ""}
MOST = 4  # facts whose numbers are listed
COMPONENTS = 4


def print_tables(
    model: Model,
    edit: Edit,
    prompts: pd.DataFrame,
    changes: Sequence[Mapping[str, Any]],
    drift: Mapping[str, float],
    memories: EditDiff | None,
) -> None:
    out = console()
    out.print(labelled(heading(edit, changes, drift)))
    out.print()
    for (_, true, target), rows in prompts.groupby(["fact", "true", "target"], sort=False):
        out.print(prompt_table(rows, str(true), str(target)))
        out.print()
    if memories is not None:
        out.print(memory_table(model, memories))
        out.print()
    out.print(provenance_line(edit.provenance.as_dict(), out.width, edit=edit.digest))


def heading(edit: Edit, changes: Sequence[Mapping[str, Any]], drift: Mapping[str, float]) -> dict[str, RenderableType]:
    """What was edited, by how much, and how far other text moved."""
    rows: dict[str, RenderableType] = {"edit": user_text(edit.title)}
    layers = [f"layer {c['layer']} by {percent(c['change'])} of its norm, rank {c['rank']}" for c in changes]
    rows["changes"] = Text("\n".join(layers))
    if (words := "\n".join(numbers(edit))) != "":
        rows["made"] = Text(words)
    if drift:
        rows["drift"] = Text(
            f"KL {drift['drift_kl']:.2g} nats a token, perplexity × {drift['drift_perplexity']:.4f} "
            f"on {drift['texts']} texts about other things"
        )
    return rows


def numbers(edit: Edit) -> Iterator[str]:
    """What the editor measured of each of the first facts."""
    names = {"steps": "{:.0f} steps", "loss": "loss {:.3g}", "delta": "δ {:.2g} of what was written"}
    names |= {"key_u": "k·u {:.3g}"}
    for row in edit.numbers.head(MOST).to_dict("records"):
        parts = [words.format(row[name]) for name, words in names.items() if name in row and row[name] == row[name]]
        if "neurons" in row:
            parts.append(f"neurons {row['neurons']}")
        if parts:
            yield ", ".join(parts)


def prompt_table(rows: pd.DataFrame, true: str, target: str) -> Table:
    """A row a prompt: the probabilities of both targets before and after, and the likeliest token."""
    table = plain_table("prompt", left=["prompt"], wraps=["prompt"])
    for word in (true, target):
        table.add_column(user_text(word), justify="right", no_wrap=True)
    table.add_column(Text("says"), justify="left", no_wrap=True)
    for kind, some in rows.groupby("kind", sort=False):
        if TITLES[str(kind)]:
            table.add_row(Text(TITLES[str(kind)], "dim"), "", "", "")
        for row in some.to_dict("records"):
            table.add_row(
                user_text(row["prompt"]),
                moved(row["true_before"], row["true_after"]),
                moved(row["target_before"], row["target_after"]),
                said(row["answer_before"], row["answer_after"]),
            )
    return table


def moved(before: float, after: float) -> Text:
    """A probability before and after; coloured where it moved by a percent or more."""
    style = "" if abs(after - before) < 0.01 else ADDS if after > before else TAKES
    return Text(f"{probability(before)} → ").append(f"{probability(after):>5}", style)


def said(before: str, after: str) -> Text:
    """The likeliest token, and what it becomes."""
    first = token(before, limit=12)
    return first if before == after else first.append(" → ").append_text(token(after, "bold", 12))


def memory_table(model: Model, found: EditDiff) -> Table:
    """The memories whose contribution changed most, with the tokens that their values promote."""
    table = plain_table("memory", "coefficient", "logit", "change", PROMOTES, left=["memory"], wraps=[PROMOTES])
    table.title_justify, table.title_style = "left", "bold"
    against = "" if found.foil is None else f" minus {found.foil!r}"
    table.title = user_text(f"memories that changed most, by the logit of {found.target!r}{against}")
    frame = found.neurons
    tokens = promoted(model, frame, PROMOTED)
    named = [found.target, *([] if found.foil is None else [found.foil])]
    coefficients = decimals([*frame["coefficient_before"], *frame["coefficient_after"]], 3)
    logits = decimals([*frame["logit_before"], *frame["logit_after"]], 3)
    for row in frame.to_dict("records"):
        both = [
            f"{number(row[f'{name}_before'], places)} → {number(row[f'{name}_after'], places)}"
            for name, places in (("coefficient", coefficients), ("logit", logits))
        ]
        table.add_row(
            f"{row['layer']}.{row['neuron']}",
            *both,
            Text(number(row["change"], logits, sign=True), ADDS if row["change"] >= 0 else TAKES),
            token_line(tokens[row["layer"], row["neuron"]], named),
        )
    return captioned(table, carried(found))


def carried(found: EditDiff) -> str:
    """By which components the change came to the answer."""
    frame = found.components.sort_values("change", key=abs, ascending=False, kind="stable").head(COMPONENTS)
    names = [f"{row.component}{'' if pd.isna(row.layer) else f' {row.layer}'}" for row in frame.itertuples()]
    parts = ", ".join(f"{name} {change:+.2f}" for name, change in zip(names, frame["change"], strict=True))
    return f"in all the logit changed by {found.change:+.2f}, most of it by {parts} (component and layer)"
