"""Facts of the tiny model with every kind of question, and what a model says of them by whole forward passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

import ffnmem as fm
from ffnmem.editing import Edit, EditedLayer, SecondMoment, second_moment
from ffnmem.facts import Fact, Probe

from ..editing.edits import made

IN = "The {} is in the city of"
EIFFEL = Fact(
    "Eiffel Tower",
    "landmark.city",
    IN,
    "Paris",
    "Rome",
    paraphrases=("The city of the {} is", "In the city of the {} is the"),
    neighbours=("Tower of Paris", "city of London"),
    generation_prompts=("The {} is", "In the {}"),
    id="eiffel",
    neighbour_prompts=("Paris is the city of",),
    probes=(
        Probe("reverse", "Rome is the city of the", "Eiffel Tower"),
        Probe("unrelated", "London is the city of", "London"),
        Probe("unrelated", "The city is", "Rome"),
    ),
)
TOWER = Fact("Tower", "landmark.city", IN, "London", "Paris", neighbours=("city",), id="tower")
LONDON = Fact(
    "London", "city.country", "The city of {} is in", "Rome", "the France", paraphrases=("{} is in",), id="london"
)
NO_TARGET = replace(LONDON, id="none", target_new=None)
FACTS = (EIFFEL, TOWER, LONDON)
TEXTS = ("The city of Rome is in the city of London", "Paris is", "The Tower of London is in France the city of")


def tiny_moment(model: fm.Model) -> SecondMoment:
    """A second moment of enough tokens for sixty-four neurons."""
    generator = torch.Generator().manual_seed(0)
    words = ["The", "the", "city", "of", "is", "in", "Eiffel", "Tower", "Paris", "Rome", "London", "France"]
    picks = torch.randint(len(words), (60, 12), generator=generator).tolist()
    return second_moment(model, [" ".join(words[i] for i in row) for row in picks])


def random_edits(model: fm.Model) -> list[Edit]:
    """One a fact of FACTS, of other ranks and layers."""
    layers = [(1,), (0, 1), (0,)]
    return [
        made(model, at, rank=1 + i, seed=i, fact=fact) for i, (at, fact) in enumerate(zip(layers, FACTS, strict=True))
    ]


def tell(model: fm.Model, fact: Fact) -> Edit:
    """The last of three layers writes the target's token everywhere."""
    usual = fm.capture(model, fact.text).coefficients[2][0, 1:].double().mean(0)
    right = 1e3 * model.unembedding.detach()[model.ids_of(f" {fact.target_new}")[:1]]
    change = EditedLayer(2, usual[None] / (usual @ usual), right)
    return Edit.of(model, [change], method="mine", facts=[fact], targets=[str(fact.target_new)])


def own_editor(edits: Sequence[Edit]) -> Callable[[fm.Model, list[Fact]], list[Edit]]:
    """An editor that has its edits ready."""
    by_id = {edit.facts[0].id: edit for edit in edits}

    def ready(_model: fm.Model, facts: list[Fact]) -> list[Edit]:
        return [by_id[fact.id] for fact in facts]

    return ready


def interrupt_at(least: int) -> Callable[[str, int, int], None]:
    """Progress that ends in Ctrl-C once so many are done."""

    def progress(_phase: str, done: int, _total: int) -> None:
        if done >= least:
            raise KeyboardInterrupt

    return progress


def logs(model: fm.Model, text: str, target: str | None = None, edit: Edit | None = None) -> torch.Tensor:
    """Log-probabilities ``[tokens, vocab]`` of a model without other edits: of the next token, or where each token of
    " target" stands."""
    assert not model.edits  # which what is kept would not tell
    return kept_logs(model, text, target, edit)


@lru_cache(maxsize=2000)
def kept_logs(model: fm.Model, text: str, target: str | None, edit: Edit | None) -> torch.Tensor:
    ids = [] if target is None else model.tokenizer(f" {target}", add_special_tokens=False)["input_ids"]
    tokens = torch.tensor([model.tokenize(text) + ids[:-1]])
    with nullcontext() if edit is None else edit.applied(model), torch.no_grad():
        found = model.hf_model(input_ids=tokens).logits[0].double().log_softmax(-1)
    return found[-max(len(ids), 1) :]


def probability(model: fm.Model, text: str, target: str, edit: Edit | None) -> float:
    ids = torch.tensor(model.tokenizer(f" {target}", add_special_tokens=False)["input_ids"])
    return float(logs(model, text, target, edit).gather(1, ids[:, None]).mean().exp())


def token_logs(model: fm.Model, text: str, target: str, edit: Edit | None) -> tuple[list[int], list[float]]:
    """The tokens of " target" and the log-probability of each."""
    ids = model.tokenizer(f" {target}", add_special_tokens=False)["input_ids"]
    return ids, logs(model, text, target, edit).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


