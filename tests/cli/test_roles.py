"""``ffnmem roles``: counts by layer, the clearest neurons, the whole table as data."""

from __future__ import annotations

import pytest

import ffnmem as fm
from ffnmem.cli.options import ModelChoice
from ffnmem.neurons.role_assignment import APPLIES, ROLES, role_counts, strongest
from ffnmem.scanning import Store

from .running import data, table


@pytest.fixture(autouse=True)
def tiny_is_the_model(tiny: fm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelChoice, "load", lambda choice: tiny)


@pytest.mark.parametrize("width", [80, 120])
def test_the_table(tiny: fm.Model, tiny_store: Store, width: int) -> None:
    """Counted as the study's page counts under the same title: a neuron for every role that applies to it."""
    out = table("roles", "--store", tiny_store.folder, "--top", 2, width=width)
    frame = fm.roles(tiny, tiny_store)
    counts = role_counts(frame, flags=True)
    assert counts["weakening"].sum() > role_counts(frame)["weakening"].sum()
    assert APPLIES in " ".join(out.split())
    lines = [line.split() for line in out.splitlines()]
    for name in (*(role.name for role in ROLES if counts[role.name].any()), "none"):
        numbers = [str(n) for n in counts[name] if n]
        assert [name, *numbers, str(counts[name].sum())] in lines
    for row in strongest(frame, "weakening", 2).to_dict("records"):
        assert f"{row['layer']}.{row['neuron']}" in out
        assert f"{row['io_cosine']:.4g}" in out
    assert tiny.fingerprint in out
    assert "basis" in out


def test_json_has_counts_thresholds_and_provenance(tiny: fm.Model, tiny_store: Store) -> None:
    found = data("roles", "--store", tiny_store.folder, "--top", 1, "--sequences", 9)
    frame = fm.roles(tiny, tiny_store, n_sequences=9)
    assert found["layers"] == role_counts(frame).to_dict("records")
    assert found["applies"] == role_counts(frame, flags=True).to_dict("records")
    listed = [row["listed"] for row in found["neurons"]]
    assert listed == [role.name for role in ROLES if frame[role.column].any()]
    assert found["thresholds"]["kurtosis"] == 10.0
    assert found["partition_null"] == pytest.approx(frame.attrs["partition_null"])
    assert found["settings"]["sequences_read"] == 9
    assert found["provenance"]["fingerprint"] == tiny.fingerprint


def test_without_a_store_text_is_not_asked_for(tiny: fm.Model) -> None:
    found = data("roles", "--basis", "raw")
    assert "dead" not in found["layers"][0]
    assert found["settings"]["basis"] == "raw"
