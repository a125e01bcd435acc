"""``ffnmem neuron``: the card, the data, the page, the figure and the search."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ffnmem as fm
from ffnmem.scanning import Store

from ..scanning.texts import tiny_texts
from .running import csv, data, mistake, run, table


def test_kinds_in_the_order_asked(tiny_store: Store) -> None:
    asked = ["neuron", "0.3", "--store", tiny_store.folder, "--kind", "random", "--kind", "bottom", "--top", 2]
    out = table(*asked)
    assert out.index("Random positions") < out.index("Smallest coefficients")
    assert "Largest" not in out
    assert csv(*asked)["kind"].tolist() == ["random"] * 2 + ["bottom"] * 2


def test_json_has_all_of_the_card(tiny_store: Store) -> None:
    """With --full; else the rows that were asked for, and the histogram in few bins."""
    one, asked = tiny_store.neuron(1, 5), ("--store", tiny_store.folder, "--kind", "top")
    found = data("neuron", "1.5", "0.3", *asked, "--full")
    assert [(one["layer"], one["neuron"]) for one in found["neurons"]] == [(1, 5), (0, 3)]
    assert {**found["neurons"][0], "provenance": found["provenance"]} == tiny_store.neuron(1, 5, kind="top").to_dict()
    short = data("neuron", "1.5", *asked, "--top", 2)["neurons"][0]
    assert [e["coefficient"] for e in short["examples"]] == one.examples["coefficient"].tolist()[:2]
    assert sum(b["count"] for b in short["histogram"]) == tiny_store.n_tokens
    assert len(short["histogram"]) == 16


def test_page(tiny_store: Store, tmp_path: Path) -> None:
    page = tmp_path / "a page.html"
    result = run("neuron", "1.5", "0.3", "--store", tiny_store.folder, "--html", page, "--no-shade")
    assert result.stdout == f"{page}\n"
    assert result.stderr == f"ffnmem: model {tiny_store.model} ({tiny_store.fingerprint})\n"
    assert "2 neurons of" in page.read_text("utf-8")


def test_shades(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """The model is loaded by its name; on a page tokens are shaded unasked."""
    store = fm.scan(fm.load(str(tiny_folder)), tiny_texts(), tmp_path / "store", k=3, sample=8, draws=4, frequent=8)
    page = tmp_path / "page.html"
    assert run("neuron", "1.5", "--store", store.folder, "--html", page).stdout == f"{page}\n"
    assert "<i " in page.read_text("utf-8")
    assert run("report", "neurons", "--store", store.folder, "--neurons", "1.5", "-o", page, "--no-shade")
    assert "<i " not in page.read_text("utf-8")
    assert run("report", "neurons", "--store", store.folder, "--neurons", "1.5", "-o", page)
    assert "<i " in page.read_text("utf-8")
    (found,) = data("neuron", "1.5", "--store", store.folder, "--top", 1, "--shade")["neurons"]
    expected = store.shaded([store.neuron(1, 5, kind=("top", "quantile"), k=1)], listed=1)[0]
    assert found["passages"] == [{"sequence": n, **one.to_dict()} for n, one in expected.passages.items()]
    card = ("neuron", "1.5", "--store", store.folder)
    assert table(*card, "--shade") == table(*card)  # no terminal


def test_shades_without_the_model(tiny_store: Store, tmp_path: Path) -> None:
    """One line says that there are none, and why."""
    page = tmp_path / "page.html"
    store = ("--store", tiny_store.folder)
    for call in (("neuron", "1.5", *store, "--html"), ("report", "neurons", *store, "--neurons", "1.5", "-o")):
        line, _ = run(*call, page).stderr.splitlines()
        assert line.startswith("ffnmem: warning: ")
        assert tiny_store.model in line
    mistake("neuron", "1.5", "--store", tiny_store.folder, "--shade", named=("every token", tiny_store.model))
    mistake("neuron", "1.5", "--store", tiny_store.folder, "--shade", "--csv", named=("--shade", "--csv", "--json"))


def test_a_store_without_the_tokens_of_values(tmp_path: Path) -> None:
    """The command line would need another flag, or show another card, where a scan left the projection for later."""
    facts = tmp_path / "facts.txt"
    facts.write_text("The Eiffel Tower is in Paris.\n\nThe Colosseum is in Rome.\n")
    bare, whole = tmp_path / "bare", tmp_path / "full"
    few = ("--k", "3", "--json")
    run("scan", facts, "--out", bare, "--no-project", *few)
    run("scan", facts, "--out", whole, *few)
    assert not (bare / "values.parquet").exists()
    assert table("neuron", "5.97", "--store", bare).replace("bare", "full") == table("neuron", "5.97", "--store", whole)
    run("neuron", "5.97", "--store", bare, "--html", tmp_path / "one.html")
    run("neuron", "5.97", "--store", whole, "--html", tmp_path / "other.html")
    pages = [(tmp_path / f"{name}.html").read_text() for name in ("one", "other")]
    assert pages[0].replace(str(bare), str(whole)) == pages[1]
    assert not (bare / "values.parquet").exists()
    assert table("neuron", "search", "paris", "--store", bare) == table("neuron", "search", "paris", "--store", whole)
    assert (bare / "values.parquet").read_bytes() == (whole / "values.parquet").read_bytes()


def test_the_model_of_a_store_by_another_name(tiny_folder: Path, tmp_path: Path) -> None:
    """A model that was moved could not be named."""
    moved, store, text = tmp_path / "moved", tmp_path / "store", tmp_path / "text.txt"
    shutil.copytree(tiny_folder, tmp_path / "here")
    text.write_text("The Eiffel Tower is in the city of Paris.")
    run("scan", text, "--out", store, "--model", tmp_path / "here", "--no-project", "--json")
    (tmp_path / "here").rename(moved)
    assert data("neuron", "1.17", "--store", store)["neurons"][0]["promoted"] is None
    assert "need the model" in table("neuron", "1.17", "--store", store)
    mistake("neuron", "search", "e", "--store", store, named=("need the model", "--model"))
    assert len(data("neuron", "1.17", "--store", store, "--model", moved)["neurons"][0]["promoted"]) == 10
    mistake("neuron", "1.17", "--store", store, "--model", "atlas", named=("is a store of",))


def test_readable_neurons(tiny_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command lists what the library finds, best first."""
    command = ("neuron", "readable", "--store", tiny_store.folder)
    assert "no neuron fires before what it promotes" in table(*command)
    monkeypatch.setattr("ffnmem.neurons.readable.WIDE", 1)
    monkeypatch.setattr("ffnmem.neurons.readable.LEVEL", 2.0)
    found = fm.neurons.find_readable(tiny_store, layers=1, top=5).neurons
    assert csv(*command, "--layer", 1, "--top", 5)["neuron"].tolist() == found["neuron"].tolist()
    assert [row["neuron"] for row in data(*command, "--layer", 1, "--top", 5)["neurons"]] == found["neuron"].tolist()
    assert f"1.{found['neuron'][0]}" in table(*command, "--layer", 1)
