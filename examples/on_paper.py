"""A step that no laptop could hold, planned on one: four layers of the size of Llama 8B, sharded over any cluster.

    counterpoint explain examples/on_paper.py:build --world-size 16 --html out/timeline.html
    counterpoint plan examples/on_paper.py:build --world-size 64 --topology h200x8-ib400 --sweep link=100..800

Parameters are on the meta device: they have shapes and no values, and capturing computes nothing.
"""

from dataclasses import replace

import torch

import counterpoint
from counterpoint.capture.example_models import LLAMA_8B, Decoder, next_token_loss

CONFIG = replace(LLAMA_8B, layers=4, vocabulary=16384)
TOKENS = 4096


def build():
    """The sharded model, its loss and a batch of one sequence a rank: a train step as one graph."""
    with torch.device("meta"):
        model = Decoder(CONFIG).to(torch.bfloat16)
        batch = torch.empty(1, TOKENS + 1, dtype=torch.int64)
    for layer in model.layers:
        counterpoint.fully_shard(layer)
    return counterpoint.fully_shard(model), next_token_loss, batch
