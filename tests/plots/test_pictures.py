"""Every picture draws the numbers of its result, where it is told, with labels that can be read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.ticker import FixedLocator

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.core.types import VERDICTS
from ffnmem.evaluation import Scores
from ffnmem.neurons import Meanings, Polysemanticity
from ffnmem.neurons.role_assignment import ROLES
from ffnmem.plots import arrange, draw, figure
from ffnmem.plots.figures import PICTURES
from ffnmem.plots.neuron_kinds import ROLE_COLOURS, VERDICT_COLOURS
from ffnmem.plots.shapes import ADDS, TAKES
from ffnmem.scanning import Store
from ffnmem.tracing import Traces

from ..examples import Examples
from ..helpers import build_gpt2, check_kept, draw_whole, legend_of, refuses, summed

Picture = Callable[..., Axes]
Series = Mapping[str, Any]
plots = fm.plots


class Made:
    """The examples, with meanings of three sizes, and the tables that have pictures."""

    def __init__(self, examples: Examples) -> None:
        tiny = examples.tiny
        self.examples = examples
        self.Meanings = with_meanings(examples.Meanings, [10, 6, 4])
        self.roles = fm.roles(tiny, examples.store, n_sequences=None)
        self.verdicts = Polysemanticity(verdict_table(["positive", "negative"]), "", {"model": tiny.name})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.examples, name)


def with_meanings(meanings: Meanings, sizes: list[int]) -> Meanings:
    """Meanings of so many examples each, with the cosines of their numbers."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    similarity = np.where(labels[:, None] == labels, 0.5, -0.1).astype(np.float32)
    columns = {"meaning": range(len(sizes)), "share": [size / len(labels) for size in sizes], "examples": sizes}
    triggers = tuple((f" token{number}", "$x$") for number in range(len(sizes)))
    table = pd.DataFrame({**columns, "strongest": 1.0, "tokens": "x"})
    made = replace(meanings, table=table, triggers=triggers)
    vars(made)["similarity"] = similarity
    return made


def verdict_table(signs: list[str]) -> pd.DataFrame:
    verdicts = ["monosemantic", "polysemantic", "polysemantic", "unclear"]
    rows = [(layer, n, sign, verdict) for sign in signs for layer in (0, 3) for n, verdict in enumerate(verdicts)]
    table = pd.DataFrame(rows, columns=["layer", "neuron", "sign", "verdict"])
    return table.assign(examples=9, meanings_low=1.0, meanings_high=1.0, ms_low=1.0)


@pytest.fixture(scope="module")
def made(examples: Examples) -> Made:
    return Made(examples)


def series(ax: Axes) -> dict[str, list[float]]:
    """What is drawn, by the names of the legend: heights of lines and bars, widths of horizontal bars, dots, a map."""
    found: dict[str, Any] = {}
    for line in ax.lines:
        found.setdefault(str(line.get_label()), line.get_ydata())
    for number, container in enumerate(ax.containers):
        label = str(container.get_label())
        key = f"bars {number}" if label.startswith("_") or not label else label
        if isinstance(container, BarContainer):
            upright = container.orientation == "vertical"
            found[key] = [bar.get_height() if upright else bar.get_width() for bar in container]
        elif isinstance(container, ErrorbarContainer):
            found[key] = container.lines[0].get_xdata()  # type: ignore[union-attr]
    if ax.images:
        found["map"] = np.ma.filled(ax.images[0].get_array(), np.nan)
    return {name: np.asarray(values, dtype=float) for name, values in found.items()}


def by(rows: pd.DataFrame, group: str, column: str) -> Series:
    return {str(name): some[column] for name, some in rows.groupby(group, sort=False)}


def attribution_layers(made: Made) -> Series:
    parts = made.Attribution.components
    layers = parts.dropna(subset="layer")
    attention = layers["component"] == "attention"
    sums = [*layers[attention]["logit"]], [*layers[~attention].groupby("layer")["logit"].sum()]
    embedded = parts[parts["component"].isin(["embedding", "position"])]["logit"].sum()
    line = np.cumsum([embedded, *np.add(*sums), made.Attribution.logit - embedded - np.sum(sums)])
    return {"attention": sums[0], "FFN": sums[1], "sum so far": line}


