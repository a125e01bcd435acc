"""The manual of the commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ffnmem.cli import cli
from ffnmem.cli.reference import BEGIN, END, help_text, manual, reference, with_manual

from ..helpers import REPOSITORY
from .running import run

PAGE = f"# title\n\n{BEGIN}\nold\n{END}\n\nafter\n"


def write(*args: object) -> Result:
    return CliRunner().invoke(reference, [str(a) for a in args])


def test_manual_has_every_command() -> None:
    """A command that the manual does not name is one that nobody finds."""
    text = (REPOSITORY / "docs" / "cli.md").read_text("utf-8")
    block = text[text.index(BEGIN) : text.index(END)]
    for name, command in cli.commands.items():
        assert f"| [`ffnmem {name}`](#ffnmem-{name}) |" in block
        assert help_text(name, command) in block
    assert write("--check", REPOSITORY / "docs" / "cli.md").exit_code == 0, "make reference writes it"


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_help_text_is_what_help_prints(name: str) -> None:
    assert help_text(name, cli.commands[name]) == "\n".join(
        line.rstrip() for line in run(name, "--help").stdout.strip().splitlines()
    )


def test_write_check_and_write_again(tmp_path: Path) -> None:
    """What stands around the block stays; the second time nothing changes."""
    path = tmp_path / "page.md"
    path.write_text(PAGE, "utf-8")
    found = write("--check", path)
    assert found.exit_code == 1
    assert "out of date" in found.stderr
    assert path.read_text("utf-8") == PAGE
    assert write(path).exit_code == 0
    assert path.read_text("utf-8") == PAGE.replace("old", manual())
    before = path.stat().st_mtime_ns
    assert write("--check", path).exit_code == write(path).exit_code == 0
    assert path.stat().st_mtime_ns == before


def test_every_summary_is_whole() -> None:
    """A summary that click cuts short ends in dots."""
    assert "..." not in manual().partition("\n## ")[0]


@pytest.mark.parametrize(
    "text", ["", f"{BEGIN}\n", f"{END}\n{BEGIN}\n", f"{END}{PAGE}", PAGE + BEGIN, PAGE + END, PAGE + PAGE]
)
def test_block_must_be_one(text: str, tmp_path: Path) -> None:
    """Text between other marks than the block's own would be lost."""
    path = tmp_path / "page.md"
    path.write_text(text, "utf-8")
    found = write(path)
    assert found.exit_code == 2
    assert found.stderr.startswith(f"ffnmem: error: {path} needs one line {BEGIN}")
    assert path.read_text("utf-8") == text


def test_no_file(tmp_path: Path) -> None:
    assert "nothing.md" in write(tmp_path / "nothing.md").stderr


def test_begins_and_ends_with_its_marks() -> None:
    assert with_manual(PAGE, "x").startswith(f"# title\n\n{BEGIN}\n| command |")
