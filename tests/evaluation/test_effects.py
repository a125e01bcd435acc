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
from ffnmem.evaluation.effects import (
    COLUMNS,
    TITLES,
    AskedPrompt,
    EditEffects,
    Effects,
    format_move,
    moved_neighbours,
    prompts_of,
)
from ffnmem.evaluation.texts import DOCUMENTS, Texts, drift_texts, sample_documents
from ffnmem.facts.fact import fact_about
from ffnmem.models.answers import generate
from ffnmem.models.replaying import PlainLayers

from ..architectures import DECODERS
from ..editing.edits import COLOSSEUM, made, same_bits, weights
from ..helpers import allclose, printed, refuses
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
        assert allclose(found.changes()[0]["change"], effects.changes()[0]["change"], 1e-12)
        assert same_bits(tiny64, held)
    assert same_bits(tiny64, before)


def test_changes_and_continuations(tiny64: fm.Model, effects: Effects) -> None:
    """The likeliest tokens, once without and once with the edit; a text without room has none."""
    for row, change in zip(effects.changes(), effects.edit.changes, strict=True):
        norm = torch.linalg.matrix_norm(tiny64.ffn[change.layer].values.detach())
        assert (row["layer"], row["rank"]) == (change.layer, change.rank)
        assert allclose(row["change"], float(torch.linalg.matrix_norm(change.delta()) / norm), 1e-9)
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


def test_sheet(effects: Effects) -> None:
    """What was edited, prompts by kind, the neurons that changed most and by which components."""
    found = effects.measure(top=3)
    drift = {"drift_kl": 0.001234, "drift_perplexity": 1.5, "texts": 7}
    changes = [{"layer": 0, "rank": 1, "change": 0.25}, {"layer": 1, "rank": 2, "change": 1.5}]
    text = "\n".join(printed(EditEffects(found.edit, found.prompts, changes, drift, found.memories).sheet(), 200))
    assert found.memories is not None
    top = found.memories.components.loc[found.memories.components["change"].abs().idxmax()]
    for part in (
        "layer 1 by 150.0% of its norm, rank 2",
        "KL 0.0012 nats a token, perplexity × 1.5000 on 7 texts",
        "\nabout neighbours",
        f"{found.memories.change:+.2f}, most of it by {top['component']}",
    ):
        assert part in text
    for by, reached in (("tried", False), ("tried", True), ("given", False)):
        numbers = found.edit.numbers.assign(reached=reached, steps=3.0, loss=math.nan)
        edit = replace(found.edit, settings={**found.edit.settings, "layer_by": by}, numbers=numbers)
        text = "\n".join(printed(EditEffects(edit, found.prompts, changes, drift, None).sheet(), 200))
        assert ("the edit is reached in none" in text) == (by == "tried" and not reached)
        assert ("yes: the edited model gives the target" in text) == reached
        assert ("3 steps" in text, "nan" in text) == (True, False)
    assert len(found.memories.neurons) == 3
    assert found.edit.to_dict() == found.to_dict()["edit"]
    assert "settings" not in found.brief()["edit"]


def test_moves_of_a_percent_are_coloured() -> None:
    for before, after, style in ((0.5, 0.505, ""), (0.5, 0.6, "adds"), (0.5, 0.4, "takes"), (0.5, 0.495, "")):
        assert format_move(before, after)[-1].style == style


def test_own_prompts(effects: Effects) -> None:
    """A prompt is asked about the fact that it names; of an edit without facts it cannot be."""
    found = effects.measure(["The Eiffel Tower is in"])
    assert found.prompts[["kind", "true", "target"]].values.tolist() == [["other", "Paris", effects.edit.targets[0]]]
    kinds = pd.concat([found.prompts, effects.measure(top=1).prompts]).assign(fact="", true="Paris", target="Rome")
    said = [TITLES["other"] in str(replace(found, prompts=some).sheet().blocks) for some in (found.prompts, kinds)]
    assert said == [False, True]  # where prompts are of several kinds
    both = Effects(effects.edit + made(effects.model, (1,), seed=3, fact=COLOSSEUM), effects.model)
    assert both.measure(["The Colosseum is in"]).prompts[["true", "target"]].values.tolist() == [["Rome", "London"]]
    bare = fm.Edit.of(effects.model, effects.edit.changes, method="mine")
    with refuses(InputError, ValueError, "names no facts"):
        Effects(bare, effects.model).measure(["It is"])


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
    assert "routed to other experts" in str(Effects(edit, model).measure(top=2).sheet().blocks[0])
    last = Effects(made(model, (1,), fact=EIFFEL), model)  # no router stands behind it
    assert last.on(prompts_of(EIFFEL, "Rome"))["rerouted"].isna().all()
