"""What ships with the package: the embedded model, its facts and its corpus."""

from __future__ import annotations

from pathlib import Path

from .errors import FileError, quoted

EMBEDDED = ("atlas",)
"""The models that need no network."""


def embedded_folder(name: str) -> Path:
    """The folder of an embedded model: inside the installed package, or ``data/`` of a checkout."""
    candidates = [folder / name for folder in data_folders()]
    for folder in candidates:
        if (folder / "config.json").is_file():
            return folder
    raise FileError(f"the embedded model {quoted(name)} is missing from this installation (looked in {candidates[0]})")


def embedded_corpus(name: str) -> Path:
    """The file of an embedded corpus, found as the model of that name is."""
    candidates = [folder / "corpus" / f"{name}.jsonl.gz" for folder in data_folders()]
    for path in candidates:
        if path.is_file():
            return path
    raise FileError(
        f"the embedded corpus {quoted(name)} is missing from this installation (looked for {candidates[0]})"
    )


def data_folders() -> tuple[Path, Path]:
    package = Path(__file__).resolve().parents[1]
    return package / "data", package.parent / "data"
