"""Editors' settings on the command line, and what the library is given of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from ..core.defaults import SWEPT
from ..core.errors import InputError
from ..core.types import WITHOUT_LAYER, WITHOUT_MOMENT
from .options import Settings, Tokens, option_group, read_layer


def read_layer_or_swept(_kind: Any, tokens: Tokens) -> int | str:
    """A layer's number, or "swept"."""
    return SWEPT if tokens[0].value == SWEPT else read_layer(_kind, tokens)


EditedLayer = Annotated[
    int | Literal["swept"],
    Parameter(
        converter=read_layer_or_swept,
        metavar="LAYER",
        show_choices=False,
        help="Whose FFN is edited; the highest one of editors over several. swept: the one that evaluate sweep --keep "
        "found for this model. [default: the one published for the model's name, else that one, else one by its depth]",
    ),
]


@option_group
class EditorSettings:
    """What editors edit with.

    Attributes:
        moment: The second moment of the model's coefficients, as ffnmem moment writes it. [default: the one that ships
            with atlas]
        settings: Any other setting of an editor, such as steps=40, clamp=2, keys=original or layers=2 (repeatable).
        force: Make an edit also where it changes a layer by more than twice its own norm.
    """

    moment: Annotated[str | None, Parameter(metavar="FILE")] = None
    settings: Settings | None = None
    force: bool = False

    def arguments(self, editors: Sequence[str], layer: int | str | None = None) -> dict[str, Any]:
        """The editors' arguments: their own options by name, everything else of ``--set`` in ``settings``.

        Raises InputError for what there is not, or does nothing with these editors.
        """
        from ..editing.settings import EditSettings, unknown_words  # these need torch
        from ..evaluation.editors import EDITORS

        own = {name for editor in editors for name in EDITORS[editor].options} - {"force"}
        known = {"base", *(field.name for field in fields(EditSettings))} - {"layer"}
        options = {name: value for name, value in self.settings or () if name in own}
        settings = {name: value for name, value in self.settings or () if name not in own}
        if unknown := sorted({*settings} - known):
            raise InputError(f"unknown setting {unknown_words(unknown[0], sorted(own))}")
        editing = [name for name in editors if name != "none"]
        with_moment = [name for name in editing if name not in WITHOUT_MOMENT]
        for name, value, takers in (
            ("layer", layer, [name for name in editing if name not in WITHOUT_LAYER]),
            ("moment", self.moment, with_moment),
            ("force", self.force or None, editing),
            ("settings", settings or None, with_moment),
        ):
            if value is not None:
                if not takers:
                    flag = f"--set {next(iter(settings))}" if name == "settings" else f"--{name}"
                    raise InputError(f"{flag} does nothing with {', '.join(editors)}: leave it out")
                options[name] = value
        return options
