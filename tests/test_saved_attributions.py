"""Attributions as files: back to the last bit, and refused where they are not what was written."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

import ffnmem as fm
from ffnmem.core.errors import FileError

from .helpers import PROMPT, refuses


@pytest.fixture(scope="module")
def capture(tiny: fm.Model) -> fm.prompts.Capture:
    return fm.capture(tiny, PROMPT)


@pytest.mark.parametrize("target", [" Paris", fm.prompts.NEXT])
def test_an_attribution_comes_back(capture: fm.prompts.Capture, target: str, tmp_path: Path) -> None:
    found = fm.attribute(capture, target, " Rome" if target == " Paris" else None)
    again = fm.prompts.Attribution.load(found.save(tmp_path / "found.safetensors"))
    for name in ("neuron_logits", "coefficients", "logits"):
        assert torch.equal(getattr(again, name), getattr(found, name)), name
        assert getattr(again, name).dtype == getattr(found, name).dtype
    pd.testing.assert_frame_equal(again.components, found.components, check_exact=True)
    assert again.to_dict() == found.to_dict()
    assert again.provenance == found.provenance
    assert (repr(again), again.error) == (repr(found), found.error)


def test_paths_come_back(capture: fm.prompts.Capture, tmp_path: Path) -> None:
    found = fm.attribute_paths(capture, " Paris")
    again = fm.prompts.PathAttribution.load(found.save(tmp_path / "paths.safetensors"))
    assert torch.equal(again.neuron_logits, found.neuron_logits)
    pd.testing.assert_frame_equal(again.components, found.components, check_exact=True)
    assert again.to_dict() == found.to_dict()
    assert again.sheet() == found.sheet()


def test_another_kind_or_a_broken_file_is_refused(capture: fm.prompts.Capture, tmp_path: Path) -> None:
    path = fm.attribute(capture, " Paris").save(tmp_path / "found.safetensors")
    with refuses(FileError, OSError, "found.safetensors", "path attribution"):
        fm.prompts.PathAttribution.load(path)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with refuses(FileError, OSError, "found.safetensors", "checksum"):
        fm.prompts.Attribution.load(path)
    path.write_bytes(data[:-40])
    with refuses(FileError, OSError, "found.safetensors"):
        fm.prompts.Attribution.load(path)
    with refuses(FileError, OSError, "nothing.safetensors"):
        fm.prompts.Attribution.load(tmp_path / "nothing.safetensors")
    with refuses(FileError, OSError, "missing"):
        fm.attribute(capture, " Paris").save(tmp_path / "missing" / "found.safetensors")