def new_wins(model: fm.Model, text: str, true: str, new: str, edit: Edit | None, how: str) -> bool | None:
    """By the whole string or the first token that differs; None where none does."""
    (a, first), (b, second) = (token_logs(model, text, word, edit) for word in (true, new))
    if how == "sum":
        return sum(second) > sum(first)
    at = [i for i in range(min(len(a), len(b))) if a[i] != b[i]][:1]
    return second[at[0]] > first[at[0]] if at else None


def exact(model: fm.Model, text: str, target: str, edit: Edit | None) -> float:
    ids = torch.tensor(model.tokenizer(f" {target}", add_special_tokens=False)["input_ids"])
    return float((logs(model, text, target, edit).argmax(-1) == ids).all())


def average(values: Sequence[Any]) -> float:
    return float(sum(map(float, values)) / len(values)) if values else float("nan")


def plain_metrics(model: fm.Model, fact: Fact, target: str, edit: Edit) -> dict[str, float]:
    """The definitions, one whole forward pass an answer."""
    neighbours = [IN.replace("{}", n) if fact.prompt == IN else fact.prompt.replace("{}", n) for n in fact.neighbours]
    neighbours += fact.neighbour_prompts
    groups = {
        "E": [fact.prompt.replace("{}", fact.subject)],
        "P": [text.replace("{}", fact.subject) for text in fact.paraphrases],
        "N": neighbours,
        "+": [f"{fact.prompt.replace('{}', fact.subject)} {target}. {text}" for text in neighbours],
    }
    found: dict[str, float] = {}
    for suffix, used in (("_before", None), ("", edit)):
        p = {
            k: [[probability(model, t, a, used) for a in (fact.target_true, target)] for t in texts]
            for k, texts in groups.items()
        }
        for kind in ("E", "P"):
            found[f"{kind}S{suffix}"] = average([new > true for true, new in p[kind]])
            found[f"{kind}M{suffix}"] = average([new - true for true, new in p[kind]])
        for how in ("first", "sum"):
            for kind in ("E", "P", "N"):
                each = [new_wins(model, t, fact.target_true, target, used, how) for t in groups[kind]]
                found[f"{kind}S_{how}{suffix}"] = average([won != (kind == "N") for won in each if won is not None])
        found[f"NS{suffix}"] = average([true > new for true, new in p["N"]])
        found[f"NM{suffix}"] = average([true - new for true, new in p["N"]])
        found[f"NS_plus{suffix}"] = average([true > new for true, new in p["+"]])
        found[f"exact{suffix}"] = average([exact(model, t, target, used) for t in groups["E"]])
        found[f"exact_paraphrase{suffix}"] = average([exact(model, t, target, used) for t in groups["P"]])
        for kind in ("reverse", "alias"):
            asked = [probe for probe in fact.probes if probe.kind == kind]
            found[f"{kind}{suffix}"] = average([exact(model, probe.prompt, probe.target, used) for probe in asked])
    pairs = [(logs(model, t)[-1], logs(model, t, edit=edit)[-1]) for t in neighbours]
    each = [float((old.exp() * (old - new)).sum()) for old, new in pairs]
    found["NKL"], found["NKL_mean"] = (sum(each) if each else float("nan")), average(each)
    others = [probe.prompt for probe in fact.probes if probe.kind == "unrelated"]
    found["unrelated"] = average(
        [logs(model, t)[-1].argmax() == logs(model, t, edit=edit)[-1].argmax() for t in others]
    )
    return found


def drift_by_hand(model: fm.Model, texts: tuple[str, ...], edit: Edit) -> tuple[float, float]:
    """All tokens of all texts but what BOS alone predicts, one whole pass a prefix."""
    kl, old, new = [], [], []
    for text in texts:
        ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
        clean, changed = prefix_logs(model, ids, None)[1:], prefix_logs(model, ids, edit)[1:]
        kl += (clean.exp() * (clean - changed)).sum(-1).tolist()
        at = torch.tensor(ids[1:]).unsqueeze(1)
        old += clean.gather(1, at).squeeze(1).tolist()
        new += changed.gather(1, at).squeeze(1).tolist()
    mean_old, mean_new = sum(old) / len(old), sum(new) / len(new)
    return sum(kl) / len(kl), math.exp(mean_old - mean_new)


def prefix_logs(model: fm.Model, ids: list[int], edit: Edit | None) -> torch.Tensor:
    text = model.tokenizer.decode(ids)
    rows = [logs(model, model.tokenizer.decode(ids[:i]), edit=edit)[-1] for i in range(1, len(ids))]
    begin = torch.tensor([[model.bos_token_id]])
    if edit is None:
        first = model.hf_model(input_ids=begin).logits
    else:
        with edit.applied(model):
            first = model.hf_model(input_ids=begin).logits
    assert model.tokenizer(text, add_special_tokens=False)["input_ids"] == ids
    return torch.stack([first[0, -1].detach().double().log_softmax(-1), *rows])
