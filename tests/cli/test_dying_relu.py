"""``ffnmem dying-relu``: the library's experiment in every form, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from .running import run, table

ARGUMENTS = ("dying-relu", "--steps", 20, "--seed", 2)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_all_or_none_pushed(share: float) -> None:
    """Nothing to be dead is no mistake; every neuron dead leaves only the bias to learn."""
    out = " ".join(table(*ARGUMENTS, "--share", share, "--activation", "relu").split())
    assert ("none was pushed" in out) == (share == 0)
    assert ("64 of 64" in out) == (share == 1)


def test_pictures(tmp_path: Path) -> None:
    for share in (0.5, 0):
        run(*ARGUMENTS, "--share", share, "--plot", tmp_path / f"{share}.png")
        assert (tmp_path / f"{share}.png").stat().st_size > 1000
