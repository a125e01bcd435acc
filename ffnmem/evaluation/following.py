"""Prompts whose answers follow from an edit, found in the set of facts itself.

Where the Louvre is moved to Rome, it should be in Italy too: that its country is another one then is no damage. That a
landmark's country is the country of its city is not told, but seen: it holds for the subjects of all three facts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ..facts.fact import Fact

SUBJECTS, AGREE = 10, 0.95


def prompts_that_follow(facts: Sequence[Fact]) -> dict[str, set[str]]:
    """By name of a fact, the prompts about its subject whose answers its new target changes, too.

    These are its probes of kind "alias", and what rules say. A rule joins three relations: at least 10 subjects s have
    whole(s) and second(first(s)), and at least 95% of these agree. For a fact of ``first``, the prompt of ``whole``
    about its subject follows if the rule holds for what is true of that subject, and the new target changes its answer.
    """
    targets: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    asking: dict[tuple[str, str], Fact] = {}
    for fact in facts:
        if fact.relation and fact.target_true:
            targets[fact.relation][fact.subject].add(fact.target_true)
            asking.setdefault((fact.relation, fact.subject), fact)
    truth = {  # without subjects that have two targets of one relation
        relation: {subject: next(iter(found)) for subject, found in subjects.items() if len(found) == 1}
        for relation, subjects in targets.items()
    }
    rules = composed_relations(truth)
    follow: dict[str, set[str]] = {}
    for fact in facts:
        texts = {probe.prompt for probe in fact.probes if probe.kind == "alias"}
        for second, whole in rules.get(fact.relation, ()):
            before, after = (truth[second].get(target) for target in (fact.target_true, fact.target_new or ""))
            if after is not None and before == truth[whole].get(fact.subject) and before not in (None, after):
                texts.add(asking[whole, fact.subject].text)
        follow.setdefault(fact.name, texts)
    return follow


def composed_relations(truth: dict[str, dict[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """By relation ``first``, the pairs (second, whole) with whole(s) = second(first(s)) for nearly all subjects."""
    rules = defaultdict(list)
    large = {relation: of_subject for relation, of_subject in truth.items() if len(of_subject) >= SUBJECTS}
    for first, of_subject in large.items():
        for second, of_object in truth.items():
            chain = {s: of_object[o] for s, o in of_subject.items() if o in of_object}
            if len(chain) < SUBJECTS:
                continue
            for whole, wholes in large.items():
                both = [s for s in chain if s in wholes]
                agree = sum(chain[s] == wholes[s] for s in both)
                if whole != first and len(both) >= SUBJECTS and agree >= AGREE * len(both):
                    rules[first].append((second, whole))
    return rules
