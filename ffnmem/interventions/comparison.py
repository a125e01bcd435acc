"""The next tokens of one prompt before and after an intervention, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import SupportsIndex

import pandas as pd
import torch

from ..captures import Capture
from ..core.sheets import Column, Facts, Origin, Prompt, Sheet, place, rows
from ..errors import InputError, check_count
from .ablation import of_change


def compare_predictions(
    before: Capture, after: Capture, position: SupportsIndex = -1, k: int = 10, prompt: SupportsIndex = 0
) -> pd.DataFrame:
    """The tokens likeliest before or after, with their probabilities and ranks in both.

    Args:
        before, after: captures of the same prompt.
        position: where the next token is predicted.
        k: rows: the tokens with the largest probability in either.
        prompt: which prompt of a batch.

    Returns:
        Columns token, token_id, before, after (probabilities), change (after − before), rank_before, rank_after,
        logit_before, logit_after; by falling larger probability, ties by id.

    Raises: InputError: captures of different prompts. OutOfRangeError: no such position or prompt.
    """
    row, pos = before.row(prompt), before.position(position, prompt)
    if before.tokens.shape != after.tokens.shape or not torch.equal(before.tokens, after.tokens):
        raise InputError("the two captures are of different prompts, so their predictions do not compare")
    logits = [capture.logits_at(row, pos).double() for capture in (before, after)]
    probabilities = [found.softmax(-1) for found in logits]
    ranks = [rank_of(found) for found in logits]
    larger = torch.maximum(*probabilities)
    ids = larger.argsort(descending=True, stable=True)[: check_count("k", k)]
    return pd.DataFrame(
        {
            "token": before.model.token_strings(ids),
            "token_id": ids.tolist(),
            "before": probabilities[0][ids].tolist(),
            "after": probabilities[1][ids].tolist(),
            "change": (probabilities[1] - probabilities[0])[ids].tolist(),
            "rank_before": ranks[0][ids].tolist(),
            "rank_after": ranks[1][ids].tolist(),
            "logit_before": logits[0][ids].tolist(),
            "logit_after": logits[1][ids].tolist(),
        }
    )


def comparison_sheet(
    before: Capture,
    after: Capture,
    found: pd.DataFrame,
    position: SupportsIndex = -1,
    continued: Mapping[str, Sequence[int]] | None = None,
) -> Sheet:
    """What :func:`compare_predictions` found, and how the text goes on both ways if it was continued.

    Args:
        continued: token ids that follow the prompt, by "before" and "after".
    """
    tokens, at = before.token_strings(), before.position(position)
    shown = rows(
        Column("next token", "token"),
        Column("before", "probability"),
        Column("after", "probability"),
        Column("change", left=False),
        Column("rank", left=False),
    )
    for row in found.itertuples():
        ranks = str(row.rank_before) if row.rank_before == row.rank_after else f"{row.rank_before} → {row.rank_after}"
        shown.add(row.token, row.before, row.after, of_change(row.change), ranks)
    heading = Facts(
        {
            "prompt": Prompt(tuple(tokens), at, before.starts_with_bos),
            "after": place(tokens, at),
            "changed": dict(after.provenance.settings)["interventions"],
        }
    )
    texts = (
        []
        if continued is None
        else [
            Facts({name: before.model.tokenizer.decode(ids) for name, ids in continued.items()}, "the text goes on"),
        ]
    )
    return Sheet.of(heading, shown.table(), *texts, Origin(before.provenance.as_dict()))


def rank_of(logits: torch.Tensor) -> torch.Tensor:
    """The rank of each token, 1 for the largest logit, ties by id."""
    ranks = torch.empty(len(logits), dtype=torch.long, device=logits.device)
    ranks[logits.argsort(descending=True, stable=True)] = torch.arange(1, len(logits) + 1, device=logits.device)
    return ranks
