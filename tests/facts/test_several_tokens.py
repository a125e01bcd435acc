"""One rule for answers of several tokens, in every function that takes an answer: what the guide to answers says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import unwarned
from ffnmem.facts import read_answer
from ffnmem.interventions import knowledge_neurons

from ..editing.edits import made
from ..helpers import PROMPT
from ..interventions.naive import logits

TEXT, TARGET, FOIL = "The bobcat is native to the continent of", " North America", " North Pole"
OTHER = "The kangaroo is native to the continent of"
FIRINGS = ["5.769@8", "0.5@3"]

ANSWERED: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "attribute": ("logit", lambda c, *a: fm.attribute(c, *a).logit),
    "attribute_paths": ("logit", lambda c, *a: fm.attribute_paths(c, *a).logit),
    "ablate": ("logit", lambda c, *a: fm.ablate(c, *a, most=2).logit),
    "circuit": ("logit", lambda c, *a: fm.circuit(c, FIRINGS, *a).logit),
    "Edit.diff": ("logit", lambda c, t, f=None: made(c.model).diff(c.model, TEXT, target=t, foil=f).logit_before),
    "causal_scores": ("log-probability", lambda c, *a: fm.causal_scores(c, *a, exact=1).logit),
    "faithfulness": ("log-probability", lambda c, *a: fm.faithfulness(c, *a, firings=FIRINGS, random=0).logit),
    "minimal_circuit": ("log-probability", lambda c, *a: fm.minimal_circuit(c, *a, faithfulness=0.1).logit),
    "trace_fact": ("probability", lambda c, t: fm.trace_fact(c.model, TEXT, "bobcat", target=t, way="silence").clean),
    "knockout": ("probability", lambda c, t: fm.knockout(c.model, TEXT, "bobcat", target=t).clean),
    "knowledge_neurons": ("probability", lambda c, t: knowledge_neurons(c, t, steps=1).attrs["probability"]),
    "patch": ("foil", lambda c, *a: fm.patch(c.model, TEXT, OTHER, FIRINGS, *a, random=1).logit),
}  # fmt: skip
"""By function, which number of a whole answer it gives, and the call that gives it."""
WITH_FOIL = [name for name, (kind, _) in ANSWERED.items() if kind != "probability"]
ELSEWHERE = {
    "contrast",
    "report",
    "contrast_over",
    "rome",
    "memit",
    "alphaedit",
    "ft_l",
    "edited",
    "fact_report",
    "evaluate",
    "sequential",
}
"""Named by the guide, too: they ask the functions above, or have tests of their own."""


@pytest.fixture(scope="module")
def capture(atlas: fm.Model) -> fm.prompts.Capture:
    return fm.capture(atlas, TEXT)


@pytest.mark.parametrize("name", [name for name, (kind, _) in ANSWERED.items() if kind != "foil"])
def test_an_answer_is_all_of_its_tokens(capture: fm.prompts.Capture, name: str) -> None:
    kind, number = ANSWERED[name]
    answer = read_answer(capture.model, TEXT, TARGET)
    assert len(answer.target) == 2
    said = logits(capture.model, answer.tokens)[0, list(answer.positions)].double()
    ids = torch.tensor(answer.target).unsqueeze(1)
    logs = float(said.log_softmax(-1).gather(1, ids).sum())
    expected = {"logit": said.gather(1, ids).sum(), "log-probability": logs, "probability": torch.tensor(logs).exp()}
    assert number(capture, TARGET) == pytest.approx(float(expected[kind]), abs=1e-3)


@pytest.mark.parametrize("name", WITH_FOIL)
def test_with_a_foil_it_is_the_token_where_they_part(capture: fm.prompts.Capture, name: str) -> None:
    answer = read_answer(capture.model, TEXT, TARGET, FOIL)
    assert answer.parting == 1
    said = logits(capture.model, answer.tokens)[0, -1].double()
    expected = float(said[answer.target[1]] - said[answer.foil[1]])  # type: ignore[index]
    with unwarned():
        assert ANSWERED[name][1](capture, TARGET, FOIL) == pytest.approx(expected, abs=1e-3)


def test_the_guide_names_every_function_that_takes_an_answer() -> None:
    page = (
        (Path(__file__).parents[2] / "docs/guide/answers.md")
        .read_text()
        .partition("## Several tokens")[2]
        .partition("\n## ")[0]
    )
    by_kind = {
        cells[1].strip(" *"): set(re.findall(r"`([\w.]+)`", cells[-2]))
        for cells in (row.split("|") for row in page.splitlines() if row.startswith("| **"))
    }
    for name, (kind, _) in ANSWERED.items():
        assert name in by_kind[kind], name
    named = set().union(*by_kind.values())
    assert named == {*ANSWERED, *ELSEWHERE}
    for module in (fm, fm.interventions, fm.prompts, fm.editing, fm.evaluation, fm.tracing):
        for name in dir(module):
            taken = (
                inspect.signature(getattr(module, name)).parameters if inspect.isfunction(getattr(module, name)) else ()
            )
            if "target" in taken:
                assert name in named, name


def test_what_neurons_do_to_all_tokens(tiny64: fm.Model) -> None:
    """Removed, by a pass of their own; written, by the attribution; and carried into the answer of a circuit."""
    given = fm.capture(tiny64, PROMPT)
    answer = read_answer(tiny64, PROMPT, " Paris city")
    at, ids = list(answer.positions), torch.tensor(answer.target).unsqueeze(1)
    found = fm.ablate(given, " Paris city", neurons=[(0, 3), (1, 41)])
    total = fm.attribute(given, " Paris city").total.neurons.set_index(["layer", "neuron"])
    clean = logits(tiny64, answer.tokens)[0, at]
    for row in found.neurons.itertuples():

        def remove(m: torch.Tensor, neuron: int = row.neuron) -> None:
            m[..., neuron] = 0.0

        without = logits(tiny64, answer.tokens, {row.layer: remove})[0, at]
        log, less = (x.log_softmax(-1).gather(1, ids).sum() for x in (clean, without))
        assert row.logit == pytest.approx(float((clean - without).gather(1, ids).sum()), abs=1e-10)
        assert (row.loss, row.probability) == pytest.approx(
            (float(log - less), float(log.exp() - less.exp())), abs=1e-10
        )
        assert row.direct == pytest.approx(total.loc[(row.layer, row.neuron), "logit"], abs=1e-10)
        assert row.coefficient == pytest.approx(total.loc[(row.layer, row.neuron), "coefficient"])
    last = fm.ablate(given, " Paris city", neurons=[(0, 3)], positions=[at[-1]]).neurons.iloc[0]
    assert last["direct"] != pytest.approx(total.loc[(0, 3), "logit"])  # of the other token it is not removed
    firings = [(0, 3, at[0]), (1, 41, at[0]), (1, 41, at[1])]
    graph, paths = fm.circuit(given, firings, " Paris city"), fm.attribute_paths(given, " Paris city")
    assert graph.error < 1e-10
    into = graph.edges[graph.edges["target"] == "answer"].set_index("source")["weight"]
    assert into.sum() == pytest.approx(graph.logit, abs=1e-10)
    for layer, neuron, place in firings:
        assert into[f"{layer}.{neuron}@{place}"] == pytest.approx(float(paths.scores[layer, place, neuron]), abs=1e-10)


def test_where_neurons_are_removed_is_of_the_prompt(tiny64: fm.Model) -> None:
    """−1 is its own last token, not one of the answer's; and it may be one of several prompts."""
    batch, alone = fm.capture(tiny64, ["Rome is", PROMPT]), fm.capture(tiny64, PROMPT)
    last = alone.length() - 1
    expected = fm.ablate(alone, " Paris city", most=3, positions=last)
    for found in (
        fm.ablate(alone, " Paris city", most=3, positions=-1),
        fm.ablate(batch, " Paris city", most=3, positions=[-1], prompt=1),
    ):
        assert found.positions == (last,)
        assert found.neurons["logit"].tolist() == pytest.approx(expected.neurons["logit"].tolist(), abs=1e-10)


