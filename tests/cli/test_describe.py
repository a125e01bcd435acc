"""``ffnmem describe`` and ``ffnmem store --export``: what the library says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffnmem.scanning import Store

from ..describing.endpoints import said, serving
from .running import csv, data, mistake, table


@pytest.fixture
def store(atlas_store: Store) -> Store:
    return atlas_store


def test_scores(store: Store) -> None:
    frame = csv("describe", "--store", store.folder, "3.17", "--score")
    assert frame["fuzzing"].notna().all()
    assert frame["intruder"].isna().all()
    assert "by chance detection 50%" in table("describe", "--store", store.folder, "3.17", "--score", "--intruder")


def test_an_endpoint(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    with serving(lambda number, body: said("DESCRIPTION: museums")) as server:
        asked = ["describe", "--store", store.folder, "3.17", "--endpoint", server.url, "--explainer-model", "m"]
        found = data(*asked, "--out", file)
        assert found["neurons"][0]["description"] == "museums"
        assert found["provenance"]["describe"]["explainer"] == f"m at {server.url}"
        data(*asked, "--out", file)
        assert len(server.requests) == 1
        told = table(*asked, "--rules", "--score")
    assert "judged by m" in " ".join(told.split())
    assert len(file.read_text("utf-8").splitlines()) == 2


def test_an_endpoint_that_is_not_there(store: Store) -> None:
    asked = ["describe", "--store", store.folder, "3.17", "--endpoint"]
    with serving(lambda number, body: (401, {}, b'{"error": {"message": "no"}}')) as server:
        mistake(*asked, server.url, "--explainer-model", "m", named=("401", "no key was sent"))
