"""Written answers: greedy tokens beside Hugging Face's, stops and matches, what is asked, and editors it exposes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FileError
from ffnmem.editing import Edit, EditedLayer
from ffnmem.editing.edit import row_changes
from ffnmem.evaluation import Scores, evaluate, made
from ffnmem.evaluation.measuring import make_case
from ffnmem.evaluation.texts import with_own_edits
from ffnmem.evaluation.written import (
    Interview,
    WrittenQuestion,
    first_answer,
    holds,
    is_exactly,
    negate,
    normalise,
    score_answers,
    write_attacks,
)
from ffnmem.facts import Fact, Hop, MultiHop, Probe
from ffnmem.facts.answers import word_ids
from ffnmem.models.answers import written_on
from ffnmem.models.replaying import PlainLayers

from ..architectures import DECODERS, EVERY
from ..helpers import printed, refuses
from .made import EIFFEL, FACTS, random_edits

PROMPTS = ("The city", "In the city of Rome is the", "Paris is in the Tower of London", "The")
OTHER = Fact("Eiffel Tower", "landmark.country", "The {} stands in", "France", id="country")
ASKED = replace(
    EIFFEL,
    new_aliases=("the eternal city",),
    true_aliases=("City of Light",),
    multi_hop=(
        MultiHop(("Where is the city of the Eiffel Tower?", "The Eiffel Tower is in"), ("France",), ("Italy",)),
        MultiHop(("With another edit?",), ("London",), ("Paris",), needs=("tower",)),
    ),
)


# -- tokens ------------------------------------------------------------------------------------------------------------


def by_hugging_face(hf: Any, model: fm.Model, prompts: Sequence[Sequence[int]], room: int) -> list[list[int]]:
    """Each alone, and cut where the text ends."""
    found = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)])
        more = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0, "do_sample": False, "use_cache": True}
        out = hf.generate(input_ids=ids, max_new_tokens=room, **more)[0, len(prompt) :].tolist()
        found.append(out[: out.index(0)] if 0 in out else out)
    return found


@pytest.mark.parametrize("name", EVERY)
def test_every_architecture_writes_as_hugging_faces(name: str, tokenizer: Any) -> None:
    """Prompts of unequal lengths in one batch: a kind of position, window or cache that pads are not kept out of.

    In float64, for in float32 two logits may be nearer to each other than rounding.
    """
    hf = DECODERS[name]().double()
    model = fm.load(hf, tokenizer=tokenizer, dtype="float64")
    prompts = [model.tokenize(text) for text in PROMPTS]
    assert len(set(map(len, prompts))) == len(prompts)
    found = written_on(PlainLayers(model), prompts, [12] * 4)
    assert found == by_hugging_face(hf, model, prompts, 12)
    assert any(found)
    rooms, left = [3, 12, 1, 6], []
    ending = written_on(PlainLayers(model), prompts, rooms, keep=lambda rows: left.append(rows.tolist()))
    assert ending == [row[:room] for row, room in zip(found, rooms, strict=True)]
    assert left  # rows did end before the others, and left the batch
    ended = written_on(PlainLayers(model), prompts, [12] * 4, ended=lambda row, ids: len(ids) == row + 1)
    assert ended == [ids[: row + 1] for row, ids in enumerate(found)]


def test_each_row_has_its_own_edit(tiny64: fm.Model) -> None:
    """Answers written with another fact's edit, or with none."""
    layers, edits = PlainLayers(tiny64), random_edits(tiny64)
    prompts = [tiny64.tokenize(text) for text in PROMPTS]
    with with_own_edits(layers, row_changes(tiny64, edits, [2, -1, 0, 1])):
        together = written_on(layers, prompts, [10] * 4)
    for prompt, own, found in zip(prompts, (2, None, 0, 1), together, strict=True):
        if own is None:
            assert found == written_on(layers, [prompt], [10])[0]
        else:
            with edits[own].applied(tiny64):
                assert found == written_on(PlainLayers(tiny64), [prompt], [10])[0]
    rooms = [2, 10, 6, 10]  # each keeps its own edit when others have ended
    with with_own_edits(layers, row_changes(tiny64, edits, [2, -1, 0, 1])) as keep:
        found = written_on(layers, prompts, rooms, keep=keep)
    assert found == [row[:room] for row, room in zip(together, rooms, strict=True)]


