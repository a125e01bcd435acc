"""Small models, stores and files that the hostile suite breaks: made once a process, in a folder that goes with it."""

from __future__ import annotations

import atexit
import shutil
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

import ffnmem as fm
from ffnmem.scanning import Store, scan

from ..helpers import build_gpt2, build_tokenizer
from ..scanning.texts import tiny_texts

COUNTER = count()


@cache
def place() -> Path:
    """A folder for this process."""
    torch.set_num_threads(1)
    folder = Path(mkdtemp(prefix="ffnmem-hostile-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def fresh() -> Path:
    """A path in it where nothing lies yet."""
    return place() / str(next(COUNTER))


def copied(source: Path) -> Path:
    """A copy of a file or folder, to be broken."""
    target = fresh()
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        target = target.with_suffix(source.suffix)
        shutil.copyfile(source, target)
    return target


@cache
def tokenizer() -> Any:
    return build_tokenizer()


@cache
def tiny() -> fm.Model:
    """A random two-layer GPT-2. Shared: do not change it."""
    return fm.load(build_gpt2(), tokenizer=tokenizer())


@cache
def tiny_folder() -> Path:
    """The same in the hub's own layout. Shared: copy it."""
    folder = fresh()
    build_gpt2().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@cache
def tiny_store() -> Store:
    """A finished scan of it. Shared: copy its folder."""
    return scan(tiny(), tiny_texts(), fresh(), k=3, sample=8, draws=4, frequent=8)
