"""The work of one rank in one engine step: products, reads and messages, counted from the model's
shapes.

A rank's share follows the parallelism. With attention data-parallel, attention and its projections
are whole on each attention rank (tp ranks wide) and the MLP or the experts are spread over the
tp·dp ranks of a stage, which see the tokens of all dp schedulers. Without, a replica's tp ranks
share everything. Pipeline stages follow one another, so that their times add up: a work holds all
layers whatever pp is, and each stage's host takes its time.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import NormalDist

import msgspec
import numpy as np

from loadstone.catalogue.architecture.attention import (
    Attention,
    CompressedAttention,
    FullAttention,
    LatentAttention,
)
from loadstone.catalogue.architecture.linear import LinearAttention
from loadstone.catalogue.architecture.matrix import Matrix
from loadstone.catalogue.architecture.mlp import DenseMlp, Experts
from loadstone.catalogue.architecture.model import Layers, Model
from loadstone.catalogue.architecture.precision import FORMATS, KV_BYTES, Format
from loadstone.catalogue.deployment.deployment import Worker
from loadstone.catalogue.hardware import Gpu
from loadstone.engines import rules_of
from loadstone.predict.step_time.boards import (
    ALIKE,
    Ring,
    architecture_of,
    board_efficiency,
    floor_of,
    four_bits_read,
    multiplies_caches,
    ring_of,
    widened,
    widening_of,
)
from loadstone.predict.step_time.exchange import (
    DEALT_COMPUTE,
    DEALT_MEMORY,
    FLOOR_S,
    exchange_of,
    is_wide,
)
from loadstone.predict.step_time.expert_kernels import PER_TENSOR, expert_kernel
from loadstone.predict.step_time.operators import (
    COLLECTIVE,
    EXCHANGE,
    EXPERTS,
    GEMM,
    HEAD,
    INTEGERS,
    TOTALS,
    Operators,
    Work,
)

_LAUNCHES = {"layer": 6, "experts": 6, "latent": 12, "indexer": 8}
"""Kernels that a host launches one by one where no CUDA graph holds a step, beside products and the
quantising before them: norms, rotary, cache write and attention of a layer; routing and experts;
splits and joins of latent attention; its indexer. Round numbers."""
_LINEAR_LAUNCHES = {
    "gated-delta": 48,
    "kda": 48,
    "mamba2": 28,
    "mamba1": 12,
    "lightning": 16,
    "short-conv": 4,
}
"""The same of linear attention. The gated delta rule's thirteen kernels are Triton's, whose
launches take several times as long; the others by how many theirs are: Mamba-2's scan has five,
with convolution and norm seven."""
_INDEXER_FLOORS = 3
"""An indexer's projections, norms, logits and choice, in floors of latent attention's small
kernels. With it those come out at 17 µs; whole attention modules of vLLM and TensorRT-LLM, their
products taken off, leave 16."""
_ALL_PAIRS = frozenset({"ampere", "ada", "hopper"})
"""Architectures whose kernels for whole experts, in vLLM and SGLang (of Triton, DeepGEMM, Marlin),
skip the products of other ranks' experts and nothing else: the activation between products, its
quantising, zeros for what was skipped, and the sum over a token's experts go over the pairs of all
ranks (vLLM's `expert_map`, SGLang's `filter_expert`). On Blackwell they take FlashInfer's, which
see a rank's own pairs alone."""
ACTIVATION_BYTES = 2.0
NETWORK_FLOORS = 9
"""A collective between nodes has a floor so many times that of one within a node: for 4 KiB among
two nodes of H100 NCCL's own estimate is 26 µs, and 75 were measured (NVIDIA/nccl issue 1453); here
their geometric mean. None of the points that are fitted on crosses nodes."""
LOGIT_BYTES = 12.0
"""A logit is written, gathered from the ranks, and read again in 32 bits for sampling."""


def work_of(worker: Worker) -> Work:
    """Count the work of one rank of one scheduler (a data-parallel replica, or an attention rank)
    of the worker."""
    return _Counter(worker).work()


