"""``pack``: a corpus tokenised once into files that every later scan reads."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..core.checked_files import with_checksum
from ..core.errors import FileError, InputTypeError, quoted
from ..core.files import workspace, writing
from ..core.folders import claimed
from ..core.progress import Progress
from ..core.types import OutFolder, Texts, Tokenizer, checked
from .packed import (
    ARRAYS,
    COUNTS,
    DOCUMENTS,
    FILES,
    FOLDER,
    KIND,
    MANIFEST,
    SCHEMA,
    TOKENS,
    Packed,
    file_record,
    open_packed,
)
from .readers import Document, Problems
from .sources import Corpus, open_corpus
from .tokenizing import Encoder, tokenizer_hash


@checked
def pack(
    texts: Texts,
    model: Tokenizer,
    out: OutFolder,
    *,
    progress: Progress | None = None,
) -> Packed:
    """Tokenise a corpus once, for every scan.

    Tokenises a corpus into a folder, with an index of its documents and checksums, unless it lies there already. What
    is wrong with a text is counted and listed.

    Note:
        The folder gets ``tokens.bin`` (uint16, or uint32 for a vocabulary above 65,536; little endian),
        ``documents.bin`` (int64, where documents begin, and the end), ``counts.bin`` (int64, occurrences of each
        token id) and ``corpus.json`` (hashes, sizes, problems, a CRC-32 for every MiB of each file), which is written
        last: until then it only says what the folder is for. A packed corpus that lies there is kept if the same
        tokenizer made it from the same documents, whatever files they come from now, and replaced otherwise; a folder
        with anything else is refused.

        No special tokens are added, and the name of one in a text ("<|endoftext|>") is tokenised as ordinary text,
        counted as a problem. Documents above 262,144 characters are tokenised in pieces, cut before a space between
        words, where byte-level tokenizers begin a new token anyway; a tokenizer that treats the beginning of a text
        otherwise has a different token at such a cut. Memory does not grow with the number of documents.

    Args:
        texts: a :class:`Corpus`, or anything that :func:`open_corpus` takes. A packed corpus is opened where it lies.
        model: a :class:`ffnmem.Model`, or a Hugging Face tokenizer.
        out: the folder: new, empty, or of a packed corpus; made if it is not there, with those above it.
        progress: called as ("pack", documents, tokens) with what is done so far: the end is not known.

    Returns:
        the packed corpus, see :func:`open_packed`.

    Raises:
        FileError: a source that cannot be read or holds no text, a folder that cannot be written or holds something
            else, a packed source of another tokenizer. InputError: a source of another kind.

    Example:
        $ ffnmem pack atlas --out packed
        $ ffnmem pack atlas --model atlas --out packed --json
    """
    corpus = texts if isinstance(texts, Corpus | Packed) else open_corpus(texts)
    if not hasattr(model, "tokenizer") and not hasattr(model, "save_vocabulary"):
        raise InputTypeError(f"pack: model must be a Model (from fm.load) or a tokenizer, not {quoted(model)}")
    identity = tokenizer_hash(model)
    if isinstance(corpus, Packed):
        return open_packed(corpus.folder, identity)
    with claimed(out, FOLDER) as target:
        stamp = corpus.stamp()
        ready = reusable(target, corpus, identity, stamp)
        if ready is not None:
            return ready
        settings = {"model": name_of(model), "tokenizer_hash": identity, "source": corpus.name, "stamp": stamp}
        write_pack(target, corpus, Encoder(getattr(model, "tokenizer", model)), settings, progress)
        return open_packed(target, identity)


def name_of(model: Any) -> str:
    """The name of a model, or of the folder or id that a tokenizer came from."""
    if hasattr(model, "tokenizer"):
        return str(model.name)
    return Path(getattr(model, "name_or_path", "")).name or type(model).__name__


def corpus_hash(documents: Iterable[Document]) -> str:
    """32 hexadecimal digits over the texts, each with its length in front."""
    digest = hashlib.blake2b(digest_size=16)
    for document in documents:
        digest.update(apart(document.text))
    return digest.hexdigest()


def apart(text: str) -> bytes:
    """A text for a hash of several, its length in front."""
    data = text.encode("utf-8")
    return len(data).to_bytes(8, "little") + data


def reusable(folder: Path, corpus: Corpus, identity: str, stamp: str | None) -> Packed | None:
    """The pack that lies there if it is complete and of this tokenizer and these documents."""
    try:
        found = open_packed(folder, identity)
    except FileError:  # none, or none to use
        return None
    if stamp is not None and stamp == found.stamp:
        return found
    # Other files, or none: the documents decide, which takes reading them but not tokenising them.
    if not corpus.repeatable or corpus_hash(corpus) != found.hash:
        return None
    return found


def write_pack(
    folder: Path, corpus: Corpus, encoder: Encoder, settings: dict[str, Any], progress: Progress | None
) -> None:
    """Tokenise into temporary files, then put them in place, the description last. Raises FileError."""
    types = {TOKENS: encoder.dtype, DOCUMENTS: np.dtype("<i8"), COUNTS: np.dtype("<i8")}
    counts = np.zeros(encoder.size, np.int64)
    digest, problems = hashlib.blake2b(digest_size=16), Problems()
    total = n_documents = 0
    with workspace(folder / MANIFEST) as (_, room), ExitStack() as open_files:
        with writing(folder):
            # Unbuffered: what a full disk does not take is an error of the write, not of the close.
            files = {name: open_files.enter_context((room / name).open("xb", buffering=0)) for name in ARRAYS}

        def append(name: str, values: np.ndarray) -> None:
            with writing(folder):
                data = values.astype(types[name]).tobytes()
                if files[name].write(data) != len(data):  # tofile tells nothing of a few bytes that do not fit
                    raise OSError("the disk is full")

        append(DOCUMENTS, np.zeros(1))
        for batch in filter(None, encoder.encode(corpus)):
            for document, tokens in batch:
                digest.update(apart(document.text))
                if encoder.has_special_text(document.text):
                    problems.add("special_text", document.source, document.number)
                if not len(tokens):
                    problems.add("no_tokens", document.source, document.number)
            ends = total + np.cumsum([len(tokens) for _, tokens in batch])
            text = np.concatenate([tokens for _, tokens in batch])
            append(TOKENS, text)
            append(DOCUMENTS, ends)
            counts += np.bincount(text, minlength=encoder.size)
            total, n_documents = int(ends[-1]), n_documents + len(batch)
            if progress is not None:
                progress("pack", n_documents, total)
        if not total:
            kinds = "; ".join(f"{p.count:,} × {p.meaning} (first {p.first})" for p in corpus.problems)
            raise FileError(f"{corpus.name} holds no text" + (f": {kinds}" if kinds else ""))
        append(COUNTS, counts)
        open_files.close()
        with writing(folder):
            state = {
                "kind": KIND,
                "schema": SCHEMA,
                "hash": digest.hexdigest(),
                **settings,
                "vocab": encoder.size,
                "documents": n_documents,
                "tokens": total,
                "problems": [asdict(p) for p in Problems((*corpus.problems, *problems.table())).table()],
                "files": {name: file_record(room / name, types[name]) for name in ARRAYS},
            }
            (room / MANIFEST).write_text(json.dumps(with_checksum(state), ensure_ascii=False, indent=1) + "\n", "utf-8")
            put_in_place(room, folder)


def put_in_place(room: Path, folder: Path) -> None:
    """Rename finished files into a folder of ours; from the first to the last step there is no corpus there."""
    FOLDER.mark(folder)
    for name in FILES:
        (room / name).replace(folder / name)


def link_pack(source: Path, folder: Path) -> None:
    """The files of a pack in another folder of ours, or a new one, without a copy where the file system allows it.

    Raises FileError.
    """
    with claimed(folder, FOLDER) as target, workspace(target / MANIFEST) as (_, room), writing(target):
        for name in FILES:
            try:
                os.link(source / name, room / name)
            except OSError:
                shutil.copyfile(source / name, room / name)
        put_in_place(room, target)
