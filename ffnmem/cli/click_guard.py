"""The commands that are not typed functions yet: they run by click, behind the same entry point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from .guard import fail, note
from .manual import WIDTH

__all__ = ["Command", "note"]


class Command(click.Command):
    """A command of click; its errors reach the guard."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        settings = {"help_option_names": ["-h", "--help"], "terminal_width": WIDTH, "max_content_width": WIDTH}
        kwargs["context_settings"] = {**settings, **kwargs.get("context_settings", {})}
        super().__init__(*args, **kwargs)


class CommandGroup(Command, click.Group):
    """The group of all commands."""

    command_class = Command


class Commands(Mapping[str, click.Command]):
    """The commands by name, each imported where it is asked for."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self.modules = modules

    def __getitem__(self, name: str) -> click.Command:
        return getattr(import_module(f".{self.modules[name]}", __package__), name.replace("-", "_"))

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)


def run_click(cli: click.Command, tokens: Sequence[str]) -> Any:
    """Run a command of click and give its exit status."""
    try:
        return cli.main(list(tokens), prog_name="ffnmem", standalone_mode=False)
    except click.UsageError as error:
        message = error.format_message()
        if "unexpected extra argument" in message:
            message = f"{message}: put quotes around a text with spaces."
        stop = "" if message.endswith((".", "?")) else "."
        path = "ffnmem" if error.ctx is None else error.ctx.command_path
        return fail(f"{message}{stop} See '{path} --help'.")
    except click.ClickException as error:
        return fail(error.format_message())
    except click.Abort:  # click makes Ctrl-C this
        raise KeyboardInterrupt from None
