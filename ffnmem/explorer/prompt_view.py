"""The prompt view: what a model makes of a text, which memories wrote its answer, and what it says without some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch
from markupsafe import Markup

from ..core.errors import OutOfRangeError, check_index
from ..core.pictures import picture
from ..core.progress import Progress
from ..interventions.changes import Scale
from ..interventions.intervening import intervene
from ..models.answers import generate
from ..pages.prompts import answer, carried, prompt_chips, report_html, with_bars, with_tokens
from ..prompts.attribution import Attribution, attribute
from ..prompts.captures import Capture, answer_probability, capture, with_answer
from ..prompts.causal import CausalScores, causal_scores
from ..prompts.paths import PathAttribution, attribute_paths
from .queries import Query, Variant, address, told, variant_of
from .rendering import csv_of, fragment, html_of, json_of, png_of
from .views import TOKENS, Explorer, View

PATH = "/prompt"
SCORES = {
    "paths": "along all paths",
    "direct": "direct",
    "causal": "causal",
}
"""How memories are scored, by the name in the address."""
LISTED, MOST = 20, 200  # memories
BESIDE = 3  # predictions below each token
NEXT = 8  # rows of the comparison of variants
GOES_ON = 6  # tokens
STRENGTH = {"off": 0.0, "half": 0.5, "double": 2.0, "reversed": -1.0}


def prompt_form(explorer: Explorer, query: Query) -> Markup:
    """The text, whether it is a message, the answer that is asked about, and how memories are scored."""
    chat = bool(getattr(explorer.model.tokenizer, "chat_template", None))
    text = "" if query else example(explorer)
    return fragment("prompt_form.html", query=query, scores=SCORES, example=text, chat=chat)


def example(explorer: Explorer) -> str:
    """A text to begin with."""
    fact = explorer.facts[0] if explorer.facts else None
    return "The Eiffel Tower is located in the city of" if fact is None else fact.prompt.format(fact.subject)


def moved(query: Query) -> str | None:
    """Where ticked memories become a variant: the address that has it."""
    ticked = query.all("off")
    if not ticked:
        return None
    factor = STRENGTH[query.choice("strength", list(STRENGTH), "off")]
    typed = ",".join(f"{name.strip()}:{factor:g}" for name in dict.fromkeys(ticked))
    return query.address(PATH, ("v", told(variant_of(typed))), off=None, strength=None) + "#changed"


@dataclass(frozen=True)
class Asked:
    """What the address asks of a prompt."""

    text: str
    chat: bool
    captured: Capture
    position: int
    target: str | int | None
    foil: str | int | None
    by: str
    cell: tuple[int, int] | None
    top: int

    @classmethod
    def of(cls, explorer: Explorer, query: Query) -> Asked:
        text = query.needed("text")
        chat = query.flag("chat")
        captured = explorer.capture(text, chat)
        length = captured.tokens.shape[1]
        position = length - 1
        if "at" in query:
            position = check_index("position", query.whole("at", 0, least=-TOKENS, most=TOKENS), length, "this prompt")
        cell = None
        if "cell" in query:
            cell = query.neuron("cell")
            assert cell is not None
        return cls(
            text=text,
            chat=chat,
            captured=captured,
            position=position,
            target=query.token("target"),
            foil=query.token("foil"),
            by=query.choice("by", list(SCORES), "paths"),
            cell=cell,
            top=query.whole("top", LISTED, least=1, most=MOST),
        )

    @property
    def key(self) -> tuple[Any, ...]:
        """All that determines its scores."""
        return (self.text, self.chat), self.position, self.target, self.foil


def prompt_view(explorer: Explorer, query: Query, progress: Progress) -> View:
    """Tokens with what the model expects after each; of a chosen one who wrote the answer, and what it is without."""
    if "text" not in query:
        text = example(explorer)
        return View("Prompt", fragment("prompt_start.html", text=text, here=address(PATH, text=text)))
    asked = Asked.of(explorer, query)
    captured = asked.captured
    direct = explorer.cached(
        ("direct", *asked.key), lambda: attribute(captured, asked.target, asked.foil, asked.position).total
    )
    read = direct.answer
    assert read is not None
    longer, _ = explorer.cached(("answered", *asked.key), lambda: with_answer(captured, read, 0))
    first = read.target[0], None if read.parting else read.foil_id
    paths = scored(explorer, asked, direct, "paths", progress)
    scores = paths if asked.by == "paths" else scored(explorer, asked, direct, asked.by, progress)
    assert isinstance(paths, PathAttribution)
    mapped = paths if isinstance(scores, Attribution) else scores
    if asked.cell is not None and (asked.cell[0] >= explorer.model.n_layers or asked.cell[1] > paths.position):
        raise OutOfRangeError(
            f"cell {asked.cell[0]}.{asked.cell[1]} is no layer and position of this map: it has layers 0 to "
            f"{explorer.model.n_layers - 1} and positions 0 to {paths.position}"
        )
    roles = {first[0]: "target"} if first[1] is None else {first[1]: "foil", first[0]: "target"}
    chips = prompt_chips(longer)
    variants = [(told(one), one) for one in query.variants()]
    foil = None if read.foil_id is None else longer.logits_at(0, direct.position).double().softmax(-1)[read.foil_id]
    asked_about = answer(direct, asked.top, answer_probability(longer, read), None if foil is None else float(foil))
    on_paths, memories = carried(paths), listed(explorer, asked, scores, roles)
    body = fragment(
        "prompt.html",
        query=query,
        here=partial(query.address, PATH),
        asked=asked,
        scores=SCORES,
        columns=[
            {
                "chip": chip,
                "position": at,
                "address": query.address(PATH, at=at, cell=None, target=None, foil=None),
                "predictions": captured.predictions(at, BESIDE).to_dict("records"),
            }
            for at, chip in enumerate(chips[: captured.tokens.shape[1]])
        ],
        chips=chips,
        predictions=[
            (row, named(explorer, row.token_id, row.token))
            for row in captured.predictions(asked.position, 8).itertuples()
        ],
        roles=roles,
        map=map_rows(mapped),
        limit=float(mapped.map.abs().max()) or 1.0,
        carried=on_paths,
        answer=asked_about,
        memories=memories,
        firings=not isinstance(scores, Attribution),
        strengths=STRENGTH,
        compared=compared(explorer, asked, direct, variants, progress) if variants else None,
    )
    name = "prompt"
    return View(
        title="The memories behind an answer",
        body=body,
        conclusion=fragment(
            "prompt_sentence.html", answer=asked_about, carried=on_paths, memories=memories, by=asked.by
        ),
        downloads={
            "csv": csv_of(lambda: scores.top(MOST), name),
            "png": png_of(lambda: figure_of(scores, asked.top), name),
            "html": html_of(lambda: report_html(captured, direct, paths, top=asked.top), name),
            "json": json_of(lambda: scores.to_dict(asked.top), name),
        },
    )


Scores = Attribution | PathAttribution | CausalScores


def scored(explorer: Explorer, asked: Asked, direct: Attribution, by: str, progress: Progress) -> Scores:
    """What every memory has to do with the answer."""
    read = direct.answer
    if by == "paths":
        return explorer.cached(("paths", *asked.key), lambda: attribute_paths(asked.captured, read))
    if by == "causal":
        return explorer.cached(
            ("causal", *asked.key), lambda: causal_scores(asked.captured, read, rule="relp", exact=0, progress=progress)
        )
    return direct


def column_of(scores: Scores) -> str:
    """The column of its tables that has the number."""
    return "logit" if isinstance(scores, Attribution) else scores.column


def listed(explorer: Explorer, asked: Asked, scores: Scores, roles: Mapping[int, str]) -> list[Any]:
    """The memories that count most, of one cell of the map or of all, with the tokens that each promotes."""
    if isinstance(scores, Attribution):
        found = scores.top(asked.top).assign(position=asked.position)
    elif asked.cell is None:
        found = scores.top(asked.top)
    else:
        layer, position = asked.cell
        numbers = scores.of_firings[layer, position].double()
        order = numbers.abs().argsort(descending=True, stable=True)[: asked.top]
        found = pd.DataFrame(
            {
                "layer": layer,
                "neuron": order.tolist(),
                "position": position,
                "coefficient": scores.coefficients[layer, position, order].tolist(),
                scores.column: numbers[order].tolist(),
                "share": (numbers[order] / scores.shared).tolist(),
            }
        )
    column = column_of(scores)
    return with_bars(with_tokens(explorer.model, found.rename(columns={column: "score"}), 5, roles), "score")


def map_rows(scores: PathAttribution | CausalScores) -> list[tuple[int, list[float]]]:
    """What each layer did at each position, the last layer first."""
    return list(enumerate(scores.map.tolist()))[::-1]


def figure_of(scores: Scores, top: int) -> Any:
    """The map of layers and positions; of what is written directly, the memories."""
    return picture("neurons")(scores, top=top) if isinstance(scores, Attribution) else picture("map")(scores)


# What the model says without some memories, or with more of them: variants beside the model as it is.


def compared(
    explorer: Explorer, asked: Asked, direct: Attribution, variants: list[tuple[str, Variant]], progress: Progress
) -> dict[str, Any]:
    """The next token and how the text goes on, as it is and in each variant."""
    model, position = explorer.model, asked.position
    tokens = asked.captured.tokens[0, : position + 1].tolist()
    new = min(GOES_ON, model.n_ctx - len(tokens))

    def goes_on() -> list[int]:
        return generate(model, tokens, new) if new else []

    texts = [explorer.cached(("goes on", *asked.key[:2]), goes_on)]
    logits = [asked.captured.logits_at(0, position)]
    for done, (_, variant) in enumerate(variants):
        progress("variants", done, len(variants))
        with intervene(model, {at: Scale(factor) for at, factor in variant.items()}):
            logits.append(capture(model, tokens, layers=0, logits=True).logits_at(0, position))
            texts.append(goes_on())
    found = torch.stack(logits).detach().double().softmax(-1)
    assert direct.answer is not None
    answers = list(dict.fromkeys(ids[0] for ids in (direct.answer.target, direct.answer.foil) if ids))
    best = found.max(0).values.topk(min(NEXT, model.d_vocab)).indices.tolist()
    shown = [*best, *(i for i in answers if i not in best)]
    roles = dict(zip(answers, ("target", "foil"), strict=False))
    return {
        "variants": [
            {
                "text": text,
                "neurons": [(f"{layer}.{neuron}", factor) for (layer, neuron), factor in variant.items()],
                "others": [("v", other) for i, (other, _) in enumerate(variants) if i != place],
            }
            for place, (text, variant) in enumerate(variants)
        ],
        "rows": [
            {"token": token, "role": roles.get(i, ""), "probabilities": found[:, i].tolist()}
            for i, token in zip(shown, model.token_strings(shown), strict=True)
        ],
        "texts": [
            [
                (token, place >= len(texts[0]) or texts[0][place] != one[place])
                for place, token in enumerate(model.token_strings(one))
            ]
            for one in texts
        ],
    }


def named(explorer: Explorer, token_id: int, token: str) -> str:
    """A token as an address has it: its text, where that means it and nothing else."""
    plain = token.startswith(" ") and explorer.model.ids_of(token) == [token_id]
    return token if plain else f"id:{token_id}"
