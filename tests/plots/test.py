from collections.abc import Callable
from dataclasses import replace
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.plots.attribution import ADDS, ATTENTION, FFN, TAKES

from ..helpers import draw_whole, legend_of

PROMPT = "The Eiffel Tower is located in the city of"
OF_ATTRIBUTIONS = [fm.plots.layers, fm.plots.neurons, fm.plots.components]


@pytest.fixture(scope="module")
def capture(atlas: fm.Model) -> fm.prompts.Capture:
    return fm.capture(atlas, PROMPT)


@pytest.fixture(scope="module")
def attribution(capture: fm.prompts.Capture) -> fm.prompts.Attribution:
    first, second = capture.predictions(k=2)["token_id"]
    return fm.attribute(capture, target=first, foil=second)


def bars(ax: Axes, colour: str | None = None) -> list[Any]:
    return [patch for patch in ax.patches if colour is None or to_hex(patch.get_facecolor()) == colour.lower()]


def tick_labels(ax: Axes, axis: str) -> list[str]:
    return [label.get_text() for label in (ax.get_xticklabels() if axis == "x" else ax.get_yticklabels())]


def test_layers_shows_attention_and_ffn_of_each_layer(attribution: fm.prompts.Attribution) -> None:
    ax = fm.plots.layers(attribution)
    parts = attribution.components
    attention = parts[parts["component"] == "attention"]["logit"].to_numpy()
    ffn = parts[parts["component"].isin(["ffn", "ffn bias"])].groupby("layer")["logit"].sum().to_numpy()
    assert [bar.get_height() for bar in bars(ax, ATTENTION)] == pytest.approx(attention)
    assert [bar.get_height() for bar in bars(ax, FFN)] == pytest.approx(ffn)
    assert tick_labels(ax, "x") == ["embedding", *map(str, range(len(ffn))), "logit"]
    assert ax.get_legend() is not None
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"attention", "FFN", "sum so far"}


def test_layers_line_runs_from_the_embedding_to_the_logit(attribution: fm.prompts.Attribution) -> None:
    line = next(line for line in fm.plots.layers(attribution).lines if line.get_label() == "sum so far")
    heights = np.asarray(line.get_ydata(), dtype=float)
    parts = attribution.components
    embedded = parts[parts["component"].isin(["embedding", "position"])]["logit"].sum()
    by_layer = parts.dropna(subset="layer").groupby("layer")["logit"].sum().to_numpy()
    assert heights[0] == pytest.approx(embedded)
    assert np.diff(heights)[:-1] == pytest.approx(by_layer)
    assert heights[-1] == pytest.approx(attribution.logit, abs=1e-4)


def test_neurons_are_the_top_rows_coloured_by_sign(attribution: fm.prompts.Attribution) -> None:
    ax = fm.plots.neurons(attribution, top=40)
    rows = attribution.top(40)
    assert [bar.get_width() for bar in bars(ax)] == pytest.approx(rows["logit"].tolist())
    assert tick_labels(ax, "y") == [f"{row.layer}.{row.neuron}" for row in rows.itertuples()]
    assert len(bars(ax, ADDS)) == (rows["logit"] > 0).sum() > 0
    assert len(bars(ax, TAKES)) == (rows["logit"] < 0).sum() > 0
    bottom, top = ax.get_ylim()
    assert bottom > top  # the largest neuron stands at the top


def test_components_form_a_waterfall_that_ends_in_the_sum(attribution: fm.prompts.Attribution) -> None:
    ax = fm.plots.components(attribution)
    *steps, total = bars(ax)
    logits = attribution.components["logit"].to_numpy()
    assert [bar.get_width() for bar in steps] == pytest.approx(logits)
    assert [bar.get_x() for bar in steps] == pytest.approx([0.0, *logits.cumsum()[:-1]])
    assert total.get_x() + total.get_width() == pytest.approx(attribution.logit, abs=1e-4)
    names = tick_labels(ax, "y")
    assert names[:4] == ["embedding", "position", "attention 0", "ffn 0"]
    assert names[-2:] == ["final bias", "sum"]


def test_map_shows_the_paths_centred_at_zero(capture: fm.prompts.Capture, attribution: fm.prompts.Attribution) -> None:
    first, second = (int(i) for i in capture.predictions(k=2)["token_id"])
    paths = fm.attribute_paths(capture, first, second)
    ax = fm.plots.map(paths)
    (image,) = ax.images
    assert np.asarray(image.get_array()) == pytest.approx(paths.map.numpy())
    low, high = image.get_clim()
    assert low == -high
    assert image.to_rgba(np.array([0.0]))[0] == pytest.approx(1.0, abs=0.01)  # nothing written is white
    assert image.colorbar is not None
    assert image.colorbar.ax.get_ylabel() == "logit"
    assert tick_labels(ax, "x") == [token.replace(" ", "·") for token in capture.token_strings()]
    assert repr(attribution.target) in ax.get_title(loc="left")
    assert repr(attribution.foil) in ax.get_title(loc="left")


