"""Records of CounterFact, known_1000 and zsRE, in which a fact is a record."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasChoices, Field, model_validator

from ..core.errors import InputError, quoted
from .fact import Fact, Probe
from .foreign import CaseName, ForeignRecord, Sentence, Text, Word
from .templates import prompt_template, templates_of

COUNTERFACT = "counterfact"


class CounterFactRecord(ForeignRecord):
    """A record of ``counterfact.json``, or of a copy with one column a field, whose prompt may hold the subject.

    The subject's literal name in paraphrases and generation prompts becomes ``{}``; those without it, or with it
    twice, are left out with a note. ``neighborhood_prompts`` become neighbour_prompts. ``attribute_prompts`` (about
    subjects for which the *new* target is true) have no place in a fact.

    Source: Meng et al. 2022 (2202.05262), appendix E; counterfact-tracing of the Hugging Face hub.
    """

    case_id: CaseName = ""
    subject: Text
    relation: Text = Field(COUNTERFACT, validation_alias=AliasChoices("relation_id", "relation"))
    relation_prefix: str = ""
    relation_suffix: str = ""
    prompt: Text
    target_true: Word
    target_new: Word | None = Field(None, validation_alias=AliasChoices("target_new", "target_false"))
    paraphrase_prompts: tuple[Sentence, ...] = ()
    generation_prompts: tuple[Sentence, ...] = ()
    neighborhood_prompts: tuple[Text, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def flatten(cls, record: Any) -> Any:
        """The record with the fields of its rewrite among its own."""
        rewrite = record.get("requested_rewrite", {}) if isinstance(record, dict) else {}
        if not isinstance(rewrite, dict):
            raise InputError(f"field 'requested_rewrite' must be an object, not {quoted(rewrite)}")
        return {**record, **rewrite} if rewrite else record

    def facts(self, number: int) -> list[Fact]:
        prompt, notes = self.template()
        paraphrases, left = templates_of(self.paraphrase_prompts, self.subject, "paraphrase")
        generation, other = templates_of(self.generation_prompts, self.subject, "generation prompt")
        fact = Fact(
            subject=self.subject,
            relation=self.relation,
            prompt=prompt,
            target_true=self.target_true,
            target_new=self.target_new,
            paraphrases=paraphrases,
            generation_prompts=generation,
            id=f"{COUNTERFACT}.{self.case_id or number}",
            neighbour_prompts=self.neighborhood_prompts,
            notes=(*notes, *left, *other),
        )
        return [fact]

    def template(self) -> tuple[str, tuple[str, ...]]:
        """The template: of prefix and suffix where they make up the prompt, else of the prompt; and notes."""
        for space in ("", " "):
            template = f"{self.relation_prefix}{space}{{}}{self.relation_suffix}".strip()
            if template.count("{}") == 1 and template.replace("{}", self.subject) == self.prompt:
                return template, ()
        return prompt_template(self.prompt, self.subject)


class Known1000Record(ForeignRecord):
    """A record of ``known_1000.json``, which has neither a new target nor paraphrases nor neighbours.

    Its ``template`` may be shorter than its prompt, after which the attribute follows.

    Source: Meng et al. 2022 (2202.05262), appendix B.1.
    """

    known_id: CaseName = ""
    subject: Text
    relation_id: Text = "known_1000"
    prompt: Text
    attribute: Text

    def facts(self, number: int) -> list[Fact]:
        prompt, notes = prompt_template(self.prompt, self.subject)
        name = f"known_1000.{self.known_id or number}"
        return [Fact(self.subject, self.relation_id, prompt, self.attribute, id=name, notes=notes)]


class ZsreRecord(ForeignRecord):
    """A record of ``zsre_mend_eval.json``.

    target_true is ``answers[0]``, target_new is ``alt``. The programs differ in what they edit towards: MEND and those
    after it towards ``alt``, the programs of ROME and MEMIT towards ``answers[0]``, the truth, which their model did
    not know (the place of the true target holds an end-of-text token there). For the latter, pass
    ``target=fact.target_true`` to an editor. ``loc`` becomes a probe of kind "unrelated", with the question mark that
    those programs add. Records have no relation: it reads "zsre".

    Source: Mitchell et al. 2021 (2110.11309), §5; Meng et al. 2022 (2202.05262), §3.2; their programs' readers.
    """

    subject: Text
    src: Text
    answers: Annotated[tuple[Text, ...], Field(min_length=1)]
    alt: Text | None = None
    rephrase: Text | None = None
    loc: Text = ""
    loc_ans: Text = ""

    def facts(self, number: int) -> list[Fact]:
        prompt, notes = prompt_template(self.src, self.subject)
        paraphrases, left = templates_of((self.rephrase,) if self.rephrase else (), self.subject, "paraphrase")
        without = ("fields left out: portability",) if "portability" in self.rest else ()  # of EasyEdit's copy
        question = self.loc.removesuffix("?") + "?"
        unrelated = [Probe("unrelated", question, self.loc_ans)] if self.loc and self.loc_ans else []
        fact = Fact(
            subject=self.subject,
            relation="zsre",
            prompt=prompt,
            target_true=self.answers[0],
            target_new=self.alt,
            paraphrases=paraphrases,
            id=f"zsre.{number - 1}",  # as the case_id of the programs, from 0 on
            probes=tuple(unrelated),
            notes=(*notes, *left, *without),
            true_aliases=tuple(dict.fromkeys(self.answers[1:])),
        )
        return [fact]