def rates(made: Made) -> Series:
    rows = made.store.to_frame()
    low, first, _, third, high = (rows[name] for name in fm.scanning.store.RATES)
    return {"5% to 95% of neurons": high - low, "25% to 75%": third - first}


def role_shares(made: Made) -> Series:
    firsts = made.roles.neurons.groupby("layer")["role"].value_counts().unstack(fill_value=0)
    return {role.name: firsts[role.name] / made.tiny.d_mlp for role in ROLES if role.name in firsts}


def stats(made: Made, prefix: str, low: str, high: str) -> Any:
    rows = made.Geometry.layers
    return rows[f"{prefix}_{high}"] - rows[f"{prefix}_{low}"]


def metric(frame: pd.DataFrame, name: str) -> Any:
    return frame[frame["metric"] == name]["mean"]


CASES: dict[str, tuple[Callable[[Made], Picture], Callable[[Made], Series]]] = {}


def case(
    name: str,
    result: str | Callable[..., Any],
    expected: Callable[[Made], Series],
    *args: Any,
    **options: Any,
) -> None:
    function = getattr(plots, name.split(" ")[0])

    def build(made: Made) -> Picture:
        given = result(made) if callable(result) else getattr(made, result)
        return lambda ax=None: function(given, *args, ax=ax, **options)

    CASES[name] = (build, expected)


