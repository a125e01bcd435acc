"""What the tests share: small random models and their tokenizer, one comparison, one check of an error."""

from __future__ import annotations

import inspect
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError
from rich.console import Console
from torch import nn

import ffnmem as fm
from ffnmem.core.errors import FfnmemWarning
from ffnmem.core.sheets import Sheet
from ffnmem.show.terminal import show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REPOSITORY = Path(__file__).resolve().parent.parent

PROMPT = "The Eiffel Tower is in the city of"
OTHER_PROMPT = "The Colosseum"  # shorter, and "Colosseum" falls into letters

BOS = "<|endoftext|>"
WHOLE_WORDS = (
    "The",
    " the",
    " city",
    " of",
    " is",
    " in",
    " Eiffel",
    " Tower",
    " Paris",
    " Rome",
    " London",
    " France",
)


def allclose(found: Any, expected: Any, tolerance: float = 1e-6) -> bool:
    """The one comparison of numbers in this suite: same shape, largest difference at most ``tolerance``.

    The difference counts relative to the largest expected number where that is above 1. Raises AssertionError with the
    difference, so that a failure says how far off it is; NaN equals nothing.
    """
    a, b = (torch.as_tensor(np.asarray(plain(x)), dtype=torch.float64) for x in (found, expected))
    assert a.shape == b.shape, f"shape {list(a.shape)} instead of {list(b.shape)}"
    if b.numel() == 0:
        return True
    difference = float((a - b).abs().max()) / max(1.0, float(b.abs().max()))
    assert difference <= tolerance, f"off by {difference:.2e}, allowed {tolerance:.0e}"
    return True


def plain(value: Any) -> Any:
    return value.detach().double().cpu().numpy() if isinstance(value, torch.Tensor) else np.array(value, dtype=float)


@contextmanager
def refuses(kind: type[Exception], builtin: type[Exception], *named: str, typed: bool = False) -> Iterator[None]:
    """The block must raise ``kind``, which is also ``builtin``, in one line that names everything in ``named``.

    ``typed``: what is refused is of another type than is annotated, so that where types are checked (``make test-all``)
    what checks them may be first.
    """
    checked = typed and os.environ.get("FFNMEM_CHECK_TYPES")
    with pytest.raises((kind, TypeCheckError) if checked else kind) as caught:
        yield
    if checked and isinstance(caught.value, TypeCheckError):
        return
    message = str(caught.value)
    assert isinstance(caught.value, builtin)
    assert message.strip()
    assert "\n" not in message
    missing = [name for name in named if name not in message]
    assert not missing, f"{missing} not named in: {message}"