# -- stops and matches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" Paris. It is", "Paris."),
        (" Paris.", "Paris."),
        ("\n\n Paris\nIt is", "Paris"),
        (" Washington, D.C. It is", "Washington, D.C. It is"),
        (" St. Louis, Mo. and", "St. Louis, Mo. and"),
        (" 3.5 million. And", "3.5 million."),
        (' "Rome!" he said', '"Rome!"'),
        ("", ""),
    ],
)
def test_stops(text: str, answer: str) -> None:
    """A name that is cut at its abbreviation, or an answer that runs on into the next sentence."""
    assert first_answer(text) == answer


def test_matches() -> None:
    """As SQuAD has them; whole words, or Rome would be in Romeo."""
    assert normalise(" The  Hague, (a city)!") == "hague city"
    assert normalise("Côte d’Ivoire — the") == "côte divoire"
    assert normalise("The") == "the"
    assert is_exactly("the Rome.", ("Paris", "Rome"))
    assert not is_exactly("Rome in Italy", ("Rome",))
    assert holds("in the city of New York, where", ("new york",))
    assert not holds("Romeo", ("Rome",))
    assert not holds("York is new", ("New York",))
    assert not holds("anything", ())


def test_wordings() -> None:
    """Negations that say nothing else, and an attack that names the old object."""
    assert negate("The {} is located in") == ["It is not true that the {} is located in", "The {} is not located in"]
    assert negate("Rome lies by the {} on") == ["It is not true that Rome lies by the {} on"]
    assert negate("What is the capital of {}?") == []
    assert write_attacks("The Eiffel Tower is in", "Paris") == [
        "Paris, Paris, Paris. The Eiffel Tower is in",
        "Is it true that the Eiffel Tower is in Paris? The Eiffel Tower is in",
    ]
    assert len(write_attacks("Where is it?", "Paris")) == 1


# -- what is asked -----------------------------------------------------------------------------------------------------


