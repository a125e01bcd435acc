"""What a model answers: probabilities for many prompts at once, and continuations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core.errors import InputError, check_count, check_seed, quoted
from .model import Model
from .norms import at_least_float32
from .replaying import Change, PlainLayers, Replay, inputs

# Probabilities of answers to many prompts at once, before and after a change of some layers, rows packed into batches.
#
# What is below the lowest changed layer is computed once for both. Prompts are padded on the left, and only positions
# that an answer is read at are unembedded.

BATCH_TOKENS = 4096
LOGITS = 1 << 24  # held at once: 64 MiB in float32

Changing = Callable[[Int[Tensor, " rows"], Replay], Change]
"""Given which question each row is of, and the clean run: what to change."""


@dataclass(frozen=True)
class Question:
    """A prompt and the answers whose probabilities are asked.

    Attributes:
        tokens: the prompt's ids.
        answers: each the ids of one continuation.
    """

    tokens: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Answered:
    """What a model says to a question.

    Attributes:
        log_probabilities: for each answer, the natural logarithm of the probability of each of its tokens.
        exact: for each answer, whether each of its tokens is the likeliest where it stands.
        next_log: ``[vocab]``, log-probabilities of the token after the prompt, where asked for.
    """

    log_probabilities: tuple[Float[Tensor, " _tokens"], ...]  # each answer has a length of its own
    exact: tuple[bool, ...]
    next_log: Float[Tensor, " vocab"] | None = None

    def mean_log(self, answer: int) -> float:
        """The mean log-probability of an answer's tokens."""
        return float(self.log_probabilities[answer].mean())


def padded(
    rows: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "rows pos"], Bool[Tensor, "rows pos"]]:
    """Token ids with pads on the left, and a mask that is False at pads."""
    longest = max(map(len, rows))
    tokens = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, row in enumerate(rows):
        tokens[i, longest - len(row) :] = torch.tensor(row)
        mask[i, longest - len(row) :] = True
    return tokens.to(device), mask.to(device)


@dataclass(frozen=True)
class ReadRow:
    """One row of a batch and what is read off it.

    Attributes:
        question: whose row it is.
        tokens: the prompt and what comes before the last token of its answers.
        answers: which of the question's answers are read here; all have the same tokens but the last.
        width: how many positions are read, the last ones: as many as an answer has tokens.
    """

    question: int
    tokens: tuple[int, ...]
    answers: tuple[int, ...]
    width: int


def readings(questions: Sequence[Question], n_ctx: int, name: str) -> list[ReadRow]:
    """The rows to run: answers that need the same tokens before their last one share a row."""
    found = []
    for index, question in enumerate(questions):
        if not question.tokens or not question.answers or not all(question.answers):
            raise InputError(f"question {index} has no prompt or no answer")
        rows: dict[tuple[int, ...], list[int]] = {}
        for i, answer in enumerate(question.answers):
            rows.setdefault(question.tokens + answer[:-1], []).append(i)
        for tokens, answers in rows.items():
            if len(tokens) > n_ctx:
                raise InputError(f"a prompt and its answer have {len(tokens)} tokens; {name} reads at most {n_ctx}")
            found.append(ReadRow(index, tokens, tuple(answers), len(tokens) - len(question.tokens) + 1))
    return found


