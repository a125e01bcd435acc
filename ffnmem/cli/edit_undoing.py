"""Saved edits put together, and an edited checkpoint taken back to its original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..core.sheets import Facts, Sheet
from ..errors import InputError, ModelError
from ..show.records import print_json
from .guard import note
from .options import ModelChoice

if TYPE_CHECKING:
    from ..editing.edit import Edit


def loaded(files: Sequence[str]) -> Edit:
    """The edits of some files as one; raises FileError, and InputError where they do not go together."""
    from ..editing.edit import Edit

    found = Edit.load(files[0])
    for file in files[1:]:
        found = found + Edit.load(file)
    return found


def revert_checkpoint(files: Sequence[str], choice: ModelChoice, original: str | None, folder: str, form: str) -> None:
    """Write the model that a checkpoint was before its edits into a new folder, and say so.

    Subtracting an edit would not give back the bits that adding it rounded away. So the original is copied, once it is
    sure that it is the edit's own, and that with the edits it is the checkpoint, so that nothing else is lost.

    Raises: ModelError: another original, or a checkpoint that is not the original with these edits.
    """
    from ..editing.exporting import plain_network, plain_tokenizer
    from ..files import appearing, check_new_folder
    from ..models.sources import quiet

    if form == "csv":
        raise InputError("--csv has no table to print with --revert: use --json, or leave it out")
    edit = loaded(files)
    checkpoint = choice.load()
    name = edit.provenance.model if original is None else original
    model = replace(choice, name=name).load()
    if model.fingerprint != edit.fingerprint:
        raise ModelError(
            f"{name} ({model.fingerprint}) is not the model that {edit.title} was made for ({edit.fingerprint}): name "
            "that with --original"
        )
    with edit.applied(model):
        edited = model.fingerprint
    if checkpoint.fingerprint != edited:
        raise ModelError(
            f"{choice.name} ({checkpoint.fingerprint}) is not {name} with {edit.title} and nothing else ({edited}): "
            "name all of its edits, and --dtype as it was; nothing was written"
        )
    path = check_new_folder(folder)
    with appearing(path) as place, quiet():
        plain_network(model).save_pretrained(place)  # type: ignore[operator]  # a Hugging Face model's own
        plain_tokenizer(model).save_pretrained(place)
    words = {"checkpoint": choice.name, "reverted": edit.title, "original": name, "fingerprint": model.fingerprint}
    if form == "json":
        print_json({**words, "edits": list(edit.parts), "files": {"checkpoint": str(path)}})
    else:
        from ..show.terminal import show

        show(Sheet.of(Facts(words)))
    note(f"wrote {path}")
