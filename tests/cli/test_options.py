"""Options that commands share."""

from __future__ import annotations

from pathlib import Path

import pytest
from cyclopts import Token

import ffnmem as fm
from ffnmem.cli.options import Output, ReaderChoice, read_neurons, read_token
from ffnmem.cli.reference import every_command
from ffnmem.core.errors import InputError

from .running import arguments_of

EVERY = {name: {one.name: one for one in arguments_of(name)} for name in every_command()}
READERS = ("attribute", "decompose", "paths", "circuit")


@pytest.mark.parametrize("name", READERS)
def test_defaults_are_the_librarys(name: str) -> None:
    """The same call would answer differently from a shell and from a notebook."""
    defaults = {flag: option.field_info.default for flag, option in EVERY[name].items()}
    assert defaults["--model"] == "atlas"
    assert defaults["--dtype"] == "float32"
    assert defaults["--position"] == -1
    assert defaults["--top"] == 20
    assert defaults["--prepend-bos"] is None


def test_every_option_says_what_it_does_in_one_wording() -> None:
    """An option of the same name says the same everywhere it means the same."""
    shared = {"--model", "--device", "--prepend-bos", "--chat", "--json", "--csv", "--foil"}
    words: dict[str, set[str]] = {flag: set() for flag in shared}
    for name, options in EVERY.items():
        for flag, option in options.items():
            assert option.parameter.help, f"{flag} of {name} has no help"
            if flag in shared:
                words[flag].add(option.parameter.help)
    several = {flag: len(texts) for flag, texts in words.items() if len(texts) > 1}
    # A model to load, one that was scanned, and one whose tokenizer is taken; a foil, and what a counterfactual says.
    assert several == {"--model": 3, "--foil": 2}


def test_loads_what_was_asked(tiny_folder: Path, tiny: fm.Model, capfd: pytest.CaptureFixture[str]) -> None:
    model = ReaderChoice(model=str(tiny_folder), device="cpu", dtype="float64", prepend_bos=False).load()
    assert model.prepend_bos is False
    assert str(model.dtype) == "torch.float64"
    assert ReaderChoice(model=str(tiny_folder)).load().fingerprint == tiny.fingerprint
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("id:417", 417), (" Paris", " Paris"), ("id:", "id:"), ("id:-1", "id:-1"), ("id:²", "id:²"), ("417", "417")],
)
def test_tokens_by_their_number(typed: str, expected: str | int) -> None:
    """The token without a space could not be asked for where the model finds the other likelier."""
    assert read_token(None, [Token(value=typed)]) == expected


def test_neurons_are_listed_in_any_way() -> None:
    """Each once, in the order in which they were given."""
    found = read_neurons(None, [Token(value=text) for text in ("3.17, 3.18", "L3N17", "0.1")])
    assert found == [(3, 17), (3, 18), (0, 1)]


def test_one_form_of_output() -> None:
    assert [one.form for one in (Output(), Output(json=True), Output(csv=True))] == ["table", "json", "csv"]
    with pytest.raises(InputError, match="exclude each other"):
        Output(json=True, csv=True)
