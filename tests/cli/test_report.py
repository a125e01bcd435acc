"""``ffnmem report``: the page, and its path on standard output."""

from __future__ import annotations

import re
import webbrowser
from pathlib import Path

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.scanning import Store

from ..pages.page import Page
from .editing import saved
from .running import PROMPT, mistake, run


def test_writes_and_prints_the_path(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path alone, so that a shell can use it; and the options reach the page."""
    monkeypatch.chdir(tmp_path)
    assert run("report", PROMPT, "--model", tiny_folder).stdout == "report.html\n"
    page = tmp_path / "a page.html"
    result = run("report", PROMPT, "--model", tiny_folder, "-o", page, "--target", " Paris", "--top", 3)
    assert result.stdout == f"{page}\n"
    assert re.fullmatch(r"ffnmem: model \S+ \(\w+\)\n", result.stderr)
    three = page.read_text("utf-8")
    assert "Paris" in three
    run("report", PROMPT, "--model", tiny_folder, "-o", page, "--target", " Paris", "--top", 4)
    assert page.read_text("utf-8") != three
    run("report", PROMPT, "--model", tiny_folder, "-o", page, "--target", " Paris", "--top", 3)
    assert page.read_text("utf-8") == three


@pytest.mark.parametrize("opens", [True, False])
def test_open(opens: bool, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser gets the file's address; where there is none, the user is told, and the page is there."""
    asked: list[str] = []

    def browser(url: str) -> bool:
        asked.append(url)
        return opens

    monkeypatch.setattr(webbrowser, "open", browser)
    page = tmp_path / "page.html"
    result = run("report", PROMPT, "--model", tiny_folder, "-o", page, "--open")
    assert asked == [page.as_uri()]
    assert result.stdout == f"{page}\n"
    assert ("no browser" in result.stderr) == (not opens)


@pytest.mark.parametrize("measure", ["firing_rate", "kurtosis", "max"])
def test_neurons_by_a_measure(measure: str, tiny_store: Store, tmp_path: Path) -> None:
    """The highest first, of all layers or of one; a layer alone comes whole and in order."""
    out = tmp_path / "a.parquet"

    def neurons(*chosen: object) -> list[tuple[int, int]]:
        run("report", "neurons", "--store", tiny_store.folder, *chosen, "-o", out)
        rows = pd.read_parquet(out)
        return list(dict.fromkeys(zip(rows["layer"], rows["neuron"], strict=True)))

    stats = tiny_store.stats().sort_values(measure, ascending=False, kind="stable")
    assert neurons("--top-by", measure, 3) == list(zip(stats["layer"][:3], stats["neuron"][:3], strict=True))
    last = stats[stats["layer"] == 1].head(2)
    assert neurons("--layer", -1, "--top-by", measure, 2) == [(1, n) for n in last["neuron"]]
    assert neurons("--layer", 0) == [(0, n) for n in range(64)]


@pytest.mark.usefixtures("undrawn")
def test_names_on_every_page_lead_to_the_site(
    tiny: fm.Model, tiny_store: Store, tiny_folder: Path, tmp_path: Path
) -> None:
    """A prompt's, an edit's, a circuit's and a study's, from where each page lies."""
    site, pages = tmp_path / "site", tmp_path / "pages"
    pages.mkdir()
    assert run("report", "site", "--store", tiny_store.folder, "-o", site).stdout == f"{site / 'index.html'}\n"
    saved(tiny, tmp_path / "e.zip")
    common = ("--model", tiny_folder, "--site", site)
    run("report", PROMPT, "-o", pages / "prompt.html", *common)
    run("edit", "apply", tmp_path / "e.zip", "--report", pages / "edit.html", *common)
    run("circuit", PROMPT, "--nodes", 10, "--html", pages / "circuit.html", *common)
    few = [part for name in ("keys", "prefixes", "updates") for part in ("--set", f"{name}=2")]
    few += ["--set", "n_sequences=8"]
    run("study", "geva2021", "--store", tiny_store.folder, "--out", pages / "study", *few, *common)
    for path in (*pages.glob("*.html"), pages / "study" / "index.html"):
        page = Page(path.read_text("utf-8"))
        found = {attrs["href"] for tag, attrs in page.tags if tag == "a" and "site/" in attrs.get("href", "")}
        assert found, path
        assert all((path.parent / way).resolve().is_file() for way in found), path


def test_a_settings_file(tiny_folder: Path, tmp_path: Path) -> None:
    settings = tmp_path / "nightly.toml"
    asked = f"out = 'nightly'\nmodel = '{tiny_folder}'\nformats = ['json']\n[[prompts]]\nprompt = '{PROMPT}'\n"
    settings.write_text(asked, "utf-8")
    result = run("report", "settings", settings)
    assert (result.stdout, result.stderr) == (f"{tmp_path / 'nightly'}\n", "")
    assert (tmp_path / "nightly" / "prompt-1.json").is_file()
    settings.write_text(asked.replace("prompt =", "promt ="), "utf-8")
    mistake("report", "settings", settings, named=("unknown key 'promt' (perhaps 'prompt' was meant)",))
