"""The pass: what a checkpoint holds, what is reported, and that float32 examples follow a half-precision pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffnmem as fm
from ffnmem.models.layer_pass import LayerPass
from ffnmem.scanning.state import NOWHERE, sequence_of

from .corpora import SMALL, digests, texts
from .gated import load_gated


def test_that_progress_is_told_in_tokens_up_to_the_end(tiny: fm.Model, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    store = fm.scan(
        tiny, texts(60), tmp_path / "out", dtype="bfloat16", progress=lambda *news: told.append(news), **SMALL
    )
    for phase in ("scan", "rescore", "project"):
        mine = [(done, total) for name, done, total in told if name == phase]
        assert [done for done, _ in mine] == sorted(done for done, _ in mine)
        assert mine[-1][0] == mine[-1][1]
    total = next(total for name, _, total in told if name == "scan")
    assert total == store.corpus.n_tokens


@pytest.mark.parametrize("kind", ["classic", "gated"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_that_an_interrupted_pass_goes_on_where_it_was(
    tiny: fm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, kind: str
) -> None:
    model = tiny if kind == "classic" else load_gated("llama")
    options = {"dtype": dtype, "batch_tokens": 64, **SMALL}
    whole = fm.scan(model, texts(60), tmp_path / "whole", **options)
    ran: list[int] = []
    run = LayerPass.run
    monkeypatch.setattr("ffnmem.corpus.passes.check_same", lambda *_: None)  # runs, but scans nothing

    def counting(self: LayerPass, *rest: Any, **more: Any) -> None:
        ran.append(1)
        if len(ran) % 7 == 0:
            raise KeyboardInterrupt
        run(self, *rest, **more)

    monkeypatch.setattr(LayerPass, "run", counting)
    for _ in range(60):
        try:
            again = fm.scan(model, texts(60), tmp_path / "again", checkpoint_seconds=0.0, **options)
            break
        except KeyboardInterrupt:
            continue
    attempts = len(ran) // 7
    assert attempts >= 1
    assert digests(again.folder) == digests(whole.folder)
    needed = len(ran) - attempts  # nothing that was checkpointed ran twice
    ran.clear()
    monkeypatch.setattr(LayerPass, "run", lambda self, *rest, **more: (ran.append(1), run(self, *rest, **more))[0])
    fm.scan(model, texts(60), tmp_path / "third", **options)
    assert needed == len(ran)


def test_that_every_candidate_is_run_again_after_half_precision(tiny: fm.Model, tmp_path: Path) -> None:
    store = fm.scan(tiny, texts(40), tmp_path / "out", dtype="bfloat16", **SMALL)
    for index in range(2):
        layer = store.state.layer(index)
        assert layer.kept.shape[2] == 2 * SMALL["k"]
        real = layer.kept_at != NOWHERE
        assert np.isfinite(layer.exact[real]).all()
        assert (sequence_of(layer.kept_at[real]) == sequence_of(layer.exact_at[real])).all()
        assert np.isfinite(layer.sample).all()
        assert np.isfinite(layer.draw).all()
