"""A model of Hugging Face transformers, made from a configuration (random weights, nothing is downloaded).

    pip install transformers
    torchrun --nproc-per-node 2 examples/huggingface.py

What becomes of the collectives, and what a cluster would make of it:

    counterpoint explain examples/huggingface.py:build --parallel fully-shard --world-size 16
    counterpoint plan examples/huggingface.py:build --parallel fully-shard --world-size 16
"""

import torch
import torch.distributed as dist
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

import counterpoint

CONFIG = LlamaConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=192,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    use_cache=False,
)
BATCH, LENGTH = 4, 32


class WithLoss(nn.Module):
    """Tokens in, loss out; the model computes it itself where it is given labels."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(input_ids=tokens, labels=tokens).loss


def build():
    """The model and a batch, as `counterpoint explain` and `counterpoint plan` take them."""
    torch.manual_seed(0)
    return WithLoss(AutoModelForCausalLM.from_config(CONFIG)), batch_of(seed=0)


def batch_of(seed):
    """Sequences that count upwards: a rule to be learned in a few steps."""
    start = torch.randint(0, CONFIG.vocab_size, (BATCH, 1), generator=torch.Generator().manual_seed(seed))
    return (start + torch.arange(LENGTH)) % CONFIG.vocab_size


def main():
    dist.init_process_group("gloo")
    model, _ = build()
    # As with torch's fully_shard: every layer by itself, then what is left.
    for layer in model.model.model.layers:
        counterpoint.fully_shard(layer)
    counterpoint.fully_shard(model)
    compiled = torch.compile(model, backend="counterpoint")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for number in range(10):
        loss = compiled(batch_of(seed=100 * number + dist.get_rank()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and number % 5 == 4:
            print(f"step {number + 1}, loss {loss.item():.4f}")
    if dist.get_rank() == 0:
        for record in counterpoint.reports():
            print(record)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