case("layers", "Attribution", attribution_layers)
case("neurons", "Attribution", lambda m: {"bars 0": m.Attribution.top(9)["logit"]}, top=9)
case("neurons of paths", "PathAttribution", lambda m: {"bars 0": m.PathAttribution.top(5)["logit"]}, top=5)
case("neurons of scores", "CausalScores", lambda m: {"bars 0": m.CausalScores.top(5)["score"]}, top=5)
case(
    "components",
    "Attribution",
    lambda m: {"bars 0": [*m.Attribution.components["logit"], m.Attribution.components["logit"].sum()]},
)
case("map", "PathAttribution", lambda m: {"map": m.PathAttribution.map})
case("map of scores", "CausalScores", lambda m: {"map": m.CausalScores.map})
case(
    "faithfulness",
    "Faithfulness",
    lambda m: {
        "these kept": m.Faithfulness.curve["faithfulness"],
        "all others kept": m.Faithfulness.curve["completeness"],
        "as many at random": m.Faithfulness.curve["random"],
    },
)
case("ablation", "Ablation", lambda m: {})
case("circuit", "Circuit", lambda m: {})
case("contrast", "Contrast", lambda m: {})
case("contrast_curve", "Contrast", lambda m: {"kept by them alone": m.Contrast.curve["sufficiency"][1:-1]})
case("histogram", "Neuron", lambda m: {})
case("firing_rates", "store", rates)
case("dead", "store", lambda m: {"dead": m.store.to_frame()["never_fired"]})
case("health", "NeuronHealth", lambda m: {flag: m.NeuronHealth.layers[flag] for flag in ("dead", "stuck", "saturated")})
case("meanings", "Meanings", lambda m: {"map": np.where(np.eye(20), np.nan, m.Meanings.similarity)})
case(
    "verdicts",
    "verdicts",
    lambda m: {"monosemantic": [0.25] * 4, "polysemantic": [0.5] * 4, "unclear": [0.25] * 4, "inactive": [0] * 4},
)
case("roles", "roles", role_shares)
case(
    "geometry interference",
    "Geometry",
    lambda m: {"keys": stats(m, "key_cosine", "q50", "q999"), "gates": stats(m, "gate_cosine", "q50", "q999")},
)
case("geometry capacity", "Geometry", lambda m: {"values": stats(m, "value_capacity", "q25", "q75")}, "capacity")
case(
    "geometry io",
    "Geometry",
    lambda m: {
        "gate and key": stats(m, "gate_key", "q25", "q75"),
        "95% of mismatched pairs": stats(m, "gate_key", "null_low", "null_high"),
    },
    "io",
)
case(
    "geometry rank",
    "Geometry",
    lambda m: {
        "values: stable": m.Geometry.layers["value_stable_rank"],
        "gates: entropy": m.Geometry.layers["gate_entropy_rank"],
        "dimensions": [m.Geometry.dimensions] * 2,
    },
    "rank",
)
case("virtual_weights", "VirtualWeights", lambda m: {"bars 0": m.VirtualWeights.incoming["z"]})
case("anatomy", "Anatomy", lambda m: {"bars 0": m.Anatomy.to_frame().query("parameters > 0")["share"]})
case("fact_map", "Trace", lambda m: {"map": m.Trace.indirect("state").T})
case("fact_map kind", "Trace", lambda m: {"map": m.Trace.indirect("ffn").T}, "ffn")
case("fact_map of silencing", "Silencing", lambda m: {"map": m.Silencing.loss("ffn").T})
case("fact_map of knockout", "Knockout", lambda m: {"map": m.Knockout.share().T})
case("fact_curves", "Traces", lambda m: by(m.Traces.groups.query("kind == 'ffn'"), "group", "mean"), "ffn")
case("fact_curves of silencings", "Silencings", lambda m: by(m.Silencings.groups, "group", "loss"))
case(
    "fact_curves of knockouts",
    "Knockouts",
    lambda m: {
        name: rows
        for name, rows in by(m.Knockouts.groups, "group", "share").items()
        if name in ("BOS", "whole subject", "non-subject", "last token")
    },
)
case(
    "comparison",
    "Comparison",
    lambda m: {name: m.Comparison.layers[name] / m.Comparison.layers["neurons"] for name in ("same", "moved")},
)
case("comparison changes", "Comparison", lambda m: {}, "changes")
case("comparison correlations", "Comparison", lambda m: {}, "correlations")
case("scores", "Scores", lambda m: {name: metric(m.Scores.summary, name) for name in ("ES", "PS", "NS", "S")})
case("sweep", "Sweep", lambda m: {name: metric(m.Sweep.frame, name) for name in ("ES", "PS")}, metrics=["ES", "PS"])
case("decay", "Decay", lambda m: {name: metric(m.Decay.frame, name) for name in ("ES", "NKL")}, metrics=["ES", "NKL"])
case("activations", lambda m: ["relu", "gelu"], lambda m: {"ReLU": np.maximum(np.linspace(-4, 4, 1201), 0)})