def test_map_of_a_padded_prompt_leaves_the_pads_out(atlas: fm.Model) -> None:
    batch = fm.capture(atlas, [PROMPT, "The city of"])
    assert len(tick_labels(fm.plots.map(fm.attribute_paths(batch, 5, prompt=1)), "x")) == batch.length(1)


@pytest.mark.parametrize("plot", OF_ATTRIBUTIONS)
class TestEveryPicture:
    def test_draws_where_it_is_told_and_says_of_what(
        self, plot: Callable[..., Axes], attribution: fm.prompts.Attribution, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(plt, "show", lambda: pytest.fail("show was called"))
        before = dict(mpl.rcParams)
        figure, ax = plt.subplots()
        assert plot(attribution, ax=ax) is ax
        assert plt.get_fignums() == [figure.number]
        assert dict(mpl.rcParams) == before
        assert f"{attribution.target!r} minus {attribution.foil!r}" in ax.get_title(loc="left")

    def test_refuses_several_positions(self, plot: Callable[..., Axes], capture: fm.prompts.Capture) -> None:
        with pytest.raises(InputError, match="positions"):
            plot(fm.attribute(capture, fm.prompts.NEXT))
        assert plt.get_fignums() == []

    def test_token_text_is_no_mathematics(self, plot: Callable[..., Axes], attribution: fm.prompts.Attribution) -> None:
        ax = plot(replace(attribution, target_tokens=("$\\nonsense{$\n",), foil="$"))
        ax.figure.canvas.draw()  # mathematics that cannot be parsed would raise here
        assert "\n" not in ax.get_title(loc="left")


def test_map_labels_are_no_mathematics(atlas: fm.Model) -> None:
    ax = fm.plots.map(fm.attribute_paths(fm.capture(atlas, "It costs $x\n$\\frac$ here"), " $"))
    ax.figure.canvas.draw()
    labels = tick_labels(ax, "x")
    assert any("$" in label for label in labels)
    assert any("↵" in label for label in labels)
    assert not any("\n" in label for label in labels)


def test_causal_scores_are_drawn_as_paths_are(capture: fm.prompts.Capture) -> None:
    scores = fm.causal_scores(capture)
    ax = fm.plots.neurons(scores, top=5)
    assert [bar.get_width() for bar in bars(ax)] == pytest.approx(scores.top(5)["score"].tolist())
    assert ax.get_xlabel() == "score"
    ax = fm.plots.map(scores)
    assert np.asarray(ax.images[0].get_array()) == pytest.approx(scores.map.numpy())
    assert ax.get_title(loc="left").startswith("What the firings are worth for")


def test_faithfulness_shows_the_curve_the_rest_and_chance(capture: fm.prompts.Capture) -> None:
    first, second = (int(i) for i in capture.predictions(k=2)["token_id"])
    found = fm.faithfulness(capture, first, second, sizes=[1, 10, 100], random=2)
    for shown in (found, fm.prompts.faithfulness_over([found, found])):
        ax = fm.plots.faithfulness(shown)
        lines = {line.get_label(): line for line in ax.get_lines()}
        for label, column in (("these kept", "faithfulness"), ("all others kept", "completeness")):
            assert np.asarray(lines[label].get_ydata()) == pytest.approx(shown.curve[column].to_numpy())
        assert legend_of(ax) == ["these kept", "all others kept", "as many at random"]
        assert ax.get_xscale() == "log"


def test_neurons_of_paths_say_where_they_fired(capture: fm.prompts.Capture) -> None:
    paths = fm.attribute_paths(capture)
    ax = fm.plots.neurons(paths, top=5)
    rows = paths.top(5)
    assert [bar.get_width() for bar in bars(ax)] == pytest.approx(rows["logit"].tolist())
    expected = [f"{r.layer}.{r.neuron} at {r.token.replace(' ', '·')}" for r in rows.itertuples()]
    assert tick_labels(ax, "y") == expected


def test_names_of_a_circuit_stand_apart(atlas: fm.Model) -> None:
    """Of many firings at one place the names would cover each other, and the marks of the layers beside it."""
    found = fm.circuit(fm.capture(atlas, PROMPT), nodes=60)
    at_end = found.nodes["kind"] == "firing"
    nodes = found.nodes.assign(
        layer=found.nodes["layer"].mask(at_end, 3), position=found.nodes["position"].mask(at_end, found.position)
    )
    ax = fm.plots.circuit(replace(found, nodes=nodes))
    draw_whole(ax)
    boxes = [text.get_window_extent() for text in ax.texts]
    assert len(boxes) > 8
    assert not any(one.overlaps(other) for at, one in enumerate(boxes) for other in boxes[:at])
