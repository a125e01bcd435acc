"""Facts of a source for a command, of all of them or of those that the model knows; and the options that say which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import ffnmem as fm

from ..core.errors import InputError, counted
from ..core.types import KnownBy
from ..facts.listing import choose_among, choose_facts, drawn
from .click_options import COUNT, Function, ModelChoice, option
from .guard import note
from .progress import late_bar

if TYPE_CHECKING:
    from ..facts.fact import Fact
    from ..models.model import Model

WITH_FACTS = ("relation", "limit", "known_only")
"""The parameters that go with --facts alone."""


def with_facts(what: str) -> Function:
    """--facts, --relation, --limit and --known, of commands that take a PROMPT or facts; ``what`` they do with them."""

    def options(command: Function) -> Function:
        for add in (
            option("--known", "known_only", is_flag=True, help="With --facts: those that the model knows alone."),
            option(
                "--limit",
                type=COUNT,
                metavar="N",
                help="With --facts: at most N, drawn with the seed.  [default: all]",
            ),
            option("--relation", metavar="NAME", help="With --facts: of this relation, or of all that begin so."),
            option("--facts", "source", metavar="SOURCE", help=f"{what} facts: atlas, or a file of them."),
        ):
            command = add(command)
        return command

    return options


def model_and_facts(
    choice: ModelChoice,
    source: str,
    *,
    relation: str | None,
    limit: int | None,
    seed: int,
    known_by: KnownBy | None = None,
    every: Sequence[Fact] | None = None,
) -> tuple[Model, list[Fact]]:
    """The model, and at most ``limit`` of a source's facts, drawn with the seed.

    With ``known_by``, as :func:`ffnmem.facts.filter_known` takes it, of those that the model knows alone. Raises
    InputError where there are none. ``every``: all facts of the source, where they are read already.
    """
    every = choose_facts(source) if every is None else every
    facts = choose_among(every, source, relation=relation, limit=limit if known_by is None else None, seed=seed)
    model = choice.load()
    if known_by is None:
        return model, facts
    with late_bar() as report:
        known = fm.facts.filter_known(model, facts, known_by=known_by, progress=report)
    if not known.facts:
        raise InputError(
            f"{model.name} knows none of the {counted(len(facts), 'fact')}: leave out --known, or choose others"
        )
    chosen = drawn(known.facts, limit, seed)
    some = "" if len(chosen) == len(known) else f"; {len(chosen):,} of these are drawn"
    note(f"{model.name} knows {len(known):,} of {counted(len(facts), 'fact')}{some}")
    return model, chosen
