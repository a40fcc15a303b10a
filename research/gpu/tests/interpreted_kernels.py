"""Run by test_gpubench.py under TRITON_INTERPRET=1: prints the errors of the Triton kernels against
float64.

In 32 bits: the interpreter has no products of bf16.
"""

import json
import math

import torch

from gpubench.attention import error_of
from gpubench.kernels import PagedDecode, block_sums
from gpubench.lab import Lab, describe_device
from gpubench.points import Bench

PAGE = 16
CASES = (
    # heads, KV heads, dim, context of each sequence, multiprocessors
    (8, 2, 32, (1, 70, 200), 8),
    (4, 4, 16, (64, 129), 1),
    (6, 2, 64, (300,), 132),
    (8, 1, 128, (33, 500), 32),  # the first one has no token in most stretches
    (32, 8, 16, (16, 17, 15), 4),
)

lab = Lab(
    Bench(created="", loadstone="", device=describe_device("cpu", None), budget_s=600),
    "cpu",
    600,
    spend_s=0.0,
)
numbers = torch.rand(20_000, dtype=torch.float32) + 1
exact = float(numbers.double().sum())
errors = {"sums": abs(float(block_sums(numbers).double().sum()) / exact - 1)}
for heads, kv_heads, dim, contexts, processors in CASES:
    each = math.ceil(max(contexts) / PAGE)
    pages = len(contexts) * each + 3  # some are nobody's
    keys, values = (lab.random(pages, PAGE, kv_heads, dim, dtype=torch.float32) for _ in range(2))
    table = lab.shuffled(pages)[: len(contexts) * each].to(torch.int32).reshape(len(contexts), each)
    decode = PagedDecode(
        keys, values, table, torch.tensor(contexts, dtype=torch.int32), heads, processors
    )
    query = lab.random(len(contexts), heads, dim, dtype=torch.float32)
    out = torch.full_like(query, math.nan)
    decode(query, out)
    errors[f"{heads}/{kv_heads}×{dim} {contexts}"] = error_of(lab, decode, query, out)
print(json.dumps(errors))
