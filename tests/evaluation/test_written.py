"""What a model writes: greedy answers, what is asked, and each fact's own edit."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FileError
from ffnmem.editing.edit import row_changes
from ffnmem.evaluation import METRICS, evaluate, made
from ffnmem.evaluation.measuring import make_case
from ffnmem.evaluation.texts import with_own_edits
from ffnmem.evaluation.written import (
    Interview,
    first_answer,
    holds,
    is_exactly,
    negate,
    normalise,
    write_attacks,
)
from ffnmem.facts import Fact, Probe
from ffnmem.models.answers import written_on
from ffnmem.models.replaying import PlainLayers

from ..architectures import DECODERS
from ..helpers import printed, refuses
from .made import EIFFEL, FACTS, random_edits, tell

PROMPTS = ("The city", "In the city of Rome is the", "Paris is in the Tower of London", "The")
OTHER = Fact("Eiffel Tower", "landmark.country", "The {} stands in", "France", id="country")
ASKED = replace(EIFFEL, new_aliases=("the eternal city",), true_aliases=("City of Light",))


# -- tokens ------------------------------------------------------------------------------------------------------------


FEW = (
    "GPT-2",
    "OPT without biases",
    "Bloom",
    "Pythia",
    "Gemma 2",
    "Qwen 2 MoE",
)  # positions, windows, experts


@pytest.mark.parametrize("name", [n if n in FEW else pytest.param(n, marks=pytest.mark.exhaustive) for n in DECODERS])
def test_every_architecture_writes_as_hugging_faces(name: str, tokenizer: Any) -> None:
    """Prompts of unequal lengths in one batch: a kind of position, window or cache that pads are not kept out of.

    In float64, for in float32 two logits may be nearer to each other than rounding.
    """
    hf = DECODERS[name]().double()
    model = fm.load(hf, tokenizer=tokenizer, dtype="float64")
    prompts = [model.tokenize(text) for text in PROMPTS]
    assert len(set(map(len, prompts))) == len(prompts)
    found = written_on(PlainLayers(model), prompts, [12] * 4)
    for prompt, own in zip(prompts, found, strict=True):
        ids = torch.tensor([prompt])
        more = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0, "do_sample": False}
        theirs = hf.generate(input_ids=ids, max_new_tokens=12, **more)[0, len(prompt) :].tolist()
        assert own == theirs[: theirs.index(0)] if 0 in theirs else own == theirs  # the end of the text
    assert any(found)
    rooms, left = [3, 12, 1, 6], []
    ending = written_on(PlainLayers(model), prompts, rooms, keep=lambda rows: left.append(rows.tolist()))
    assert ending == [row[:room] for row, room in zip(found, rooms, strict=True)]
    assert left  # rows did end before the others, and left the batch
    ended = written_on(PlainLayers(model), prompts, [12] * 4, ended=lambda row, ids: len(ids) == row + 1)
    assert ended == [ids[: row + 1] for row, ids in enumerate(found)]


def test_each_row_has_its_own_edit(tiny64: fm.Model) -> None:
    """Answers written with another fact's edit, or with none; each keeps its own when others have ended."""
    layers, edits, rows = PlainLayers(tiny64), random_edits(tiny64), [2, -1, 0, 1]
    prompts, rooms, expected = [tiny64.tokenize(text) for text in PROMPTS], [2, 10, 6, 10], []
    with with_own_edits(layers, row_changes(tiny64, edits, rows)) as keep:
        found = written_on(layers, prompts, rooms, keep=keep)
    for prompt, own, room in zip(prompts, rows, rooms, strict=True):
        with edits[own].applied(tiny64) if own >= 0 else nullcontext():
            expected += written_on(PlainLayers(tiny64), [prompt], [room])
    assert found == expected


# -- stops and matches -------------------------------------------------------------------------------------------------


def test_stops_and_matches() -> None:
    """A name that is cut at its abbreviation, or an answer that runs on; matches as SQuAD has them, of whole words."""
    for text, answer in (
        (" Paris. It is", "Paris."),
        ("\n\n Paris\nIt is", "Paris"),
        (" Washington, D.C. It is", "Washington, D.C. It is"),
        (" St. Louis, Mo. and", "St. Louis, Mo. and"),
        (" 3.5 million. And", "3.5 million."),
        (' "Rome!" he said', '"Rome!"'),
        ("", ""),
    ):
        assert first_answer(text) == answer
    assert normalise(" The  Hague, (a city)!") == "hague city"
    assert normalise("Côte d’Ivoire — the") == "côte divoire"
    assert normalise("The") == "the"
    assert is_exactly("the Rome.", ("Paris", "Rome"))
    assert not is_exactly("Rome in Italy", ("Rome",))
    assert holds("in the city of New York, where", ("new york",))
    assert not any(holds(text, ("Rome", "New York")) for text in ("Romeo", "York is new"))


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


def asked_of(model: fm.Model, fact: Fact, others: list[Fact] | None = None, target: str | None = None) -> Any:
    """The questions of a fact, their texts by kind, and how many are too long."""
    interview = Interview.of(PlainLayers(model), [fact], others)
    questions, left = interview.questions(make_case(model, fact, target))
    texts: dict[str, list[str]] = {}
    for one in questions:
        texts.setdefault(one.kind, []).append(one.text)
    return {one.kind: one for one in questions}, texts, left


