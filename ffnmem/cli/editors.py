"""Editors by name, and the settings that ``--set`` gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from ..core.errors import InputError
from ..core.types import WITHOUT_LAYER, WITHOUT_MOMENT
from . import click_options as options
from .click_options import Function, option, settings


def editor_options(command: Function) -> Function:
    """--layer, --moment, --set and --force: what :func:`arguments_of` takes."""
    for one in (
        option(
            "--force", is_flag=True, help="Make an edit also where it changes a layer by more than twice its own norm."
        ),
        settings("Any other setting of an editor, such as steps=40, clamp=2, keys=original or layers=2 (repeatable)."),
        option(
            "--moment",
            metavar="FILE",
            help="The second moment of the model's coefficients, as ffnmem moment writes it.  [default: the one that "
            "ships with atlas]",
        ),
        option(
            "--layer",
            type=options.LAYER_OR_SWEPT,
            metavar="LAYER",
            help="Whose FFN is edited; the highest one of editors over several. swept: the one that evaluate "
            "--sweep --keep found for this model.  [default: the one published for the model's name, else that one, "
            "else one by its depth]",
        ),
    ):
        command = one(command)
    return command


def arguments_of(
    editors: Sequence[str],
    assigned: Sequence[tuple[str, Any]],
    layer: int | str | None,
    moment: str | None,
    force: bool,
) -> dict[str, Any]:
    """The editors' arguments: their own options by name, everything else of ``--set`` in ``settings``.

    Raises InputError for what is given twice, or does nothing with these editors.
    """
    from ..editing.settings import EditSettings, unknown_words  # these need torch
    from ..evaluation.editors import EDITORS

    known = {"base", *(one.name for one in fields(EditSettings))}
    own = {name for editor in editors for name in EDITORS[editor].options}
    arguments: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for name, value in assigned:
        if name in arguments or name in settings:
            raise InputError(f"--set {name} is given twice: give it once")
        if name in ("layer", "force"):
            raise InputError(f"--set {name}: give it as --{name}")
        if name not in own and name not in known:
            raise InputError(f"unknown setting {unknown_words(name, sorted(own - {'force'}))}")
        (arguments if name in own else settings)[name] = value
    found = [name for name in editors if name != "none"]
    with_moment = [name for name in found if name not in WITHOUT_MOMENT]
    for name, flag, value, takers in (
        ("layer", "--layer", layer, [name for name in found if name not in WITHOUT_LAYER]),
        ("moment", "--moment", moment, with_moment),
        ("force", "--force", force or None, found),
        ("settings", f"--set {next(iter(settings), '')}", settings or None, with_moment),
    ):
        if value is not None:
            if not takers:
                raise InputError(f"{flag} does nothing with {', '.join(editors)}: leave it out")
            arguments[name] = value
    return arguments
