"""Folders with files of the user's, under all names that we write: refused, or left byte for byte."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

import ffnmem as fm
from ffnmem.core.errors import FfnmemError
from ffnmem.core.folders import Kind
from ffnmem.corpus import packed
from ffnmem.editing import second_moment
from ffnmem.evaluation import evaluate, evaluating, layer_sweep, sequential, series
from ffnmem.scanning import manifest
from ffnmem.tracing import tracing

from ..evaluation.made import FACTS
from .killing import snapshot
from .material import FUZZ, answered, fresh, hostile, tiny
from .test_kills import SMALL, TEXTS, edit, own_editor, shards

COMMON = ("notes.txt", ".backup.tmp", ".tmpK9nrHs", ".lock", ".hidden", ".corpus", "manifest.json", "corpus.json")
STORE = ("state.safetensors", "stats.parquet", "values.parquet", "tokenizer.json", "corpus/tokens.bin")


@cache
def parts() -> Path:
    root = fresh()
    shards(root)
    return root


@dataclass(frozen=True)
class Writer:
    """What writes into a folder."""

    name: str
    run: Callable[[Any], Any]
    names: tuple[str, ...]  # what it writes there
    kind: Kind | None = None  # of its folders, if it takes one that it wrote before
    folder: Callable[[Path], Path] = lambda out: out  # where it lies, given what the user named

    def is_ours(self, folder: Path) -> bool:
        """Whether a folder says that it is of this kind."""
        return self.kind is not None and bool(self.kind.read_manifest(folder))


WRITERS = [
    Writer("scan", lambda out: fm.scan(tiny(), TEXTS, out, **SMALL), STORE, manifest.FOLDER),
    Writer("pack", lambda out: fm.corpus.pack(TEXTS, tiny(), out), ("tokens.bin", "documents.bin"), packed.FOLDER),
    Writer("merge", lambda out: fm.merge([parts() / "shard0", parts() / "shard1"], out), STORE),
    Writer(
        "moment",
        lambda out: second_moment(tiny(), TEXTS, out),
        ("state.safetensors", "corpus/tokens.bin"),
        folder=lambda out: out.with_name(f"{out.name}.partial"),
    ),
    Writer(
        "evaluate",
        lambda out: evaluate(tiny(), FACTS[:1], own_editor, metrics=("ES",), draws=5, out=out),
        ("scores.zip", "chunks/00000.zip"),
        evaluating.EVALUATION,
    ),
    Writer(
        "sequential",
        lambda out: sequential(tiny(), FACTS[:1], own_editor, metrics=("ES",), draws=5, out=out),
        ("decay.zip", "edits/00001.zip", "steps/00000.zip", "checkpoints/00001.zip"),
        series.EDITS,
    ),
    Writer(
        "sweep",
        lambda out: layer_sweep(
            tiny(), FACTS[:1], own_editor, [1], metrics=("ES",), draws=5, out=out if out == "" else Path(out).parent
        ),
        ("scores.zip", "chunks/00000.zip"),
        evaluating.EVALUATION,
        lambda out: out.with_name("layer-01"),
    ),
    Writer(
        "traces",
        lambda out: fm.tracing.trace_facts(tiny(), FACTS[:1], kinds=("state",), samples=2, noise=0.5, out=out),
        ("facts/notes.json",),
        tracing.TRACES,
    ),
    Writer("export", lambda out: edit(1).export(tiny(), out), ("model.safetensors", "config.json")),
    Writer("export_lora", lambda out: edit(1).export_lora(tiny(), out), ("adapter_model.safetensors",)),
]
OFTEN = [one for one in WRITERS if FUZZ or one.name in ("scan", "pack", "moment", "evaluate", "traces", "export")]
"""In ``make test``: one of each loop and each writer; the others take the same ones."""
KINDS = ("store", "corpus", "evaluation", "edits", "traces")
CONTENTS = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(KINDS).map(lambda kind: json.dumps({"kind": f"ffnmem {kind}", "schema": 1}).encode()),
    st.sampled_from([b"", b"{}", b"[]", b"[" * 5000, b"link", b"folder"]),
)


def put(path: Path, content: bytes) -> None:
    """A file with this content, or a link to a missing file or an empty folder of the user's."""
    with contextlib.suppress(FileExistsError, NotADirectoryError):  # two names may exclude each other
        path.parent.mkdir(parents=True, exist_ok=True)
        if content == b"link":
            path.symlink_to("nowhere")
        elif content == b"folder":
            path.mkdir()
        else:
            with path.open("xb") as file:
                file.write(content)


@hostile(examples=30, writer=st.sampled_from(OFTEN), data=st.data())
def test_folders_of_others_are_left(writer: Writer, data: st.DataObject) -> None:
    names = st.sampled_from([*writer.names, *COMMON])
    inside = data.draw(st.dictionaries(names, CONTENTS, max_size=4))
    root = fresh()
    folder = writer.folder(root / "out")
    folder.mkdir(parents=True)
    for name, content in inside.items():
        put(folder / name, content)
    before, ours = snapshot(root), writer.is_ours(folder)
    found = answered(lambda: writer.run(root / "out"))
    after = snapshot(root)
    if isinstance(found, FfnmemError):
        assert ours or after == before, f"{writer.name}: {found}"
        return
    foreign = {name.partition("/")[0] for name in inside}
    assert ours or not foreign, f"{writer.name} wrote beside {sorted(foreign)}"
    changed = {name for name, value in before.items() if after.get(name) != value}
    if not inside:
        changed.discard(folder.relative_to(root).as_posix())  # a pass that ends removes the empty folder that it took
    users = changed & {(folder / name).relative_to(root).as_posix() for name in ("notes.txt", ".backup.tmp", ".hidden")}
    assert not (users if ours else changed), f"{writer.name} changed {sorted(changed)}"


@cache
def finished(writer: Writer) -> Path:
    """A folder with what it wrote, and that alone."""
    root = fresh()
    root.mkdir()
    writer.run(root / "out")
    return root


@hostile(
    examples=8,
    writer=st.sampled_from(OFTEN),
    extra=st.dictionaries(
        st.sampled_from(("notes.txt", ".backup.tmp", ".tmpK9nrHs", "store2/x")), st.binary(max_size=9)
    ),
    content=st.one_of(st.none(), CONTENTS),
)
def test_what_users_put_into_ours_is_left(writer: Writer, extra: dict[str, bytes], content: bytes | None) -> None:
    """Their own files beside ours; and a manifest of their own, with which the folder is theirs."""
    root = fresh()
    shutil.copytree(finished(writer), root, symlinks=True)
    folder = writer.folder(root / "out")
    for name, text in extra.items():
        put(folder / name, text)
    if content is not None and writer.kind is not None:
        (folder / writer.kind.manifest).unlink()
        put(folder / writer.kind.manifest, content)
    taken = writer.kind is not None and writer.is_ours(folder)
    before = snapshot(root)
    found = answered(lambda: writer.run(root / "out"))
    after = snapshot(root)
    if writer.kind is not None and not taken:
        assert isinstance(found, FfnmemError), f"{writer.name} took a folder with a manifest of the user's"
        assert after == before
    for name, text in extra.items():
        assert (folder / name).read_bytes() == text
    assert not [name for name in after if ".ffnmem-" in name]


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.name)
def test_an_empty_name_is_not_the_current_folder(writer: Writer, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert isinstance(answered(lambda: writer.run("")), FfnmemError)
    assert list(tmp_path.iterdir()) == []
