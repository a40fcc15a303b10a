"""vLLM's own kernels, where vLLM is installed beside torch: FlashAttention 3, which it brings
along, and its products of 8-bit numbers by CUTLASS.

Called as vLLM calls them (v1/attention/backends/flash_attn.py, _custom_ops.py of 0.26). Where they
cannot be had there is nothing to tell: torch's kernels are measured in any case, and before: a
kernel that is called wrongly can end the whole session.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

_SPLITS = 32
"""Of a sequence's cache at most, where steps are captured: vLLM's
flash_attn_max_num_splits_for_cuda_graph."""


def installed() -> bool:
    return importlib.util.find_spec("vllm") is not None


def flash3(lab: Any, operator: str, *inputs: Any) -> Callable[[], Any] | None:
    """As _flash3(); what another version of it refuses is skipped, and None."""
    try:
        return _flash3(lab, *inputs)
    except Exception as failure:
        lab.skip(f"{operator} bf16 flash3", failure)
        return None


def _flash3(
    lab: Any, query: Any, keys: Any, values: Any, table: Any, lengths: Any, new: int
) -> Callable[[], Any] | None:
    """Attention of `new` tokens for each sequence over a paged cache, causal; returns tokens ×
    heads × dim.

    query: tokens of all sequences × heads × dim; keys, values: pages × page tokens × KV heads ×
    dim; table: sequences × pages of each, int32; lengths: sequences, int32, the new tokens counted
    in.
    """
    library = _module("vllm.vllm_flash_attn", "_vllm_fa3_C")
    if library is None or not lab.cuda:
        return None
    torch = lab.torch
    sequences, longest, splits = len(lengths), int(lengths.max()), _SPLITS if new == 1 else 0
    starts = torch.arange(0, (sequences + 1) * new, new, dtype=torch.int32, device=lab.device)
    out = torch.empty_like(query)
    # An engine makes this plan once a step, for all layers.
    plan = library.get_scheduler_metadata(
        batch_size=sequences,
        max_seqlen_q=new,
        max_seqlen_k=longest,
        num_heads_q=query.shape[1],
        num_heads_kv=keys.shape[2],
        headdim=query.shape[2],
        cache_seqlens=lengths,
        qkv_dtype=query.dtype,
        cu_seqlens_q=starts,
        page_size=keys.shape[1],
        causal=True,
        num_splits=splits,
    )

    def call() -> Any:
        return library.flash_attn_varlen_func(
            query,
            keys,
            values,
            max_seqlen_q=new,
            cu_seqlens_q=starts,
            max_seqlen_k=longest,
            seqused_k=lengths,
            block_table=table,
            causal=True,
            out=out,
            scheduler_metadata=plan,
            num_splits=splits,
            fa_version=3,
        )

    return call


def scaled_mm(lab: Any) -> Callable[..., Any] | None:
    """(x, w, scale of each row of x, scale of each column of w) to x·w in bf16; w has its columns
    in memory."""
    if (
        not lab.cuda
        or _module("vllm._C_stable_libtorch") is None
        or not hasattr(lab.torch.ops._C, "cutlass_scaled_mm")
    ):
        return None
    product = lab.torch.ops._C.cutlass_scaled_mm

    def call(x: Any, w: Any, x_scale: Any, w_scale: Any) -> Any:
        out = lab.torch.empty(len(x), w.shape[1], dtype=lab.torch.bfloat16, device=x.device)
        product(out, x, w, x_scale, w_scale, None)
        return out

    return call


@functools.cache
def _module(name: str, part: str | None = None) -> Any:
    """The module, or None; with `part`, only where that part of it can be imported too."""
    try:
        module = importlib.import_module(name)
        if part is not None:
            importlib.import_module(f"{name}.{part}")
    except Exception:  # a library for other hardware, or another torch: it fails as it likes
        return None
    return module
