"""Tokenizers: read from a folder or the hub, and refused where they name tokens that the model does not have."""

from __future__ import annotations

import copy
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import FfnmemError, InputError, ModelError, quoted
from ..foreign import foreign
from .configs import read_json
from .sources import ask_hub, is_cached, locate, quiet

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")
LARGEST = 1 << 22
"""Ids from here on belong to no model: four million, where the largest vocabularies have a quarter of one. Libraries
below walk through all ids up to the last one."""
WITHOUT_ROWS = frozenset({"<image_soft_token>"})
"""Tokens of a tokenizer that a text model shares with a multimodal one, as Gemma 3's 262144, one beyond its rows."""


def load_tokenizer(source: str | Path) -> Any:
    """The tokenizer alone of what ``load`` takes as a name, for work that needs no weights.

    Raises:
        ModelNotFoundError: no such name, folder or hub id. InputError: there, but without a tokenizer.
    """
    name, path, local = locate(source)
    tokenizer = open_tokenizer(name, path, local or is_cached(path) or ask_hub(name))
    check_ids(tokenizer, name)
    return tokenizer


def tokenizer_of(origin: str, name: str) -> Any:
    """The tokenizer of the folder or hub id that a loaded model says it came from."""
    if not origin:
        raise InputError(f"pass tokenizer=…: this {name} does not say which folder or id it came from")
    try:
        return open_tokenizer(origin, origin, Path(origin).is_dir() or is_cached(origin) or ask_hub(origin))
    except FfnmemError as error:
        raise InputError(f"pass tokenizer=…: none was found for {name!r} ({error})") from None


def open_tokenizer(name: str, path: str, local: bool) -> Any:
    """The tokenizer in a folder or of a hub id; raises InputError, naming the file where it can be told."""
    import transformers

    check_added_tokens(name, Path(path))
    with quiet(), foreign(InputError, f"{name} has no tokenizer that can be read", lambda: broken_file(Path(path))):
        return transformers.AutoTokenizer.from_pretrained(path, local_files_only=local, trust_remote_code=False)


def own_copy(tokenizer: Any, name: str) -> Any:
    """A copy of a tokenizer that has an end, a pad and a beginning, as TransformerLens gives them to those without.

    The end takes the place of the others; ``<|endoftext|>`` that of the end.
    """
    with foreign(InputError, f"the tokenizer of {name} cannot be copied"):
        found = copy.deepcopy(tokenizer)
    if found.eos_token is None:
        found.eos_token = "<|endoftext|>"
    if found.pad_token is None:
        found.pad_token = found.eos_token
    if found.bos_token is None:
        found.bos_token = found.eos_token
    for token in ("pad_token", "eos_token", "bos_token"):
        if getattr(found, f"{token}_id") is None:
            found.add_special_tokens({token: getattr(found, token)})
    return found


def check_added_tokens(name: str, folder: Path) -> None:
    """Raise InputError for an id that is out of range: some classes make a token for every id below it."""
    for file, field in (("tokenizer_config.json", "added_tokens_decoder"), ("added_tokens.json", None)):
        if not (folder / file).is_file():
            continue
        with suppress(ModelError):  # which is said when the library cannot read it either
            found = read_json(folder / file)
            ids = found.get(field) if field is not None else list(found.values())
            for i in ids if isinstance(ids, dict | list) else ():
                if str(i).isdecimal() and int(i) >= LARGEST:
                    raise InputError(f"{name}: {file} has a token with the id {quoted(i)}, which no model has")


def check_ids(tokenizer: Any, name: str, rows: int = LARGEST) -> None:
    """Raise InputError where a tokenizer has no tokens of its own, or ids beyond the rows of an embedding."""
    with foreign(InputError, f"{name} has no tokenizer that can be read"):
        vocabulary, special = tokenizer.get_vocab(), set(tokenizer.all_special_tokens)
    # Without its files, a tokenizer may come up with special tokens only instead of failing.
    if set(vocabulary) <= special:
        raise InputError(f"{name} has no tokenizer")
    last = max((token for token in vocabulary if token not in WITHOUT_ROWS), key=vocabulary.__getitem__)
    if vocabulary[last] >= rows:
        has = f"the embedding has {rows:,} rows" if rows < LARGEST else "no model has so many"
        raise InputError(f"the tokenizer of {name} has ids up to {vocabulary[last]:,} ({quoted(last)}), but {has}")


def broken_file(folder: Path) -> str:
    """Which of the JSON files of a tokenizer in a folder is none, for a message; empty if all are."""
    for file in FILES:
        if (folder / file).is_file():
            try:
                read_json(folder / file)
            except ModelError as error:
                return f" ({error})"
    return "" if (folder / "tokenizer.json").is_file() or not folder.is_dir() else " (there is no tokenizer.json)"
