"""The command line: parse, call the library, print. Every command says the same words as the library.

Nothing here imports torch before a command needs it, so that ``--help`` is quick.
"""

from __future__ import annotations

import click

from .._version import __version__
from .ablate import ablate
from .activations import activations
from .attribute import attribute, decompose, paths
from .edit import edit
from .evaluate import evaluate
from .facts import facts
from .garbage import seldom_collected
from .geometry import anatomy, geometry
from .guard import Group
from .health import dying_relu, health
from .intervene import intervene
from .neuron import neuron
from .planted import calibrate, plant
from .polysemanticity import polysemanticity
from .project import project
from .report import report
from .roles import roles
from .scan import merge, moment, pack, scan, store
from .study import study
from .trace import trace


@click.group(cls=Group, invoke_without_command=True)
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


for command in (
    attribute,
    paths,
    decompose,
    ablate,
    intervene,
    project,
    polysemanticity,
    roles,
    geometry,
    facts,
    report,
    pack,
    neuron,
    store,
    scan,
    merge,
    study,
    calibrate,
    plant,
    trace,
    edit,
    evaluate,
    moment,
    health,
    dying_relu,
    activations,
    anatomy,
):
    cli.add_command(command)


def main() -> None:
    """The entry point ``ffnmem``."""
    with seldom_collected():
        cli(prog_name="ffnmem")
