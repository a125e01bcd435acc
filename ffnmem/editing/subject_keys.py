"""Which subjects a change of a layer's values is for: their keys, compared with the keys of the change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import pandas as pd
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ..core.errors import InputError, counted
from ..core.progress import Progress
from ..facts.answers import last_logits
from ..facts.fact import Fact
from ..facts.formats import load_facts
from ..facts.listing import draw_facts
from ..facts.questions import ask_about
from ..models.model import Model
from ..prompts.captures import capture
from .weight_changes import WeightChange

ENOUGH = 200  # subjects, most of whom no edit is for: their own null
FEWEST = 20
OTHERS = 400  # facts about other subjects
TEXT = 2000  # tokens of them
BATCH = 64  # prompts
RIDGE = 0.3
"""Of the metric of keys, as a share of its mean diagonal: where tokens are not many more than neurons, every key looks
rare without it."""
OUTLYING = 8.0
"""Robust standard deviations above other subjects from which on a change is for a subject. `benchmarks/audit.py`: the
subjects of 76 edits stand out by 8.3 or more, none of 60 by more than 5.2 where a random adapter was merged."""
TEXTS = ("fact", "prompt", "says_before", "says_after", "raised")
NUMBERS = ("rise", "distance")


@dataclass(frozen=True, eq=False)
class SubjectKeys:
    """The keys of subjects in some layers of a model, and of others.

    Attributes:
        subjects: of the first keys. others: so many keys at the end are what they are compared with.
        keys: by layer, the coefficients at each subject's last token. text: those at any token of the others' prompts.
    """

    subjects: Sequence[str]
    others: int
    keys: dict[int, Float[Tensor, "keys d_mlp"]]
    text: dict[int, Float[Tensor, "tokens d_mlp"]]

    @classmethod
    def of(
        cls,
        model: Model,
        facts: Sequence[Fact],
        others: Iterable[Fact] | None,
        layers: Sequence[int],
        progress: Progress | None = None,
    ) -> SubjectKeys:
        """Run a model on the prompts of facts, up to their subjects, and on those of others; see :func:`.audit`."""
        known = {fact.subject for fact in facts}
        own = others is None and len(known) >= ENOUGH
        rest = [fact for fact in (load_facts() if others is None else others) if fact.subject not in known]
        if not own and (few := len({fact.subject for fact in rest})) < FEWEST:
            raise InputError(f"others has {counted(few, 'other subject')}: give {FEWEST} or more to compare with")
        rest = list(facts) if own else rest
        texts = draw_facts(rest, OTHERS, 0) if others is None else rest
        asked, compared = find_prefixes(model, facts), {} if own else find_prefixes(model, texts)
        return cls(
            list(asked.values()),
            len(compared) or len(asked),
            record_keys(model, [*asked, *compared], layers, progress),
            record_keys(model, [model.tokenize(fact.text) for fact in texts], layers, progress, every=True),
        )

    def match(self, change: WeightChange) -> tuple[pd.DataFrame, Float64[Tensor, " parts"]]:
        """A row a subject, those first that the change is for; and the sign of each part, that of the key which uses it
        most."""
        layer, keys = change.pair.layer, self.keys[change.pair.layer].double()
        overlaps, scores, chosen = match_keys(change.units, keys, self.text[layer].double(), self.subjects, self.others)
        before, after = change.pair.wide(change.pair.before), change.pair.wide(change.pair.after)
        moved = (keys @ (after - before)).norm(dim=1) / (keys @ before).norm(dim=1)
        use = keys @ change.units.T
        count = len(self.subjects)
        rows = pd.DataFrame(
            {
                "layer": layer,
                "subject": self.subjects,
                "touched": [i in chosen for i in range(count)],
                "overlap": overlaps[:count].numpy(),
                "typical": float(overlaps[-self.others :].median()),
                "z": scores[:count].numpy(),
                "moved": moved[:count].numpy(),
                "moved_typical": float(moved[-self.others :].median()),
            }
        )
        order = rows.sort_values(["touched", "z"], ascending=False, kind="stable")
        return order.drop_duplicates("subject"), use.gather(0, use.abs().argmax(0, keepdim=True)).sign()[0]


def predict_both(before: Model, after: Model, facts: Sequence[Fact], progress: Progress | None = None) -> pd.DataFrame:
    """What two models predict after the prompts of facts, those first that differ most."""
    rows = []
    for done, fact in enumerate(facts, 1):
        tokens = before.tokenize(fact.text)
        one, two = (last_logits(model, tokens)[0].double().softmax(0).cpu() for model in (before, after))
        raised = int((two - one).argmax())
        names = before.token_strings([int(one.argmax()), int(two.argmax()), raised])
        distance = float((two - one).abs().sum()) / 2
        rows.append((fact.subject, fact.name, fact.text, *names, float(two[raised] - one[raised]), distance))
        if progress is not None:
            progress("answers", done, len(facts))
    found = pd.DataFrame(rows, columns=["subject", *TEXTS, *NUMBERS]).astype(dict.fromkeys(NUMBERS, float))
    return found.sort_values("distance", ascending=False, kind="stable", ignore_index=True)


def find_prefixes(model: Model, facts: Iterable[Fact]) -> dict[tuple[int, ...], str]:
    """The subject of each beginning of a prompt, up to its subject's last token: what a key depends on."""
    asked = [(ask_about(model, fact.prompt, fact.subject), fact.subject) for fact in facts]
    return {one.tokens[: one.subject_last + 1]: subject for one, subject in asked}


