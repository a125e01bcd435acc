"""Every command says what the library says: the same table as CSV, the same records as JSON, and in words that fit."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.scanning import Store

from ..editing.edits import made as random_edit
from ..scanning.texts import tiny_texts
from .running import PROMPT, data, run, table


class Given(NamedTuple):
    """What commands and the library are asked about."""

    model: fm.Model
    store: Store
    corpus: Path
    edit: Path
    edited: Path

    @property
    def capture(self) -> fm.prompts.Capture:
        return fm.capture(self.model, PROMPT)


@pytest.fixture(scope="module")
def given(tiny: fm.Model, tiny_folder: Path, tiny_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Given:
    folder = tmp_path_factory.mktemp("given")
    corpus = folder / "corpus.txt"
    corpus.write_text("\n\n".join(tiny_texts()), "utf-8")
    edit = random_edit(fm.load(tiny_folder), (1,))
    edited = edit.export(fm.load(tiny_folder), folder / "edited")
    return Given(tiny, tiny_store, corpus, edit.save(folder / "edit.zip"), edited)


CHANGES: dict[Any, Any] = {
    (0, 3): fm.interventions.Set(2.0),
    (1, None): fm.interventions.Set(0.0),
    (0, 5): fm.interventions.Scale(-1.5),
    (1, 7): fm.interventions.Add(0.5),
}


def intervened(given: Given) -> pd.DataFrame:
    return fm.interventions.changed_predictions(given.capture, CHANGES, at=[1, -4], position=5).to_frame(4)


def projected(given: Given) -> pd.DataFrame:
    """Several neurons in the order in which they are asked for."""
    places = ((1, 5), (0, 63), (1, 0))
    frames = [fm.project(given.model, *place, k=3, basis="raw", side="key").to_frame() for place in places]
    return pd.concat(frames, ignore_index=True)


def shown(result: Any, top: int | None) -> pd.DataFrame:
    """The main table as a command prints it."""
    return result.to_frame(top, derived=True)


RIVALS = (" Paris", " Rome")
ASKED = f'"{PROMPT}" --target " Paris" --foil " Rome"'
TRACED = f"'{PROMPT}' 'Eiffel Tower'"
M, S = "--model {model}", "--store {store}"


# The command, its table by the library, and the name of the same records in JSON.
RESULTS: dict[str, tuple[Callable[[Given], pd.DataFrame], str]] = {
    f"attribute {ASKED} {M} --top 9": (lambda g: shown(fm.attribute(g.capture, *RIVALS), 9), "neurons"),
    f"attribute '{PROMPT}' --target id:300 {M} --top 5": (lambda g: shown(fm.attribute(g.capture, 300), 5), "neurons"),
    f"attribute '{PROMPT}' {M} --position 2": (lambda g: shown(fm.attribute(g.capture, position=2), 20), "neurons"),
    f"paths {ASKED} {M} --top 6": (lambda g: shown(fm.attribute_paths(g.capture, *RIVALS), 6), "firings"),
    f"circuit {ASKED} {M} --firings 0.5@3,1.7 --full": (
        lambda g: fm.circuit(g.capture, ["0.5@3", "1.7"], *RIVALS).edges,
        "edges",
    ),
    f"circuit {ASKED} {M} --share .8 --full": (
        lambda g: fm.circuit(g.capture, fm.minimal_circuit(g.capture, *RIVALS, faithfulness=0.8), *RIVALS).edges,
        "edges",
    ),
    f"contrast '{PROMPT}' 'Rome is' --target ' London' --foil ' Paris' {M} --full": (
        lambda g: shown(fm.contrast(g.model, PROMPT, "Rome is", " London", " Paris"), None),
        "firings",
    ),
    f"decompose '{PROMPT}' -1 {M} --position 2 --full": (
        lambda g: shown(fm.decompose(g.capture, 1, 2), None),
        "memories",
    ),
    f"causal {ASKED} {M} --rule ig --top 6": (
        lambda g: shown(fm.causal_scores(g.capture, *RIVALS, "ig"), 6),
        "firings",
    ),
    f"faithfulness {ASKED} {M}": (lambda g: fm.faithfulness(g.capture, *RIVALS).curve, "curve"),
    f"minimal {ASKED} {M} --faithfulness .8 --full": (
        lambda g: shown(fm.minimal_circuit(g.capture, *RIVALS, faithfulness=0.8), None),
        "firings",
    ),
    f"ablate {ASKED} {M} --neurons 1.5,0.3 --neurons 0.60 --positions 2 --positions -1 --how mean": (
        lambda g: shown(
            fm.ablate(g.capture, *RIVALS, neurons=[(1, 5), (0, 3), (0, 60)], how="mean", positions=[2, -1]), None
        ),
        "neurons",
    ),
    f"ablate '{PROMPT}' --target ' Paris' {M} --most 9 --position 4": (
        lambda g: shown(fm.ablate(g.capture, " Paris", position=4, most=9), None),
        "neurons",
    ),
    f"trace {TRACED} {M} --samples 2 --noise 1 --kinds ffn --window 1 --full": (
        lambda g: fm.trace_fact(
            g.model, PROMPT, "Eiffel Tower", samples=2, noise=1.0, kinds=("ffn",), window=1
        ).to_frame(),
        "",
    ),
    f"trace {TRACED} {M} --way silence --kinds attention --full": (
        lambda g: fm.trace_fact(g.model, PROMPT, "Eiffel Tower", way="silence", kinds=("attention",)).to_frame(),
        "",
    ),
    f"knockout {TRACED} {M} --window 1 --positions 1 --positions -1 --full": (
        lambda g: fm.knockout(g.model, PROMPT, "Eiffel Tower", window=1, positions=[1, -1]).to_frame(),
        "",
    ),
    f"compare {{edit}} {M} --texts {{corpus}} --full": (
        lambda g: fm.compare(g.model, fm.Edit.load(g.edit), g.corpus).neurons,
        "neurons",
    ),
    "activations --names gelu_new --names swish --at -0.5 --at 3 --at=-7": (
        lambda g: fm.ffn.compare_activations(["gelu_tanh", "swish"], at=[-0.5, 3, -7]).to_frame(),
        "points",
    ),
    f"intervene '{PROMPT}' 0.3=2,1.all=0 0.5=x-1.5 1.7+=.5 {M} --top 4 --position 5 --at 1 --at -4": (
        intervened,
        "predictions",
    ),
    f"weights 1.5 {M} --top 6": (lambda g: fm.virtual_weights(g.model, "1.5", k=6).to_frame(), "edges"),
    f"geometry {M} --layers -1 --layers 0 --seed 3 --full": (
        lambda g: fm.neurons.geometry(g.model, layers=[-1, 0], seed=3).to_frame(),
        "neurons",
    ),
    "audit {model} {edited}": (lambda g: fm.editing.audit(g.model, g.edited).matrices, "matrices"),
    "anatomy {model} --context 30": (lambda g: fm.models.anatomy(g.model, context=30).to_frame(), "components"),
    f"health {{corpus}} {M} --tokens 200 --seed 1 --full": (
        lambda g: fm.neurons.neuron_health(g.model, g.corpus, tokens=200, seed=1).neurons,
        "neurons",
    ),
    "store {store}": (lambda g: g.store.to_frame(), "layers"),
    f"roles {M} {S} --layer -1 --seed 3 --full": (
        lambda g: shown(fm.roles(g.model, g.store, layer=1, seed=3), None),
        "neurons",
    ),
    f"roles {M} {S} --role position": (lambda g: shown(fm.roles(g.model, g.store, role="position"), 20), "neurons"),
    f"project 1.5 0.63,1.0 {M} --side key --basis raw --top 3": (projected, "tokens"),
    f"token ' Paris' ' Rome' {M} --layer 1 --basis raw --side value --side key": (
        lambda g: fm.vocabulary.promoters(
            g.model, list(RIVALS), layer=1, basis="raw", side=("value", "key")
        ).to_frame(),
        "neurons",
    ),
    f"neuron 1.5,0.3 {S} --kind top --kind random --context 2": (
        lambda g: pd.concat([g.store.examples(*n, kind=("top", "random"), context=2) for n in ((1, 5), (0, 3))]),
        "",
    ),
    f"search rome {S} --where examples --full": (
        lambda g: shown(fm.neurons.search(g.store, "rome", where="examples"), None),
        "neurons",
    ),
}


def as_read(frame: pd.DataFrame) -> pd.DataFrame:
    """A table as it is after it was written as CSV and read again; lists are JSON."""
    cells = frame.map(lambda v: json.dumps(v, ensure_ascii=False) if isinstance(v, list | tuple) else v)
    return pd.read_csv(io.StringIO(cells.to_csv(index=False)), keep_default_na=False, na_values=[""])


FIGURES = r"attribute|paths|circuit|causal|faithfulness|ablate|weights|trace|health|compare"


@pytest.mark.parametrize("line", RESULTS)
def test_a_command_says_what_the_library_says(line: str, given: Given, tiny_folder: Path, tmp_path: Path) -> None:
    """As CSV, as JSON, and in tables that fit a narrow terminal and say where the numbers come from; a figure beside
    them changes nothing."""
    places = {**given._asdict(), "model": tiny_folder, "store": given.store.folder}
    words, (library, name) = [word.format(**places) for word in shlex.split(line)], RESULTS[line]
    expected = as_read(library(given))
    result = run(*words, "--csv")
    assert "warning" not in result.stderr
    found = pd.read_csv(io.StringIO(result.stdout), keep_default_na=False, na_values=[""])
    pd.testing.assert_frame_equal(found, expected, check_dtype=False, rtol=1e-5, atol=1e-7)
    assert len(expected)
    if name:
        records = as_read(pd.DataFrame(data(*words)[name]))
        both = [column for column in expected if column in records]
        assert len(both) > len(expected.columns) / 2
        pd.testing.assert_frame_equal(records[both], expected[both], check_dtype=False, rtol=1e-5, atol=1e-7)
    out = table(*words, width=60)
    model = given.model
    assert model.fingerprint in out or words[0] in ("activations", "anatomy")
    assert "\x1b" not in out
    if re.match(FIGURES, line):
        picture = tmp_path / "plot.svg"
        beside = run(*words, "--csv", "--plot", picture)
        assert (beside.stdout, beside.stderr) == (result.stdout, f"{result.stderr}ffnmem: wrote {picture}\n")
        assert picture.read_text("utf-8").count("<svg") == 1


LINES = (
    *("attribute {text}", "paths {text}", "ablate {text} --most 2", "intervene {text} 0.1=0 --generate 2"),
    *("decompose {text} 0", "causal {text} --top 2", "circuit {text} --firings 0.1@2"),
)


@pytest.mark.parametrize("line", LINES)
def test_tokens_are_no_markup(line: str, tiny_folder: Path) -> None:
    """A prompt could recolour the table, or break it with an unclosed tag."""
    out = table(*(word.replace("{text}", "[red]x[/blue]\x1b[31m\n") for word in line.split()), "--model", tiny_folder)
    assert "[ r e d ] x" in out
    assert "\x1b" not in out
