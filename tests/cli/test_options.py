"""Options that commands share."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

import ffnmem as fm
from ffnmem.cli import cli
from ffnmem.cli.options import BASES, DTYPES, SIDES, ModelChoice, given, seed, token_or_id, unicode_text
from ffnmem.models import loading
from ffnmem.vocabulary.vectors import BASES as LIBRARY_BASES
from ffnmem.vocabulary.vectors import SIDES as LIBRARY_SIDES

READERS = ("ablate", "attribute", "decompose", "paths", "report")
OTHERS = (
    "causal",
    "circuit",
    "compare",
    "edit",
    "evaluate",
    "explore",
    "health",
    "intervene",
    "knockout",
    "lens",
    "moment",
    "scan",
    "silence",
    "study",
    "trace",
)


def test_choices_are_the_librarys() -> None:
    """They are written twice, because the library's need torch."""
    assert BASES == LIBRARY_BASES
    assert tuple(loading.DTYPES) == DTYPES
    assert ("both", *LIBRARY_SIDES) == SIDES


@pytest.mark.parametrize("name", READERS)
def test_defaults_are_the_librarys(name: str) -> None:
    """The same call would answer differently from a shell and from a notebook."""
    defaults = {p.name: p.default for p in cli.commands[name].params}
    assert defaults["name"] == "atlas"
    assert defaults["dtype"] == "float32"
    assert defaults["position"] == -1
    assert defaults["top"] == 20
    assert defaults["prepend_bos"] is None


def test_only_readers_of_text_take_the_beginning_of_sequence() -> None:
    """An option that does nothing would be believed."""
    for name, command in cli.commands.items():
        assert ("prepend_bos" in {p.name for p in command.params}) == (name in (*READERS, *OTHERS))


def test_one_wording(tiny_folder: Path) -> None:
    """An option of the same name says the same everywhere it means the same."""
    said: dict[str, set[str]] = {}
    for name, command in cli.commands.items():
        for option in command.params:
            if (name, option.name) == ("scan", "dtype"):
                continue  # that of the pass, not of the weights
            if isinstance(option, click.Option) and option.name in ("name", "device", "dtype", "as_json", "target"):
                said.setdefault(option.name, set()).add(option.help or "")
    assert {name: len(texts) for name, texts in said.items()} == dict.fromkeys(said, 1)


def test_loads_what_was_asked(tiny_folder: Path, tiny: fm.Model, capfd: pytest.CaptureFixture[str]) -> None:
    model = ModelChoice(str(tiny_folder), "cpu", "float64", False).load()
    assert model.prepend_bos is False
    assert str(model.dtype) == "torch.float64"
    assert ModelChoice(str(tiny_folder), None, "float32", None).load().fingerprint == tiny.fingerprint
    assert capfd.readouterr() == ("", "")


def test_text() -> None:
    assert unicode_text("naïve ↵") == "naïve ↵"
    with pytest.raises(click.BadParameter, match="UTF-8"):
        unicode_text("a\udcff")


def parsed(*args: str) -> click.Context:
    """The context of a small command that was given ``args``."""
    command = click.Command(
        "small",
        params=[
            click.Option(["--top"], type=int, default=3),
            click.Option(["--json", "as_json"], is_flag=True),
            click.Argument(["prompt"], required=False),
        ],
    )
    return command.make_context("small", list(args))


def test_tokens_by_their_number() -> None:
    """The token without a space could not be asked for where the model finds the other likelier."""
    assert token_or_id("id:417") == 417
    assert [token_or_id(text) for text in (" Paris", "id:", "id:-1", "id:²", "417")] == [
        " Paris",
        "id:",
        "id:-1",
        "id:²",
        "417",
    ]


def test_given_are_those_on_the_command_line() -> None:
    """A default would be refused as an option that does nothing, or one given with its default's value be let pass."""
    assert given(parsed()) == {}
    found = given(parsed("words", "--json", "--top", "3"))
    assert found == {"top": "--top", "as_json": "--json", "prompt": "prompt"}


def test_seeds_are_not_negative() -> None:
    for metavar, shown in (("SEED", "--seed SEED"), (None, "--seed INTEGER RANGE")):
        command = click.command("small")(seed("Of the dice.", metavar)(lambda seed: seed))
        assert command.main([], standalone_mode=False) == 0
        assert command.main(["--seed", "7"], standalone_mode=False) == 7
        with pytest.raises(click.BadParameter, match="-1 is not in the range"):
            command.main(["--seed", "-1"], standalone_mode=False)
        assert shown in command.get_help(click.Context(command))
