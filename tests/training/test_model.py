"""The transformer: its loss against NumPy, its parameters and operations against counts of others."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from commbench.errors import UsageError
from commbench.training.model import PRESETS, find, transformer

needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed beside this interpreter")
TINY = PRESETS["tiny"]


def numpy_loss(weights: dict[str, Any], tokens: Any) -> float:
    """The mean loss of one sequence, written down once more."""
    given, wanted = tokens[:-1], tokens[1:]
    n = len(given)

    def norm(x: Any, scale: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale

    def softmax(x: Any) -> Any:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def gelu(x: Any) -> Any:
        from math import erf, sqrt

        return x * (1 + np.vectorize(erf)(x / sqrt(2))) / 2

    x = weights["embedding.weight"][given] + weights["positions"][:n]
    for layer in range(TINY.layers):
        own = {name.removeprefix(f"blocks.{layer}."): value for name, value in weights.items()}
        q, k, v = np.split(norm(x, own["norm_1.weight"]) @ own["queries_keys_values.weight"].T, 3, axis=1)
        wide = TINY.width // TINY.heads
        seen = np.zeros_like(x)
        for head in range(TINY.heads):
            part = slice(head * wide, (head + 1) * wide)
            scores = q[:, part] @ k[:, part].T / np.sqrt(wide)
            scores[np.triu_indices(n, 1)] = -np.inf
            seen[:, part] = softmax(scores) @ v[:, part]
        x = x + seen @ own["mixed.weight"].T
        x = x + gelu(norm(x, own["norm_2.weight"]) @ own["wide.weight"].T) @ own["narrow.weight"].T
    foretold = softmax(norm(x, weights["norm.weight"]) @ weights["embedding.weight"].T)
    return float(-np.log(foretold[np.arange(n), wanted]).mean())


@needs_torch
def test_the_loss_is_that_of_a_transformer_written_in_numpy() -> None:
    import torch

    model = transformer(TINY, seed=3)
    with torch.no_grad():
        for weights in model.parameters():  # as they are first, attention is nearly even and hides mistakes
            weights.mul_(8.0 if weights.dim() > 1 else 1.5)
    tokens = np.random.default_rng(5).integers(0, TINY.vocabulary, (2, 24))
    weights = {name: value.detach().double().numpy() for name, value in model.named_parameters()}
    expected = np.mean([numpy_loss(weights, row) for row in tokens])
    assert model(torch.from_numpy(tokens)).item() == pytest.approx(expected, rel=1e-5)


@needs_torch
@pytest.mark.parametrize("name", ["tiny", "small"])
def test_the_parameters_are_those_of_the_formula(name: str) -> None:
    preset = PRESETS[name]
    assert sum(weights.numel() for weights in transformer(preset, 1).parameters()) == preset.parameters


@pytest.mark.parametrize(("name", "published"), [("medium", 124e6), ("large", 355e6), ("xl", 1558e6)])
def test_the_large_presets_are_as_large_as_gpt_2(name: str, published: float) -> None:
    assert PRESETS[name].parameters == pytest.approx(published, rel=0.005)  # which has biases


@needs_torch
@pytest.mark.parametrize("sequence", [16, 64])
def test_operations_are_those_that_torch_counts(sequence: int) -> None:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    model = transformer(TINY, seed=1)
    tokens = torch.zeros(3, sequence + 1, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(tokens).backward()
    assert counter.get_total_flops() == 3 * sequence * TINY.flops_per_token(sequence)


def test_operations_by_hand() -> None:
    matrices = 2 * (64 * 192 + 64 * 64 + 64 * 256 + 256 * 64) + 64 * 256  # of two blocks, and the head
    attention = 2 * 2 * (64 * 32)  # two products in each block, with 32 tokens
    assert TINY.flops_per_token(32) == 3 * 2 * (matrices + attention)


@needs_torch
def test_equal_seeds_give_equal_weights() -> None:
    first, again, other = (transformer(TINY, seed).state_dict()["positions"] for seed in (1, 1, 2))
    assert first.equal(again) and not first.equal(other)


def test_a_preset_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="unknown preset 'smal': did you mean small"):
        find("smal")
