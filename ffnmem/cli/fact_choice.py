"""Facts of a source for a command: all of them, or those that the model knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

import ffnmem as fm

from ..core.errors import InputError, counted
from ..core.types import KnownBy
from .guard import note
from .options import Count, ModelChoice, option_group
from .progress import show_progress

if TYPE_CHECKING:
    from ..facts.fact import Fact
    from ..models.model import Model


@option_group
class FactChoice:
    """Which facts of a source.

    Attributes:
        relation: Facts of this relation, or of all that begin so.
        limit: At most N facts, drawn with the seed. [default: all]
        known: Only facts that the model says by itself.
    """

    relation: Annotated[str | None, Parameter(metavar="NAME")] = None
    limit: Count | None = None
    known: bool = False

    def choose(
        self, every: Sequence[Fact], source: str, model: ModelChoice, seed: int, *, known_by: KnownBy = "target"
    ) -> tuple[Model, list[Fact]]:
        """The model, and those of all facts of a source that are asked for.

        What the model knows is asked as :func:`ffnmem.facts.filter_known` does by ``known_by``. Raises InputError where
        there are none.
        """
        from ..facts.listing import choose_among, drawn

        limit = None if self.known else self.limit
        facts = choose_among(every, source, relation=self.relation, limit=limit, seed=seed)
        loaded = model.load()
        if not self.known:
            return loaded, facts
        with show_progress() as report:
            known = fm.facts.filter_known(loaded, facts, known_by=known_by, progress=report)
        if not known.facts:
            raise InputError(
                f"{loaded.name} knows none of the {counted(len(facts), 'fact')}: leave out --known, or choose others"
            )
        chosen = drawn(known.facts, self.limit, seed)
        some = "" if len(chosen) == len(known) else f"; {len(chosen):,} of these are drawn"
        note(f"{loaded.name} knows {len(known):,} of {counted(len(facts), 'fact')}{some}")
        return loaded, chosen
