import numpy as np
import pytest

from ffnmem.reports.summary import QUANTILES, RATES, facts, layer_summary, rate_column
from ffnmem.scanning import Store


def test_layers_are_the_stats(tiny_store: Store) -> None:
    rows = layer_summary(tiny_store)
    assert list(rows.columns) == ["layer", "neurons", "dead", *RATES]
    assert rows["layer"].tolist() == list(range(tiny_store.n_layers))
    for row in rows.to_dict("records"):
        stats = tiny_store.stats(row["layer"])
        assert row["neurons"] == len(stats)
        assert row["dead"] == stats["dead"].sum()
        for quantile in QUANTILES:
            assert row[rate_column(quantile)] == pytest.approx(np.quantile(stats["firing_rate"], quantile))


def test_facts_name_what_was_scanned(tiny_store: Store) -> None:
    said = " ".join(facts(tiny_store).values())
    for value in (tiny_store.fingerprint, f"{tiny_store.n_tokens:,} tokens", tiny_store.manifest["corpus"]["hash"]):
        assert value in said
    assert "a part" not in said  # which a shard is


def test_facts_say_that_a_shard_is_a_part(tiny_store: Store) -> None:
    manifest = {**tiny_store.manifest, "units": {"done": 1, "total": 3}}
    assert "a part: 1 of 3 units" in facts(Store(tiny_store.folder, manifest))["scanned"]
