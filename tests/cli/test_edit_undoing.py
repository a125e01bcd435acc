"""Saved edits put together, and checkpoints taken back."""

from __future__ import annotations

from pathlib import Path

import ffnmem as fm
from ffnmem.cli.edit import load_edits

from .editing import saved
from .running import data, mistake, run


def exported(tiny: fm.Model, folder: Path, out: Path) -> tuple[Path, Path]:
    """Two edits' files and a checkpoint with both."""
    files = out / "a.safetensors", out / "b.safetensors"
    for seed, file in enumerate(files):
        saved(tiny, file, seed=seed)
    run("edit", "apply", files[0], files[1], "--model", folder, "--export", out / "both")
    return files


def test_several_files_are_one_edit(tiny: fm.Model, tmp_path: Path) -> None:
    first, second = (saved(tiny, tmp_path / str(seed), seed=seed) for seed in range(2))
    assert load_edits([str(tmp_path / "0"), str(tmp_path / "1")]).digest == (first + second).digest


def test_there_and_back(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """What comes back is the original, to the bit; the model that the edit names is taken unless another is named."""
    files = exported(tiny, tiny_folder, tmp_path)
    undo = ("edit", "revert", files[0], files[1], "--model", tmp_path / "both")
    result = run(*undo, "--original", tiny_folder, "--export", tmp_path / "plain")
    assert result.stdout == f"{tmp_path / 'plain'}\n"
    assert fm.load(str(tmp_path / "plain")).fingerprint == tiny.fingerprint
    found = data("edit", "apply", files[0], "--model", tmp_path / "plain")
    assert found["edit"]["fingerprint"] == tiny.fingerprint


def test_what_would_be_lost_is_refused(tiny: fm.Model, tiny_folder: Path, tmp_path: Path) -> None:
    """An edit that is not named, or another original, and nothing is written."""
    files = exported(tiny, tiny_folder, tmp_path)
    undo = ("edit", "revert", files[0], "--model", tmp_path / "both", "--export", tmp_path / "plain")
    mistake(*undo, "--original", tiny_folder, named=("nothing else", "all of its edits"))
    mistake(*undo, "--original", tmp_path / "both", named=("--original", tiny.fingerprint))
    assert not (tmp_path / "plain").exists()
