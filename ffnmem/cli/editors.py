"""Editors by name, and the settings that ``--set`` gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ..core.choices import WITHOUT_LAYER, WITHOUT_MOMENT
from ..core.errors import InputError
from ..core.progress import Progress
from .options import Function, setting

if TYPE_CHECKING:
    from ..editing.edit import Edit
    from ..facts.fact import Fact
    from ..models.model import Model


def set_option(command: Function) -> Function:
    """--set: settings of editors by name."""
    return click.option(
        "--set",
        "chosen",
        type=setting,
        multiple=True,
        metavar="NAME=VALUE",
        help="Any other setting of an editor, such as steps=40, clamp=2, keys=original or layers=2 (repeatable).",
    )(command)


layer_option = click.option(
    "--layer",
    type=int,
    metavar="LAYER",
    help="Whose FFN is edited; the highest one of editors over several.  [default: by the model's name or depth]",
)
moment_option = click.option(
    "--moment",
    metavar="FILE",
    help="The second moment of the model's coefficients, as ffnmem moment writes it.  [default: the one that ships "
    "with atlas]",
)
force_option = click.option(
    "--force", is_flag=True, help="Make an edit also where it changes a layer by more than twice its own norm."
)


def options_of(
    editors: Sequence[str],
    chosen: Sequence[tuple[str, Any]],
    layer: int | None,
    moment: str | None,
    force: bool,
) -> dict[str, Any]:
    """The editors' arguments: their own options by name, everything else of ``--set`` in ``settings``.

    Raises InputError for what is given twice, or does nothing with these editors.
    """
    from ..evaluation.editors import EDITORS

    own = {name for editor in editors for name in EDITORS[editor].options}
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for name, value in chosen:
        if name in options or name in settings:
            raise InputError(f"--set {name} is given twice: give it once")
        if name in ("layer", "force"):
            raise InputError(f"--set {name}: give it as --{name}")
        (options if name in own else settings)[name] = value
    found = [name for name in editors if name != "none"]
    for flag, given, takers in (
        ("--layer", layer is not None, [name for name in found if name not in WITHOUT_LAYER]),
        ("--moment", moment is not None, [name for name in found if name not in WITHOUT_MOMENT]),
        ("--force", force, found),
        (f"--set {next(iter(settings), '')}", bool(settings), [name for name in found if name not in WITHOUT_MOMENT]),
    ):
        if given and not takers:
            raise InputError(f"{flag} does nothing with {', '.join(editors)}: leave it out")
    for name, value in (("layer", layer), ("moment", moment), ("force", force or None), ("settings", settings or None)):
        if value is not None:
            options[name] = value
    return options


def make_edit(
    name: str,
    model: Model,
    fact: Fact,
    target: str,
    seed: int,
    options: dict[str, Any],
    progress: Progress | None = None,
) -> Edit:
    """The edit of one fact by an editor; see :func:`options_of`."""
    from .. import editing  # needs torch

    more: dict[str, Any] = {} if name in WITHOUT_MOMENT else {"seed": seed}
    if name == "rome_original":
        name, more = "rome", {**more, "keys": "original"}
    found = getattr(editing, name)(model, fact, target, progress=progress, **more, **options)
    assert isinstance(found, editing.Edit)
    return found