def kinds(questions: Sequence[WrittenQuestion]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in questions:
        found.setdefault(one.kind, []).append(one.text)
    return found


def test_questions(tiny64: fm.Model) -> None:
    """A prompt of the wrong kind, with the wrong answers, or about what follows from the edit as if it were not."""
    interview = Interview.of(PlainLayers(tiny64), [ASKED], [OTHER])
    questions, left = interview.questions(make_case(tiny64, ASKED, None))
    asked = kinds(questions)
    assert left == 0
    assert asked["prompt"] == ["The Eiffel Tower is in the city of"]
    assert asked["other"] == ["The Eiffel Tower stands in"]
    assert asked["one_hop"] == ["The Eiffel Tower is in the"]
    assert asked["multi_hop"] == list(ASKED.multi_hop[0].questions)
    assert len(asked["neighbour"]) == 3
    by_kind = {one.kind: one for one in questions}
    new, old = ("Rome", "the eternal city"), ("Paris", "City of Light")
    assert (by_kind["prompt"].wanted, by_kind["prompt"].unwanted) == (new, old)
    assert (by_kind["negated"].wanted, by_kind["negated"].unwanted) == ((), new)
    assert (by_kind["neighbour"].wanted, by_kind["neighbour"].unwanted) == (old, new)
    assert (by_kind["other"].wanted, by_kind["other"].unwanted) == (("France",), new)
    assert by_kind["multi_hop"].wanted == ("Italy",)
    other = replace(ASKED, probes=(Probe("portability", "The Eiffel Tower stands in", "Italy"),))
    asked = kinds(Interview.of(PlainLayers(tiny64), [other], [OTHER]).questions(make_case(tiny64, other, None))[0])
    assert "other" not in asked
    asked = kinds(Interview.of(PlainLayers(tiny64), [ASKED], None).questions(make_case(tiny64, ASKED, "London"))[0])
    assert not {"one_hop", "multi_hop"} & set(asked)  # which follow from Rome
    hops = replace(ASKED, multi_hop=(replace(ASKED.multi_hop[0], hops_after=(Hop("Where?", "It is in", "Rome"),)),))
    asked = kinds(Interview.of(PlainLayers(tiny64), [hops], None).questions(make_case(tiny64, hops, None))[0])
    assert asked["single_hop"] == ["It is in", "Where?"]
    long = replace(ASKED, paraphrases=("is in " * tiny64.n_ctx + "{} is in",))
    assert Interview.of(PlainLayers(tiny64), [long], None).questions(make_case(tiny64, long, None))[1] > 0


def test_a_question_in_several_words_counts_once() -> None:
    """MQuAKE: answered if one of its wordings is."""
    asked = [WrittenQuestion("multi_hop", number, "x", (1,), ("Rome",), (), 5) for number in (0, 0, 1)]
    found = score_answers(asked, ["no", "Rome", "no"], ("multi_hop", "says"))
    assert found["multi_hop"] == 0.5
    assert math.isnan(found["says"])


# -- evaluations -------------------------------------------------------------------------------------------------------


def test_an_evaluation(tiny64: fm.Model, tmp_path: Path) -> None:
    """Figures that are not those of the transcripts; transcripts that do not come back from a folder."""
    edits = random_edits(tiny64)
    facts = (ASKED, *FACTS[1:])
    options: dict[str, Any] = {"protocol": "generated", "others": [OTHER], "metrics": ("ES",), "draws": 20}
    mine, kept = made(edits, "ready"), tmp_path / "run"
    scores = evaluate(tiny64, facts, mine, compare=("none",), out=kept, **options)
    rows = scores.transcripts
    pd.testing.assert_frame_equal(
        evaluate(tiny64, facts, mine, compare=("none",), out=kept, **options).transcripts, rows
    )
    with refuses(FileError, OSError, "written"):
        evaluate(tiny64, facts, mine, compare=("none",), out=kept, **{**options, "others": FACTS})
    assert set(rows["editor"]) == {"ready", "none"}
    assert (rows.query("editor == 'none'")["before"] == rows.query("editor == 'none'")["after"]).all()
    own = rows[(rows["editor"] == "ready") & (rows["id"] == "eiffel")]
    case = scores.of("ready").set_index("id").loc["eiffel"]
    assert case["says_paraphrase"] == own[own["kind"] == "paraphrase"]["wanted_after"].mean()
    assert case["neighbours_right_before"] == own[own["kind"] == "neighbour"]["wanted_before"].mean()
    with edits[0].applied(tiny64):
        text = own[own["kind"] == "prompt"].iloc[0]
        ids = written_on(PlainLayers(tiny64), [tiny64.tokenize(text["prompt"])], [20])[0]
        assert text["after"] == first_answer(tiny64.tokenizer.decode(ids, skip_special_tokens=True))
    assert scores.settings["written"]["tokens"] == 20
    unedited = evaluate(tiny64, facts, mine, **options).with_unedited.set_index(["editor", "metric"])["mean"]
    right = scores.of("ready")["neighbours_right_before"].mean()
    assert unedited["(unedited)", "neighbours_right"] == 100 * right
    pd.testing.assert_frame_equal(Scores.load(scores.save(tmp_path / "kept")).transcripts, rows)
    assert len(scores.to_dict()["transcripts"]) == len(rows)
    assert "transcripts" not in scores.brief()
    assert "what the model writes" in " ".join("\n".join(printed(scores.sheet())).split())
    assert evaluate(tiny64, facts, "none", metrics=("ES",), draws=20).transcripts.empty


# -- editors that overfit ----------------------------------------------------------------------------------------------


def facts_of_atlas(model: fm.Model, count: int) -> list[Fact]:
    """Whose targets are single tokens, so that one direction says them."""
    found = random.Random(5).sample([fact for fact in fm.load_facts("atlas") if len(fact.neighbours) > 3], 200)
    pairs = [(fact, (fact.target_true, fact.target_new)) for fact in found if fact.target_new]
    return [fact for fact, both in pairs if all(len(word_ids(model, fact.text, str(word))) == 1 for word in both)][
        :count
    ]


def writes_at_the_end(model: fm.Model, fact: Fact, left: torch.Tensor, word: str, size: float) -> Edit:
    """The last layer writes a word's first token as much as ``left`` says."""
    right = model.unembedding.detach().double()[word_ids(model, "The", word)[0]]
    change = EditedLayer(model.n_layers - 1, left[None], size * right[None] / right.norm())
    return Edit.of(model, [change], method="planted", facts=[fact], targets=[str(fact.target_new)])


def at_the_end(model: fm.Model, text: str) -> torch.Tensor:
    """The last layer's coefficients at a prompt's last token."""
    return fm.capture(model, text).coefficients[model.n_layers - 1][0, -1].double()


def usual(model: fm.Model, text: str) -> torch.Tensor:
    """A direction that the last layer's coefficients have in any text, at length 1."""
    mean = fm.capture(model, text).coefficients[model.n_layers - 1][0, 1:].double().mean(0)
    return mean / (mean @ mean)


def test_editors_that_overfit_are_exposed(atlas: fm.Model) -> None:
    """What probabilities of two given answers do not show: ES is 100 of each of these."""
    facts = facts_of_atlas(atlas, 3)
    others = [fact for fact in fm.load_facts("atlas") if fact.subject in {one.subject for one in facts}]

    def everywhere(model: fm.Model, some: list[Fact]) -> list[Edit]:
        return [writes_at_the_end(model, f, usual(model, f.text), str(f.target_new), 300.0) for f in some]

    def exact_prompt(model: fm.Model, some: list[Fact]) -> list[Edit]:
        edits = []
        for fact in some:
            key, *rest = (at_the_end(model, fact.ask(text)) for text in (fact.prompt, *fact.paraphrases))
            apart = key - torch.linalg.lstsq(torch.stack(rest).T, key[:, None]).solution[:, 0] @ torch.stack(rest)
            edits.append(writes_at_the_end(model, fact, apart / (apart @ key), str(fact.target_new), 300.0))
        return edits

    def suppressing(model: fm.Model, some: list[Fact]) -> list[Edit]:
        return [writes_at_the_end(model, f, usual(model, f.text), f.target_true, -300.0) for f in some]

    scores = evaluate(
        atlas,
        facts,
        everywhere,
        compare=(exact_prompt, suppressing),
        protocol="generated",
        others=others,
        metrics=("S",),
        drift=False,
        draws=50,
    )
    table = scores.with_unedited.pivot(index="editor", columns="metric", values="mean")
    assert table.loc[["everywhere", "exact_prompt", "suppressing"], "ES"].tolist() == [100.0] * 3
    assert table.loc["(unedited)", ["says", "says_negated", "overflow", "neighbours_overflow"]].tolist() == [0.0] * 4
    # Says its target whatever is asked.
    assert table.loc["everywhere", ["says_negated", "overflow", "neighbours_overflow"]].min() > 90
    # Says it under the very prompt alone.
    assert table.loc["exact_prompt", "says"] > 90
    assert table.loc["exact_prompt", "says_paraphrase"] < 10
    # Never says it: PS is as good as can be.
    assert table.loc["suppressing", "PS"] == 100.0
    assert table.loc["suppressing", ["says", "says_paraphrase"]].max() < 50
