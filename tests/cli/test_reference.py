"""The manual of the commands, and the options that they share."""

from __future__ import annotations

from pathlib import Path

import pytest
from cyclopts import Token

import ffnmem as fm
from ffnmem.cli.guard import run_guarded
from ffnmem.cli.options import Output, ReaderChoice, read_neurons, read_token
from ffnmem.cli.reference import BEGIN, END, every_command, help_text, manual, reference
from ffnmem.core.errors import InputError

from ..helpers import REPOSITORY
from .running import arguments_of

PAGE = f"# title\n\n{BEGIN}\nold\n{END}\n\nafter\n"


def write(path: Path, check: bool = False) -> int:
    """The exit status of writing the manual into a page."""
    return run_guarded(lambda _: reference(str(path), check=check), [])


def test_manual_has_every_command() -> None:
    """A command that the manual does not name is one that nobody finds."""
    text = (REPOSITORY / "docs" / "cli.md").read_text("utf-8")
    block = text[text.index(BEGIN) : text.index(END)]
    for name in every_command():
        assert f"| [`ffnmem {name}`](#ffnmem-{name.replace(' ', '-')}) |" in block
        assert help_text(name) in block
    assert write(REPOSITORY / "docs" / "cli.md", check=True) == 0, "make reference writes it"


def test_write_check_and_write_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What stands around the block stays; the second time nothing changes."""
    path = tmp_path / "page.md"
    path.write_text(PAGE, "utf-8")
    assert write(path, check=True) == 1
    assert "out of date" in capsys.readouterr().err
    assert path.read_text("utf-8") == PAGE
    assert write(path) == 0
    assert path.read_text("utf-8") == PAGE.replace("old", manual())
    before = path.stat().st_mtime_ns
    assert write(path, check=True) == write(path) == 0
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "text", ["", f"{BEGIN}\n", f"{END}\n{BEGIN}\n", f"{END}{PAGE}", PAGE + BEGIN, PAGE + END, PAGE + PAGE]
)
def test_block_must_be_one(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text between other marks than the block's own would be lost."""
    path = tmp_path / "page.md"
    path.write_text(text, "utf-8")
    assert write(path) == 2
    assert capsys.readouterr().err.startswith(f"ffnmem: error: {path} needs one line {BEGIN}")
    assert path.read_text("utf-8") == text


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
    # A model to load, one that was scanned, a store's own unless it is named, and one whose tokenizer is taken; a foil,
    # and what a counterfactual says.
    assert several == {"--model": 4, "--foil": 2}


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
