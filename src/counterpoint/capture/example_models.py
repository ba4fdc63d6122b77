"""A small decoder in the shape of today's language models, for examples, benchmarks and tests.

Grouped-query attention with rotary positions, SwiGLU, RMSNorm before each part, as in Llama; of any size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes of a decoder. The defaults train in seconds on a laptop."""

    vocabulary: int = 256
    dim: int = 64
    layers: int = 2
    heads: int = 8
    kv_heads: int = 4
    hidden: int = 128
    """Width of the feed-forward part."""
    positions: int = 64
    """The longest sequence."""
    tied: bool = False
    """The output layer shares its weight with the embedding."""
    rope_base: float = 10000.0
    epsilon: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.heads


LLAMA_8B = DecoderConfig(
    vocabulary=128256, dim=4096, layers=32, heads=32, kv_heads=8, hidden=14336, positions=8192, rope_base=500000.0
)


class Attention(nn.Module):
    """Causal attention; several query heads share a key head. The number of heads is read from the tensors, so that
    tensor parallelism may hand each rank some of them."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.query = nn.Linear(config.dim, config.heads * config.head_dim, bias=False)
        self.key = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.value = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.out = nn.Linear(config.heads * config.head_dim, config.dim, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """`[batch, sequence, dim]` in and out."""
        batch, length, _ = x.shape
        query, key, value = (
            part.view(batch, length, -1, self.head_dim).transpose(1, 2)
            for part in (self.query(x), self.key(x), self.value(x))
        )
        query, key = _rotate(query, cosine, sine), _rotate(key, cosine, sine)
        shared = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        return result


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.hidden, bias=False)
        self.up = nn.Linear(config.dim, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., dim]` in and out."""
        result: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return result


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and around a skip connection."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=config.epsilon)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.dim, eps=config.epsilon)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """`[batch, sequence, dim]` in and out."""
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        result: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return result


class Decoder(nn.Module):
    """Token numbers in, logits out."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.dim)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.dim, eps=config.epsilon)
        self.output = nn.Linear(config.dim, config.vocabulary, bias=False)
        if config.tied:
            self.output.weight = self.embedding.weight
        frequency = config.rope_base ** (-torch.arange(0, config.head_dim, 2).float() / config.head_dim)
        angle = torch.outer(torch.arange(config.positions).float(), frequency)
        self.cosine: Tensor
        self.sine: Tensor
        self.register_buffer("cosine", angle.cos(), persistent=False)
        self.register_buffer("sine", angle.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """`[batch, sequence]` in, `[batch, sequence, vocabulary]` out."""
        length = tokens.shape[1]
        cosine, sine = self.cosine[:length], self.sine[:length]
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        result: Tensor = self.output(self.norm(x))
        return result


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def next_token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Cross entropy of predicting each token from those before it; a `loss_fn` for `capture_step`."""
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def tensor_parallel_layer_plan(*, sequence: bool = True) -> dict[str, Any]:
    """What `parallelize_module` takes to spread a `DecoderLayer`; `sequence` cuts the sequence around norms."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    matrices: dict[str, Any] = {
        **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
        **{f"feed_forward.{name}": ColwiseParallel() for name in ("gate", "up")},
        "attention.out": RowwiseParallel(output_layouts=Shard(1) if sequence else Replicate()),
        "feed_forward.down": RowwiseParallel(output_layouts=Shard(1) if sequence else Replicate()),
    }
    if not sequence:
        return matrices
    return matrices | {
        "attention_norm": SequenceParallel(),
        "feed_forward_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    }


def parallelize_decoder(model: Decoder, mesh: Any, *, sequence: bool = True) -> Decoder:
    """Spread a decoder over a one-dimensional mesh by tensor parallelism, in place."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    part = Shard(1) if sequence else Replicate()
    ends: dict[str, Any] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=part),
        "output": ColwiseParallel(input_layouts=part, output_layouts=Replicate()),
    }
    if sequence:
        ends["norm"] = SequenceParallel()
    parallelize_module(model, mesh, ends)
    for layer in model.layers:
        parallelize_module(layer, mesh, tensor_parallel_layer_plan(sequence=sequence))
    return model
