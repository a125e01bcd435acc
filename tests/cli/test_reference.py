"""The manual of the commands, and the options that they share."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffnmem.cli.guard import run_guarded
from ffnmem.cli.reference import BEGIN, END, every_command, help_text, reference

from ..helpers import REPOSITORY
from .running import arguments_of

PAGE = f"# title\n\n{BEGIN}\nold\n{END}\n\nafter\n"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The manual takes seconds to make."""
    monkeypatch.setattr("ffnmem.cli.reference.manual", lambda: "the manual")


def write(path: Path, check: bool = False) -> int:
    """The exit status of writing the manual into a page."""
    return run_guarded(lambda _: reference(str(path), check=check), [])


@pytest.mark.exhaustive  # make check-pages compares the page
def test_manual_has_every_command() -> None:
    """A command that the manual does not name is one that nobody finds."""
    text = (REPOSITORY / "docs" / "cli.md").read_text("utf-8")
    block = text[text.index(BEGIN) : text.index(END)]
    for name in every_command():
        assert f"| [`ffnmem {name}`](#ffnmem-{name.replace(' ', '-')}) |" in block
        assert help_text(name) in block
    assert write(REPOSITORY / "docs" / "cli.md", check=True) == 0, "make reference writes it"


@pytest.mark.usefixtures("quick")
def test_write_check_and_write_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What stands around the block stays; the second time nothing changes."""
    path = tmp_path / "page.md"
    path.write_text(PAGE, "utf-8")
    assert write(path, check=True) == 1
    assert "out of date" in capsys.readouterr().err
    assert path.read_text("utf-8") == PAGE
    assert write(path) == 0
    assert path.read_text("utf-8") == PAGE.replace("old", "the manual")
    before = path.stat().st_mtime_ns
    assert write(path, check=True) == write(path) == 0
    assert path.stat().st_mtime_ns == before


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("text", ["", f"{BEGIN}\n", f"{END}\n{BEGIN}\n", PAGE + PAGE])
def test_block_must_be_one(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text between other marks than the block's own would be lost."""
    path = tmp_path / "page.md"
    path.write_text(text, "utf-8")
    assert write(path) == 2
    assert capsys.readouterr().err.startswith(f"ffnmem: error: {path} needs one line {BEGIN}")
    assert path.read_text("utf-8") == text


EVERY = {name: {one.name: one for one in arguments_of(name)} for name in every_command()}


def test_every_option_says_what_it_does_in_one_wording() -> None:
    """An option of the same name says the same everywhere it means the same."""
    shared = {"--model", "--device", "--prepend-bos", "--json", "--csv"}
    words: dict[str, set[str]] = {flag: set() for flag in shared}
    for name, options in EVERY.items():
        for flag, option in options.items():
            assert option.parameter.help, f"{flag} of {name} has no help"
            if flag in shared:
                words[flag].add(option.parameter.help)
    several = {flag: len(texts) for flag, texts in words.items() if len(texts) > 1}
    # A model to load, one that was scanned, one whose tokenizer is taken, and one of the anatomy.
    assert several == {"--model": 4}
