"""The prompt view: what a model makes of a text, which memories wrote its answer, and what it says without some."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any, ClassVar, Literal

import pandas as pd
import torch
from pydantic import Field

from ..core.errors import OutOfRangeError, check_index
from ..core.neuron_names import read_neuron
from ..core.pictures import picture
from ..core.progress import Progress
from ..facts.answers import Answer
from ..interventions.changes import Scale
from ..interventions.intervening import intervene
from ..models.answers import generate
from ..models.model import Model
from ..pages.prompts import answer, carried, prompt_chips, with_bars, with_tokens
from ..prompts.attribution import Attribution, attribute
from ..prompts.captures import Capture, answer_probability, capture, with_answer
from ..prompts.causal import CausalScores, causal_scores
from ..prompts.paths import PathAttribution, attribute_paths
from .queries import NeuronName, Query, Text, Token, Variant, form_field, read_token, read_variant, spell_variant
from .rendering import fragment
from .views import Explorer, View, view

SCORES = {"paths": "along all paths", "direct": "direct", "causal": "causal"}
"""How memories are scored, by the name in the address."""
LISTED, MOST = 20, 200  # memories; the first LISTED by causal scores are removed exactly, too
BESIDE = 3  # predictions below each token
NEXT = 8  # rows of the comparison of variants
GOES_ON = 6  # tokens
WIDE = 16  # tokens of a map whose cells have numbers
STRENGTH = {"off": 0.0, "half": 0.5, "double": 2.0, "reversed": -1.0}

Scores = Attribution | PathAttribution | CausalScores


class PromptQuery(Query):
    """A prompt, the answer that is asked about, and how memories are scored.

    ``cell``: LAYER.POSITION of the map. ``off``, ``strength``: memories that are ticked, to become a variant in ``v``.
    """

    path: ClassVar[str] = "/prompt"
    text: Text = form_field("text", lines=2, required=True)
    chat: bool = form_field("read as", False, words={"": "text", "1": "chat message"})
    target: Token = form_field("target", hint="the likeliest")
    foil: Token = form_field("foil", hint="none")
    by: Literal["paths", "direct", "causal"] = form_field("memories by", "paths", words=SCORES)
    v: tuple[Variant, ...] = form_field("change", (), hint="3.17:0", most=4)
    at: int | None = Field(default=None, title="position")
    cell: NeuronName = ""
    top: int = Field(default=LISTED, ge=1, le=MOST)
    off: tuple[NeuronName, ...] = ()
    strength: Literal["off", "half", "double", "reversed"] = "off"

    def moved(self) -> str:
        if not self.off:
            return ""
        variant = spell_variant(dict.fromkeys(map(read_neuron, self.off), STRENGTH[self.strength]))
        return self.address(v=(*self.v, variant), off=(), strength="off") + "#changed"


def prompt_choices(explorer: Explorer) -> Mapping[str, Mapping[str, str]]:
    """A text is read as a chat message only by a model that has a chat template."""
    return {} if getattr(explorer.model.tokenizer, "chat_template", None) else {"chat": {}}


@view("Prompt", PromptQuery, "the model to read the prompt", buttons=[("Read", "", "")], choices=prompt_choices)
def prompt_page(explorer: Explorer, query: PromptQuery, progress: Progress) -> View:
    """Tokens with what the model expects after each; of a chosen one who wrote the answer, and what it is without."""
    if not query.text:
        return View("Prompt", fragment("prompt.html", start=explorer.example))
    model, captured = explorer.model, explorer.capture(query.text, query.chat)
    last = -1 if query.at is None else query.at
    position = check_index("position", last, captured.tokens.shape[1], "this prompt")
    target, foil = read_token(query.target), read_token(query.foil)
    key = query.text, query.chat, position, target, foil
    direct = explorer.cached(("direct", *key), lambda: attribute(captured, target, foil, position).total)
    read = direct.answer
    assert read is not None
    longer, _ = explorer.cached(("answered", *key), lambda: with_answer(captured, read, 0))
    paths = explorer.cached(("paths", *key), lambda: attribute_paths(captured, read))
    scores: Scores = paths if query.by == "paths" else direct
    if query.by == "causal":
        scores = explorer.cached(
            ("causal", *key), lambda: causal_scores(captured, read, exact=LISTED, progress=progress)
        )
    mapped = paths if isinstance(scores, Attribution) else scores
    row, column = read_neuron(query.cell) if query.cell else (0, 0)
    cell = (row, index(column)) if query.cell else None
    if cell is not None and (cell[0] >= model.n_layers or cell[1] > paths.position):
        raise OutOfRangeError(
            f"cell {query.cell} is no layer and position of this map: it has layers 0 to {model.n_layers - 1} and "
            f"positions 0 to {paths.position}"
        )
    roles = {read.target[0]: "target"}
    if read.foil_id is not None and not read.parting:
        roles = {read.foil_id: "foil", **roles}
    others = None if read.foil_id is None else longer.logits_at(0, direct.position).double().softmax(-1)
    body = fragment(
        "prompt.html",
        start="",
        query=query,
        position=position,
        cell=cell,
        scores=SCORES,
        tokens=captured.tokens.shape[1],
        chips=prompt_chips(longer),
        beside=[captured.predictions(at, BESIDE).to_dict("records") for at in range(captured.tokens.shape[1])],
        predictions=[
            (row, spell_token(model, row.token_id, row.token)) for row in captured.predictions(position, 8).itertuples()
        ],
        roles=roles,
        map=list(enumerate(mapped.map.tolist()))[::-1],
        wide=len(mapped.map[0]) <= WIDE,
        limit=float(mapped.map.abs().max()) or 1.0,
        carried=carried(paths),
        answer=answer(
            direct, query.top, answer_probability(longer, read), None if others is None else float(others[read.foil_id])
        ),
        memories=list_memories(model, scores, cell, query.top, position, roles),
        verdict=scores.agreement(query.top) if isinstance(scores, CausalScores) else "",
        strengths=STRENGTH,
        compared=compare(explorer, captured, position, read, query, progress) if query.v else None,
    )
    return View(
        "The memories behind an answer",
        body,
        "prompt",
        scores.provenance.to_dict(),
        {
            "csv": lambda: scores.top(MOST),
            "png": lambda: picture("figure")(scores, top=query.top),
            "json": lambda: scores.to_dict(query.top),
        },
    )


def list_memories(
    model: Model, scores: Scores, cell: tuple[int, int] | None, top: int, position: int, roles: Mapping[int, str]
) -> list[Any]:
    """The memories that count most, of one cell of the map or of all, with the tokens that each promotes."""
    column = "logit" if isinstance(scores, Attribution) else scores.column
    if isinstance(scores, Attribution):
        found = scores.top(top).assign(position=position)
    elif cell is None:
        found = scores.top(top)
    else:
        layer, at = cell
        numbers = scores.scores[layer, at, : scores.widths[layer]].double()
        order = numbers.abs().argsort(descending=True, stable=True)[:top]
        found = pd.DataFrame({"layer": layer, "neuron": order.tolist(), "position": at})
        found["coefficient"] = scores.coefficients[layer, at, order].tolist()
        found[column] = numbers[order].tolist()
        found["share"] = (numbers[order] / scores.shared).tolist()
        if isinstance(scores, CausalScores):
            exact = scores.top(LISTED)[["layer", "neuron", "position", "exact"]]
            found = found.merge(exact, on=["layer", "neuron", "position"], how="left")
    return with_bars(with_tokens(model, found.rename(columns={column: "score"}), 5, roles), "score")


def spell_token(model: Model, token_id: int, token: str) -> str:
    """A token as an address has it: its text, where that means it and nothing else."""
    return token if token.startswith(" ") and model.ids_of(token) == [token_id] else f"id:{token_id}"


# What the model says without some memories, or with more of them: variants beside the model as it is.


def compare(
    explorer: Explorer, captured: Capture, position: int, read: Answer, query: PromptQuery, progress: Progress
) -> dict[str, Any]:
    """The next token and how the text goes on, as it is and in each variant."""
    model, tokens = explorer.model, captured.tokens[0, : position + 1].tolist()
    new = min(GOES_ON, model.n_ctx - len(tokens))
    variants = [read_variant(typed) for typed in query.v]

    def go_on() -> list[int]:
        return generate(model, tokens, new) if new else []

    texts = [explorer.cached(("goes on", *tokens), go_on)]
    logits = [captured.logits_at(0, position)]
    for done, factors in enumerate(variants):
        progress("variants", done, len(variants))
        with intervene(model, {place: Scale(factor) for place, factor in factors.items()}):
            logits.append(capture(model, tokens, layers=0, logits=True).logits_at(0, position))
            texts.append(go_on())
    probabilities = torch.stack(logits).detach().double().softmax(-1)
    answers = [ids[0] for ids in (read.target, read.foil) if ids]
    shown = list(
        dict.fromkeys([*probabilities.max(0).values.topk(min(NEXT, model.d_vocab)).indices.tolist(), *answers])
    )
    return {
        "variants": [
            {
                "neurons": [(f"{layer}.{neuron}", factor) for (layer, neuron), factor in factors.items()],
                "without": query.address(v=tuple(other for other in query.v if other != typed)),
            }
            for typed, factors in zip(query.v, variants, strict=True)
        ],
        "rows": [
            {"token": token, "named": token_id in answers, "probabilities": probabilities[:, token_id].tolist()}
            for token_id, token in zip(shown, model.token_strings(shown), strict=True)
        ],
        "texts": [
            [
                (token, place >= len(texts[0]) or texts[0][place] != ids[place])
                for place, token in enumerate(model.token_strings(ids))
            ]
            for ids in texts
        ],
    }
