"""The work of one rank in one engine step: products, reads and messages, counted from the model's
shapes.

A `Work` holds operators, each of one deployment, and the totals of each deployment. So the same
formulas (`formulas.py`) serve one deployment over many
batch sizes and, in a fit, thousands of deployments at once.

A rank's share follows the parallelism. With attention data-parallel, attention and its projections
are whole on each attention rank (tp ranks wide) and the MLP or the experts are spread over the
tp·dp ranks of a stage, which see the tokens of all dp schedulers. Without, a replica's tp ranks
share everything. Pipeline stages follow one another, so that their times add up: a work holds all
layers whatever pp is, and each stage's host takes its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

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
from loadstone.core.vectors import Array, Floats, Ints64
from loadstone.engines import rules_of
from loadstone.predict.step_time.boards import (
    ALIKE,
    Ring,
    architecture_of,
    board_efficiency,
    floor_of,
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

GEMM, EXPERTS, HEAD, COLLECTIVE, EXCHANGE = range(5)


class Operators(NamedTuple):
    """Counts the work, reads and messages of a step: arrays of n operators, each of one deployment.
    Bytes and FLOPs are one rank's, per layer.

    row              the deployment
    kind             GEMM, EXPERTS, HEAD, COLLECTIVE or EXCHANGE
    layers           that are alike, which it counts for
    flops            per token; of experts: per token and expert that it goes to
    weights          bytes; of experts: one expert's share
    activations      bytes per token; of an exchange: those of a token of many
    peak             FLOP/s
    compute, memory  which GEMM efficiency: of 16, 8 or 4 bits
    experts, per_token, ep   experts of a layer, those of a token, ranks with whole ones
    fullest          by so many standard deviations the fullest rank is above the mean
    uneven           standard deviation of ranks' shares; below 0: by routing_shape
    dealt            0 or 1: of wide experts, whose kernels no fit has seen: as measured alone
    all_pairs        0 or 1: moves the activations of all ranks' pairs, not its own alone
    group            tokens of so many schedulers meet
    ranks, link      that exchange messages; bytes/s
    message          bytes per token
    floor            seconds, of experts and collectives
    efficiency_compute, efficiency_memory   of experts, as their kernel was measured, of peak; of
                     other products and of a collective's link, times the coefficients' (boards.py)
    efficiency_moving   of experts, of peak
    """

    row: Ints64
    kind: Ints64
    layers: Floats
    flops: Floats
    weights: Floats
    activations: Floats
    peak: Floats
    compute: Ints64
    memory: Ints64
    experts: Floats
    per_token: Floats
    ep: Floats
    fullest: Floats
    uneven: Floats
    dealt: Floats
    all_pairs: Floats
    group: Floats
    ranks: Floats
    link: Floats
    message: Floats
    floor: Floats
    efficiency_compute: Floats
    efficiency_memory: Floats
    efficiency_moving: Floats


class Work(NamedTuple):
    """The operators of d deployments, and what each deployment has once: arrays of d.

    hbm, peak16                  bytes/s; 16-bit FLOP/s
    cache, context_flops         per context token of a decode: bytes and FLOPs of all layers
    window                       of layers that see a window, how wide it is
    window_cache, window_flops   the same as above, of these layers
    pair_flops, window_pair_flops   per pair of a new and an earlier token in a prompt
    widening                     of an FP8 cache: the time of so many 16-bit FLOPs per byte read
    state                        bytes per sequence
    latent                       0 or 1
    layers, products, quantised, expert_layers, latent_layers, linear_layers   floors; quantised:
                                 products with 8- or 4-bit weights
    launches                     kernels of a step
    stages                       of a pipeline: each has a host
    overlapped                   0 or 1: a batch's halves take turns in products and exchange
    """

    operators: Operators
    hbm: Floats
    peak16: Floats
    cache: Floats
    window: Floats
    window_cache: Floats
    context_flops: Floats
    window_flops: Floats
    pair_flops: Floats
    window_pair_flops: Floats
    widening: Floats
    state: Floats
    latent: Floats
    layers: Floats
    products: Floats
    quantised: Floats
    expert_layers: Floats
    latent_layers: Floats
    linear_layers: Floats
    launches: Floats
    stages: Floats
    overlapped: Floats

    def with_operators(self, **columns: Array) -> Work:
        """Return the work with other columns of its operators."""
        return self._replace(operators=self.operators._replace(**columns))


FLOORS = {
    "layers": "layer_s",
    "products": "product_s",
    "quantised": "quantised_s",
    "expert_layers": "expert_layer_s",
    "latent_layers": "latent_layer_s",
    "linear_layers": "linear_layer_s",
}
"""By number of layers or kernels (of Work), the coefficient that each takes."""
_TOTALS = Work._fields[1:]
_INTEGERS = {"row", "kind", "compute", "memory"}


def stack(works: Sequence[Work]) -> Work:
    """Join many works to one, the deployments numbered in order."""
    operators, *totals = (list(columns) for columns in zip(*works, strict=True))
    joined = Operators(*map(np.concatenate, zip(*operators, strict=True)))
    first = np.cumsum([0, *(len(work.hbm) for work in works[:-1])])
    row = joined.row + np.repeat(first, [len(table.row) for table in operators])
    return Work(joined._replace(row=row), *map(np.concatenate, totals))


def repeat(work: Work, count: int) -> Work:
    """Return the work of a deployment so many times over: for evaluating it at several batch sizes
    at once."""
    operators = Operators(*(np.tile(column, count) for column in work.operators))  # type: ignore[arg-type]
    first = np.repeat(np.arange(count) * len(work.hbm), len(work.operators.row))
    totals = (np.tile(column, count) for column in work[1:])
    return Work(operators._replace(row=operators.row + first), *totals)


def ideal(work: Work) -> Work:
    """Return the work with products, experts and caches at the speed of light, experts evenly
    spread."""
    ones, zeros = np.ones_like(work.operators.floor), np.zeros_like(work.operators.floor)
    return work._replace(widening=np.zeros_like(work.widening)).with_operators(
        floor=zeros,
        fullest=zeros,
        all_pairs=zeros,
        efficiency_compute=ones,
        efficiency_memory=ones,
        efficiency_moving=ones,
    )


def ease(work: Work, share: float) -> Work:
    """Return the work with a share of its layers' and kernels' floors."""
    return work._replace(**{name: getattr(work, name) * share for name in FLOORS})


_LAUNCHES = {"layer": 6, "experts": 6, "latent": 24, "indexer": 8}
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
NETWORK_FLOORS = 3
"""A collective between nodes has a floor so many times that of one within a node: a guess, for none
of the points that are fitted on crosses nodes."""
LOGIT_BYTES = 12.0
"""A logit is written, gathered from the ranks, and read again in 32 bits for sampling."""


def work_of(worker: Worker) -> Work:
    """Count the work of one rank of one scheduler (a data-parallel replica, or an attention rank)
    of the worker."""
    return _Counter(worker).work()


class _Counter:
    def __init__(self, worker: Worker) -> None:
        self.deployment = worker
        self.rules = rules_of(worker)
        self.model: Model = worker.model
        self.gpu: Gpu = worker.gpu
        self.tp = worker.tp
        self.group = worker.dp if worker.attention_dp else 1
        self.ranks = self.tp * self.group
        self.ep = max(1, min(worker.ep, self.ranks))
        self.wide = is_wide(worker)
        self.rows: list[dict[str, float]] = []
        self.sums = dict.fromkeys(_TOTALS, 0.0)
        self.windows: list[tuple[float, float]] = []

    def work(self) -> Work:
        for run in self.model.kinds:
            self._layers(run)
        self._head()
        if self.deployment.pp > 1:
            # From stage to stage: a message from one GPU to another, not a reduction.
            crossing = self.deployment.nodes_crossed > 1 and self.gpu.nic_bytes_per_s
            link = crossing or min(self.gpu.link_bytes_per_s, self.gpu.pair_bytes_per_s)
            self._collective(self.deployment.pp - 1, 2, link, 1.0, 1.0)
        sums = self.sums
        sums["hbm"] = self.gpu.hbm_bytes_per_s
        sums["stages"] = float(self.deployment.pp)
        sums["overlapped"] = float(self.wide and self.rules.overlaps_halves)
        sums["peak16"] = self.gpu.peak_flops_per_s("bf16")
        weight = sum(size for _, size in self.windows)
        sums["window"] = (
            sum(tokens * size for tokens, size in self.windows) / weight if weight else 1.0
        )
        columns = {
            name: np.array(
                [row.get(name, 0.0) for row in self.rows],
                np.int64 if name in _INTEGERS else np.float64,
            )
            for name in Operators._fields
        }
        totals = {name: np.array([value]) for name, value in sums.items()}
        return Work(Operators(**columns), **totals)  # type: ignore[arg-type]

    @property
    def _per_node(self) -> int:
        return max(
            1, self.deployment.gpus // max(1, self.deployment.nodes), self.deployment.rack_gpus
        )

    def _link(self, ranks: int) -> float:
        """Bytes/s of the slowest link that a collective over so many ranks crosses; in a mesh, of a
        GPU's links to the others that take part."""
        if ranks > self._per_node and self.gpu.nic_bytes_per_s:
            return self.gpu.nic_bytes_per_s
        return min(self.gpu.link_bytes_per_s, self.gpu.pair_bytes_per_s * max(1, ranks - 1))

    # --- layers -----------------------------------------------------------------------------------

    def _layers(self, run: Layers) -> None:
        count = run.count
        # Norms of queries and keys are two more of a layer's four or five small kernels.
        normed = isinstance(run.attention, FullAttention) and run.attention.qk_norm
        # Where products and norms have biases, engines add those, and the residual, in kernels of
        # their own.
        biased = isinstance(run.mlp, DenseMlp) and run.mlp.bias
        self._small("layers", count * (1.5 if normed or biased else 1.0), _LAUNCHES["layer"])
        if run.attention is not None:
            self._attention_layers(run, run.attention)
        self._products(
            run, [matrix for matrix in run.extra if matrix.active], self.tp, 1, 1
        )  # what is looked up is none
        if run.mlp is not None:
            matrices = list(run.mlp.weights(self.model.hidden))
            dense = [matrix for matrix in matrices if matrix.kind != "experts" and matrix.active]
            # Where experts are wide, each rank computes what all tokens pass for its own.
            self._products(
                run, dense, self.tp if self.wide else self.ranks, 1 if self.wide else self.group, 1
            )
            if isinstance(run.mlp, Experts):
                self._experts(
                    run, run.mlp, [matrix for matrix in matrices if matrix.kind == "experts"]
                )
            if self.wide and isinstance(run.mlp, Experts):
                experts = next(matrix for matrix in matrices if matrix.kind == "experts")
                self._exchange(run, run.mlp, self._format(run, experts))
            elif self.wide and self.tp > 1:
                self._all_reduce(count, self.tp, 1.0)
            elif self.ranks > 1 and not self.wide:
                # All-reduce, or all-gather and reduce-scatter of the tokens of all schedulers: the
                # same volume.
                self._all_reduce(count, self.ranks, float(self.group))

    def _attention_layers(self, run: Layers, attention: Attention) -> None:
        count = run.count
        heads = attention.kv_heads if isinstance(attention, FullAttention) else 1
        self._products(run, attention.weights(self.model.hidden), self.tp, 1, heads)
        self._attention(attention, float(count))
        if run.state is not None:
            self._products(run, run.state.weights(self.model.hidden), self.tp, 1, 1)
            self._state(run.state, float(count))
        if self.tp > 1:
            self._all_reduce(count, self.tp, 1.0)
            if isinstance(attention, FullAttention) and attention.qk_norm == "whole":
                # A norm over the heads of all ranks: they reduce its sums of squares first.
                self._collective(
                    count, self.tp, self._link(self.tp), 0.0, 1.0, ring_of(self.gpu, self.tp)
                )

    def _products(
        self, run: Layers, matrices: Iterable[Matrix], ranks: int, group: int, kv_heads: int
    ) -> None:
        """One product for each set of matrices that engines fuse: those with the same input and
        format."""
        fused: dict[tuple[str, int, Format], list[float]] = {}
        for matrix in matrices:
            if matrix.inputs == 1:
                continue  # norms and biases: in the layer's floor
            share = {"column": ranks, "row": ranks, "vocab": ranks, "kv": min(ranks, kv_heads)}.get(
                matrix.split, 1
            )
            inputs = matrix.inputs / (share if matrix.split == "row" else 1)
            outputs = matrix.active * matrix.outputs / (1 if matrix.split == "row" else share)
            stem = matrix.name if matrix.split == "row" else matrix.name.rsplit(".", 1)[0]
            total = fused.setdefault(
                (stem, matrix.inputs, self._format(run, matrix)), [0.0, inputs, 0.0]
            )
            total[0] += inputs * outputs
            total[2] += outputs
        # Shared experts run beside the others, or within their kernel; but for those with a gate of
        # their own.
        gated = isinstance(run.mlp, Experts) and run.mlp.shared_gate
        for (stem, _, form), (parameters, inputs, outputs) in fused.items():
            if "shared" not in stem or gated:
                self._floor(run.count, form)
            self._add(
                kind=GEMM,
                layers=run.count,
                flops=2 * parameters,
                weights=parameters * form.bytes,
                activations=ACTIVATION_BYTES * (inputs + outputs),
                group=group,
                **self._precision(form),
                **self._efficiencies(form),
            )

    def _experts(self, run: Layers, mlp: Experts, matrices: list[Matrix]) -> None:
        slices = self.ranks / self.ep
        form = self._format(run, matrices[0])
        parameters = sum(matrix.inputs * matrix.outputs for matrix in matrices) / slices
        width = mlp.latent or self.model.hidden
        self._small("expert_layers", run.count, _LAUNCHES["experts"])
        engine, architecture = self.deployment.engine, architecture_of(self.gpu)
        kernel = expert_kernel(
            engine, architecture, PER_TENSOR if form == FORMATS["fp8"] else form.dtype
        )
        dealt = self.wide and self.gpu.vendor == "nvidia"
        if dealt and form.dtype == "fp8":
            kernel = msgspec.structs.replace(kernel, compute=DEALT_COMPUTE, memory=DEALT_MEMORY)
        self._add(
            kind=EXPERTS,
            layers=run.count,
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

    def _exchange(self, run: Layers, mlp: Experts, form: Format) -> None:
        """Tokens go to the ranks of their experts, in the precision of the products there, and come
        back."""
        sent = form.bytes if self._precision(form)["compute"] else ACTIVATION_BYTES
        way = exchange_of(self.deployment, mlp.latent or self.model.hidden, mlp.per_token, sent)
        self._add(
            kind=EXCHANGE,
            layers=run.count,
            group=1.0,
            ranks=self.ranks,
            link=way.link,
            message=way.message,
            activations=way.bundled,
            floor=FLOOR_S,
        )

    # --- attention --------------------------------------------------------------------------------

    def _attention(self, attention: Attention, count: float) -> None:
        cache_bytes = KV_BYTES.get(self.deployment.kv_dtype or "", KV_BYTES[self.model.kv_dtype])
        if isinstance(attention, LinearAttention):
            self._state(attention, count)
            return
        heads = max(1.0, attention.heads / self.tp)
        if self.deployment.kv_dtype in ("fp8", "fp8_e5m2"):
            self.sums["widening"] = widening_of(self.gpu, self.rules)
        if isinstance(attention, FullAttention):
            kv_heads = max(1.0, attention.kv_heads / self.tp)
            width = attention.head_dim + attention.v_head_dim
            seen = attention.window_tokens or attention.top_tokens
            self._attend(
                count, kv_heads * width * cache_bytes, 2 * heads * width, 2 * heads * width, seen
            )
        elif isinstance(attention, LatentAttention):
            # Decode in the latent space (absorbed); prompts with keys and values expanded.
            compressed = attention.kv_rank + attention.rope_dim
            decode = 2 * heads * (compressed + attention.kv_rank)
            prompt = 2 * heads * (attention.nope_dim + attention.rope_dim + attention.v_dim)
            self.sums["latent"] = 1.0
            # Absorbed, the expansion is two small products per head, before and after.
            self._small("products", count, 1)
            self._small("latent_layers", count, self.rules.latent_launches or _LAUNCHES["latent"])
            seen = attention.window_tokens or attention.top_tokens
            self._attend(count, compressed * cache_bytes, decode, prompt, seen)
        else:
            # A window of raw vectors, and of the compressed ones the chosen, or all.
            flops = 4 * heads * attention.head_dim
            cache = attention.head_dim * cache_bytes
            self.sums["latent"] = 1.0
            self._small("latent_layers", count, _LAUNCHES["latent"])
            self._attend(
                count, cache, flops, flops, attention.window_tokens + (attention.top_tokens or 0)
            )
            if attention.ratio and not attention.top_tokens:
                self._attend(
                    count,
                    cache / attention.ratio,
                    flops / attention.ratio,
                    flops / attention.ratio,
                    None,
                )
        if attention.index_heads:
            # The indexer looks at every token, in FP8: at twice the 16-bit rate.
            self._small("latent_layers", count, _LAUNCHES["indexer"], _INDEXER_FLOORS)
            ratio = attention.ratio if isinstance(attention, CompressedAttention) else 1
            flops = attention.index_heads * attention.index_dim / ratio
            self._attend(count, attention.index_dim / ratio, flops, flops, None)

    def _state(self, state: LinearAttention, count: float) -> None:
        """Count a state, which is read and written once a step."""
        state_bytes = state.state_bytes(self.rules.state_dtype)
        self.sums["state"] += count * 2 * state_bytes / min(self.tp, state.heads)
        self._small("linear_layers", count, _LINEAR_LAUNCHES[state.kind])

    def _attend(
        self, count: float, cache: float, flops: float, pair_flops: float, seen: int | None
    ) -> None:
        """cache, flops: per context token of a decode; pair_flops: per pair in a prompt; `seen`:
        tokens at most."""
        windowed = "window_" if seen else ""
        self.sums[f"{windowed}cache"] += count * cache
        self.sums["window_flops" if seen else "context_flops"] += count * flops
        self.sums[f"{windowed}pair_flops"] += count * pair_flops
        if seen:
            self.windows.append((float(seen), count * cache))

    # --- the rest ---------------------------------------------------------------------------------

    def _head(self) -> None:
        model = self.model
        form = FORMATS[model.dtype]
        # Products outside the layers: of the embeddings of every layer, and between streams or
        # widths.
        extra = [
            msgspec.structs.replace(matrix, outputs=matrix.outputs * matrix.active)
            for matrix in model.extra
            if matrix.kind != "embedding"
        ]
        self._products(Layers(1, None, None), extra, self.tp, 1, 1)
        self._add(
            kind=HEAD,
            layers=1.0,
            flops=2 * model.hidden * model.vocab / self.tp,
            weights=form.bytes * model.hidden * model.vocab / self.tp,
            activations=model.vocab * LOGIT_BYTES,
            group=1.0,
            **self._precision(form),
            **self._efficiencies(form),
        )

    def _all_reduce(self, count: float, ranks: int, group: float) -> None:
        """Within nodes; then every GPU reduces its own part of the tensor with its like on the
        other nodes, over its own share of the network."""
        within = min(ranks, self._per_node)
        if within > 1:
            ring = ring_of(self.gpu, within)
            self._collective(
                count, within, self._link(within), 2 * (within - 1) / within, group, ring
            )
        nodes = ranks / within
        if nodes > 1:
            volume = 2 * (nodes - 1) / nodes / within
            self._collective(count, nodes, self._link(ranks), volume, group)
            self._collective(count * (NETWORK_FLOORS - 1), nodes, self._link(ranks), 0.0, group)

    def _collective(
        self,
        count: float,
        ranks: float,
        link: float,
        volume: float,
        group: float,
        ring: Ring = ALIKE,
    ) -> None:
        self._add(
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

    def _floor(self, count: float, form: Format) -> None:
        self._small("products", count, 1, floor_of(self.gpu))
        if self._precision(form)["compute"]:  # else the activations stay in 16 bits
            self._small(
                "quantised", count, 0
            )  # by the kernel before it: norm, attention, activation

    def _small(self, name: str, count: float, launches: int, floors: float = 1) -> None:
        """Count the floor `name` so many times over, and so many launches where no CUDA graph holds
        it."""
        self.sums[name] += count * floors
        self.sums["launches"] += count * launches

    def _add(self, **row: float) -> None:
        self.rows.append(row)

    def _format(self, run: Layers, matrix: Matrix) -> Format:
        """Return the format that a matrix is kept in.

        Four-bit checkpoints of models with experts quantise the experts alone (NVFP4 of DeepSeek,
        Kimi, MiniMax and Qwen, MXFP4 of gpt-oss, INT4 of Kimi), dense ones every product but the
        head; for a checkpoint that is the model's own, the catalogue knows.
        """
        dtype = self.deployment.weights_dtype
        if (
            dtype
            and dtype != self.model.weights_dtype
            and FORMATS[dtype].bits == 4
            and self.model.has_experts
        ):
            return FORMATS[dtype] if matrix.kind == "experts" else FORMATS[self.model.dtype]
        return self.model.format_of(run, matrix, dtype or None)

    def _precision(self, form: Format) -> dict[str, float]:
        """Return the peak and the efficiencies of products in a format. Where the hardware has none
        of a type, or fewer than of 16 bits (INT8 on B300), weights are widened and multiplied in 16
        bits."""
        name = "fp4" if form.dtype in ("nvfp4", "mxfp4") else form.dtype
        widened = self.gpu.peak_flops_per_s("bf16")
        native = self.gpu.flops_per_s.get(name, 0.0) >= widened
        return {
            "peak": self.gpu.flops_per_s[name] if native else widened,
            "compute": _class(form) if native else 0,
            "memory": _class(form),
        }

    def _efficiencies(self, form: Format) -> dict[str, float]:
        efficiency, kind = board_efficiency(self.gpu), self._precision(form)
        compute, memory = int(kind["compute"]), int(kind["memory"])
        apart = 1.0 if compute == memory else widened(self.gpu, self.rules)
        return {
            "efficiency_compute": apart * efficiency.compute[compute],
            "efficiency_memory": efficiency.memory[memory],
        }


def _class(form: Format) -> int:
    """Return the number of its GEMM efficiency: 16, 8 or 4 bits."""
    return {16: 0, 32: 0, 8: 1}.get(form.bits, 2)
