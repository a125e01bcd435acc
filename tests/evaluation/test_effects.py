"""What an edit does to what a model says, against whole forward passes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FileError, InputError, ModelError
from ffnmem.evaluation.edit_reports import edit_effects, edited, moved_neighbours
from ffnmem.evaluation.effects import (
    COLUMNS,
    AskedPrompt,
    Effects,
    prompts_of,
)
from ffnmem.evaluation.texts import DOCUMENTS, Texts, drift_texts, sample_documents
from ffnmem.facts.fact import fact_about
from ffnmem.models.answers import generate
from ffnmem.models.replaying import PlainLayers

from ..architectures import DECODERS
from ..editing.edits import COLOSSEUM, made, same_bits, weights
from ..helpers import allclose, refuses
from .made import EIFFEL, TEXTS, drift_by_hand, logs, probability


@pytest.fixture(scope="module")
def effects(tiny64: fm.Model) -> Effects:
    return Effects(made(tiny64, (0, 1), fact=EIFFEL), tiny64)


def test_probabilities_are_those_of_whole_passes(effects: Effects) -> None:
    """Before without the edit, after with it in the weights; the likeliest token too."""
    frame = effects.on(prompts_of(EIFFEL, "the France"))
    assert tuple(frame.columns) == COLUMNS
    for row in frame.to_dict("records"):
        for name, edit in (("before", None), ("after", effects.edit)):
            for word in ("true", "target"):
                expected = probability(effects.model, row["prompt"], row[word], edit)
                assert allclose(row[f"{word}_{name}"], expected, 1e-9)
            after = logs(effects.model, row["prompt"], edit=edit)[-1]
            assert row[f"answer_{name}"] == effects.model.token_strings([int(after.argmax())])[0]
            assert allclose(row[f"answer_{name}_probability"], float(after.max().exp()), 1e-9)


def test_an_applied_edit_is_not_added_twice(tiny64: fm.Model, effects: Effects) -> None:
    """A user may have applied it already; the model stays as it is found."""
    before, asked = weights(tiny64), prompts_of(EIFFEL, "Rome")
    expected = effects.on(asked)
    with effects.edit.applied(tiny64):
        held = weights(tiny64)
        found = Effects(effects.edit, tiny64)
        assert allclose(found.on(asked)["target_after"], expected["target_after"], 1e-12)
        assert allclose(found.on(asked)["target_before"], expected["target_before"], 1e-12)
        assert allclose(found.changes()["of_norm"], effects.changes()["of_norm"], 1e-12)
        assert same_bits(tiny64, held)
    assert same_bits(tiny64, before)


def test_changes_and_continuations(tiny64: fm.Model, effects: Effects) -> None:
    """The likeliest tokens, once without and once with the edit; a text without room has none."""
    for row, change in zip(effects.changes().to_dict("records"), effects.edit.changes, strict=True):
        norm = torch.linalg.matrix_norm(tiny64.ffn[change.layer].values.detach())
        assert (row["layer"], row["rank"]) == (change.layer, change.rank)
        assert allclose(row["of_norm"], float(torch.linalg.matrix_norm(change.delta()) / norm), 1e-9)
    texts = ["The Tower is", "The city of " * 12, f"The{' city' * 29}"]  # with room for many, none, one
    (text, before, after), (last, *_) = effects.continued(texts, 4)
    assert last == texts[2]
    assert text == "The Tower is"
    tokens = tiny64.tokenize(text)
    assert before == tiny64.tokenizer.decode(generate(tiny64, tokens, 4), skip_special_tokens=True)
    with effects.edit.applied(tiny64):
        assert after == tiny64.tokenizer.decode(generate(tiny64, tokens, 4), skip_special_tokens=True)


def test_drift(effects: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of texts that name no subject, after BOS; a model without a corpus has none."""
    assert effects.drift() == {}
    asked = (*TEXTS, "The Eiffel Tower is")
    monkeypatch.setattr("ffnmem.evaluation.effects.drift_texts", lambda model, source, seed: asked)
    found = effects.drift()
    assert found["texts"] == len(TEXTS)
    expected = drift_by_hand(effects.model, TEXTS, effects.edit)
    assert allclose([found["drift_kl"], found["drift_perplexity"]], expected, 1e-9)