def batches(rows: list[ReadRow], batch_tokens: int) -> Iterator[list[ReadRow]]:
    """Rows by length, as many at once as fit."""
    batch: list[ReadRow] = []
    for row in sorted(rows, key=lambda row: (len(row.tokens), row.question)):
        if batch and len(row.tokens) * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def answer(
    layers: PlainLayers,
    questions: Sequence[Question],
    changing: Changing | None = None,
    *,
    start: int = 0,
    next_token: bool = False,
    batch_tokens: int = BATCH_TOKENS,
) -> tuple[list[Answered], list[Answered]]:
    """What a model says to questions as it is and, with ``changing``, changed.

    Args:
        layers: of the model.
        questions: prompts and answers.
        changing: for a batch, given the question of each row and its clean run, a change as ``Replay.finish`` takes
            one, of what FFNs and attention from layer ``start`` on write.
        start: the lowest layer that is changed.
        next_token: keep the log-probabilities of the token after each prompt as well.
        batch_tokens: tokens in a batch; memory grows with it.

    Returns: What it says to each question, clean and changed (the same list where nothing is changed).

    Raises: InputError: an empty question, or one longer than the model reads. OutOfRangeError: no layer ``start``.
    """
    check_count("batch_tokens", batch_tokens)
    start = layers.model.layer(start)
    rows = readings(questions, layers.model.n_ctx, layers.model.name)
    seen: list[dict[tuple[int, int], tuple[Tensor, bool]]] = [{}, {}]  # by question and answer; clean and changed
    nexts: list[dict[int, Tensor]] = [{}, {}]
    for batch in batches(rows, batch_tokens):
        with torch.no_grad():
            for which, final in enumerate(finals(layers, batch, changing, start)):
                for row, logs in unembedded(layers, batch, final):
                    likeliest = logs.argmax(-1)
                    for i in row.answers:
                        ids = torch.tensor(questions[row.question].answers[i], device=logs.device)
                        log = logs.gather(1, ids.unsqueeze(1)).squeeze(1).double()
                        seen[which][row.question, i] = log, bool((likeliest == ids).all())
                    if next_token and row.question not in nexts[which]:
                        nexts[which][row.question] = logs[0].clone()  # a view would keep the rows beside it

    def answered(which: int) -> list[Answered]:
        found = []
        for number, question in enumerate(questions):
            logs, exact = zip(*(seen[which][number, i] for i in range(len(question.answers))), strict=True)
            found.append(Answered(logs, exact, nexts[which].get(number)))
        return found

    clean = answered(0)
    return clean, (clean if changing is None else answered(1))


def finals(
    layers: PlainLayers, batch: list[ReadRow], changing: Changing | None, start: int
) -> Iterator[Float[Tensor, "rows width d_model"]]:
    """What reaches the final norm at the last positions, clean and changed."""
    device = layers.model.device
    width = max(row.width for row in batch)
    tokens, mask = padded([row.tokens for row in batch], device)
    replay = Replay(layers, tokens, mask, start=start if changing is not None else len(layers))
    yield replay.stream[len(layers)][:, -width:]
    if changing is not None:
        change = changing(torch.tensor([row.question for row in batch], device=device), replay)
        # The layer below the lowest changed one leaves what it left in the clean run.
        yield replay.finish([start - 1] * len(batch), replay.stream[start], last=width, change=change)


