"""An example of every result, made when it is first asked for: ``examples.Attribution``. Tokens and names of some would
begin mathematics in a picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd
import torch

import ffnmem as fm
from ffnmem.editing import Edit
from ffnmem.evaluation import Decay, FactReport, Sweep
from ffnmem.scanning import Store
from ffnmem.tracing import Traces, knockout_facts, trace_facts

from .comparing.made import TEXTS
from .describing.known import answer_knowing
from .editing.edits import change
from .editing.edits import made as random_edit
from .evaluation.made import EIFFEL, FACTS
from .evaluation.test_scores import made_scores
from .helpers import PROMPT
from .neurons.gated import made as gated
from .neurons.made import TEXTS as HEALTHY
from .neurons.made import pushed

HOSTILE = "The $x_{ city $\\frac$ of"
UNKNOWN = fm.Fact("Eiffel Tower", "r", "The {} is in", target_new="x")


@dataclass
class Examples:
    """Results by the names of their classes; ``store``: its own, beside which measures are kept."""

    tiny: fm.Model
    store: Store

    def __getattr__(self, name: str) -> Any:
        if name not in EXAMPLES:
            raise AttributeError(name)
        found = self.__dict__[name] = EXAMPLES[name](self)
        return found

    @cached_property
    def capture(self) -> fm.prompts.Capture:
        return fm.capture(self.tiny, HOSTILE)

    @cached_property
    def answers(self) -> tuple[int, int]:
        """The two tokens that are likeliest after it."""
        first, second = self.capture.predictions(k=2)["token_id"].tolist()
        return first, second

    @cached_property
    def edit(self) -> fm.Edit:
        return random_edit(self.tiny, (0, 1), fact=EIFFEL)


def ablation(e: Examples) -> fm.interventions.Ablation:
    """With some neurons that do more against the answer than they write for it."""
    found = fm.ablate(e.capture, e.answers[0], most=30)
    turned = found.neurons["logit"].where(found.neurons.index % 4 > 0, -found.neurons["direct"])
    return replace(found, target="$x_", neurons=found.neurons.assign(logit=turned))


def audit(e: Examples) -> fm.editing.Audit:
    before = fm.load(e.tiny.hf_model, tokenizer=e.tiny.tokenizer)
    with e.edit.applied(e.tiny):
        return fm.editing.audit(before, e.tiny, EIFFEL)


def concept(e: Examples) -> fm.concepts.Concept:
    """Of a word whose name would begin mathematics, and of a neuron that says no more."""
    texts = [f"{start} is in {end}" for start in ("Rome", "Paris", "It", "London") for end in ("the $x_", "a $x_ city")]
    others = [
        f"{start} is in {end}" for start in ("Rome", "Paris", "It", "London") for end in ("the country", "a city")
    ]
    return fm.concept(e.tiny, texts, others, draws=20, k=3)


def decay(e: Examples) -> Decay:
    """Of ten edits, after seven of which the loss jumps."""
    by_edits = e.Sweep.frame.rename(columns={"layer": "edits"}).replace({"edits": {0: 1, 2: 10}})
    steps = {"edits": range(11), "made": [False] + [True] * 10, "norm": [1.0] * 11, "loss": [2.0] * 7 + [3.5] * 4}
    cases = e.Scores.cases.assign(edits=1)
    return Decay(by_edits, cases, "rome", {"seed": 0}, e.Scores.provenance, pd.DataFrame(steps), 0.5)


def trace(e: Examples) -> fm.tracing.Trace:
    found = fm.trace_fact(e.tiny, PROMPT, "Eiffel Tower", samples=2, noise=1.0)
    return replace(found, answer=" $x_", tokens=("$a_", *found.tokens[1:]))


EXAMPLES: dict[str, Callable[[Examples], Any]] = {
    "Ablation": ablation,
    "Activations": lambda e: fm.ffn.compare_activations(beta=5),
    "Anatomy": lambda e: fm.models.anatomy("atlas"),
    "Audit": audit,
    "Attribution": lambda e: fm.attribute(e.capture, *e.answers),
    "Capture": lambda e: fm.capture(e.tiny, [PROMPT, "The city"], logits=True),
    "CausalScores": lambda e: fm.causal_scores(e.capture, e.answers[0], rule="ig"),
    "Contrast": lambda e: fm.contrast(e.tiny, HOSTILE, PROMPT, " Paris", " London", random=2),
    "ContrastTask": lambda e: fm.interventions.contrast_over(
        e.tiny, [(PROMPT, "Rome is", " the", " in")] * 2, random=1
    ),
    "ChangedPredictions": lambda e: fm.interventions.changed_predictions(e.capture, {"1.all": 0.0}, generate=2),
    "Circuit": lambda e: fm.circuit(e.capture, e.CausalScores.top(60), e.answers[0]),
    "Concept": concept,
    "Comparison": lambda e: fm.compare(e.tiny, random_edit(e.tiny, (1,)), TEXTS[:30]),
    "Decay": decay,
    "Decomposition": lambda e: fm.decompose(e.capture, 1),
    "Descriptions": lambda e: fm.describe(e.store, ["1.5", "0.3"], answer_knowing, shown=4, tested=4),
    "EditDiff": lambda e: e.edit.diff(e.tiny, EIFFEL),
    "EditEffects": lambda e: fm.evaluation.edit_effects(e.edit, e.tiny, k=3),
    "Edit": lambda e: (
        random_edit(e.tiny, (0, 1), rank=2)
        + Edit.of(e.tiny, [change(e.tiny, 1, seed=3)], method="mine", facts=FACTS[:1], targets=["London"])
    ),
    "Fact": lambda e: EIFFEL,
    "Faithfulness": lambda e: fm.faithfulness(e.capture, *e.answers, sizes=[1, 10, 100], random=2),
    "FoundNeurons": lambda e: fm.neurons.search(e.store, "a"),
    "Geometry": lambda e: fm.neurons.geometry(gated("llama", e.tiny.tokenizer)),
    "FactList": lambda e: fm.facts.list_facts("atlas", limit=3),
    "Known": lambda e: fm.facts.filter_known(e.tiny, FACTS),
    "Knockout": lambda e: fm.knockout(e.tiny, PROMPT, "Eiffel Tower", window=1, positions=[1]),
    "Knockouts": lambda e: knockout_facts(e.tiny, [UNKNOWN] * 2, window=1),
    "FactReport": lambda e: FactReport(e.EditEffects, None, "it does not know this"),
    "Meanings": lambda e: fm.meanings(e.store, 1, 5, e.tiny, draws=20),
    "ReadableNeurons": lambda e: fm.neurons.find_readable(e.store),
    "Memory": lambda e: fm.ffn.as_memory(
        torch.ones(2, 3, dtype=torch.bfloat16),
        torch.ones(5, 3, dtype=torch.bfloat16),
        torch.rand(5, 3).bfloat16(),
    ),
    "MinimalCircuit": lambda e: fm.minimal_circuit(e.capture, *e.answers),
    "Neuron": lambda e: e.store.neuron(1, 5, shade=True),
    "NeuronCards": lambda e: fm.neurons.read_cards(e.store, ["1.5", "0.3"], shade=True),
    "NeuronList": lambda e: fm.neurons.list_neurons(e.store),
    "NeuronHealth": lambda e: fm.neurons.neuron_health(
        pushed("opt", e.tiny.tokenizer, {(0, 3): -1000.0, (1, 5): 1000.0}), HEALTHY
    ),
    "PathAttribution": lambda e: fm.attribute_paths(e.capture, *e.answers),
    "Projection": lambda e: fm.project(e.tiny, ["1.5", "0.3"], k=3),
    "Promoters": lambda e: fm.vocabulary.promoters(e.tiny, [" Paris", " Rome"], k=3, side=("value", "key")),
    "Polysemanticity": lambda e: fm.polysemanticity(e.store, model=e.tiny, draws=20),
    "PromptReport": lambda e: fm.report(e.capture, *e.answers),
    "Roles": lambda e: fm.roles(e.tiny, e.store, n_sequences=9),
    "Scores": lambda e: made_scores(e.tiny),
    "Silencing": lambda e: fm.trace_fact(
        e.tiny, PROMPT, "Eiffel Tower", way="silence", kinds=("ffn", "attention"), window=1
    ),
    "Silencings": lambda e: trace_facts(e.tiny, [UNKNOWN] * 2, way="silence", window=1),
    "Steering": lambda e: fm.steer(
        e.tiny, e.Concept, neurons=["0.3", "1.5"], strengths=[0, 2], prompts=[HOSTILE, PROMPT], new=4, random=1
    ),
    "Sweep": lambda e: Sweep(dict.fromkeys((0, 2), replace(e.Scores, cases=e.Scores.of("rome"))), e.Scores.provenance),
    "Trace": trace,
    "Traces": lambda e: Traces(
        (e.Trace, e.Trace), pd.DataFrame(columns=["fact", "subject", "reason"]), e.Trace.provenance
    ),
    "VirtualWeights": lambda e: fm.virtual_weights(e.tiny, "1.5", k=7),
}
