"""``ffnmem trace``, ``silence`` and ``knockout``: the library's numbers, of one prompt and of many facts."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest

import ffnmem as fm
from ffnmem.cli.options import ModelChoice

from .running import mistake, run

FACTS = ("facts", "atlas", "--relation", "landmark.city", "--limit", 2)

"""A command, the library's call, and words of its table."""


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