def test_texts_that_drift_is_measured_on(tiny64: fm.Model, atlas: fm.Model, tmp_path: Path) -> None:
    """A sample of a corpus, not its beginning; each as long as the model reads at most; none that nobody asked for."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(300)))
    found = sample_documents(corpus, 0)
    numbers = [int(text.split()[1]) for text in found]
    assert len(set(numbers)) == DOCUMENTS
    assert numbers == sorted(numbers)
    assert 80 < sum(numbers) / DOCUMENTS < 220
    assert sample_documents(corpus, 0) == found != sample_documents(corpus, 1)
    assert Texts(PlainLayers(tiny64), ["The city of " * 40, "The"], length=9).tokens.shape == (2, 9)  # after BOS, two
    assert drift_texts(tiny64, None, 0) == drift_texts(atlas, False, 0) == ()
    assert len(drift_texts(atlas, None, 0)) == DOCUMENTS
    assert drift_texts(tiny64, ["a b", "c d"], 0) == ("a b", "c d")
    with refuses(FileError, OSError, "nowhere.txt"):
        drift_texts(tiny64, "nowhere.txt", 0)


def test_what_cannot_be_asked(effects: Effects, tiny: fm.Model) -> None:
    """A paraphrase that is too long is left out, but what was asked for by name is refused."""
    long = "The city of " * 12
    kept = effects.on(
        [AskedPrompt("prompt", "The", "Paris", "Rome", ""), AskedPrompt("neighbour", long, "Paris", "Rome", "")]
    )
    assert kept["kind"].tolist() == ["prompt"]
    with refuses(InputError, ValueError, "32"):
        effects.on([AskedPrompt("other", long, "Paris", "Rome", "")])
    with pytest.raises(ModelError, match="fingerprint"):
        Effects(effects.edit, tiny)


def test_neighbours_that_moved_are_counted() -> None:
    """An edit that made the Louvre's city Berlin ended without a word."""
    rows = [("prompt", "p", " Paris", " Rome"), ("neighbour", "n", " Paris", " Paris")]
    names = ["kind", "prompt", "answer_before", "answer_after"]
    assert moved_neighbours(pd.DataFrame(rows, columns=names)) == []
    (line,) = moved_neighbours(pd.DataFrame([*rows, ("neighbour", "Louvre", " Paris", " Berlin")], columns=names))
    assert line.startswith("1 of 2 prompts about neighbours")
    assert "'Louvre' with ' Berlin' instead of ' Paris'" in line
    other = ("unrelated", "The currency of France is", " euro", " yen")
    (line,) = moved_neighbours(pd.DataFrame([*rows, other], columns=names))
    assert line.startswith("1 of 1 prompts about what else is known")


def test_what_else_is_known_of_a_subject_is_asked() -> None:
    known = fm.load_facts("atlas")
    fact = fact_about("The capital of {} is", "France", known, None, lambda prompt: "")
    asked = {one.text: one.true for one in prompts_of(fact, "Rome") if one.kind == "unrelated"}
    assert asked["The currency of France is called"] == "euro"
    assert fact.text not in asked
    new = fact_about("{} exports", "France", known, "wine", lambda prompt: "")
    assert {probe.prompt for probe in new.probes} == {*asked, fact.text}


def test_what_is_said_first(effects: Effects) -> None:
    """What the model says now, in one sentence; whether other wordings follow and other prompts stay."""
    found = edit_effects(effects.edit, effects.model, k=3)
    rows = [("prompt", " Paris", " Rome"), ("paraphrase", " Paris", " Rome"), ("paraphrase", " Paris", " Paris")]
    rows += [("neighbour", " Paris", " Paris"), ("unrelated", " France", " Italy")]
    prompts = pd.DataFrame(rows, columns=["kind", "answer_before", "answer_after"])
    prompts = prompts.assign(fact="", prompt="p", true="Paris", target="Rome", target_before=0.01, target_after=0.98)
    said = replace(found, prompts=prompts)
    assert said.verdict == (
        "The model now says 'Rome' instead of 'Paris' (probability 98.0%, was 1.0%). 1 of 2 other wordings get the "
        "same answer; of the prompts that should keep their answer, 1 of 1 about neighbours and 0 of 1 about what else "
        "is known do."
    )
    assert said.doubts["warning"].str.startswith("1 of 1 prompts about what else is known").tolist() == [True]
    as_before = replace(found, prompts=prompts.head(1).assign(answer_before=" Rome"))
    assert as_before.verdict.startswith("The model says 'Rome', as it did before")
    for by, reached in (("tried", False), ("tried", True), ("given", False)):
        numbers = found.edit.numbers.assign(reached=reached, steps=3.0, loss=math.nan, after=0.4, says=" Paris")
        edit = replace(found.edit, settings={**found.edit.settings, "layer_by": by}, numbers=numbers)
        made = replace(found, edit=edit, prompts=prompts.assign(answer_after=" Paris"))
        assert ("reached in none" in str(made.layer_chosen)) == (by == "tried" and not reached)
        assert made.status == (not reached)
        if not reached:
            assert made.verdict.startswith("The edit is not reached: the model says 'Paris', not 'Rome'")
    assert found.memories is not None
    assert len(found.memories.neurons) == 3