@pytest.mark.parametrize("name", CASES)
def test_a_picture_draws_its_result_where_it_is_told(name: str, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of another series than the label's, a figure nobody asked for, or settings changed for the user."""
    build, expected = CASES[name]
    picture = build(made)
    monkeypatch.setattr(plt, "show", lambda: pytest.fail("show was called"))
    before = dict(mpl.rcParams)
    sheet, ax = plt.subplots()
    assert picture(ax=ax) is ax
    assert plt.get_fignums() == [sheet.number]
    assert dict(mpl.rcParams) == before
    found = series(ax)
    for label, values in expected(made).items():
        np.testing.assert_allclose(found[label], np.asarray(values, dtype=float), atol=1e-5, err_msg=label)
    assert ax.get_title(loc="left").strip()


DRAWN = Path(__file__).with_name("drawn.json")


def places(ax: Axes) -> dict[str, list[float]]:
    """Where everything stands that is drawn, as sums of its coordinates; and the axes' ends and fixed ticks."""
    bars = [one for one in ax.patches if not isinstance(one, FancyArrowPatch | FancyBboxPatch)]
    dots: list[Any] = [one for one in ax.collections if isinstance(one, PathCollection)]
    fills: list[Any] = [one for one in ax.collections if isinstance(one, PolyCollection)]
    segments: list[Any] = [one for one in ax.collections if isinstance(one, LineCollection)]
    fixed = [
        axis.get_majorticklocs() for axis in (ax.xaxis, ax.yaxis) if isinstance(axis.get_major_locator(), FixedLocator)
    ]
    found: dict[str, list[Any]] = {
        "lines": [line.get_xydata() for line in ax.lines],
        "bars": [one.get_patch_transform().transform_path(one.get_path()).vertices for one in bars],
        "dots": [part for one in dots for part in (one.get_offsets(), one.get_sizes())],
        "fills": [path.vertices for one in fills for path in one.get_paths()],
        "segments": [segment for one in segments for segment in one.get_segments()],
        "maps": [[*one.get_extent(), *one.get_clim()] for one in ax.images],
        "texts": [text.get_position() for text in ax.texts],
        "limits": [ax.get_xlim(), ax.get_ylim()],
        "ticks": fixed,
    }
    drawn = {name: np.concatenate([np.ravel(part) for part in parts]) for name, parts in found.items() if parts}
    return {name: summed(numbers) for name, numbers in drawn.items() if len(numbers)}


@pytest.mark.parametrize("name", CASES)
def test_a_picture_can_be_read(name: str, made: Made) -> None:
    """Labels missing, outside of the figure or over each other; a token's dollar sign that begins mathematics; a bar
    beside its layer (see :func:`tests.helpers.check_kept`)."""
    ax = CASES[name][0](made)()
    assert isinstance(ax.figure, Figure)
    stands = [places(one) for one in ax.figure.axes]
    if name in ("ablation", "circuit"):  # whose names make room for one another, by the size of their letters
        stands[0].pop("texts")
    draw_whole(ax)
    assert any(one.get_xlabel() for one in ax.figure.axes)
    for one in ax.figure.axes:
        box, frame = one.get_tightbbox(), ax.figure.bbox
        assert box is not None
        assert min(box.x0 - frame.x0, box.y0 - frame.y0, frame.x1 - box.x1, frame.y1 - box.y1) >= -1
        for axis in (one.xaxis, one.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            shown = [tick for tick in ticks if tick.get_visible() and tick.get_text() and not tick.get_rotation() % 90]
            boxes = [tick.get_window_extent() for tick in shown]
            assert not [(a, b) for a, b in pairwise(boxes) if a.overlaps(b)], [tick.get_text() for tick in shown]
    check_kept(DRAWN, name, stands)


def test_what_is_kept_is_of_these() -> None:
    assert set(json.loads(DRAWN.read_text("utf-8"))) == set(CASES)


def test_maps_of_deep_models_fit_a_screen(made: Made) -> None:
    deep = made.PathAttribution.scores.repeat(30, 1, 1)
    tall = plots.map(replace(made.PathAttribution, scores=deep)).figure
    assert isinstance(tall, Figure)
    assert tall.get_size_inches()[1] == 6


def test_every_result_has_its_pictures_on_one_figure(made: Made) -> None:
    """A class that is found by nobody, or an aspect that fails."""
    draw(made.Attribution)
    for kind, pictures in PICTURES.items():
        result = getattr(made, "store" if kind is Store else kind.__name__)
        count = sum(1 if aspects is None else len(list(aspects(result))) for _, aspects in pictures)
        drawn = figure(result)
        assert len(drawn.axes) >= count, kind
        assert drawn.get_suptitle() or drawn.axes[0].get_title(loc="left"), kind
        ax = Figure().add_subplot()
        assert draw(result, ax=ax) is ax
    assert len(plt.get_fignums()) == 1, "figure() made one for pyplot"


def test_pictures_share_what_is_equal(made: Made) -> None:
    """The same title above every panel, three legends for the same lines, or an option that nobody took."""
    traces = figure(made.Traces)
    assert "2 facts" in traces.get_suptitle()
    titles = [ax.get_title(loc="left") for ax in traces.axes]
    assert titles == ["state", "FFN of one layer", "attention of one layer"]
    assert [ax.get_legend() is not None for ax in traces.axes] == [False, False, True]
    assert not figure(made.Geometry).get_suptitle()
    assert len(figure(made.PathAttribution, top=3).axes[-1].get_yticks()) != 20
    with refuses(InputError, ValueError, "Trace", "tops"):
        figure(made.Trace, tops=3)
    with refuses(InputError, ValueError, "Made", "Trace"):
        draw(made)
    with refuses(InputError, ValueError, "nothing"):
        arrange([])


def test_signs_have_colours(made: Made) -> None:
    """Blue adds and orange takes; nothing is white in a map."""
    for ax, values in (
        (plots.neurons(made.Attribution, top=40), made.Attribution.top(40)["logit"]),
        (plots.virtual_weights(made.VirtualWeights), made.VirtualWeights.incoming["z"]),
    ):
        colours = [to_hex(bar.get_facecolor()).upper() for bar in ax.patches]
        assert colours == [ADDS if value >= 0 else TAKES for value in values]
        assert ax.get_ylim()[0] > ax.get_ylim()[1], "the first stands on top"
    for ax in (plots.map(made.PathAttribution), plots.fact_map(made.Trace)):
        low, high = ax.images[0].get_clim()
        assert low == -high
        assert ax.images[0].to_rgba(np.array([0.0]))[0] == pytest.approx(1.0, abs=0.01)
    ax = plots.ablation(made.Ablation)
    rows = made.Ablation.neurons
    against = rows["direct"] * rows["logit"] < 0
    drawn = {to_hex(dots.get_facecolor()[0]).upper(): dots.get_offsets() for dots in ax.collections}  # type: ignore[index]
    np.testing.assert_allclose(drawn[TAKES], rows[against][["direct", "logit"]])
    np.testing.assert_allclose(drawn[ADDS], rows[~against][["direct", "logit"]])
    assert ax.get_xlim() == ax.get_ylim()
    for colours in (ROLE_COLOURS, VERDICT_COLOURS):
        assert len(set(colours.values())) == len(colours)
    assert ROLE_COLOURS.keys() == {role.name for role in ROLES}
    assert VERDICT_COLOURS.keys() == set(VERDICTS)


def test_names_say_what_is_drawn(made: Made) -> None:
    """A row with its neighbour's name, a star at another token, or text that is not shown as it is."""
    labels = [label.get_text() for label in plots.neurons(made.PathAttribution, top=5).get_yticklabels()]
    rows = made.PathAttribution.top(5)
    assert [label.split(" at ")[0] for label in labels] == [f"{r.layer}.{r.neuron}" for r in rows.itertuples()]
    assert any("$" in label.get_text() for label in plots.map(made.PathAttribution).get_xticklabels())
    labels = [label.get_text() for label in plots.fact_map(made.Trace).get_yticklabels()]
    assert [at for at, label in enumerate(labels) if label.endswith("*")] == list(made.Trace.subject)
    labels = [label.get_text() for label in plots.fact_map(made.Knockout).get_yticklabels()]
    assert labels[-3:] == ["whole subject", "non-subject", "chosen"]
    title = plots.layers(made.Attribution).get_title(loc="left")
    assert f"{made.Attribution.target!r} minus {made.Attribution.foil!r}" in title
    ax = plots.components(made.Attribution)
    assert [label.get_text() for label in ax.get_yticklabels()][-2:] == ["final bias", "sum"]
    *steps, total = ax.patches
    logits = made.Attribution.components["logit"].to_numpy()
    assert [bar.get_x() for bar in steps] == pytest.approx([0.0, *logits.cumsum()[:-1]])  # type: ignore[attr-defined]
    assert total.get_width() == pytest.approx(made.Attribution.logit, abs=1e-4)  # type: ignore[attr-defined]


def test_names_stand_apart(made: Made) -> None:
    """Many firings at one place, many points in one spot, or many small meanings would cover each other's names."""
    circuit = made.Circuit
    firing = circuit.nodes["kind"] == "firing"
    moved = {
        "layer": circuit.nodes["layer"].mask(firing, 1),
        "position": circuit.nodes["position"].mask(firing, circuit.position),
    }
    same = replace(made.Ablation, neurons=made.Ablation.neurons.head(6).assign(direct=0.1, logit=0.2))
    for ax in (
        plots.circuit(replace(circuit, nodes=circuit.nodes.assign(**moved))),
        plots.ablation(made.Ablation),
        plots.ablation(same),
    ):
        draw_whole(ax)
        boxes = [text.get_window_extent() for text in ax.texts]
        assert boxes
        assert not any(one.overlaps(other) for at, one in enumerate(boxes) for other in boxes[:at])
    ax = plots.meanings(with_meanings(made.Meanings, [20, *[1] * 60]))
    assert np.diff(ax.get_yticks()).min() >= 3


def test_what_is_not_there_is_said(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty picture would look like a broken one, and a line up at a jump like a slope."""
    alive = made.store.to_frame().assign(never_fired=0)
    monkeypatch.setattr(Store, "to_frame", lambda store: alive)
    healthy = made.NeuronHealth.layers.assign(dead=0.0, stuck=0.0, saturated=0.0)
    monkeypatch.setattr("ffnmem.neurons.role_assignment.LONG", 1.0)
    roles = fm.roles(made.tiny, kurtosis=1e9, partition=1e9)
    for ax, words in (
        (plots.health(replace(made.NeuronHealth, layers=healthy)), "no neuron is dead"),
        (plots.dead(made.store), "every neuron fired"),
        (plots.roles(roles), "no neuron has any"),
    ):
        assert [text.get_text()[: len(words)] for text in ax.texts] == [words]
    slope = series(plots.activations(["relu"], gradient=True))["ReLU"]
    assert np.isnan(slope).sum() == 1
    assert set(slope[~np.isnan(slope)]) == {0.0, 1.0}
    told_apart = [(line.get_color(), str(line._dash_pattern)) for line in plots.activations().get_lines()[:8]]  # type: ignore[attr-defined]
    assert [len(set(looks)) for looks in zip(*told_apart, strict=True)] == [8, 8]
    dead = replace(made.Neuron, stats={**made.Neuron.stats, "dead": True, "firing_rate": 0.0})
    assert "dead in" in plots.histogram(dead).get_title(loc="left")


def test_a_histogram_is_a_density(made: Made) -> None:
    """Of bins of different widths, heights that are counts would not compare."""
    bars: list[Any] = list(plots.histogram(made.Neuron).patches)
    areas = [(bar.get_y() + bar.get_height()) * bar.get_width() for bar in bars]
    assert sum(areas) == pytest.approx(made.Neuron.stats["count"])
    assert {to_hex(bar.get_facecolor()).upper() for bar in bars if bar.get_x() < 0} == {TAKES}


def test_what_changed_stands_in_its_layer(made: Made) -> None:
    """One layer of two was edited: its quantiles, and its largest change as a dot."""
    ax = plots.comparison(made.Comparison, "changes")
    changes = made.Comparison.neurons["value_change"]
    (dot,) = ax.lines
    assert (list(dot.get_xdata()), list(dot.get_ydata())) == ([1], [changes.max()])  # type: ignore[arg-type]
    low, high = changes[changes > made.Comparison.tolerance].quantile([0.05, 0.95])
    wide: Any = ax.patches[0]
    assert (wide.get_y(), wide.get_y() + wide.get_height()) == pytest.approx((low, high))
    ax = plots.comparison(made.Comparison, "correlations")
    assert legend_of(ax) == ["best match", "among random neurons"]
    assert ax.get_xlim() == (0, 1)


def test_panels_below(made: Made) -> None:
    """A trace in the scores' units, a collapse in one panel only, or little that looks like much."""
    ax = plots.sweep(made.Sweep, made.Traces)
    _, below = ax.figure.axes
    expected = made.Traces.groups.query("kind == 'ffn' and group == 'last subject'")["mean"]
    np.testing.assert_allclose(series(below)["FFN at the\nsubject's end"], expected)
    assert below.get_position().y1 < ax.get_position().y0
    assert (ax.get_xlabel(), below.get_xlabel()) == ("", "layer")
    ax = plots.decay(made.Decay)
    _, loss = ax.figure.axes
    assert loss.get_ylabel() == "loss, nats\na token"
    assert all(any(list(line.get_xdata()) == [7, 7] for line in panel.lines) for panel in (ax, loss))
    assert legend_of(ax)[-1] == "collapsed at 7"
    assert ax.get_xscale() == "log"
    steps = made.Decay.steps.assign(loss=np.linspace(2.0, 2.001, 11))
    low, high = plots.decay(replace(made.Decay, steps=steps)).figure.axes[1].get_ylim()
    assert low <= 1.9
    assert high >= 2.1


def in_no_grid() -> Axes:
    return plt.figure().add_axes((0.1, 0.1, 0.8, 0.8))


REFUSED: list[tuple[Callable[[Made], Any], tuple[str, ...]]] = [
    (lambda m: plots.layers(fm.attribute(m.capture, fm.prompts.NEXT)), ("positions",)),
    (lambda m: plots.neurons(fm.attribute(m.capture, fm.prompts.NEXT)), ("positions",)),
    (lambda m: plots.components(fm.attribute(m.capture, fm.prompts.NEXT)), ("positions",)),
    (lambda m: plots.neurons(m.Attribution, top=0), ("top", "0")),
    (lambda m: plots.circuit(m.Circuit, top=0), ("top", "0")),
    (lambda m: plots.activations(["mish"]), ("'mish'",)),
    (lambda m: plots.activations(limit=0), ("limit", "0")),
    (lambda m: plots.comparison(m.Comparison, "size"), ("what", "verdicts")),
    (lambda m: plots.comparison(fm.compare(m.tiny, m.tiny), "correlations"), ("correlations", "no text")),
    (lambda m: plots.comparison(fm.compare(m.tiny, m.tiny), "changes"), ("changes", "places")),
    (lambda m: plots.geometry(m.Geometry, "size"), ("what", "'size'", "'capacity'")),
    (lambda m: plots.meanings(replace(m.Meanings, table=m.Meanings.table.iloc[:0])), ("1.5", "no examples")),
    (lambda m: plots.fact_map(m.Trace, "mlp"), ("kind", "'mlp'", "'ffn'")),
    (lambda m: plots.fact_curves(m.Silencings, "state"), ("kind", "'state'")),
    (lambda m: plots.fact_curves(Traces((), m.Traces.skipped, m.Traces.provenance)), ("no fact was asked",)),
    (lambda m: plots.scores(m.Scores, ["drift_kl"]), ("'drift_kl'", "'ES'")),
    (
        lambda m: plots.scores(
            Scores(m.Scores.cases.assign(ES=np.nan, PS=np.nan, NS=np.nan, NKL=np.nan), {}, m.Scores.provenance, draws=5)
        ),
        ("nothing was measured",),
    ),
    (lambda m: plots.sweep(m.Sweep, Traces((), m.Traces.skipped, m.Traces.provenance)), ("last subject",)),
    (lambda m: plots.sweep(m.Sweep, m.Traces, in_no_grid()), ("of a grid",)),
    (lambda m: plots.decay(m.Decay, in_no_grid()), ("of a grid",)),
    (lambda m: plots.virtual_weights(m.VirtualWeights, "outgoing"), ("outgoing", "'incoming'")),
    (
        lambda m: plots.virtual_weights(
            fm.virtual_weights(fm.load(build_gpt2(n_layer=1), tokenizer=m.tiny.tokenizer), "0.5")
        ),
        ("no connections",),
    ),
]


@pytest.mark.parametrize(("call", "says"), REFUSED)
def test_mistakes(call: Callable[[Made], Any], says: tuple[str, ...], made: Made) -> None:
    with refuses(InputError, ValueError, *says):
        call(made)
