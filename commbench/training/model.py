"""The model that is trained: a decoder-only transformer, its sizes, its parameters and operations.

Blocks of causal self-attention and a perceptron four times as wide, each behind its norm; learned positions, no biases,
and the embedding is the head as well. The sizes above `small` are those of GPT-2 (Radford et al., "Language Models are
Unsupervised Multitask Learners", 2019, table 2, and its published code).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

from commbench.errors import unknown_name

_SPREAD = 0.02  # standard deviation of the first weights, as in GPT-2


@dataclass(frozen=True)
class Preset:
    """The sizes of a model."""

    name: str
    layers: int
    width: int
    heads: int
    vocabulary: int
    sequence: int  # tokens, at most
    batch: int  # sequences of a micro-batch, unless asked otherwise

    @property
    def parameters(self) -> int:
        """V h + s h + L (12 h^2 + 2 h) + h: embedding, positions; matrices and norms of the blocks; the last norm."""
        return (self.vocabulary + self.sequence + 1) * self.width + self.layers * (12 * self.width + 2) * self.width

    def flops_per_token(self, sequence: int) -> int:
        """Return the operations of a token's forward and backward pass in sequences of so many tokens.

        6 (12 L h^2 + V h) + 12 L h s: two for each weight of a matrix and three passes, and the products of attention,
        of which the masked half counts too (Chowdhery et al., "PaLM", 2022, appendix B).
        """
        weights = 12 * self.layers * self.width**2 + self.vocabulary * self.width
        return 6 * weights + 12 * self.layers * self.width * sequence


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("tiny", layers=2, width=64, heads=4, vocabulary=256, sequence=64, batch=2),
        Preset("small", layers=4, width=256, heads=4, vocabulary=2048, sequence=128, batch=2),
        Preset("medium", layers=12, width=768, heads=12, vocabulary=50257, sequence=1024, batch=8),
        Preset("large", layers=24, width=1024, heads=16, vocabulary=50257, sequence=1024, batch=8),
        Preset("xl", layers=48, width=1600, heads=25, vocabulary=50257, sequence=1024, batch=4),
    )
}


def find(name: str) -> Preset:
    """Return the preset called `name`, or raise UsageError."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name]


def transformer(preset: Preset, seed: int) -> Any:
    """Return the model as a torch module, alike for equal seeds.

    It takes tokens of shape (batch, sequence + 1), whole numbers below the vocabulary, and returns the mean loss of
    foretelling each but the first, in nats.
    """
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            h = preset.width
            self.norm_1, self.norm_2 = nn.LayerNorm(h, bias=False), nn.LayerNorm(h, bias=False)
            self.queries_keys_values = nn.Linear(h, 3 * h, bias=False)
            self.mixed = nn.Linear(h, h, bias=False)
            self.wide, self.narrow = nn.Linear(h, 4 * h, bias=False), nn.Linear(4 * h, h, bias=False)

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            heads = self.queries_keys_values(self.norm_1(x)).view(batch, length, 3, preset.heads, -1)
            queries, keys, values = heads.permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
            x = x + self.mixed(seen.transpose(1, 2).reshape(batch, length, width))
            return x + self.narrow(functional.gelu(self.wide(self.norm_2(x))))

    class Decoder(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(preset.vocabulary, preset.width)
            self.positions = nn.Parameter(torch.empty(preset.sequence, preset.width))
            self.blocks = nn.ModuleList(Block() for _ in range(preset.layers))
            self.norm = nn.LayerNorm(preset.width, bias=False)

        def forward(self, tokens: Any) -> Any:
            given, wanted = tokens[:, :-1], tokens[:, 1:]
            x = self.embedding(given) + self.positions[: given.shape[1]]
            for block in self.blocks:
                x = block(x)
            logits = functional.linear(self.norm(x), self.embedding.weight)
            return functional.cross_entropy(logits.float().flatten(0, 1), wanted.flatten())

    model = Decoder()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() < 2:  # of a norm
                continue
            ends = name.endswith(("mixed.weight", "narrow.weight"))  # what is added to the residual stream, 2 L times
            weights.normal_(0.0, _SPREAD / sqrt(2 * preset.layers) if ends else _SPREAD, generator=draw)
    return model