def test_a_fact_is_found_and_rewritten(tiny: fm.Model, tmp_path: Path) -> None:
    """A text is the known fact that it asks for, with what is given besides; the edit is the editor's own."""
    source, out = tmp_path / "facts.jsonl", tmp_path / "edit.zip"
    fm.facts.write_facts([EIFFEL], source)
    found = edited(
        tiny, EIFFEL.text, "Rome", EIFFEL.subject, facts=source, editor="ft_l", settings={"steps": 2},
        paraphrases=["The city of the Eiffel Tower is"], neighbours=["London is the city of"], out=out,
    )  # fmt: skip
    (fact,) = found.edit.facts
    assert fact.paraphrases == (*EIFFEL.paraphrases, "The city of the {} is")
    assert fact.neighbour_prompts[-1] == "London is the city of"
    assert fm.Edit.load(out).digest == found.edit.digest == fm.editing.ft_l(tiny, fact, steps=2).digest  # type: ignore[union-attr]
    assert edited(tiny, fact, "Rome", editor="ft_l", settings={"steps": 2}).edit.digest == found.edit.digest
    for more, named in (
        ({"fact": fact, "subject": "Louvre"}, ("'Louvre'",)),
        ({"subject": None}, ("a subject is needed",)),
        ({"fact": "The Louvre is", "subject": "Louvre", "facts": source}, ("no fact about 'Louvre'",)),
        ({"target": " "}, ("target is empty",)),
        ({"moment": "m"}, ("moment does nothing with ft_l",)),
    ):
        with refuses(InputError, ValueError, *named):
            edited(
                **{
                    "model": tiny,
                    "fact": EIFFEL.text,
                    "target": "Rome",
                    "subject": EIFFEL.subject,
                    "editor": "ft_l",
                    **more,
                }
            )  # type: ignore[arg-type]


def test_own_prompts(effects: Effects) -> None:
    """A prompt is asked about the fact that it names; of an edit without facts it cannot be."""
    found = edit_effects(effects.edit, effects.model, ["The Eiffel Tower is in"], generate=4)
    asked = found.prompts[found.prompts["kind"] == "other"]
    assert asked[["true", "target"]].values.tolist() == [["Paris", effects.edit.targets[0]]]
    assert found.written["beginning"].tolist()[:2] == [EIFFEL.text, "The Eiffel Tower is in"]
    both = effects.edit + made(effects.model, (1,), seed=3, fact=COLOSSEUM)
    last = edit_effects(both, effects.model, ["The Colosseum is in"]).prompts.iloc[-1]
    assert (last["true"], last["target"]) == ("Rome", "London")
    bare = fm.Edit.of(effects.model, effects.edit.changes, method="mine")
    with refuses(InputError, ValueError, "names no facts"):
        edit_effects(bare, effects.model, ["It is"])


def test_how_many_tokens_go_to_other_experts(tokenizer: Any) -> None:
    """An edit that sends tokens elsewhere would be told to have changed a few values only."""
    model = fm.load(DECODERS["OLMoE"](), tokenizer=tokenizer, dtype="float64")
    edit = made(model, (0,), fact=EIFFEL)
    found = Effects(edit, model).on(prompts_of(EIFFEL, "Rome"))

    def experts(text: str) -> list[set[int]]:
        routed = fm.capture(model, text).routing().query("layer == 1")
        return routed.groupby("position")["expert"].agg(set).tolist()

    before = [experts(text) for text in found["prompt"]]
    with edit.applied(model):
        after = [experts(text) for text in found["prompt"]]
    moved = [sum(map(set.__ne__, a, b)) / len(a) for a, b in zip(before, after, strict=True)]
    assert allclose(found["rerouted"], moved, 1e-12)
    assert max(moved) > 0
    assert "other experts in the layers behind" in str(edit_effects(edit, model, k=2).routing)
    last = Effects(made(model, (1,), fact=EIFFEL), model)  # no router stands behind it
    assert last.on(prompts_of(EIFFEL, "Rome"))["rerouted"].isna().all()