def unembedded(
    layers: PlainLayers, batch: list[ReadRow], final: Float[Tensor, "rows width d_model"]
) -> Iterator[tuple[ReadRow, Float[Tensor, "read vocab"]]]:
    """Each row with the log-probabilities at the positions that are read, as many rows at once as fit."""
    at_once = max(1, LOGITS // (layers.model.d_vocab * max(row.width for row in batch)))
    for begin in range(0, len(batch), at_once):
        some = batch[begin : begin + at_once]
        ends = [final[begin + i, final.shape[1] - row.width :] for i, row in enumerate(some)]
        logs = at_least_float32(layers.logits(torch.cat(ends))).log_softmax(-1)
        yield from zip(some, torch.split(logs, [row.width for row in some]), strict=True)


# Continuations of many prompts at once, with a cache of keys and values; each row ends by itself.


GOING = 3 / 4  # of a batch's rows: with so many left, it goes on with these alone


def written_on(
    layers: PlainLayers,
    prompts: Sequence[Sequence[int]],
    rooms: Sequence[int],
    pick: Callable[[int, Float[Tensor, "rows vocab"]], Int[Tensor, " rows"]] | None = None,
    ended: Callable[[int, list[int]], bool] | None = None,
    keep: Callable[[Int[Tensor, " going"]], None] | None = None,
) -> list[list[int]]:
    """The token ids that a model writes after prompts, padded on the left beside each other.

    Args:
        layers: of the model, with its hooks.
        prompts: token ids of each.
        rooms: for each how many tokens are written at most.
        pick: the next token of each row, given which step it is and the logits; default the likeliest. Those are the
            tokens of Hugging Face's ``generate`` for a prompt alone, unless two logits are as near as rounding.
        ended: whether a row is at its end, given which it is and what was written in it; the end of a text always is.
        keep: told which of a batch's rows go on, once a quarter of them have ended: what acts on rows goes on with
            these. Without it all rows stay to the end; not together with ``pick``.

    Returns: What was written after each, without the token that ends a text.
    """
    from transformers import DynamicCache

    model = layers.model
    tokens, mask = padded(prompts, model.device)
    written: list[list[int]] = [[] for _ in prompts]
    running = [room > 0 for room in rooms]
    rows = list(range(len(prompts)))  # which the batch still has
    given, cache = inputs(tokens, mask, None), DynamicCache()
    ends, bare = model.tokenizer.eos_token_id, bool(mask.all())
    with torch.no_grad():
        for step in range(min(max(rooms, default=0), model.n_ctx - tokens.shape[1])):
            out = layers.run_cached(given, cache)
            logits = model.logits_of(out.last_hidden_state[:, -1])
            new = logits.argmax(-1) if pick is None else pick(step, logits)
            for row, token in zip(rows, new.tolist(), strict=True):
                if not running[row]:
                    continue
                if token != ends:
                    written[row].append(token)
                over = token == ends or len(written[row]) >= rooms[row]
                running[row] = not (over or (ended is not None and ended(row, written[row])))
            if not any(running):
                break
            going = [place for place, row in enumerate(rows) if running[row]]
            if keep is not None and len(going) <= GOING * len(rows):
                places = torch.tensor(going, device=model.device)
                cache.batch_select_indices(places)
                keep(places)
                rows, mask, new = [rows[place] for place in going], mask[places], new[places]
                tokens = tokens[places]
            tokens = torch.cat([tokens, new.unsqueeze(1)], dim=1)
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            given = {"input_ids": new.unsqueeze(1)}
            if model.short_ctx is not None and bool((mask.sum(1) == model.short_ctx + 1).any()):
                given, cache = inputs(tokens, mask, None), DynamicCache()  # what it keeps was turned as in short texts
            elif not bare:
                given["attention_mask"] = mask.long()
                given["position_ids"] = mask.long().sum(1, keepdim=True) - 1
    return written


# Continuations of a prompt, by Hugging Face's own generation with its cache.


def generate(
    model: Model, tokens: Sequence[int], new: int, *, temperature: float | None = None, seed: int = 0
) -> list[int]:
    """Up to ``new`` token ids after a prompt; fewer where the model ends its text. Hooks on the model act.

    Args:
        model: from :func:`ffnmem.load`.
        tokens: the prompt's ids.
        new: how many.
        temperature: None takes the likeliest token each time; a number samples, with the logits divided by it.
        seed: of the sampling; torch's own random state stays as it is.

    Raises:
        InputError: more than the model reads, an empty prompt, or a temperature that is not above 0.
    """
    check_count("new", new)
    check_seed(seed)
    if not tokens:
        raise InputError("the prompt is empty: give at least one token")
    if len(tokens) + new > model.n_ctx:
        raise InputError(
            f"{len(tokens)} tokens and {new} new ones are more than {model.name} reads, {model.n_ctx}: "
            f"generate at most {max(model.n_ctx - len(tokens), 0)}"
        )
    if temperature is not None and not (temperature > 0 and math.isfinite(temperature)):
        raise InputError(f"temperature must be a number above 0, not {quoted(temperature)}")
    ids = torch.tensor([list(tokens)], device=model.device)
    end = model.tokenizer.eos_token_id
    with torch.no_grad():
        found = model.hf_model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            pad_token_id=end if end is not None else (model.bos_token_id or 0),
            use_cache=True,
            do_sample=False,
            logits_processor=[] if temperature is None else [Drawing(temperature, seed, model.device)],
        )
    return [int(i) for i in found[0, len(tokens) :]]


class Drawing:
    """Leaves the likeliest token to be one that was drawn: torch's own random state is every thread's, this is not.

    The tokens are those that Hugging Face's sampling gives after ``torch.manual_seed(seed)``.
    """

    def __init__(self, temperature: float, seed: int, device: torch.device) -> None:
        self.temperature = temperature
        self.generator = torch.Generator(device).manual_seed(seed)

    def __call__(
        self, _ids: Int[Tensor, "rows pos"], logits: Float[Tensor, "rows vocab"]
    ) -> Float[Tensor, "rows vocab"]:
        probabilities = (logits / self.temperature).softmax(dim=-1)
        drawn = torch.multinomial(probabilities, 1, generator=self.generator)
        return torch.full_like(logits, -torch.inf).scatter(1, drawn, 0.0)
