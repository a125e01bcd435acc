"""What a scan was asked to do: checked, written, read back, compared."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.corpus.excerpts import TextSettings
from ffnmem.scanning.settings import ScanSettings

from ..helpers import refuses
from .states import settings


def test_refuses_bos_that_the_tokenizer_lacks(make_tiny: Callable[..., fm.Model]) -> None:
    model = make_tiny(prepend_bos=False)
    model.tokenizer.bos_token = None
    assert not TextSettings.checked(model, None, None, 64).prepend_bos
    with refuses(InputError, ValueError, "beginning-of-sequence", "prepend_bos=False"):
        TextSettings.checked(model, None, True, 64)


def test_round_trip_through_json() -> None:
    """A store could not be merged with another of the same scan."""
    chosen = settings(frequent=(5, 9, 1))
    assert ScanSettings.from_dict(json.loads(json.dumps(chosen.to_dict()))) == chosen


def test_differences_name_every_field() -> None:
    """Two scans that cannot be merged would be, or the message would not say why."""
    one = settings()
    other: dict[str, Any] = {"dtype": "bfloat16", "frequent": (1,), "bos": 7, "special": (7,)}
    for field in dataclasses.fields(ScanSettings):
        value = other.get(field.name, getattr(one, field.name))
        changed = dataclasses.replace(one, **{field.name: value if field.name in other else value + 1})
        found = one.differences(changed)
        assert len(found) == 1
        assert found[0].startswith(field.name)
    assert one.differences(settings()) == []
    assert one.differences(settings(k=4, seed=9)) == ["k 3 and 4", "seed 0 and 9"]


@given(st.integers(2, 5000))
def test_the_last_bucket_holds_the_last_position(context: int) -> None:
    """A position beyond the buckets would be added to memory that is not ours."""
    chosen = settings(context=context)
    assert (context - 1).bit_length() == chosen.n_buckets - 1
