"""``merge``: shards of one scan become one store, whatever their order and grouping."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

import numpy as np

from ..core.errors import InputError
from ..core.files import appearing, check_new_folder, user_path
from ..core.folders import making
from ..core.types import OutFolder, Stores, checked
from ..corpus.packing import link_pack
from .scanning import write_store
from .store import Store, open_store
from .tables import CORPUS, TOKENIZER, VALUES

FACTS = ("provenance", "corpus", "special_token_ids", "bos", "rescored_in", "basis")


@checked
def merge(stores: Stores, out: OutFolder) -> Store:
    """Join the shards of a scan into one store.

    The result does not depend on the order or on how merges are nested, and equals, byte for byte, the store of one
    scan over all their units, if that was made on the same kind of machine; until every shard is in, it says that it is
    a part. Nothing is replaced.

    Args:
        stores: the folders of scans, at least one, of the same model, tokenizer, corpus and settings. Where one has a
            table of what its values write, so has the result. In Python, folders or stores.
        out: the folder of the joined store.

    Raises:
        InputError: stores that differ, or that hold the same part of the corpus. FileError: a damaged or missing store.

    Example:
        $ ffnmem merge runs/0 runs/1 --out runs/all
    """
    opened = [store if isinstance(store, Store) else open_store(store) for store in stores]
    if not opened:
        raise InputError("no stores to merge: give at least one")
    check_mergeable(opened)
    target = user_path(out)
    # The one with the first unit speaks for all, whatever their order: names and devices may differ between shards.
    first = min(opened, key=first_unit)
    with making(target.parent), appearing(check_new_folder(out)) as folder:
        state = opened[0].state.state()
        for other in opened[1:]:
            state.merge(other.state.state())
        link_pack(first.folder / CORPUS, folder / CORPUS)
        shutil.copyfile(first.verified_path(TOKENIZER), folder / TOKENIZER)
        scanned = [store for store in opened if VALUES in store.manifest["files"]]
        if projected := scanned or [store for store in opened if store.projected]:
            one = min(projected, key=first_unit)
            shutil.copyfile(one.verified_path(VALUES) if scanned else one.folder / VALUES, folder / VALUES)
        facts = {name: first.manifest[name] for name in FACTS if name in first.manifest}
        write_store(folder, state, first.state.identity, first.sequences, facts, bool(scanned))
    return open_store(target)


def first_unit(store: Store) -> int:
    """The first of the corpus's units that a store holds."""
    return min(store.state.shared["done"].tolist(), default=sys.maxsize)


def check_mergeable(stores: Sequence[Store]) -> None:
    """Raise InputError unless all are different parts of the same scan: what is in two stores would count twice."""
    for i, one in enumerate(stores):
        for other in stores[i + 1 :]:
            differ = one.state.identity.differences(other.state.identity) + one.settings.differences(other.settings)
            if differ:
                raise InputError(f"{one.folder} and {other.folder} are of different scans: {'; '.join(differ)}")
            both = np.intersect1d(one.state.shared["done"], other.state.shared["done"])
            if len(both):
                raise InputError(
                    f"{one.folder} and {other.folder} both hold {len(both)} of the corpus's units: these would count "
                    "twice"
                )
