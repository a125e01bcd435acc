"""What every result says about how it was made."""

from __future__ import annotations

import dataclasses
import json

import pytest

import ffnmem as fm
from ffnmem.core.provenance import Provenance

PLAIN = Provenance("tiny", "0123456789ab", "float32", "cpu", prepend_bos=True)


def test_as_dict_is_json() -> None:
    """A result's file could not be written, or would lack what reproduces it."""
    record = json.loads(json.dumps(PLAIN.with_settings(basis="raw", seed=3).to_dict()))
    assert record == {
        "model": "tiny",
        "fingerprint": "0123456789ab",
        "dtype": "float32",
        "device": "cpu",
        "prepend_bos": True,
        "basis": "raw",
        "seed": 3,
        "ffnmem": fm.__version__,
    }


def test_prepend_bos_is_said_only_where_it_was_decided() -> None:
    """Given token ids, nobody put a token in front: saying False would be an invention."""
    assert "prepend_bos" not in dataclasses.replace(PLAIN, prepend_bos=None).to_dict()
    assert dataclasses.replace(PLAIN, prepend_bos=False).to_dict()["prepend_bos"] is False


def test_with_settings_adds_and_replaces() -> None:
    """Settings would be lost on the way from one step to the next, or the earlier provenance change under its owner."""
    first = PLAIN.with_settings(basis="raw", seed=3)
    second = first.with_settings(basis="folded")
    assert dict(second.settings) == {"basis": "folded", "seed": 3}
    assert dict(first.settings) == {"basis": "raw", "seed": 3}
    assert dict(PLAIN.settings) == {}


def test_frozen() -> None:
    """A result's origin must not be rewritten."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        PLAIN.model = "other"  # type: ignore[misc]
