"""``ffnmem trace``, ``silence`` and ``knockout``: the library's numbers, of one prompt and of many facts."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.cli.options import ModelChoice
from ffnmem.scanning import Store

from .running import PROMPT, data, mistake, run, table

ABOUT = (PROMPT, "--subject", "Eiffel Tower")
FACTS = ("facts", "atlas", "--relation", "landmark.city", "--limit", 2)
NOISY = ("--samples", 2, "--noise", 1.0, "--severed", "ffn")
Map = Callable[[fm.Model], Any]

MAPS: list[tuple[tuple[object, ...], Map, tuple[str, ...]]] = [
    (
        ("trace", *ABOUT, *NOISY, "--kind", "ffn", "--window", 1),
        lambda model: fm.trace_fact(
            model, PROMPT, "Eiffel Tower", samples=2, noise=1.0, kinds=("ffn",), window=1, severed=("ffn",)
        ),
        ("·Tower*", "FFN of one layer", "with noise on the subject (*)", "<|endoftext|>"),
    ),
    (
        ("silence", *ABOUT, "--kind", "ffn", "--kind", "attention", "--window", 1),
        lambda model: fm.tracing.silence_fact(model, PROMPT, "Eiffel Tower", kinds=("ffn", "attention"), window=1),
        ("·Tower*", "without FFN of one layer", "writes nothing", "whole prompt"),
    ),
    (
        ("knockout", *ABOUT, "--window", 1, "--at", 1, "--at", -1),
        lambda model: fm.knockout(model, PROMPT, "Eiffel Tower", window=1, positions=[1, -1]),
        ("·Tower*", "without looking at", "whole subject", "chosen"),
    ),
]
"""A command, the library's call, and words of its table."""


@pytest.mark.parametrize(("asked", "call", "words"), MAPS, ids=["trace", "silence", "knockout"])
def test_one_prompt(
    asked: tuple[object, ...],
    call: Map,
    words: tuple[str, ...],
    tiny: fm.Model,
    tiny_folder: Path,
    tmp_path: Path,
) -> None:
    """The library's numbers, with the options that were given."""
    mine, asked = call(tiny), (*asked, "--model", tiny_folder)
    assert data(*asked, "--full")["scores"] == mine.to_dict()["scores"]
    assert data(*asked)["largest"] == mine.brief()["largest"]
    frame = pd.read_csv(io.StringIO(run(*asked, "--csv").stdout))
    pd.testing.assert_frame_equal(frame, mine.to_frame(), check_dtype=False)
    out = " ".join(table(*asked, "--plot", tmp_path / "one.svg").split())
    assert [part for part in words if part not in out] == []
    assert "<svg" in (tmp_path / "one.svg").read_text("utf-8")


@pytest.mark.parametrize(
    ("command", "columns"),
    [
        (("trace", *FACTS, "--samples", 2), "kind group layer mean low high n"),
        (("silence", *FACTS, "--known"), "kind group layer loss low high share share_low share_high n"),
        (("knockout", *FACTS, "--known"), "kind group layer share low high loss n"),
    ],
    ids=["trace", "silence", "knockout"],
)
def test_many_facts(
    command: tuple[object, ...], columns: str, atlas: fm.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The means by group. --limit counts those that are known: it would else be a smaller number than asked for."""
    monkeypatch.setattr(ModelChoice, "load", lambda choice: atlas)
    ran = run(*command, "-o", tmp_path / "kept", "--json", "--full", "--plot", tmp_path / "many.png")
    assert ("of these are drawn" in ran.stderr) == ("--known" in command)
    found = json.loads(ran.stdout)
    assert found["n"] == len(found["facts"]) == 2
    assert {row["group"] for row in found["groups"]} >= {"last subject"}
    assert (tmp_path / "many.png").stat().st_size > 10_000
    frame = pd.read_csv(io.StringIO(run(*command, "-o", tmp_path / "kept", "--csv").stdout))
    assert list(frame.columns) == columns.split()
    if "--known" not in command:
        mistake(*command, "--window", 1, "-o", tmp_path / "kept", named=("window", "another folder"))


def test_the_mean_over_a_store(tiny: fm.Model, tiny_store: Store, tiny_folder: Path) -> None:
    mine = fm.tracing.silence_fact(tiny, PROMPT, "Eiffel Tower", mean=tiny_store)
    found = data("silence", *ABOUT, "--model", tiny_folder, "--mean", tiny_store.folder, "--full")
    assert found["scores"] == mine.to_dict()["scores"]
    assert found["replaced_by"] == "mean over a store"
