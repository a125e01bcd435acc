"""``ffnmem health``: the library's numbers in every form, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.neurons import NeuronHealth, neuron_health

from ..scanning.texts import tiny_texts
from .running import data, run, table


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "corpus.txt"
    path.write_text("\n\n".join(tiny_texts()), "utf-8")
    return path


@pytest.fixture(scope="module")
def mine(tiny: fm.Model, corpus: Path) -> NeuronHealth:
    return neuron_health(tiny, corpus, tokens=200, seed=1)


@pytest.fixture
def arguments(corpus: Path, tiny_folder: Path) -> tuple[object, ...]:
    return ("health", corpus, "--model", tiny_folder, "--tokens", 200, "--seed", 1)


def test_the_largest_are_listed(arguments: tuple[object, ...], mine: NeuronHealth) -> None:
    found = data(*arguments, "--top", 2)
    assert found["layers"] == mine.layers.to_dict("records")
    assert found["neurons"] == mine.extremes(2).to_dict("records")
    assert found["loss"] == mine.loss


def test_without_flow(arguments: tuple[object, ...]) -> None:
    """Columns of the way back that was not run."""
    out = table(*arguments, "--no-flow")
    assert "dL/d" not in out
    assert "most flat" in out
    assert "flow_pre" not in run(*arguments, "--no-flow", "--csv").stdout


def test_all_and_pictures(arguments: tuple[object, ...], corpus: Path, tiny_folder: Path, tmp_path: Path) -> None:
    whole = data("health", corpus, "--model", tiny_folder, "--tokens", "all", "--no-flow", "--batch-tokens", 300)
    assert whole["positions"] > 600
    for option, name in (((), "both.png"), (("--no-flow",), "shares.svg")):
        run(*arguments, *option, "--plot", tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
