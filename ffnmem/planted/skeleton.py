"""The words and the bare model that memories are written into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from ..core.errors import InputError

# The empty GPT-2 that memories are planted into: a tokenizer of whole words, weights of zero, a room of directions.
#
# Everything planted is written in random directions orthogonal to each other and to the all-ones vector, so that
# LayerNorm's centring changes nothing and no neuron lies along an axis of the residual stream.

BOS = "<|bos|>"
UNKNOWN = "<|unk|>"
SPECIAL = (BOS, UNKNOWN)
CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
SYLLABLES = [consonant + vowel for consonant in CONSONANTS for vowel in VOWELS]


def build_tokenizer(words: Sequence[str]) -> Any:
    """A tokenizer in which every word, with the space before it, is one token. Ids 0 and 1 are BOS and unknown."""
    import transformers
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *(f" {word}" for word in words)))}
    if len(vocabulary) != len(words) + len(SPECIAL):
        raise InputError("the words of a planted model must differ from each other")
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    # A text's first word gets the space too, so that a prompt reads the same with and without it; a line's end is one.
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Replace(Regex(r"^(?=[^\s<])"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?[^\s]+"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=BOS, unk_token=UNKNOWN, clean_up_tokenization_spaces=False
    )


def stems(count: int, rng: np.random.Generator) -> list[str]:
    """Different pronounceable stems of two syllables, three when these run out."""
    two = [a + b for a in SYLLABLES for b in SYLLABLES]
    pool = two if count <= len(two) else two + [a + b for a in two for b in SYLLABLES]
    if count > len(pool):
        raise InputError(f"at most {len(pool)} concepts can be named, not {count}")
    return [pool[i] for i in rng.permutation(len(pool))[:count]]


def empty_gpt2(d_vocab: int, *, n_layers: int, d_model: int, d_mlp: int, n_ctx: int, n_heads: int = 1) -> Any:
    """A GPT-2 of Hugging Face's whose weights and biases are all 0 and whose norms only normalise (float32)."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=d_vocab,
        n_positions=n_ctx,
        n_embd=d_model,
        n_layer=n_layers,
        n_head=n_heads,
        n_inner=d_mlp,
        activation_function="gelu_new",
        bos_token_id=0,
        eos_token_id=0,
    )
    hf = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            parameter.fill_(1.0 if ".ln_" in name and name.endswith("weight") else 0.0)
    return hf


class Room:
    """Orthonormal directions of a residual stream, handed out once each, all orthogonal to the all-ones vector."""

    def __init__(self, d_model: int, rng: np.random.Generator) -> None:
        start = np.concatenate([np.ones((d_model, 1)), rng.standard_normal((d_model, d_model - 1))], axis=1)
        basis = np.linalg.qr(start)[0].T[1:]
        self.free = torch.tensor(basis, dtype=torch.float64)

    def take(self, count: int) -> Float[Tensor, "count d_model"]:
        """``count`` orthonormal rows nobody else gets; raises InputError when none are left."""
        if count > len(self.free):
            raise InputError(f"d_model is too small: {count} directions are needed and {len(self.free)} are free")
        taken, self.free = self.free[:count], self.free[count:]
        return taken


def unit_rows(count: int, room: Float[Tensor, "n d_model"], rng: np.random.Generator) -> Float[Tensor, "count d_model"]:
    """Random unit vectors in the span of some directions: more of them than directions are in superposition."""
    found = torch.tensor(rng.standard_normal((count, len(room)))) @ room
    return found / found.norm(dim=-1, keepdim=True)


# -- writing weights ---------------------------------------------------------------------------------------------


@torch.no_grad()
def write_ffn(
    hf: Any,
    layer: int,
    keys: Float[Tensor, "d_mlp d_model"],
    key_bias: Float[Tensor, " d_mlp"],
    values: Float[Tensor, "d_mlp d_model"],
) -> None:
    """One layer's memories."""
    mlp = hf.transformer.h[layer].mlp
    mlp.c_fc.weight.copy_(keys.T)
    mlp.c_fc.bias.copy_(key_bias)
    mlp.c_proj.weight.copy_(values)


@torch.no_grad()
def write_embeddings(
    hf: Any, tokens: Float[Tensor, "vocab d_model"], positions: Float[Tensor, "n_ctx d_model"]
) -> None:
    """Token (and, being tied, output) embeddings, and position embeddings."""
    hf.transformer.wte.weight.copy_(tokens)
    hf.transformer.wpe.weight.copy_(positions)


