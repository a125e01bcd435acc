"""What a model of planted facts is asked: names shared, objects shared, a corpus that states every fact."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ffnmem.planted.facts import PARAPHRASES, Statements, draw_statements, draw_texts, strangers


def drawn(seed: int = 0, n_subjects: int = 12, n_relations: int = 3, n_objects: int = 4) -> Statements:
    return draw_statements(np.random.default_rng(seed), n_subjects, n_relations, n_objects)


@pytest.mark.parametrize("n_subjects", [6, 7, 12, 40, 100])
def test_no_name_gives_a_subject_away(n_subjects: int) -> None:
    """With a name of its own a subject could be found without its other name."""
    found = drawn(n_subjects=n_subjects, n_objects=2)
    assert len({found.subject(s) for s in range(n_subjects)}) == n_subjects
    for side in (0, 1):
        assert min(Counter(pair[side] for pair in found.pairs).values()) >= 2
    assert strangers(found)
    assert not {found.subject(s) for s in range(n_subjects)} & {
        f"{found.first[i]} {found.last[j]}" for i, j in strangers(found)
    }


def test_words_differ() -> None:
    assert len(set(drawn().vocabulary)) == len(drawn().vocabulary)


def test_every_object_is_that_of_several_and_neighbours_share_it() -> None:
    found = drawn()
    facts = {(fact.subject, fact.relation): fact for fact in found.facts()}
    assert len(facts) == 36
    assert len({fact.id for fact in facts.values()}) == 36
    for fact in facts.values():
        assert fact.neighbours
        for other in fact.neighbours:
            assert other != fact.subject
            assert facts[other, fact.relation].target_true == fact.target_true
        assert fact.target_new != fact.target_true
        assert set(fact.false_targets) | {fact.target_true} in [set(group) for group in found.objects]


def test_templates_end_with_the_relation_and_differ() -> None:
    found = drawn()
    for words, templates in zip(found.relations, found.templates, strict=True):
        assert len(set(templates)) == 1 + PARAPHRASES
        assert all(template.split()[-1] in words for template in templates)
    assert len({template.rpartition(" ")[0] for template, *_ in found.templates}) == 1


def test_the_corpus_states_every_fact_in_every_template() -> None:
    found = drawn()
    texts = draw_texts(found, np.random.default_rng(1))
    together = "\n".join(texts)
    for fact in found.facts():
        for template in (fact.prompt, *fact.paraphrases):
            assert f"{fact.ask(template)} {fact.target_true}" in together
    assert set(together.split()) <= set(found.vocabulary)
    assert draw_texts(found, np.random.default_rng(1)) == texts
