"""The command line: parse, call the library, print. Every command says the same words as the library.

Nothing here imports torch before a command needs it, so that ``--help`` is quick.
"""

from __future__ import annotations

from collections import UserDict
from importlib import import_module

import click

from .._version import __version__
from .garbage import seldom_collected
from .guard import Group

MODULES = {
    "ablate": ("ablate",),
    "activations": ("activations",),
    "attribute": ("attribute", "decompose", "paths"),
    "edit": ("edit",),
    "evaluate": ("evaluate",),
    "facts": ("facts",),
    "geometry": ("anatomy", "geometry"),
    "health": ("dying-relu", "health"),
    "intervene": ("intervene",),
    "neuron": ("neuron",),
    "planted": ("calibrate", "plant"),
    "polysemanticity": ("polysemanticity",),
    "project": ("project",),
    "report": ("report",),
    "roles": ("roles",),
    "scan": ("merge", "moment", "pack", "scan", "store"),
    "study": ("study",),
    "trace": ("trace",),
}
"""The commands of each module of this room."""


class LazyCommands(UserDict[str, click.Command]):
    """Commands by name, each module imported when one of its commands is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.homes = {name: home for home, names in MODULES.items() for name in names}
        self.data = {name: click.Command(name) for name in self.homes}

    def __getitem__(self, name: str) -> click.Command:
        home = self.homes.pop(name, None)
        if home is not None:
            self.data[name] = getattr(import_module(f".{home}", __name__), name.replace("-", "_"))
        return self.data[name]


@click.group(cls=Group, commands=LazyCommands(), invoke_without_command=True)
@click.version_option(__version__, message="ffnmem %(version)s", help="Print the version and exit.")
@click.pass_context
def cli(context: click.Context) -> None:
    """Read the key-value memories in a language model's feed-forward networks.

    Tables are for reading; --json and --csv print data, and nothing else, on standard output. A mistake is one line on
    standard error and exit status 2.

    \b
    Begin with
      ffnmem attribute "The Eiffel Tower is located in the city of"
      ffnmem COMMAND --help
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """The entry point ``ffnmem``."""
    with seldom_collected():
        cli(prog_name="ffnmem")