class _Counter:
    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.rules = rules_of(worker)
        self.model: Model = worker.model
        self.gpu: Gpu = worker.gpu
        self.tp = worker.tp
        self.group = worker.dp if worker.attention_dp else 1
        self.ranks = self.tp * self.group
        self.ep = max(1, min(worker.ep, self.ranks))
        self.wide = is_wide(worker)
        self.rows: list[dict[str, float]] = []
        self.sums = dict.fromkeys(TOTALS, 0.0)
        self.windows: list[tuple[float, float]] = []

    def work(self) -> Work:
        for layers in self.model.kinds:
            self._count_layers(layers)
        self._count_head()
        if self.worker.pp > 1:
            # From stage to stage: a message from one GPU to another, not a reduction.
            link = min(self.gpu.link_bytes_per_s, self.gpu.pair_bytes_per_s)
            if self.worker.nodes_crossed > 1 and self.gpu.nic_bytes_per_s:
                link = self.gpu.nic_bytes_per_s
            self._add_collective(self.worker.pp - 1, 2, link, 1.0, 1.0)
        sums = self.sums
        sums["hbm"] = self.gpu.hbm_bytes_per_s
        sums["stages"] = float(self.worker.pp)
        sums["overlapped"] = float(self.wide and self.rules.overlaps_halves)
        sums["peak16"] = self.gpu.peak_flops_per_s("bf16")
        weight = sum(size for _, size in self.windows)
        sums["window"] = (
            sum(tokens * size for tokens, size in self.windows) / weight if weight else 1.0
        )
        columns = {
            name: np.array(
                [row.get(name, 0.0) for row in self.rows],
                np.int64 if name in INTEGERS else np.float64,
            )
            for name in Operators._fields
        }
        totals = {name: np.array([value]) for name, value in sums.items()}
        return Work(Operators(**columns), **totals)  # type: ignore[arg-type]

    @property
    def _per_node(self) -> int:
        return max(1, self.worker.gpus // max(1, self.worker.nodes), self.worker.rack_gpus)

    def _link(self, ranks: int) -> float:
        """Return bytes/s of the slowest link that a collective over so many ranks crosses; in a
        mesh, of all links of one GPU to the others that take part."""
        if ranks > self._per_node and self.gpu.nic_bytes_per_s:
            return self.gpu.nic_bytes_per_s
        return min(self.gpu.link_bytes_per_s, self.gpu.pair_bytes_per_s * max(1, ranks - 1))

    # --- layers -----------------------------------------------------------------------------------

    def _count_layers(self, layers: Layers) -> None:
        # Norms of queries and keys are two more of a layer's four or five small kernels.
        normed = isinstance(layers.attention, FullAttention) and layers.attention.qk_norm
        # Where products and norms have biases, engines add those, and the residual, in kernels of
        # their own.
        biased = isinstance(layers.mlp, DenseMlp) and layers.mlp.bias
        floors = layers.count * (1.5 if normed or biased else 1.0)
        self._add_floors("layers", floors, _LAUNCHES["layer"])
        if layers.attention is not None:
            self._count_attention(layers, layers.attention)
        # A token looks its row up in a matrix that is not active: that is no product.
        self._count_products(layers, [matrix for matrix in layers.extra if matrix.active], self.tp)
        if layers.mlp is not None:
            self._count_mlp(layers, layers.mlp)

    def _count_mlp(self, layers: Layers, mlp: DenseMlp | Experts) -> None:
        matrices = list(mlp.weights(self.model.hidden))
        experts = [matrix for matrix in matrices if matrix.kind == "experts"]
        dense = [matrix for matrix in matrices if matrix.kind != "experts" and matrix.active]
        # Where experts are wide, an attention rank computes the dense part for its own tokens.
        ranks, group = (self.tp, 1) if self.wide else (self.ranks, self.group)
        self._count_products(layers, dense, ranks, group)
        if isinstance(mlp, Experts):
            self._count_experts(layers, mlp, experts)
        if self.wide and isinstance(mlp, Experts):
            self._add_exchange(layers, mlp, self._format(layers, experts[0]))
        elif ranks > 1:
            # All-reduce, or all-gather and reduce-scatter of the tokens of all schedulers: the same
            # volume.
            self._all_reduce(layers.count, ranks, float(group), self._gathered_share(layers, mlp))

    def _gathered_share(self, layers: Layers, mlp: DenseMlp | Experts) -> float:
        """Return the bytes of both ways of the tokens of all schedulers, of those of an all-reduce:
        tokens for four-bit experts are quantised before they are gathered (TensorRT-LLM's
        use_post_quant_allgather, FlashInfer's in SGLang and vLLM)."""
        if self.group == 1 or not isinstance(mlp, Experts):
            return 1.0
        experts = [
            weights for weights in mlp.weights(self.model.hidden) if weights.kind == "experts"
        ]
        form = self._format(layers, experts[0])
        if form.bits != 4 or not self._is_native(form):
            return 1.0
        return (form.bytes + ACTIVATION_BYTES) / (2 * ACTIVATION_BYTES)

    def _count_attention(self, layers: Layers, attention: Attention) -> None:
        count = layers.count
        heads = attention.kv_heads if isinstance(attention, FullAttention) else 1
        self._count_products(layers, attention.weights(self.model.hidden), self.tp, kv_heads=heads)
        self._count_cache(attention, float(count))
        if layers.state is not None:
            self._count_products(layers, layers.state.weights(self.model.hidden), self.tp)
            self._count_state(layers.state, float(count))
        if self.tp > 1:
            self._all_reduce(count, self.tp, 1.0)
            if isinstance(attention, FullAttention) and attention.qk_norm == "whole":
                # A norm over the heads of all ranks: they reduce its sums of squares first.
                self._add_collective(
                    count, self.tp, self._link(self.tp), 0.0, 1.0, ring_of(self.gpu, self.tp)
                )

    def _count_products(
        self,
        layers: Layers,
        matrices: Iterable[Matrix],
        ranks: int,
        group: int = 1,
        kv_heads: int = 1,
    ) -> None:
        """Add a product for each set of matrices that engines fuse, those with the same input and
        format, divided over `ranks`. `group`: schedulers whose tokens it takes together."""
        fused: dict[tuple[str, int, Format], tuple[float, float, float]] = {}
        for matrix in matrices:
            if matrix.inputs == 1:
                continue  # norms and biases: in the layer's floor
            share = {"column": ranks, "row": ranks, "vocab": ranks, "kv": min(ranks, kv_heads)}.get(
                matrix.split, 1
            )
            inputs = matrix.inputs / (share if matrix.split == "row" else 1)
            outputs = matrix.active * matrix.outputs / (1 if matrix.split == "row" else share)
            stem = matrix.name if matrix.split == "row" else matrix.name.rsplit(".", 1)[0]
            key = (stem, matrix.inputs, self._format(layers, matrix))
            parameters, _, width = fused.get(key, (0.0, 0.0, 0.0))
            fused[key] = (parameters + inputs * outputs, inputs, width + outputs)
        # Shared experts run beside the others, or within their kernel; but for those with a gate of
        # their own.
        gated = isinstance(layers.mlp, Experts) and layers.mlp.shared_gate
        for (stem, _, form), (parameters, inputs, outputs) in fused.items():
            if "shared" not in stem or gated:
                self._add_product_floors(layers.count, form)
            self._add_operator(
                kind=GEMM,
                layers=layers.count,
                flops=2 * parameters,
                weights=parameters * form.bytes,
                activations=ACTIVATION_BYTES * (inputs + outputs),
                group=group,
                **self._precision(form),
                **self._efficiencies(form),
            )

    def _count_experts(self, layers: Layers, mlp: Experts, matrices: list[Matrix]) -> None:
        # Where fewer ranks hold whole experts than take part, each expert is cut in slices.
        slices = self.ranks / self.ep
        form = self._format(layers, matrices[0])
        parameters = sum(matrix.inputs * matrix.outputs for matrix in matrices) / slices
        width = mlp.latent or self.model.hidden
        self._add_floors("expert_layers", layers.count, _LAUNCHES["experts"])
        engine, architecture = self.worker.engine, architecture_of(self.gpu)
        kernel = expert_kernel(
            engine, architecture, PER_TENSOR if form == FORMATS["fp8"] else form.dtype
        )
        dealt = self.wide and self.gpu.vendor == "nvidia"
        if dealt and form.dtype == "fp8":
            kernel = msgspec.structs.replace(kernel, compute=DEALT_COMPUTE, memory=DEALT_MEMORY)
        self._add_operator(
            kind=EXPERTS,
            layers=layers.count,
            flops=2 * parameters,
            weights=parameters * form.bytes,
            activations=ACTIVATION_BYTES * (2 * width + mlp.matrices * mlp.intermediate / slices),
            experts=mlp.experts,
            per_token=mlp.per_token,
            ep=self.ep,
            # The expected largest of n normal numbers, to a hundredth or so (Blom 1958).
            fullest=NormalDist().inv_cdf((self.ep - 0.375) / (self.ep + 0.25)),
            dealt=dealt,
            uneven=self.rules.uneven_share if self.wide else -1.0,
            all_pairs=self.ep > 1
            and not self.wide
            and self.rules.all_pairs
            and architecture.split()[0] in _ALL_PAIRS,
            group=self.group,
            floor=kernel.floor_s,
            efficiency_compute=kernel.compute,
            efficiency_memory=kernel.memory,
            efficiency_moving=kernel.moving,
            **self._precision(form),
        )

    def _add_exchange(self, layers: Layers, mlp: Experts, form: Format) -> None:
        """Add the messages by which tokens go to the ranks of their experts, in the precision of
        the products there, and come back."""
        value_bytes = form.bytes if self._precision(form)["compute"] else ACTIVATION_BYTES
        exchange = exchange_of(
            self.worker, mlp.latent or self.model.hidden, mlp.per_token, value_bytes
        )
        self._add_operator(
            kind=EXCHANGE,
            layers=layers.count,
            group=1.0,
            ranks=self.ranks,
            link=exchange.link,
            message=exchange.message,
            activations=exchange.bundled,
            floor=FLOOR_S,
        )

    # --- attention --------------------------------------------------------------------------------

    def _count_cache(self, attention: Attention, count: float) -> None:
        """Add what `count` layers read of the cache, and compute on it; or read of a state."""
        cache_bytes = KV_BYTES.get(self.worker.kv_dtype or "", KV_BYTES[self.model.kv_dtype])
        if isinstance(attention, LinearAttention):
            self._count_state(attention, count)
            return
        heads = max(1.0, attention.heads / self.tp)
        if self.worker.kv_dtype in ("fp8", "fp8_e5m2"):
            self.sums["widening"] = widening_of(self.gpu, self.rules)
        if isinstance(attention, FullAttention):
            kv_heads = max(1.0, attention.kv_heads / self.tp)
            width = attention.head_dim + attention.v_head_dim
            seen = attention.window_tokens or attention.top_tokens
            flops = 2 * heads * width
            # Both ways there are twice the pairs, with a window's tokens on either side.
            pairs = 2 * flops if attention.bidirectional else flops
            self._add_context(count, kv_heads * width * cache_bytes, flops, pairs, seen)
        elif isinstance(attention, LatentAttention):
            # Decode in the latent space (absorbed); prompts with keys and values expanded.
            compressed = attention.kv_rank + attention.rope_dim
            decode = 2 * heads * (compressed + attention.kv_rank)
            prompt = 2 * heads * (attention.nope_dim + attention.rope_dim + attention.v_dim)
            self.sums["latent"] = 1.0
            if self.sums["widening"] and multiplies_caches(self.gpu):
                decode *= self.gpu.flops_per_s["bf16"] / self.gpu.flops_per_s["fp8"]
                self.sums["widening"] = 0.0
            # Absorbed, the expansion is two small products per head, before and after.
            self._add_floors("products", count, 1)
            launches = self.rules.latent_launches or _LAUNCHES["latent"]
            self._add_floors("latent_layers", count, launches)
            seen = attention.window_tokens or attention.top_tokens
            self._add_context(count, compressed * cache_bytes, decode, prompt, seen)
        else:
            # A window of raw vectors, and of the compressed ones the chosen, or all.
            flops = 4 * heads * attention.head_dim
            cache = attention.head_dim * cache_bytes
            self.sums["latent"] = 1.0
            self._add_floors("latent_layers", count, _LAUNCHES["latent"])
            seen = attention.window_tokens + (attention.top_tokens or 0)
            self._add_context(count, cache, flops, flops, seen)
            if attention.ratio and not attention.top_tokens:
                flops /= attention.ratio
                self._add_context(count, cache / attention.ratio, flops, flops, None)
        if attention.index_heads:
            # The indexer looks at every token, in FP8: at twice the 16-bit rate.
            self._add_floors("latent_layers", count, _LAUNCHES["indexer"], _INDEXER_FLOORS)
            ratio = attention.ratio if isinstance(attention, CompressedAttention) else 1
            flops = attention.index_heads * attention.index_dim / ratio
            self._add_context(count, attention.index_dim / ratio, flops, flops, None)

    def _count_state(self, state: LinearAttention, count: float) -> None:
        """Add the states of `count` layers, each read and written once a step."""
        state_bytes = state.state_bytes(self.rules.state_dtype)
        self.sums["state"] += count * 2 * state_bytes / min(self.tp, state.heads)
        self._add_floors("linear_layers", count, _LINEAR_LAUNCHES[state.kind])

    def _add_context(
        self, count: float, cache: float, flops: float, pair_flops: float, seen: int | None
    ) -> None:
        """Add the context's cost in `count` layers, each of which sees `seen` tokens at most.

        `cache`, `flops`: bytes and FLOPs per context token of a decode; `pair_flops`: FLOPs per
        pair of a new and an earlier token in a prompt.
        """
        windowed = "window_" if seen else ""
        self.sums[f"{windowed}cache"] += count * cache
        self.sums["window_flops" if seen else "context_flops"] += count * flops
        self.sums[f"{windowed}pair_flops"] += count * pair_flops
        if seen:
            self.windows.append((float(seen), count * cache))

    # --- the rest ---------------------------------------------------------------------------------

    def _count_head(self) -> None:
        model = self.model
        form = FORMATS[model.dtype]
        # Products outside the layers: of the embeddings of every layer, and between streams or
        # widths.
        extra = [
            msgspec.structs.replace(matrix, outputs=matrix.outputs * matrix.active)
            for matrix in model.extra
            if matrix.kind != "embedding"
        ]
        self._count_products(Layers(1, None, None), extra, self.tp)
        if self.worker.task is not None:
            return  # it writes no text
        self._add_operator(
            kind=HEAD,
            layers=1.0,
            flops=2 * model.hidden * model.vocab / self.tp,
            weights=form.bytes * model.hidden * model.vocab / self.tp,
            activations=model.vocab * LOGIT_BYTES,
            group=1.0,
            **self._precision(form),
            **self._efficiencies(form),
        )

    def _all_reduce(self, count: float, ranks: int, group: float, share: float = 1.0) -> None:
        """Add an all-reduce within each node; then one between nodes, where every GPU reduces its
        own part of the tensor with its like on the others, over its own share of the network.
        `share`: of its bytes."""
        within = min(ranks, self._per_node)
        if within > 1:
            ring = ring_of(self.gpu, within)
            volume = share * 2 * (within - 1) / within
            self._add_collective(count, within, self._link(within), volume, group, ring)
        nodes = ranks / within
        if nodes > 1:
            volume = share * 2 * (nodes - 1) / nodes / within
            link, floors = self._link(ranks), NETWORK_FLOORS - 1
            self._add_collective(count, nodes, link, volume, group)
            # The other floors, as messages without bytes.
            self._add_collective(count * floors, nodes, link, 0.0, group)

    def _add_collective(
        self,
        count: float,
        ranks: float,
        link: float,
        volume: float,
        group: float,
        ring: Ring = ALIKE,
    ) -> None:
        """Add `count` collectives over links of `link` bytes/s; for a token each rank sends
        `volume` times its activations."""
        self._add_operator(
            kind=COLLECTIVE,
            layers=count,
            ranks=ranks,
            link=link,
            message=ACTIVATION_BYTES * self.model.hidden * volume,
            group=group,
            peak=1.0,
            floor=ring.floor_s,
            efficiency_memory=ring.link,
        )

    def _add_product_floors(self, count: float, form: Format) -> None:
        self._add_floors("products", count, 1, floor_of(self.gpu))
        if self._precision(form)["compute"]:  # else the activations stay in 16 bits
            # No launch: the kernel before the product (norm, attention, activation) quantises.
            self._add_floors("quantised", count, 0)

    def _add_floors(self, name: str, count: float, launches: int, floors: float = 1) -> None:
        """Add to the total `name` (FLOORS) of `count` layers with `floors` each, and the `launches`
        of each where no CUDA graph holds the step."""
        self.sums[name] += count * floors
        self.sums["launches"] += count * launches

    def _add_operator(self, **row: float) -> None:
        self.rows.append(row)

    def _format(self, layers: Layers, matrix: Matrix) -> Format:
        """Return the format that a matrix is kept in.

        Four-bit checkpoints of models with experts quantise the experts alone (NVFP4 of DeepSeek,
        Kimi, MiniMax and Qwen, MXFP4 of gpt-oss, INT4 of Kimi), dense ones every product but the
        head; for a checkpoint that is the model's own, the catalogue knows.
        """
        dtype = self.worker.weights_dtype
        if (
            dtype
            and dtype != self.model.weights_dtype
            and FORMATS[dtype].bits == 4
            and self.model.has_experts
        ):
            return FORMATS[dtype] if matrix.kind == "experts" else FORMATS[self.model.dtype]
        return self.model.format_of(layers, matrix, dtype or None)

    def _is_native(self, form: Format) -> bool:
        """Tell whether the GPU multiplies a format, and no slower than 16 bits (INT8 on B300)."""
        rate = self.gpu.flops_per_s.get(_unit(form), 0.0)
        return rate >= self.gpu.peak_flops_per_s("bf16")

    def _widened_memory(self, form: Format) -> float | None:
        """Return the share of the rate of 16-bit weights at which four-bit ones are read that a
        kernel widens; None of other formats, and where it is not known."""
        widens = form.bits == 4 and not self._is_native(form)
        return four_bits_read(self.gpu, self.rules) if widens else None

    def _precision(self, form: Format) -> dict[str, float]:
        """Return the columns peak, compute and memory of products in a format. Where the GPU cannot
        multiply it, weights are widened and multiplied in 16 bits."""
        compute_index, widens = _efficiency_index(form), self._widened_memory(form) is not None
        native = self._is_native(form)
        return {
            "peak": self.gpu.flops_per_s[_unit(form)]
            if native
            else self.gpu.peak_flops_per_s("bf16"),
            "compute": compute_index if native else 0,
            "memory": 0 if widens else compute_index,
        }

    def _efficiencies(self, form: Format) -> dict[str, float]:
        """Return both efficiency columns of products in a format."""
        efficiency, precision = board_efficiency(self.gpu), self._precision(form)
        compute, memory = int(precision["compute"]), int(precision["memory"])
        is_native = compute == _efficiency_index(form)
        return {
            "efficiency_compute": efficiency.compute[compute]
            * (1.0 if is_native else widened(self.gpu, self.rules)),
            "efficiency_memory": efficiency.memory[memory] * (self._widened_memory(form) or 1.0),
        }


def _unit(form: Format) -> str:
    """Return the type of the GPU's units that multiply a format."""
    return "fp4" if form.dtype in ("nvfp4", "mxfp4") else form.dtype


def _efficiency_index(form: Format) -> int:
    """Return which GEMM efficiency holds: 0, 1, 2 for 16, 8 and 4 bits."""
    return {16: 0, 32: 0, 8: 1}.get(form.bits, 2)
