"""A result of every kind that has a picture, of small models; their tokens and names would begin mathematics."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

import ffnmem as fm
from ffnmem.evaluation import Decay, Scores, Sweep
from ffnmem.neurons import Meanings, neuron_health
from ffnmem.scanning import Store, open_store
from ffnmem.tracing import Traces, knockout_facts, silence_facts

from ..architectures import DECODERS
from ..comparing.made import TEXTS
from ..editing.edits import made as random_edit
from ..evaluation.test_scores import made_scores
from ..helpers import PROMPT
from ..neurons.gated import made as gated
from ..neurons.made import TEXTS as HEALTHY
from ..neurons.made import pushed
from ..planted.made import made as calibration
from ..studies.made import small

HOSTILE = "The $x_{ city $\\frac$ of"


def make_results(tiny: fm.Model, store: Store, tokenizer: Any, folder: Path) -> SimpleNamespace:
    """Results by the names that the cases of the tests use."""
    capture = fm.capture(tiny, HOSTILE)
    first, second = (int(token) for token in capture.predictions(k=2)["token_id"])
    contrast = fm.contrast(tiny, HOSTILE, PROMPT, " Paris", " London", random=2)
    scores = fm.causal_scores(capture, first)
    ablation = fm.ablate(capture, first, top=30)
    turned = ablation.neurons["logit"].where(ablation.neurons.index % 4 > 0, -ablation.neurons["direct"])
    trace = fm.trace_fact(tiny, PROMPT, "Eiffel Tower", samples=2, noise=1.0)
    trace = replace(trace, answer=" $x_", tokens=("$a_", *trace.tokens[1:]))
    fact = fm.Fact("Eiffel Tower", "r", "The {} is in", target_new="x")
    own_store = open_store(shutil.copytree(store.folder, folder / "tiny"))
    edits = made_scores(tiny)
    sweep = Sweep(
        {layer: Scores(edits.of("rome"), edits.settings, edits.provenance, draws=50) for layer in (0, 2)},
        edits.provenance,
    )
    by_edits = sweep.frame.rename(columns={"layer": "edits"}).replace({"edits": {0: 1, 2: 10}})
    steps = pd.DataFrame(
        {"edits": range(11), "made": [False] + [True] * 10, "norm": [1.0] * 11, "loss": [2.0] * 7 + [3.5] * 4}
    )
    convergence = pd.DataFrame({"tokens": [10, 100], "distance_mean": [1.2, 0.0], "distance_max": [1.4, 0.0]})
    faithfulness = fm.faithfulness(capture, first, second, sizes=[1, 10, 100], random=2)
    return SimpleNamespace(
        ablation=replace(ablation, target="$x_", neurons=ablation.neurons.assign(logit=turned)),
        anatomy=fm.models.anatomy("atlas"),
        attribution=fm.attribute(capture, first, foil=second),
        calibration=calibration(),
        capture=capture,
        causal=scores,
        circuit=fm.circuit(capture, first, nodes=60),
        contrast=contrast,
        contrast_graph=contrast.graph(),
        comparison=fm.compare(tiny, corpus=TEXTS[:30], edit=random_edit(tiny, (1,))),
        convergence=convergence.assign(quality=[20.0, 90.0]),
        decay=Decay(by_edits, pd.DataFrame(), "rome", {}, sweep.provenance, steps=steps),
        faithfulness=faithfulness,
        faithfulness_over=fm.prompts.faithfulness_over([faithfulness, faithfulness]),
        geometry=fm.neurons.geometry(gated("llama", tokenizer), threshold=None, strengthening=0.3, weakening=-0.3),
        health=neuron_health(pushed("opt", tokenizer, {(0, 3): -1000.0, (1, 5): 1000.0}), HEALTHY),
        knockout=fm.knockout(tiny, PROMPT, "Eiffel Tower", window=1, positions=[1]),
        knockouts=knockout_facts(tiny, [fact] * 2, window=1),
        meanings=with_meanings(fm.meanings(own_store, 1, 5, tiny, draws=20), [10, 6, 4]),
        neuron=store.neuron(1, 5),
        paths=fm.attribute_paths(capture, first, second),
        router=fm.prompts.attribute_router(
            fm.capture(fm.load(DECODERS["OLMoE"](), tokenizer=tokenizer), HOSTILE), 1, 3, 1
        ),
        projection=fm.project(tiny, 1, 3, k=5).assign(token="$x_{"),
        promoters=fm.vocabulary.promoters(tiny, " the", k=4),
        roles=fm.roles(tiny, store, n_sequences=None),
        scores=edits,
        silencing=fm.tracing.silence_fact(tiny, PROMPT, "Eiffel Tower", kinds=("ffn", "attention"), window=1),
        silencings=silence_facts(tiny, [fact] * 2, window=1),
        store=store,
        study=small("gurnee2024", tiny, store),
        sweep=sweep,
        tiny=tiny,
        trace=trace,
        traces=Traces((trace, trace), pd.DataFrame(columns=["fact", "subject", "reason"]), trace.provenance),
        verdicts=verdict_table(["positive", "negative"]),
        weights=fm.virtual_weights(tiny, "1.5", k=7),
    )


def with_meanings(meanings: Meanings, sizes: list[int]) -> Meanings:
    """Meanings of so many examples each, with the cosines of their numbers."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    similarity = np.where(labels[:, None] == labels, 0.5, -0.1).astype(np.float32)
    columns = {"meaning": range(len(sizes)), "share": [size / len(labels) for size in sizes], "examples": sizes}
    triggers = tuple((f" token{number}", "$x$") for number in range(len(sizes)))
    table = pd.DataFrame({**columns, "strongest": 1.0, "tokens": "x"})
    return replace(meanings, table=table, triggers=triggers, similarity=similarity)


def verdict_table(signs: list[str]) -> pd.DataFrame:
    verdicts = ["monosemantic", "polysemantic", "polysemantic", "unclear"]
    rows = [(layer, n, sign, verdict) for sign in signs for layer in (0, 3) for n, verdict in enumerate(verdicts)]
    table = pd.DataFrame(rows, columns=["layer", "neuron", "sign", "verdict"])
    return table.assign(examples=9, meanings_low=1.0, meanings_high=1.0, ms_low=1.0)