class Clock:
    """Position embeddings on which going one step back is a rotation, so that a head can look at the previous token.

    Position p is ``size`` · [cos ω₁p, sin ω₁p, …]/√n in the plane pairs of ``room``; its product with position p + δ
    depends on δ alone and is largest for δ = 0.
    """

    def __init__(self, room: Float[Tensor, "planes2 d_model"], size: float, rng: np.random.Generator) -> None:
        self.room, self.size = room, size
        self.omega = torch.tensor(np.sort(rng.uniform(0.1, 3.0, len(room) // 2)))

    def code(self, at: Float[Tensor, " n"]) -> Float[Tensor, "n planes2"]:
        angle = at.unsqueeze(-1) * self.omega
        return torch.stack([angle.cos(), angle.sin()], dim=-1).flatten(1) / len(self.omega) ** 0.5

    def positions(self, n_ctx: int) -> Float[Tensor, "n_ctx d_model"]:
        return self.size * self.code(torch.arange(n_ctx, dtype=torch.float64)) @ self.room

    def step_back(self) -> Float[Tensor, "planes2 planes2"]:
        """R with code(p) @ R = code(p − 1)."""
        turn = torch.zeros(len(self.room), len(self.room), dtype=torch.float64)
        for j, omega in enumerate(self.omega.tolist()):
            c, s = np.cos(omega), np.sin(omega)
            turn[2 * j : 2 * j + 2, 2 * j : 2 * j + 2] = torch.tensor([[c, -s], [s, c]])
        return turn


@torch.no_grad()
def write_head(
    hf: Any,
    layer: int,
    *,
    query: Float[Tensor, "d_model n"],
    key: Float[Tensor, "d_model n"],
    value: Float[Tensor, "d_model m"],
    out: Float[Tensor, "m d_model"],
    head: int = 0,
) -> None:
    """One attention head by its four factors, each narrower than the head; what is not given is 0."""
    attention = hf.transformer.h[layer].attn
    d_model, width = attention.embed_dim, attention.head_dim
    if query.shape[1] > width or value.shape[1] > width:
        raise InputError(f"a head of width {width} cannot hold {query.shape[1]} and {value.shape[1]} directions")
    for which, factor in enumerate((query, key, value)):
        start = which * d_model + head * width
        attention.c_attn.weight[:, start : start + factor.shape[1]] = factor.float()
    attention.c_proj.weight[head * width : head * width + out.shape[0]] = out.float()


SHARP = 30.0  # the attention score of the position that a head is to look at


def write_previous_token_head(
    hf: Any,
    layer: int,
    clock: Clock,
    *,
    scale: float,
    value: Float[Tensor, "d_model m"],
    out: Float[Tensor, "m d_model"],
    head: int = 0,
) -> None:
    """A head that looks at the previous token. ``scale``: what LayerNorm multiplies the residual stream by."""
    width = hf.transformer.h[layer].attn.head_dim
    gain = SHARP * width**0.5 / (clock.size * scale) ** 2
    write_head(
        hf, layer, query=gain * clock.room.T @ clock.step_back(), key=clock.room.T, value=value, out=out, head=head
    )


@torch.no_grad()
def add_noise(hf: Any, noise: float, rng: np.random.Generator) -> None:
    """Noise on every weight matrix, of ``noise`` times the root mean square of each neuron's, token's or head's row."""
    for block in hf.transformer.h:
        for weight in (block.mlp.c_fc.weight.T, block.mlp.c_proj.weight, block.attn.c_attn.weight.T):
            blur(weight, noise, rng)
        blur(block.attn.c_proj.weight, noise, rng)
    blur(hf.transformer.wte.weight, noise, rng)
    blur(hf.transformer.wpe.weight, noise, rng)


def blur(rows: Float[Tensor, "n d"], noise: float, rng: np.random.Generator) -> None:
    """Add noise to rows where they stand, as large as each row is."""
    drawn = torch.tensor(rng.standard_normal(tuple(rows.shape)), dtype=rows.dtype)
    rows += noise * rows.pow(2).mean(-1, keepdim=True).sqrt() * drawn


# -- reading back ------------------------------------------------------------------------------------------------


@torch.no_grad()
def norm_outputs(
    hf: Any, layer: int, tokens: Int[Tensor, "rows pos"], norm: str = "ln_1"
) -> Float[Tensor, "rows pos d_model"]:
    """What one layer's attention (with ln_2, its FFN) reads on some texts, in float64, with all below as it is now."""
    found: list[Tensor] = []
    module = getattr(blocks(hf)[layer], norm)
    handle = module.register_forward_hook(lambda _m, _i, out: found.append(out.double()))
    try:
        hf.base_model(tokens, use_cache=False)
    finally:
        handle.remove()
    return found[0]


def blocks(hf: Any) -> Any:
    """The layers of a GPT-2 or a Mixtral."""
    return hf.transformer.h if hf.config.model_type == "gpt2" else hf.model.layers


def ffn_inputs(hf: Any, layer: int, tokens: Int[Tensor, "rows pos"]) -> Float[Tensor, "rows pos d_model"]:
    """What one layer's FFN reads, as :func:`norm_outputs` has it for attention."""
    return norm_outputs(hf, layer, tokens, "ln_2" if hf.config.model_type == "gpt2" else "post_attention_layernorm")


def mean_by(
    features: Int[Tensor, "n kinds"], x: Float[Tensor, "n width"], n_features: int
) -> Float[Tensor, "features width"]:
    """The mean row where each feature is there; NaN for one that never is."""
    sums = torch.zeros(n_features, x.shape[1], dtype=x.dtype)
    counts = torch.zeros(n_features, dtype=x.dtype)
    for column in features.T:
        sums.index_add_(0, column, x)
        counts.index_add_(0, column, torch.ones(len(column), dtype=x.dtype))
    return sums / counts.unsqueeze(-1)


def solve_keys(
    means: Float[Tensor, "features d_model"],
    scatter: Float[Tensor, "d_model d_model"],
    targets: Float[Tensor, "features d_mlp"],
) -> Float[Tensor, "d_mlp d_model"]:
    """Keys whose products with features' mean inputs come closest to the targets, in float64.

    Regularised by what inputs of one feature differ by (``scatter``), as Fisher's discriminant is. A target of 0 means
    that the neuron is not to react; where targets are not 0, keys are scaled so that they are met on average.
    """
    gram = means.T @ means + scatter
    gram += 1e-6 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    keys = torch.linalg.solve(gram, means.T @ targets).T
    wanted = targets.T != 0
    met = torch.where(wanted, keys @ means.T, 0.0).sum(-1)
    scale = targets.T.sum(-1) / torch.where(met.abs() > 1e-12, met, 1.0)
    return keys * scale.unsqueeze(-1)


def solve_rows(
    x: Float[Tensor, "n d_model"], seen: Int[Tensor, "n kinds"], targets: Float[Tensor, "features d_mlp"]
) -> tuple[Float[Tensor, "d_mlp d_model"], Float[Tensor, " d_mlp"]]:
    """Keys that tell the features seen in some inputs, as :func:`solve_keys` has it, and biases with which they give 0
    for the mean input."""
    centre = x.mean(0)
    means = mean_by(seen, x - centre, len(targets))
    present = ~means.isnan().any(-1)
    scatter = (x - centre).T @ (x - centre) / len(x)
    keys = solve_keys(means[present], scatter, targets[present])
    return keys, -(keys @ centre)


# A vocabulary whose embeddings say how frequent a word is and what letters it has, and text drawn from it.
#
# Every word has a direction of its own. Besides, all share one direction on which log-frequency lies, and one for each
# attribute, a split of the words in two by one of their letters. A few directions of the residual stream hold next to
# nothing of any word, so that no unembedding row reads what is written there.

ATTRIBUTE = 0.022  # of an embedding's square, on the direction of each attribute
FREQUENT = 0.003  # of an embedding's square, on the direction of log-frequency
WAVES, WEAKER = 10, 0.5  # directions kept for positions, and what an embedding has there, against one of its own
FAINT = 0.05  # what an embedding has on an unread direction, against one of its own
FLATTER = 10  # of the Zipf–Mandelbrot law 1/(rank + 10): no word makes up more than some 2% of the text
PLACES = ("1st", "2nd", "3rd", "4th")
SHORTEST = 40  # words of a document; the longest fill the context


@dataclass(frozen=True, eq=False)
class Lexicon:
    """Words, their text and their embeddings. Made by :func:`draw_lexicon`.

    Attributes:
        words: with token ids from ``len(SPECIAL)`` on.
        rows: the text, documents as word numbers. counts: how often each word occurs there.
        splits: by attribute, the letters of the + side, as words. signs: by attribute, +1 or −1 for each word.
        embeddings: of all tokens, special ones too; nearly of length 1. own: the part that each shares with no other.
        attributes, frequency, unread, waves: directions, orthonormal; the last are for positions.
    """

    words: tuple[str, ...]
    rows: tuple[np.ndarray, ...]
    counts: Int64[np.ndarray, " words"]
    splits: tuple[str, ...]
    signs: Float64[np.ndarray, "attributes words"]
    embeddings: Float[Tensor, "vocab d_model"]
    own: Float[Tensor, "vocab d_model"]
    attributes: Float[Tensor, "attributes d_model"]
    frequency: Float[Tensor, " d_model"]
    unread: Float[Tensor, "unread d_model"]
    waves: Float[Tensor, "waves d_model"]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(" ".join(self.words[i] for i in row) for row in self.rows)


def draw_lexicon(
    rng: np.random.Generator, *, n_words: int, n_tokens: int, d_model: int, unread: int, longest: int
) -> Lexicon:
    """Words, text and embeddings.

    Args:
        rng: draws everything.
        n_words: how many words. n_tokens: about how long the text is.
        d_model: of the embeddings. unread: how many directions hold next to nothing of any word.
        longest: words of a document at most.

    Raises: InputError where ``d_model`` has no room or there are not enough words.
    """
    words = stems(n_words, rng)
    rows = draw_text(rng, n_words, n_tokens, longest)
    counts = np.bincount(np.concatenate(rows), minlength=n_words)
    splits, signs = split_words(words, rng)
    room = Room(d_model, rng)
    attributes, frequency, faint = room.take(len(splits)), room.take(1)[0], room.take(unread)
    waves = room.take(WAVES)
    kept = torch.cat([WEAKER * waves, room.take(len(room.free))])
    vocabulary = len(SPECIAL) + n_words
    own = (1 - ATTRIBUTE * len(splits) - FREQUENT) ** 0.5 * unit_rows(vocabulary, kept, rng)
    rare = np.log1p(np.concatenate([np.zeros(len(SPECIAL)), counts]))
    rare = FREQUENT**0.5 * (rare - rare.mean()) / rare.std()
    sides = np.concatenate([np.zeros((len(splits), len(SPECIAL))), signs], axis=1)
    traces = FAINT * len(kept) ** -0.5 * rng.standard_normal((vocabulary, unread))
    shared = torch.tensor(ATTRIBUTE**0.5 * sides.T) @ attributes + torch.outer(torch.tensor(rare), frequency)
    return Lexicon(
        words=tuple(words),
        rows=tuple(rows),
        counts=counts,
        splits=splits,
        signs=signs,
        embeddings=own + shared + torch.tensor(traces) @ faint,
        own=own,
        attributes=attributes,
        frequency=frequency,
        unread=faint,
        waves=waves,
    )


def draw_text(rng: np.random.Generator, n_words: int, n_tokens: int, longest: int) -> list[np.ndarray]:
    """Documents of ``SHORTEST`` to ``longest`` words, word 0 the most frequent."""
    weight = 1 / (1 + np.arange(n_words) + FLATTER)
    weight /= weight.sum()
    rows = []
    left = n_tokens
    while left > 0:
        length = int(rng.integers(SHORTEST, longest + 1))
        rows.append(rng.choice(n_words, length, p=weight))
        left -= length
    return rows


def split_words(
    words: list[str], rng: np.random.Generator
) -> tuple[tuple[str, ...], Float64[np.ndarray, "attributes words"]]:
    """Four splits of words in two halves: by which consonant or vowel is their 1st, 2nd, 3rd and 4th letter."""
    splits, signs = [], []
    for place, name in enumerate(PLACES):
        letters = CONSONANTS if place % 2 == 0 else VOWELS
        side = sorted(rng.choice(list(letters), len(letters) // 2, replace=False))
        splits.append(f"{name} letter {' '.join(side)}")
        signs.append([1.0 if word[place] in side else -1.0 for word in words])
    return tuple(splits), np.array(signs)


def even_rows(rng: np.random.Generator, n_words: int, rounds: int, longest: int) -> Int[Tensor, "rows pos"]:
    """Token ids, BOS in front, in which every word occurs about ``rounds`` times whatever its frequency in the text."""
    line = np.concatenate([rng.permutation(n_words) for _ in range(rounds)]) + len(SPECIAL)
    line = line[: len(line) // longest * longest].reshape(-1, longest)
    return torch.tensor(np.concatenate([np.zeros((len(line), 1), dtype=np.int64), line], axis=1))