def warned(match: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A test in which we must warn of something, such as of an edit: a random model is moved by large ones alone."""

    def wrap(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            with pytest.warns(FfnmemWarning, match=match):
                test(*args, **kwargs)

        return run

    return wrap


def draw_whole(ax: Axes) -> None:
    """Draw the figure that Axes are in: only then does matplotlib say what it cannot draw."""
    assert ax.figure is not None
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]


def legend_of(ax: Axes) -> list[str]:
    """The texts of a legend, which must be there."""
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def build_tokenizer() -> Any:
    """A byte-level BPE tokenizer in which ``WHOLE_WORDS`` are single tokens and everything else falls into bytes."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {BOS: 0}
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[letter] = len(vocabulary)
    merges: dict[tuple[str, str], None] = {}
    for word in WHOLE_WORDS:
        letters = word.replace(" ", "Ġ")
        for end in range(1, len(letters)):
            merges[letters[:end], letters[end]] = None
            vocabulary.setdefault(letters[: end + 1], len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=BOS)


def randomise(model: nn.Module, seed: int = 0) -> Any:
    """Every parameter drawn anew, biases and gains too, so that no term of an identity is zero and none is one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            draw = torch.randn(parameter.shape, generator=generator)
            # One-dimensional: gains and biases alike get a mean that is neither 0 nor 1.
            parameter.copy_(0.3 * draw + (0.6 if parameter.ndim == 1 else 0.0))
    return model.eval()


def build_gpt2(**changes: Any) -> Any:
    import transformers

    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_inner": 64, "n_positions": 32, **shared_sizes(), **changes}
    return randomise(transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)))


def build_twins(tokenizer: Any) -> Any:
    """GPT-2 to which " Paris" and " Rome" are one: the difference of their logits is 0, and of all that adds to it."""
    model = build_gpt2()
    paris, rome = (tokenizer.encode(word)[0] for word in (" Paris", " Rome"))
    with torch.no_grad():
        weight = model.get_output_embeddings().weight
        weight[rome] = weight[paris]
    return model


def build_gpt_neo(**changes: Any) -> Any:
    import transformers

    sizes = {
        "hidden_size": 16,
        "num_layers": 2,
        "num_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 8,
        "layer_norm_epsilon": 1e-2,  # not what the others have, so that a fixed one would show
        **shared_sizes(),
        **changes,
    }
    return randomise(transformers.GPTNeoForCausalLM(transformers.GPTNeoConfig(**sizes)))


def build_gpt_neox(**changes: Any) -> Any:
    import transformers

    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
        **shared_sizes(),
        **changes,
    }
    return randomise(transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**sizes)))


def build_opt(**changes: Any) -> Any:
    import transformers

    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "ffn_dim": 64,
        "max_position_embeddings": 32,
        "word_embed_proj_dim": 16,
        "pad_token_id": 0,
        **shared_sizes(),
        **changes,
    }
    return randomise(transformers.OPTForCausalLM(transformers.OPTConfig(**sizes)))


def shared_sizes() -> dict[str, int]:
    return {"vocab_size": len(build_tokenizer()), "bos_token_id": 0, "eos_token_id": 0}


def build_untied_gpt2_with_bias() -> Any:
    """GPT-2 with an unembedding of its own that has a bias, the case of GPT-J and Phi."""
    model = build_gpt2(tie_word_embeddings=False)
    model.lm_head = nn.Linear(model.config.n_embd, model.config.vocab_size, bias=True)
    return randomise(model, seed=1)


# What a model of the Llama family is built of at toy size.
GATED_SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}


def build(kind: str, **changes: Any) -> Any:
    """A random model of a Hugging Face family, such as ``build("Llama")``, of ``GATED_SIZES`` unless told otherwise."""
    import transformers

    config = getattr(transformers, f"{kind}TextConfig", None) or getattr(transformers, f"{kind}Config")
    sizes = {**GATED_SIZES, **shared_sizes(), "pad_token_id": 0, **changes}
    made = getattr(transformers, f"{kind}ForCausalLM")(config(**sizes))
    made.config._experts_implementation = "eager"  # the others have no float64
    return randomise(made)


def build_gemma2(**changes: Any) -> Any:
    """RMSNorm with its 1 +, norms behind attention and FFN, a window of 4 in every second layer, a soft cap of 5."""
    return build("Gemma2", **{"head_dim": 8, "sliding_window": 4, "final_logit_softcapping": 5.0, **changes})


ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "gpt2": build_gpt2,
    "gpt2 untied": build_untied_gpt2_with_bias,
    "gpt-neo": build_gpt_neo,
    "gpt-neox parallel": build_gpt_neox,
    "gpt-neox sequential": lambda: build_gpt_neox(use_parallel_residual=False),
    "opt": build_opt,
    "opt without biases": lambda: build_opt(enable_bias=False),
    "llama": lambda: build("Llama"),
    "gemma2": build_gemma2,
}
"""Those that every test of a part runs on; :mod:`tests.architectures` has all, for one test of each part."""


@dataclass(frozen=True)
class Pair:
    """A Hugging Face model as it was built, and ours made from it."""

    name: str
    hf: Any
    model: Any

    @property
    def rounds_attention(self) -> bool:
        """Whether attention takes scores or softmax (llama: rotations) in float32, whatever the model's type."""
        return self.name.split()[0] in ("gpt-neo", "gpt-neox", "opt", "llama", "gemma2")

    def exact(self, tolerance: float = 1e-11) -> float:
        """How near float64 numbers must be that went through attention in two ways: to eight steps of float32 where
        attention rounds to that."""
        return 8 * torch.finfo(torch.float32).eps if self.rounds_attention else tolerance

    def blocks(self) -> Sequence[nn.Module]:
        if self.name.startswith("gpt-neox"):
            return self.hf.gpt_neox.layers
        if self.name in ("llama", "gemma2"):
            return self.hf.model.layers
        return self.hf.model.decoder.layers if self.name.startswith("opt") else self.hf.transformer.h

    def mlp(self, layer: int) -> Callable[[torch.Tensor], torch.Tensor]:
        """One layer's FFN as Hugging Face runs it, without norm and residual."""
        block = self.blocks()[layer]
        if self.name.startswith("opt"):  # has no module of its own for it
            return lambda x: block.fc2(block.activation_fn(block.fc1(x)))
        return block.mlp

    def uncapped(self, tokens: torch.Tensor) -> torch.Tensor:
        """Hugging Face's logits before a soft cap, which is what attribution explains."""
        return self.before_cap(self.logits(tokens))

    def before_cap(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits as they were before the model's soft cap, if it has one."""
        cap = getattr(self.hf.config, "final_logit_softcapping", None)
        return logits if cap is None else cap * torch.atanh(logits / cap)

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.hf(input_ids=tokens).logits


def added(model: Any, layer: int, part: str, written: torch.Tensor) -> torch.Tensor:
    """What enters the residual stream of what a layer's FFN ("ffn") or attention writes."""
    block = model.layout.blocks[layer]
    return model.layout.through(block.post if part == "ffn" else block.attention_post, written).detach()


def hook_count(module: nn.Module) -> int:
    """All hooks on a module and below it."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(part, kind)) for part in module.modules() for kind in kinds)


def printed(shown: Any, width: int = 100) -> list[str]:
    """The lines of a sheet, or of one block of one, on a terminal."""
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    show(shown if isinstance(shown, Sheet) else Sheet.of(shown), console)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


DOORLESS = {
    "corpus": ("Corpus", "Document", "Packed", "Problem", "open_packed"),
}
"""Public in a subpackage, without a check of arguments: data of the package's own making, and what only reads it."""


def public_things() -> dict[str, Any]:
    """Functions and classes that users call, by name: ``"rome"`` at the top, ``"editing.memit"`` in a subpackage.

    The subpackage ``ffn`` is left out: its functions are of plain tensors, whose shapes the tests' type checker sees.
    """
    subpackages = {
        name: getattr(fm, name) for name in fm.__all__ if inspect.ismodule(getattr(fm, name)) and name != "ffn"
    }
    found = {name: getattr(fm, name) for name in fm.__all__}
    for subpackage, module in subpackages.items():
        names = (name for name in module.__all__ if name not in DOORLESS.get(subpackage, ()) and name not in found)
        found |= {f"{subpackage}.{name}": getattr(module, name) for name in names}
    return {name: thing for name, thing in found.items() if inspect.isclass(thing) or inspect.isfunction(thing)}


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A file whose ``result.json`` says something else, with checksums that are right."""
    with zipfile.ZipFile(path) as archive:
        parts, comment = {name: archive.read(name) for name in archive.namelist()}, archive.comment
    content = json.loads(parts["result.json"])
    change(content)
    parts["result.json"] = json.dumps(content).encode()
    with zipfile.ZipFile(path, "w") as archive:
        archive.comment = comment
        for name, data in parts.items():
            archive.writestr(name, data)
    return path


def changed_answer(
    model: Any, tokens: torch.Tensor, target: int, foil: int, change: Callable[[int, torch.Tensor], torch.Tensor]
) -> float:
    """The target's last logit minus the foil's where ``change(layer, m [pos, d_mlp])`` replaces coefficients, by hooks
    written out."""

    def hook(layer: int, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        m = args[0]
        return (change(layer, m.reshape(-1, m.shape[-1])).reshape(m.shape), *args[1:])

    with ExitStack() as hooks, torch.no_grad():
        for layer in range(model.n_layers):
            hooks.callback(model.ffn[layer].project_out.register_forward_pre_hook(partial(hook, layer)).remove)
        logits = model.hf_model(tokens).logits[0, -1]
    return float(logits[target] - logits[foil])


def summed(values: Any) -> list[float]:
    """Count, mean and slope of numbers in their order: one that is in another's place changes the slope."""
    x = np.arcsinh(np.nan_to_num(np.asarray(values, float).ravel()))  # so that a large one hides no small one
    return [len(x), float(x.mean()), float((x * np.linspace(-1, 1, len(x))).mean())]


def check_kept(file: Path, name: str, found: list[dict[str, list[float]]]) -> None:
    """Raises AssertionError if sums differ from those in a file by more than rounding of some of their numbers.

    After a change that is meant, take the entry out of the file and run the test alone with ``-p no:xdist``: it writes
    the entry and fails. Then look at what it is of.
    """
    kept = json.loads(file.read_text("utf-8")) if file.exists() else {}
    if name not in kept:
        kept[name] = [{kind: [float(f"{x:.7g}") for x in numbers] for kind, numbers in one.items()} for one in found]
        lines = (f"{json.dumps(key)}: {json.dumps(kept[key])}" for key in sorted(kept))
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
        pytest.fail(f"{file.name} had nothing of {name}, and has it now: look at it")
    assert [list(one) for one in found] == [list(one) for one in kept[name]], name
    for mine, before in zip(found, kept[name], strict=True):
        for kind, numbers in before.items():
            close = 3e-5 * max(map(abs, numbers[1:]))
            assert mine[kind] == pytest.approx(numbers, abs=close), f"{kind} of {name}"
