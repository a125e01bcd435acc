"""Where a neuron's name leads to: its card on the same page, or its page in a site of all neurons."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..core.checked_files import is_whole
from ..core.errors import FileError, InputError
from ..core.files import user_folder
from ..core.folders import Kind

SITE = Kind("site.json", "ffnmem site", 1, "the site")
INDEX = "index.html"

Links = Callable[[int, int], str]
"""The address of a neuron's card, by layer and neuron; empty where it has none."""


def nowhere(layer: int, neuron: int) -> str:
    """No neuron has a card."""
    return ""


def anchor(layer: int, neuron: int) -> str:
    """The id of a neuron's card on a page."""
    return f"n{layer}.{neuron}"


def to_cards(cards: Iterable[tuple[int, int]], others: Links = nowhere) -> Links:
    """Links to the cards of a page, given by layer and neuron, and of other neurons to where ``others`` says."""
    here = {place: f"#{anchor(*place)}" for place in cards}
    return lambda layer, neuron: here.get((int(layer), int(neuron))) or others(layer, neuron)


def to_site(site: str | Path | None, out: Path, fingerprint: str) -> Links:
    """Links from a page ``out`` to the pages of a site, as :func:`ffnmem.pages.site` wrote it; of none, nowhere.

    Raises: FileError: a folder that is no whole site. InputError: one of another model than the page's.
    """
    if site is None:
        return nowhere
    folder = user_folder(site)
    about = read_site(folder)
    if about["fingerprint"] != fingerprint:
        raise InputError(
            f"{site} is a site of {about['model']} {about['fingerprint']}, the page's model is {fingerprint}"
        )
    widths: list[int] = about["d_mlp"]
    way = quote(os.path.relpath(folder.resolve(), out.resolve().parent).replace(os.sep, "/"))

    def address(layer: int, neuron: int) -> str:
        at, one = int(layer), int(neuron)
        return f"{way}/{at}/{one}.html" if 0 <= at < len(widths) and 0 <= one < widths[at] else ""

    return address


def read_site(folder: Path) -> Mapping[str, Any]:
    """What a whole site says of itself; raises FileError."""
    about = SITE.read_manifest(folder)
    if not about or not is_whole(about):
        raise FileError(f"{folder} is no site of neurons: make one with ffnmem site --store DIR --out {folder}")
    if not (folder / INDEX).exists():
        raise FileError(f"{folder} is a site that is not finished: write it again, and it goes on")
    return about
