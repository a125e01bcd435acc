"""What every layer makes of one position: coefficients, the FFN's output and the residual stream, for many prefixes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import HookError
from ..hooks import OnTensor, listening
from ..models import Model
from ..models.final_norm import FinalNorm, at_least_float32
from ..models.layer_pass import LayerPass

LOGITS = 1 << 24  # rows × vocabulary at a time


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer at the last token of some prefixes.

    Attributes:
        coefficients: m. ffn: y, what the FFN adds to the residual stream, with its bias. out: o = r + y, the residual
            stream after the layer.
    """

    coefficients: Float[Tensor, "rows d_mlp"]
    ffn: Float[Tensor, "rows d_model"]
    out: Float[Tensor, "rows d_model"]

    @property
    def residual(self) -> Float[Tensor, "rows d_model"]:
        """r, what the FFN's output is added to (attention's output of this layer included)."""
        return self.out - self.ffn


class Positions:
    """Runs prefixes through a model's layers and gives what stands at each one's last token."""

    def __init__(self, model: Model) -> None:
        self.model = model
        body = LayerPass(model)
        self.body, self.projections = body.body, body.projections
        # What a layer leaves is what the next one, or the final norm, is given.
        self.after = [body.plain(block.whole) for block in model.layout.blocks[1:]]
        self.added = [
            body.plain(block.project_out if block.post is None else block.post) for block in model.layout.blocks
        ]
        self.after.append(body.plain(model.layout.final_norm))

    def layers(self, tokens: Int[Tensor, "rows pos"], ends: Int[Tensor, " rows"]) -> list[Layer]:
        """All layers at the position ``ends[r]`` of each row of right-padded ``tokens``, in float32 or float64.

        Raises HookError if a layer did not show what passed.
        """
        rows = torch.arange(len(tokens), device=tokens.device) * tokens.shape[1] + ends
        kept: dict[tuple[str, int], Tensor] = {}

        def keep(name: str, layer: int) -> OnTensor:
            def receive(tensor: Tensor) -> None:
                # A copy: Falcon adds to what it is given in place.
                kept[name, layer] = at_least_float32(tensor.detach().reshape(-1, tensor.shape[-1])[rows]).clone()

            return receive

        outs = [parts.out for parts in self.projections]
        inputs = [(project_out, keep("coefficients", layer)) for layer, project_out in enumerate(outs)]
        inputs += [(norm, keep("out", layer)) for layer, norm in enumerate(self.after)]
        outputs = [(added, keep("ffn", layer)) for layer, added in enumerate(self.added)]
        with torch.inference_mode(), listening(inputs, outputs):
            self.body(input_ids=tokens, use_cache=False)
        if len(kept) != 3 * self.model.n_layers:
            raise HookError(f"{self.model.name}: a layer did not show its coefficients, output and residual stream")
        factor = self.model.layout.write_scale
        return [
            Layer(kept["coefficients", layer], kept["ffn", layer] * factor, kept["out", layer])
            for layer in range(self.model.n_layers)
        ]


class Lens:
    """Residual streams and writes as predictions: through the final norm, or by the folded basis alone."""

    def __init__(self, model: Model) -> None:
        self.norm = FinalNorm(model)
        self.tokens = at_least_float32(model.unembedding.detach())
        bias = model.unembedding_bias
        self.bias = None if bias is None else at_least_float32(bias.detach())

    def logits(self, stream: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows vocab"]:
        """What the model would predict if its layers ended here (nostalgebraist 2020's logit lens)."""
        normed = self.norm.norm(at_least_float32(stream))
        return self.norm.model.capped(torch.nn.functional.linear(normed, self.tokens, self.bias))

    def written(self, writes: Float[Tensor, "rows d_model"], basis: str = "folded") -> Float[Tensor, "rows vocab"]:
        """Scores of writes, as :func:`ffnmem.project` has them for values."""
        x = at_least_float32(writes)
        return (self.norm.norm.passed(x) if basis == "folded" else x) @ self.tokens.T

    def chunks(self, rows: int) -> list[slice]:
        """Rows in parts whose logits fit into memory."""
        step = max(1, LOGITS // len(self.tokens))
        return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]

    def top(self, stream: Float[Tensor, "rows d_model"]) -> Int[Tensor, " rows"]:
        """The predicted token of each row."""
        return torch.cat([self.logits(stream[part]).argmax(dim=-1) for part in self.chunks(len(stream))])

    def top_written(self, writes: Float[Tensor, "rows d_model"], basis: str = "folded") -> Int[Tensor, " rows"]:
        """The token that each write promotes most."""
        return torch.cat([self.written(writes[part], basis).argmax(dim=-1) for part in self.chunks(len(writes))])

    def top_and_probability(
        self, stream: Float[Tensor, "rows d_model"], of: Int[Tensor, " rows"]
    ) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
        """The predicted token of each row, and the probability of another one."""
        tops, probabilities = [], []
        for part in self.chunks(len(stream)):
            logits = self.logits(stream[part])
            tops.append(logits.argmax(dim=-1))
            mine = logits.gather(1, of[part].unsqueeze(-1)).squeeze(-1)
            probabilities.append((mine - logits.logsumexp(dim=-1)).exp())
        return torch.cat(tops), torch.cat(probabilities)