def record_keys(
    model: Model,
    prompts: Sequence[Sequence[int]],
    layers: Sequence[int],
    progress: Progress | None = None,
    *,
    every: bool = False,
) -> dict[int, Float[Tensor, "keys d_mlp"]]:
    """By layer, the coefficients at the last token of each prompt, in their order; or at ``every`` token of some drawn
    ones, special tokens left out."""
    rows: dict[int, dict[int, Tensor]] = {layer: {} for layer in layers}
    places = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for _, same in groupby(places, key=lambda i: len(prompts[i])):
        group = list(same)
        for start in range(0, len(group) if layers else 0, BATCH):
            some = group[start : start + BATCH]
            taken = capture(model, torch.tensor([list(prompts[i]) for i in some]), layers=list(layers))
            for layer in layers:
                m = taken.coefficients[layer].cpu()
                content = taken.content.cpu()
                rows[layer] |= {i: m[at][content[at]] if every else m[at, -1:] for at, i in enumerate(some)}
            if progress is not None:
                progress("subjects", len(rows[layers[0]]), len(prompts))
    found = {layer: torch.cat([own[i] for i in range(len(prompts))]) for layer, own in rows.items()}
    if not every:
        return found
    generator = torch.Generator().manual_seed(0)
    return {layer: m[torch.randperm(len(m), generator=generator)[:TEXT]] for layer, m in found.items()}


def match_keys(
    units: Float64[Tensor, "rank d_mlp"],
    keys: Float64[Tensor, "keys d_mlp"],
    text: Float64[Tensor, "tokens d_mlp"],
    subjects: Sequence[str],
    others: int,
) -> tuple[Float64[Tensor, " keys"], Float64[Tensor, " keys"], list[int]]:
    """How much of each key is among the keys of a change, and which stand out.

    In the metric C = E[m mᵀ] of text (and a ridge), where an editor's C⁻¹k and k are the same direction. The key that
    stands out most is chosen, and what it explains of the change is taken away (orthogonal matching pursuit).

    Args:
        units: the change's row space. subjects: of the first keys, which may be chosen, one a subject.
        others: how many of the last keys are the null.

    Returns: Each key's cosine with the row space; how far it stands above the null in robust standard deviations, when
        it was chosen or at the end; and the places of those chosen.
    """
    count = len(text)
    ridge = RIDGE * float(text.square().mean())
    factor = torch.linalg.cholesky(text @ text.T + count * ridge * torch.eye(count, dtype=text.dtype))
    along = keys @ text.T
    # Woodbury: kᵀC⁻¹k from a system of as many equations as tokens, not neurons.
    lengths = (keys.square().sum(1) - (along * torch.cholesky_solve(along.T, factor).T).sum(1)) / ridge
    across = units @ text.T
    root = torch.linalg.cholesky(across @ across.T / count + ridge * units @ units.T)
    shares = torch.linalg.solve_triangular(root, units @ keys.T, upper=False).T / lengths.clamp(min=0).sqrt()[:, None]
    overlaps = shares.norm(dim=1)
    chosen: dict[int, float] = {}
    scores = torch.full_like(overlaps, torch.nan)
    while len(chosen) < len(units):
        angles = shares.norm(dim=1).clamp(max=1 - 1e-12).atanh()
        middle = angles[-others:].median()
        scores = (angles - middle) / (1.4826 * (angles[-others:] - middle).abs().median())
        taken = {subjects[i] for i in chosen}
        best = max((i for i in range(len(subjects)) if subjects[i] not in taken), key=scores.__getitem__, default=None)
        if best is None or not scores[best] >= OUTLYING:
            break
        chosen[best] = float(scores[best])
        explained = shares[best] / shares[best].norm()
        shares = shares - torch.outer(shares @ explained, explained)
    for place, score in chosen.items():
        scores[place] = score
    return overlaps, scores, list(chosen)
