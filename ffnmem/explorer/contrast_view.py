"""The contrast view: two prompts, and the few firings that decide between their answers."""

from __future__ import annotations

from typing import ClassVar

from pydantic import model_validator

from ..core.errors import InputError
from ..core.pictures import picture
from ..core.progress import Progress
from ..interventions.contrasts import contrast
from ..pages.rendering import split_sheet, without_origin, without_verdict
from .queries import Query, Text, Token, form_field, memory_address, read_token
from .rendering import fragment
from .views import Explorer, View, view

LISTED = 40  # firings


class ContrastQuery(Query):
    """Two prompts, and the answers that are compared; by default what the model says after each."""

    path: ClassVar[str] = "/contrast"
    text: Text = form_field("prompt", hint="The Eiffel Tower is located in the city of", wide=True)
    other: Text = form_field("counterfactual", hint="The Kremlin is located in the city of", wide=True)
    target: Token = form_field("target", hint="the likeliest")
    foil: Token = form_field("foil", hint="the likeliest")

    @model_validator(mode="after")
    def check_both(self) -> ContrastQuery:
        if bool(self.text) != bool(self.other):
            raise InputError("give both: a prompt, and one that differs from it and is answered otherwise")
        return self


@view("Contrast", ContrastQuery, "the search for the firings that decide", buttons=[("Contrast", "", "")])
def contrast_page(explorer: Explorer, query: ContrastQuery, progress: Progress) -> View:
    """Which few firings decide, the proof, where they are, and what each promotes."""
    if not query.text:
        return View("Two prompts, one difference", fragment("contrast.html", start=True))
    for text in (query.text, query.other):
        explorer.capture(text)  # which refuses a long one
    answers = read_token(query.target), read_token(query.foil)
    found = explorer.cached(
        ("contrast", query.text, query.other, *answers),
        lambda: contrast(explorer.model, query.text, query.other, *answers, progress=progress),
    )
    sections = list(split_sheet(without_verdict(without_origin(found.sheet(LISTED)))))
    body = fragment("contrast.html", start=False, sections=sections, links=memory_address, found=found)
    files = {"csv": lambda: found.top(None), "json": found.to_dict, "png": lambda: picture("figure")(found)}
    return View("Two prompts, one difference", body, "contrast", found.provenance.to_dict(), files)
