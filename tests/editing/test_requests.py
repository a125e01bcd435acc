"""What is asked of an editor: rows of tokens, and what is refused before any work."""

from __future__ import annotations

from dataclasses import replace

import ffnmem as fm
from ffnmem.core.errors import InputError
from ffnmem.editing.requests import make_requests
from ffnmem.facts.fact import as_facts

from ..helpers import refuses
from .plans import CONTEXTS, FACTS


def test_rows_hold_prompt_and_target_and_look_at_the_subject(tiny: fm.Model) -> None:
    """A lookup one token off edits another memory; a target's last token in the row would be read, not predicted."""
    for fact, request in zip(FACTS, make_requests(tiny, FACTS, None, CONTEXTS), strict=True):
        target = tiny.tokenize(f" {request.target}", prepend_bos=False)
        assert list(request.ids) == target
        assert len(request.rows) == len(CONTEXTS)
        for row, context in zip(request.rows, CONTEXTS, strict=True):
            assert list(row.tokens) == tiny.tokenize(context.replace("{}", fact.text)) + target[:-1]
            before = tiny.tokenize(context.replace("{}", fact.text.split(fact.subject)[0] + fact.subject))
            assert row.lookup == len(before) - 1
            assert row.after == len(row.tokens) - row.lookup
        assert list(request.essence.tokens) == tiny.tokenize(f"{fact.subject} is a")


def test_one_target_for_all(tiny: fm.Model) -> None:
    found = make_requests(tiny, FACTS[:1], " London ", CONTEXTS)
    assert found[0].target == "London"


def test_refusals(tiny: fm.Model) -> None:
    with refuses(InputError, ValueError, repr(FACTS[0].text), "no new target"):
        make_requests(tiny, [replace(FACTS[0], target_new=None)], None, CONTEXTS)
    with refuses(InputError, ValueError, repr(FACTS[0].text), "true one"):
        make_requests(tiny, FACTS[:1], " France", CONTEXTS)
    with refuses(InputError, ValueError, "first context"):
        make_requests(tiny, FACTS, None, CONTEXTS[1:])
    with refuses(InputError, ValueError, "tokens", "32"):
        make_requests(
            tiny, FACTS[:1], None, ("{}", "of the city in the city of Paris which is in France. {}" + " a" * 9)
        )
    with refuses(InputError, ValueError, "fact"):
        as_facts([])
    assert as_facts(FACTS[0]) == [FACTS[0]]


def test_editors_read_targets_as_they_stand_in_the_prompt(tiny: fm.Model) -> None:
    """After an opening mark " Rome" with a space would be written where the text goes on without one."""
    quoted = replace(FACTS[0], prompt='The {} is in "')
    for fact, ids in ((FACTS[0], tiny.ids_of(" Rome")), (quoted, tiny.ids_of("Rome"))):
        for target in ("Rome", " Rome", None):
            (request,) = make_requests(tiny, [replace(fact, target_new="Rome")], target, ("{}",))
            assert request.ids == tuple(ids)
            assert request.target == "Rome"
