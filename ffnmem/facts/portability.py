"""``with_portability``: one-hop questions about an edit, found in the set of facts itself.

Where the Louvre is moved to Rome, it should be in Italy too. That a landmark's country is the country of its city is
not told, but seen: it holds for the subjects that the set has all three facts about.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..core.types import checked
from .fact import Fact, Probe

SUBJECTS, AGREE = 10, 0.95

Table = Mapping[str, Mapping[str, str]]
"""By relation and subject, the true target."""


@dataclass(frozen=True)
class ComposedRelation:
    """``whole(s) = second(first(s))`` for nearly all subjects s: landmark.country = city.country(landmark.city)."""

    first: str
    second: str
    whole: str


@checked
def with_portability(facts: Iterable[Fact]) -> list[Fact]:
    """The facts, each with the one-hop questions that its new target answers anew.

    A rule joins three relations of the set: at least 10 subjects have whole(s) and second(first(s)), and at least 95%
    of them agree. A fact of ``first`` with a new target t gets a probe of kind "portability" with the prompt of
    ``whole`` about its subject and the target second(t), where the rule holds for what is true of that subject, and
    second(t) is something else. Where two rules give different answers to one question, it is not asked.

    Args:
        facts: with new targets where probes are wanted.

    Returns: The same facts in the same order; those without new probes as they were.
    """
    every = list(facts)
    table, asking = tabulate_targets(every)
    by_first: dict[str, list[ComposedRelation]] = defaultdict(list)
    for rule in rules_of(table):
        by_first[rule.first].append(rule)
    return [with_probes(fact, by_first.get(fact.relation, ()), table, asking) for fact in every]


def tabulate_targets(facts: Sequence[Fact]) -> tuple[Table, Mapping[tuple[str, str], Fact]]:
    """The true targets, without subjects that have two of one relation, and the fact that asks for each."""
    targets: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    asking: dict[tuple[str, str], Fact] = {}
    for fact in facts:
        if not fact.relation or not fact.target_true:
            continue
        targets[fact.relation][fact.subject].add(fact.target_true)
        asking.setdefault((fact.relation, fact.subject), fact)
    table = {
        relation: {subject: next(iter(found)) for subject, found in subjects.items() if len(found) == 1}
        for relation, subjects in targets.items()
    }
    return table, asking


def rules_of(table: Table) -> list[ComposedRelation]:
    """Every rule that the table bears out."""
    rules = []
    for first, of_subject in table.items():
        for second, of_object in table.items():
            chain = {s: of_object[o] for s, o in of_subject.items() if o in of_object}
            if len(chain) < SUBJECTS:
                continue
            for whole, truth in table.items():
                both = [s for s in chain if s in truth]
                agree = sum(chain[s] == truth[s] for s in both)
                if whole != first and len(both) >= SUBJECTS and agree >= AGREE * len(both):
                    rules.append(ComposedRelation(first, second, whole))
    return rules


def with_probes(
    fact: Fact, rules: Sequence[ComposedRelation], table: Table, asking: Mapping[tuple[str, str], Fact]
) -> Fact:
    answers: dict[str, set[str]] = defaultdict(set)
    for rule in rules if fact.target_new else ():
        assert fact.target_new is not None
        before = table[rule.second].get(fact.target_true)
        after = table[rule.second].get(fact.target_new)
        if after is not None and before == table[rule.whole].get(fact.subject) and before not in (None, after):
            answers[asking[rule.whole, fact.subject].text].add(after)
    found = [Probe("portability", prompt, min(targets)) for prompt, targets in answers.items() if len(targets) == 1]
    new = tuple(probe for probe in found if probe not in fact.probes)
    return replace(fact, probes=(*fact.probes, *new)) if new else fact