def test_the_probability_of_all_tokens_fades_with_a_layer(tiny64: fm.Model) -> None:
    """Where the answer begins to be read; and after a second prompt it is the same tokens'."""
    given = fm.capture(tiny64, PROMPT)
    answer = read_answer(tiny64, PROMPT, " Paris city")
    at, ids = list(answer.positions), torch.tensor(answer.target).unsqueeze(1)
    found = knowledge_neurons(given, " Paris city", steps=200)

    def remove(m: torch.Tensor) -> None:
        m[:, at[0]] = 0.0

    for layer, some in found.groupby("layer"):
        both = [logits(tiny64, answer.tokens, edit)[0, at] for edit in ({}, {layer: remove})]
        chances = [float(x.log_softmax(-1).gather(1, ids).sum().exp()) for x in both]
        assert some["attribution"].sum() == pytest.approx(chances[0] - chances[1], rel=1e-4)
    again = knowledge_neurons([given, given], " Paris city", steps=200)
    assert again["attribution"].tolist() == pytest.approx(found["attribution"].tolist())


def test_what_an_edit_changes_of_all_tokens(tiny64: fm.Model) -> None:
    edit, old = made(tiny64, (0, 1), rank=2), tiny64.ffn[1].values.detach().clone()
    found = edit.diff(tiny64, PROMPT, None, target=" Paris city")
    assert found.components["change"].sum() == pytest.approx(found.change, abs=1e-10)
    ffn = found.components[found.components["component"] == "ffn"]["change"].tolist()
    assert found.neurons.groupby("layer")["change"].sum().tolist() == pytest.approx(ffn, abs=1e-10)
    with edit.applied(tiny64):
        answer = read_answer(tiny64, PROMPT, " Paris city")
        captured = fm.capture(tiny64, list(answer.tokens))
        after = fm.attribute(captured, answer).total.neurons
        tiny64.ffn[1].values.data.copy_(old)  # the same coefficients and scales with the values as they were
        with unwarned():  # of what the capture read that is no longer
            without = fm.attribute(captured, answer).neuron_logits[:, 1].sum(0)
        tiny64.ffn[1].values.data.copy_(old + edit.changes[1].delta())
    assert found.logit_after == pytest.approx(found.components["logit_after"].sum(), abs=1e-10)
    mine = found.neurons[found.neurons["layer"] == 1].sort_values("neuron")
    assert (mine["logit_after"] - mine["written"]).tolist() == pytest.approx(without.tolist(), abs=1e-10)
    both = found.neurons.merge(after, on=["layer", "neuron"])
    assert both["logit_after"].tolist() == pytest.approx(both["logit"].tolist(), abs=1e-12)