def test_questions(tiny64: fm.Model) -> None:
    """A prompt of the wrong kind, with the wrong answers, or about what follows from the edit as if it were not."""
    by_kind, asked, left = asked_of(tiny64, ASKED, [OTHER])
    assert left == 0
    assert asked["prompt"] == ["The Eiffel Tower is in the city of"]
    assert asked["other"] == ["The Eiffel Tower stands in"]
    assert len(asked["neighbour"]) == 3
    new, old = ("Rome", "the eternal city"), ("Paris", "City of Light")
    for kind, wanted, unwanted in (
        ("prompt", new, old),
        ("negated", (), new),
        ("neighbour", old, new),
        ("other", ("France",), new),
    ):
        assert (by_kind[kind].wanted, by_kind[kind].unwanted) == (wanted, unwanted)
    other = replace(ASKED, probes=(Probe("alias", "The Eiffel Tower stands in", "Rome"),))
    assert "other" not in asked_of(tiny64, other, [OTHER])[1]
    assert "other" in asked_of(tiny64, other, [OTHER], target="London")[1]  # what follows is known of Rome
    assert asked_of(tiny64, replace(ASKED, paraphrases=("is in " * tiny64.n_ctx + "{} is in",)))[2] > 0
    long = "is in " * (tiny64.n_ctx // 2 - 6) + "{} is in"  # there is room for less than an answer at its longest
    cut = asked_of(tiny64, replace(ASKED, paraphrases=(long,)))[0]["paraphrase"]
    assert 3 < cut.room == tiny64.n_ctx - len(cut.tokens) < 20
    # Prompts that fill the context are not written on together: the shorter one has no room for pads.
    interview = Interview.of(PlainLayers(tiny64), [ASKED], None)
    one = interview.questions(make_case(tiny64, ASKED, None))[0][0]
    full = [replace(one, tokens=(one.tokens * tiny64.n_ctx)[: tiny64.n_ctx - room], room=room) for room in (2, 5)]
    assert interview.answers([full], [None]) == [[interview.answers([[each]], [None])[0][0] for each in full]]


# -- evaluations -------------------------------------------------------------------------------------------------------


TOLD = replace(ASKED, id="told", target_true="Rome", target_new="Paris", new_aliases=(), true_aliases=())


def test_an_evaluation(tiny64: fm.Model, tmp_path: Path) -> None:
    """Figures that are not those of the transcripts; transcripts that do not come back from a folder."""
    facts, edits = (ASKED, TOLD), [random_edits(tiny64)[0], tell(tiny64, TOLD)]
    options: dict[str, Any] = {"protocol": "generated", "others": [OTHER], "metrics": ("ES",), "draws": 20}
    mine, kept = made(edits, "ready"), tmp_path / "run"
    scores = evaluate(tiny64, facts, mine, compare=("none",), out=kept, **options)
    again = evaluate(tiny64, facts, mine, compare=("none",), out=kept, **options)
    pd.testing.assert_frame_equal(again.transcripts, scores.transcripts)
    with refuses(FileError, OSError, "written"):
        evaluate(tiny64, facts, mine, compare=("none",), out=kept, **{**options, "others": FACTS})
    for (editor, name), rows in scores.transcripts.groupby(["editor", "id"]):
        case = scores.of(editor).set_index("id").loc[name]
        for metric, how in METRICS.items():
            for side in ("before", "after") if how.written else ():
                each = rows[rows["kind"] == how.asks].groupby("question")[f"{how.written}_{side}"].max()
                assert case[metric + "_before" * (side == "before")] == pytest.approx(each.mean(), nan_ok=True), metric
    # Says its target whatever is asked, which probabilities of two given answers do not show.
    everywhere = ["says", "says_paraphrase", "says_negated", "overflow", "neighbours_overflow"]
    assert scores.of("ready").set_index("id").loc["told", ["ES", *everywhere]].tolist() == [1.0] * 6
    assert scores.of("none").set_index("id").loc["told", everywhere].tolist() == [0.0] * 5
    with edits[0].applied(tiny64):
        text = scores.transcripts.query("editor == 'ready' and id == 'eiffel' and kind == 'prompt'").iloc[0]
        ids = written_on(PlainLayers(tiny64), [tiny64.tokenize(text["prompt"])], [20])[0]
        assert text["after"] == first_answer(tiny64.tokenizer.decode(ids, skip_special_tokens=True))
    assert scores.settings["written"]["tokens"] == 20
    unedited = evaluate(tiny64, facts, mine, **options).means.set_index(["editor", "metric"])["mean"]
    right = scores.of("ready")["neighbours_right_before"].mean()
    assert unedited["(unedited)", "neighbours_right"] == 100 * right
    text = " ".join("\n".join(printed(scores.sheet(), 300)).split())
    assert "What the model writes" in text
    assert "The Eiffel Tower is in the city of" in text
    assert evaluate(tiny64, facts, "none", metrics=("ES",), draws=20).transcripts.empty
