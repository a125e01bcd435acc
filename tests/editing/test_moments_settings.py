"""Settings of a pass for second moments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ffnmem as fm
from ffnmem.corpus import Batch
from ffnmem.editing.moments_settings import Settings, content
from ffnmem.errors import InputError, OutOfRangeError
from tests.helpers import refuses


def checked(model: fm.Model, **changes: Any) -> Settings:
    values: dict[str, Any] = {
        "layers": None,
        "tokens": None,
        "context": None,
        "prepend_bos": None,
        "batch_tokens": 64,
        "shard": (0, 1),
    }
    return Settings.checked(model, **{**values, **changes})


def test_defaults(tiny: fm.Model) -> None:
    """A pass would read other sequences than a scan does."""
    settings = checked(tiny)
    assert settings.layers == (0, 1)
    assert settings.context == tiny.n_ctx
    assert settings.prepend_bos
    assert settings.bos == tiny.bos_token_id
    assert settings.shard_text == ""
    assert not checked(tiny, prepend_bos=False).prepend_bos


def test_layers(tiny: fm.Model) -> None:
    """Layers from a table, from the end, or named twice would not be understood."""
    assert checked(tiny, layers=[np.int64(1), -2, 1]).layers == (0, 1)
    assert checked(tiny, layers=[-1]).layers == (1,)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"layers": []}, "layers"),
        ({"tokens": 0}, "tokens"),
        ({"context": 1}, "context"),
        ({"context": 1000}, "32"),
        ({"batch_tokens": 0}, "batch_tokens"),
        ({"shard": (2, 2)}, "shard 2 of 2"),
    ],
)
def test_refused(tiny: fm.Model, changes: dict[str, Any], named: str) -> None:
    """Settings that cannot be would give numbers."""
    with refuses(InputError, ValueError, named):
        checked(tiny, **changes)


def test_no_such_layer(tiny: fm.Model) -> None:
    """A layer that is not there would be left out without a word."""
    with refuses(OutOfRangeError, IndexError, "layer 2"):
        checked(tiny, layers=[2])


@pytest.mark.parametrize("bos", [True, False])
def test_content(tiny: fm.Model, bos: bool) -> None:
    """Statistics would be polluted by BOS, pads or special tokens."""
    special = next(iter(tiny.special_token_ids))
    tokens = np.array([[7, 8, special, 9], [5, 6, 0, 0]], np.int64)
    tokens[:, 0] = special if bos else tokens[:, 0]
    batch = Batch(tokens, np.array([0, 1]), np.array([4, 2]))
    found = content(batch, checked(tiny, prepend_bos=bos))
    assert found.tolist() == [[not bos, True, False, True], [not bos, True, False, False]]


def test_shard_is_named(tiny: fm.Model) -> None:
    """An error in one of many shards would not say in which."""
    assert checked(tiny, shard=(1, 3)).shard_text == " in shard 1 of 3"
