"""The command line: parse, call the library, print. Every command says the same words as the library.

Nothing here imports torch before a command needs it, so that ``--help`` is quick; a command's module is imported when
the command is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import import_module

import click

from .._version import __version__
from .guard import CommandGroup, seldom_collected

COMMANDS = {  # a command and the module that holds it, in the manual's order
    "get": "get",
    "attribute": "attribute",
    "paths": "attribute",
    "circuit": "circuit",
    "explore": "explore",
    "decompose": "attribute",
    "causal": "causal",
    "ablate": "ablate",
    "intervene": "intervene",
    "project": "project",
    "polysemanticity": "polysemanticity",
    "describe": "describe",
    "roles": "roles",
    "weights": "weights",
    "geometry": "geometry",
    "facts": "facts",
    "report": "report",
    "pack": "scan",
    "neuron": "neuron",
    "store": "scan",
    "scan": "scan",
    "merge": "scan",
    "study": "study",
    "calibrate": "planted",
    "plant": "planted",
    "trace": "trace",
    "silence": "silence",
    "knockout": "knockout",
    "edit": "edit",
    "compare": "compare",
    "evaluate": "evaluate",
    "moment": "scan",
    "lens": "lens",
    "health": "health",
    "dying-relu": "health",
    "activations": "activations",
    "anatomy": "geometry",
}


class Commands(Mapping[str, click.Command]):
    """The commands by name, each imported where it is asked for."""

    def __getitem__(self, name: str) -> click.Command:
        return getattr(import_module(f".{COMMANDS[name]}", __name__), name.replace("-", "_"))

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@click.group(cls=CommandGroup, commands=Commands(), invoke_without_command=True)
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
    # Before torch is imported. Threads of OpenMP that wait busily for one that another program keeps from its core take
    # most of the time: on two cores that were busy, loading a model and a few prompts took 28 s in place of 12.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with seldom_collected():
        cli(prog_name="ffnmem")
