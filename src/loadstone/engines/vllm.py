"""vLLM's rules, as its source has them (0.32: gpu_worker.determine_available_memory, arg_utils,
kv_cache_utils).

KV = ⌈total · gpu_memory_utilization⌉ − weights − peak activation − runtime − CUDA graphs
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from loadstone.catalogue.architecture.model import (
    CompressedAttention,
    FullAttention,
    LatentAttention,
    Layers,
    LinearAttention,
    Model,
)
from loadstone.catalogue.architecture.precision import FORMATS
from loadstone.catalogue.deployment.deployment import Worker
from loadstone.core.errors import InputError
from loadstone.engines.habits import Era, Handover, Offload, Order, PictureHandover, Scheduling
from loadstone.engines.launch import Command, Flags, Site, addresses_of, name_draft, over_one
from loadstone.engines.rules import LORA_ARGUMENTS, EngineRules
from loadstone.engines.sharding.adapters import AdapterSlots
from loadstone.engines.sharding.kv_cache import Cache, grouped
from loadstone.engines.sharding.limits import GIB, BatchLimits, Budget, Version
from loadstone.engines.sharding.packed_cache import packed
from loadstone.engines.sharding.pictures import Encoder
from loadstone.engines.sharding.rank import LOGIT_BYTES, SORTED_LOGIT_BYTES, Rank, activation_bytes

RUNTIME_BYTES = 0.46 * GIB
"""CUDA context growth and kernels, one GPU. vLLM 0.19 on an H100 printed 0.24 to 0.46 GiB as
"non-torch memory", mostly 0.25: the largest, since a planner should rather promise too little."""
RUNTIME_TP_BYTES = 2.17 * GIB
"""With collectives' buffers, tensor parallel: 2.06 to 2.17 GiB there (0.55 in 2025's releases)."""
GRAPHS_BYTES = 1.04 * GIB
"""CUDA graphs, taken off since 0.21: mean of the pools of 49 runs of 0.19 on an H100, which were
0.51 to 1.85 GiB."""
CUDAGRAPH_MODES = {
    "none": False,
    "full_decode_only": False,
    "piecewise": True,
    "full": True,
    "full_and_piecewise": True,
}
"""vLLM's CUDAGraphMode, and whether steps with prompts run as graphs in it."""
_BLOCK_TOKENS, _COMPRESSED_BLOCK_TOKENS = 16, 256
"""Of a block where `block_size` does not say; the kernels of DeepSeek-V4's attention take 256."""
_GRAPH_TOKENS = 512
"""Its V1 core captures piecewise graphs up to so many tokens, or twice max_num_seqs (its
_set_cudagraph_sizes)."""
_CHUNKED_BEYOND_TOKENS = 32_768
_NVFP4_IN_PART = ("Ampere", "Ada", "Hopper", "Grace Hopper")
"""Where it reads an NVFP4 cache through a kernel that takes neither heads of 64 nor sinks (its
flashinfer backend, 0.32)."""

_OWN_FLAGS = (
    "gpu_memory_utilization",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
    "block_size",
    "max_cudagraph_capture_size",
    "hf_overrides",
    "scheduling_policy",
)
"""Arguments of the shorthand that are its own flags by the same names."""
_KV_FLAGS = {"bf16": "bfloat16", "fp16": "float16", "int8": "int8_per_token_head"} | {
    name: name for name in ("nvfp4", "fp8_ds_mla", "fp8_e5m2", "fp8")
}
_OFFLOADS = {
    "native": Offload("async", disk=True),
    "lmcache": Offload("blocking", chunk_tokens=256, disk=True),
    "kvbm": Offload("async", disk=True),
}
_STRUCTURED_OUTPUTS_SINCE, _ATTENTION_FLAG_SINCE = (0, 11), (0, 13)
"""Before, --guided-decoding-backend, and the variable VLLM_ATTENTION_BACKEND (its pull request
26315)."""
_TASKS_SINCE, _RUNNERS_SINCE = (0, 7), (0, 10, 1)
"""From then on --task embed and score, where `embedding` was all; and --runner in its place (its
pull request 21470)."""
_ANY_VOCABULARY_SINCE = (0, 25)
"""From then on a draft may have another vocabulary (its pull request 38174)."""
_DRAFT_GRAPHS_SINCE = (0, 26)
"""From then on a draft model's passes run as CUDA graphs; before, they were captured and never
replayed (its pull request 47460, July 2026)."""
_NO_MORE_WORDS_SINCE, _MORE_WORDS = (0, 12), 256
_PICTURE_FLAGS = (
    "mm_encoder_tp_mode",
    "mm_processor_cache_gb",
    "mm_processor_kwargs",
    "api_server_count",
)
_PICTURE_SWITCHES = ("skip_mm_profiling", "disable_chunked_mm_input")
_JSON_LIMITS_SINCE = (0, 9)
"""Before, --limit-mm-per-prompt was image=2."""
_PROCESSOR_CACHE_GIB, _MEDIA_THREADS = 4.0, 8
"""Its --mm-processor-cache-gb of each process, and VLLM_MEDIA_LOADING_THREAD_COUNT of each API
server."""
_SEEN_WHOLE = ("gemma3", "gemma4")
_MASTER_PORT, _RPC_PORT = 29501, 13345
_SIDE, _SIDE_PORT, _SIDE_PORTS = "VLLM_NIXL_SIDE_CHANNEL", 5600, 100
_TRANSFERS = {
    "prefill": '{"kv_connector": "NixlConnector", "kv_role": "kv_producer"}',
    "decode": '{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}',
}
"""By pool; NIXL itself takes who sends from each request, as the router has it."""


_EMBEDDINGS_FOLDER = "/tmp/ec_cache"  # noqa: S108  named in a command for the user


def runtime_bytes(worker: Worker) -> float:
    """Return the runtime's bytes: attention-DP's ranks exchange what their experts need, and have
    collectives' buffers too."""
    return RUNTIME_TP_BYTES if worker.tp > 1 or worker.attention_dp else RUNTIME_BYTES


class Vllm(EngineRules):
    name = "vllm"
    sized = True
    newest = (0, 32)
    turns_pictures = True
    spelled = EngineRules.spelled.union(LORA_ARGUMENTS)
    eras = (
        Era((0, 14), "async"),
        Era((0, 8), "v1"),
        Era((0, 3), "v0", old=True),
        Era((0, 0), "eager", old=True),
    )
    """Before 0.3 it had no CUDA graphs; 0.8 made its V1 core the default, 0.14 asynchronous
    scheduling."""
    cache_dtypes = ("fp32", "bf16", "fp16", "int8", "nvfp4", "fp8_ds_mla", "fp8_e5m2", "fp8")
    """0.32's CacheDType; int8 with a scale of each head."""
    refuses_longer = True
    overrides = "hf_overrides"
    """The environment variable VLLM_ALLOW_LONG_MAX_MODEL_LEN is needed to insist."""
    marlin = True
    all_pairs = True
    step_argument, seqs_argument = "max_num_batched_tokens", "max_num_seqs"
    priority_argument = ("scheduling_policy", "priority")
    fp8_widening = 295.0
    places_per_batch = False
    spreads_experts = True
    quantises = True
    needs_context = True
    picture_arguments: ClassVar[Mapping[str, Version]] = {
        "limit_mm_per_prompt": (0, 6),
        "mm_encoder_tp_mode": (0, 10, 1),
        "mm_processor_cache_gb": (0, 10, 1),
        "skip_mm_profiling": (0, 10, 1),
        "disable_chunked_mm_input": (0, 8),
        "api_server_count": (0, 9),
        "mm_processor_kwargs": (0, 6, 2),
    }
    processor_argument = "mm_processor_kwargs"
    handover = Handover(
        reserves_first=False,
        spare_tokens=0,
        takes_slot=False,
        first_by="decode",
        by_chunk=False,
        latency_s=0.06,
        since=(0, 9),
    )
    """The decode side takes a prompt's blocks when it lets the request in, and reads them
    (WAITING_FOR_REMOTE_KVS of its NIXL scheduler); it computes the last prompt token again, and the
    prefill side's token is thrown away. Latency: HTTP through the proxy and posting the reads, 30
    to 150 ms by its issue 50913 without the bytes.
    """

    @property
    def is_v0(self) -> bool:
        """Return whether the engine core is the first one, V0: before 0.8."""
        return self.version < (0, 8)

    def chunks_prompts(self, context_tokens: int) -> bool:
        """Return whether a prompt may be computed in pieces, in an engine made for
        `context_tokens`.

        Always since 0.8. From 0.5.4 (pull request 6666) where the context is longer than 32,768,
        but not with latent attention ("MLA is enabled; forcing chunked prefill and prefix caching
        to be disabled", 0.7; later V0 the same). Before: no. `enable_chunked_prefill`, if given,
        decides.
        """
        given = self.worker.switch("enable_chunked_prefill")
        if self.worker.model.is_encoder:
            return False
        if given is not None:
            return given
        if not self.is_v0:
            return True
        long = self.version >= (0, 5, 4) and context_tokens > _CHUNKED_BEYOND_TOKENS
        return long and not self.worker.model.has_latent_attention

    # --- memory -----------------------------------------------------------------------------------

    def limits(self, context_tokens: int | None = None) -> BatchLimits:
        """Return batch limits of the OpenAI server when nothing is said (0.32,
        EngineArgs.get_batch_defaults).

        total ≥ 160 GiB: 16384 tokens, 1024 sequences · ≥ 70 GiB and no A100: 8192, 1024 · else
        2048, 256. Before 0.8: 256 sequences, and where prompts come in pieces 2048 tokens, before
        0.6.5 512 (pull request 10544). A step that takes whole prompts has room for one of
        `context_tokens`, and for 2048.
        """
        worker, total = self.worker, self.worker.gpu.usable_bytes
        if self.is_v0:
            tokens, seqs = (512 if self.version < (0, 6, 5) else 2048), 256
        elif total >= 160 * GIB:
            tokens, seqs = 16_384, 1024
        elif total >= 70 * GIB and "a100" not in worker.gpu.name.lower():
            tokens, seqs = 8192, 1024
        else:
            tokens, seqs = 2048, 256
        context = context_tokens or self.context_limit or 32_768
        if not self.chunks_prompts(context):
            tokens = max(2048 if self.is_v0 else tokens, context)
        return BatchLimits(
            block_tokens=worker.count("block_size") or self._usual_block_tokens,
            max_batched_tokens=worker.count("max_num_batched_tokens") or tokens,
            max_seqs=worker.count("max_num_seqs") or seqs,
        )

    @property
    def utilization(self) -> float:
        """Return 0.92 where nothing is said; 0.9 up to 0.20 (it was 0.9 in 0.19 and is 0.92 in
        0.32)."""
        given = self.worker.fraction("gpu_memory_utilization")
        return given if given is not None else (0.92 if self.version >= (0, 21) else 0.9)

    def budget(self, rank: Rank, limits: BatchLimits) -> Budget:
        worker, total = self.worker, self.worker.gpu.usable_bytes
        logit_bytes = LOGIT_BYTES if self.version >= (0, 17) else SORTED_LOGIT_BYTES
        beside = rope_bytes(worker.model, self.model_context) + padding_bytes(worker.model, rank)
        without_graphs = worker.switch("enforce_eager") or self.cudagraph_mode == "none"
        return Budget(
            total_bytes=total,
            outside_bytes=total - math.ceil(total * self.utilization),
            weights_bytes=rank.weights_bytes,
            activation_bytes=activation_bytes(worker, rank, limits, logit_bytes),
            runtime_bytes=runtime_bytes(worker) + beside,
            graphs_bytes=GRAPHS_BYTES if self.version >= (0, 21) and not without_graphs else 0.0,
            adapters_bytes=self.adapters_bytes(rank),
            **self._encoder_bytes(rank, limits),
        )

    def encoder(self, limits: BatchLimits) -> Encoder | None:
        """Return its encoder: in a step, and in the cache, as many embeddings as a step has tokens,
        or the largest picture has (v1/core/encoder_cache_manager.py, 0.32). Where tokens of a
        picture see each other, it is not split. One thread of each API server processes pictures;
        those that decode files are more (renderers/base.py, _mm_executor)."""
        encoder = super().encoder(limits)
        if encoder is None:
            return None
        by_model = self.worker.model.model_type.startswith(_SEEN_WHOLE)
        step_tokens = max(limits.max_batched_tokens, encoder.largest.seen)
        patch_bytes = encoder.tower.inputs * FORMATS[self.worker.model.dtype].bytes
        # multimodal/encoder_budget.py, 0.32: as many as a step of it takes, of as many requests.
        largest = max(1, encoder.largest.seen)
        of_step = step_tokens // largest
        of_prompt = (self.context_limit or step_tokens) // largest
        if self.most_pictures is not None:
            of_prompt = min(of_prompt, self.most_pictures)
        return msgspec.structs.replace(
            encoder,
            step_tokens=step_tokens,
            kept=0 if self.is_v0 else step_tokens,
            prepared=0 if self.is_v0 else int(self._processor_cache / patch_bytes),
            copies=self.copies_tower,
            whole=by_model or self.worker.switch("disable_chunked_mm_input") is True,
            threads=_MEDIA_THREADS * self._api_servers,
            processors=self._api_servers,
            profiled=max(1, min(of_step, limits.max_seqs * max(1, of_prompt))),
        )

    def _encoder_bytes(self, rank: Rank, limits: BatchLimits) -> dict[str, Any]:
        """Return the Budget's bytes of pictures; the tower is on the first stage."""
        encoder, worker = self.encoder(limits), self.worker
        if encoder is None or rank.stage or self.is_v0:
            return {}
        embeddings_bytes, limit = encoder.cache_bytes(worker.model), self.picture_limit
        if limit.width is not None and limit.height is not None:
            limited = encoder.visual.count(limit.width, limit.height)
            if limited.patches < encoder.largest.patches:
                encoder = msgspec.structs.replace(encoder, largest=limited)
        profiled = worker.switch("skip_mm_profiling") is not True
        tower_bytes = encoder.activation_bytes(worker.model, worker.tp) if profiled else 0.0
        return {"embeddings_bytes": embeddings_bytes, "tower_bytes": tower_bytes}

    @property
    def copies_tower(self) -> bool:
        return self.worker.argument("mm_encoder_tp_mode") == "data"

    @property
    def _api_servers(self) -> int:
        return self.worker.count("api_server_count") or self.worker.dp

    @property
    def processor_cache_bytes(self) -> float | None:
        """Return 4 GiB, or `mm_processor_cache_gb`, for each API server and each replica."""
        worker = self.worker
        if self.is_v0 or self.most_pictures == 0 or worker.model.visual is None:
            return None
        return self._processor_cache * (self._api_servers + worker.dp)

    @property
    def _processor_cache(self) -> float:
        """Return the bytes of prepared pictures that a process keeps."""
        size = self.worker.argument("mm_processor_cache_gb")
        try:
            gib = _PROCESSOR_CACHE_GIB if size is None else float(size)
        except ValueError:
            gib = -1.0
        if not 0 <= gib < math.inf:
            raise InputError(f"--mm-processor-cache-gb: {size!r} is no size; write e.g. 4")
        return gib * GIB

    @property
    def _picture_flags(self) -> Flags:
        worker, limits = self.worker, self.picture_limits
        if limits is not None and self.version < _JSON_LIMITS_SINCE:
            limits = None if self.most_pictures is None else f"image={self.most_pictures}"
        return [
            ("limit-mm-per-prompt", limits),
            *((name, worker.argument(name)) for name in _PICTURE_FLAGS),
            *((name, worker.switch(name) is True) for name in _PICTURE_SWITCHES),
        ]

    @property
    def adapter_slots(self) -> AdapterSlots | None:
        """Return `max_loras` slots of `max_lora_rank`, for all modules whatever adapters have
        (LoRAConfig). Steps without adapters have graphs of their own since 0.11.1 (pull request
        25914), those with few of them where it is told so (32005)."""
        if not self.has_adapters:
            return None
        worker, version = self.worker, self.version
        by_active = worker.switch("specialize_active_lora") is True
        slots = worker.count("max_loras") or 1
        return AdapterSlots(
            slots,
            worker.count("max_lora_rank") or 16,
            worker.count("max_cpu_loras") or slots,
            targets=worker.argument("lora_target_modules") or "all",
            split=worker.switch("fully_sharded_loras") is True,
            idle="always" if version < (0, 11, 1) else "active" if by_active else "used",
            measured=(0, 8) <= version < (0, 12),
        )

    @property
    def lora_flags(self) -> Flags:
        worker = self.worker
        if not self.has_adapters:
            return []
        return [
            ("enable-lora", True),
            ("max-lora-rank", worker.count("max_lora_rank")),
            ("max-loras", worker.count("max_loras")),
            ("max-cpu-loras", worker.count("max_cpu_loras")),
            ("fully-sharded-loras", worker.switch("fully_sharded_loras") is True),
            ("specialize-active-lora", worker.switch("specialize_active_lora") is True),
            ("lora-target-modules", self.lora_targets),
            ("lora-modules", self.lora_words),
        ]

    def slot_bytes(self, rank: Rank | None = None) -> float:
        """Return the bytes of a slot; before 0.12 those of embeddings and head too, of a
        vocabulary with 256 more words (lora_extra_vocab_size)."""
        total, slots, model = super().slot_bytes(rank), self.adapter_slots, self.worker.model
        if slots is None or self.version >= _NO_MORE_WORDS_SINCE:
            return total
        words = model.vocab + _MORE_WORDS
        numbers = 2 * slots.rank * (words + model.hidden) + 2 * _MORE_WORDS * model.hidden
        return total + 2.0 * numbers

    def cache(self, rank: Rank, limits: BatchLimits) -> Cache:
        """Return its cache: in 0.32 two steps may be in flight at once (one more than pipeline
        stages), one block is never given out, and with prefix caching a state keeps one more block
        to go back to. When the first two came is not known to us; 0.30 is taken.
        """
        late = self.version >= (0, 30)
        steps = self.worker.pp + 1 if late else self.worker.pp
        states = 1 if self.worker.switch("prefix_caching") is False else 2
        in_flight, held = steps * limits.max_batched_tokens, 1 if late else 0
        if any(attention.ratio for attention, _ in rank.compressed):
            return packed(rank.compressed, limits.block_tokens, self.kv_dtype, in_flight, held)
        return grouped(rank.cache, limits.block_tokens, in_flight, states, held)

    def whole_prompts(self, context_limit: int) -> int:
        """Return where V0 took longer prompts in pieces, the memory no longer depends on their
        length."""
        if not self.is_v0:
            return 0
        return _CHUNKED_BEYOND_TOKENS if self.chunks_prompts(context_limit) else context_limit

    @property
    def _usual_block_tokens(self) -> int:
        kinds = self.worker.model.kinds
        compresses = any(isinstance(run.attention, CompressedAttention) for run in kinds)
        return _COMPRESSED_BLOCK_TOKENS if compresses else _BLOCK_TOKENS

    @property
    def kv_dtype(self) -> str:
        """Return the precision: it packs an FP8 cache of sparse MLA in its own way (DeepSeek-V3.2,
        GLM-5: its DeepseekV32ForCausalLM makes `fp8` to `fp8_ds_mla`), which keeps the RoPE key in
        bf16."""
        dtype, kinds = super().kv_dtype, self.worker.model.kinds
        sparse = any(
            isinstance(run.attention, LatentAttention) and run.attention.top_tokens for run in kinds
        )
        return "fp8_ds_mla" if dtype == "fp8" and sparse else dtype

    @property
    def state_dtype(self) -> str:
        """Return the precision in which it computes (MambaStateDtypeCalculator); others have fp32
        (SGLang's mamba2_state_dtype)."""
        return self.worker.model.dtype

    # --- what it refuses --------------------------------------------------------------------------

    def cache_refusal(self) -> str | None:
        worker, kv = self.worker, self.worker.kv_dtype
        if worker.model.has_latent_attention and kv in ("int8", "nvfp4"):
            return f"vllm has no KV cache in {kv} for MLA; fp8 would work (kv=fp8)"
        refusal = super().cache_refusal()
        if refusal is not None or kv != "nvfp4":
            return refusal
        if self.version < (0, 21):
            return (
                f"vllm {worker.engine_version} has no KV cache in nvfp4; 0.21 has, or fp8 would"
                " work (kv=fp8)"
            )
        if worker.gpu.architecture in _NVFP4_IN_PART and any(
            map(_is_small_or_has_sinks, worker.model.kinds)
        ):
            return (
                f"vllm has no KV cache in nvfp4 on a {worker.gpu.name} for heads of 64 numbers"
                " or attention sinks; fp8 would work (kv=fp8)"
            )
        return None

    @property
    def offload(self) -> Offload:
        """Return its own, by `kv_offload` LMCache's (whose steps wait for their loads, in chunks of
        256 tokens) or KVBM's (as its own)."""
        return _OFFLOADS[self.worker.argument("kv_offload") or "native"]

    def draft_refusal(self) -> str | None:
        model, draft = self.worker.model, self.worker.draft
        if (
            draft is None
            or draft.model.vocab == model.vocab
            or self.version >= _ANY_VOCABULARY_SINCE
        ):
            return None
        return (
            f"the draft {draft.model.name} has a vocabulary of {draft.model.vocab:,} tokens,"
            f" {model.name} one of {model.vocab:,}: vllm refuses that before 0.25; a draft of the"
            " same family and release would do"
        )

    # --- scheduling and steps ---------------------------------------------------------------------

    def scheduling(self, max_batched_tokens: int) -> Scheduling:
        chunked = self.chunks_prompts(self.context_limit or 0)
        if not self.is_v0:
            return Scheduling(
                chunked=chunked,
                priorities=self.worker.argument("scheduling_policy") == "priority",
                priority_sign=-1,
                max_under_way=self.worker.count("max_num_queued_reqs"),
                max_queued_tokens=self.worker.count("max_num_queued_tokens"),
            )
        order: Order = "mixed" if chunked else "prefill-first"
        return Scheduling(order=order, chunked=chunked, prefix_cache=False)

    @property
    def batches_under_way(self) -> int:
        """Return how many: before 0.8 each batch of a pipeline had an engine of its own (virtual
        engines)."""
        return 1 if self.is_v0 else super().batches_under_way

    @property
    def cudagraph_mode(self) -> str:
        """Return one of CUDAGRAPH_MODES."""
        return (self.worker.argument("cudagraph_mode") or "full_and_piecewise").lower()

    @property
    def is_eager(self) -> bool:
        return super().is_eager or self.cudagraph_mode == "none" or self.era == "eager"

    @property
    def launches_drafts(self) -> bool:
        return not self.is_v0 and self.version < _DRAFT_GRAPHS_SINCE

    @property
    def graph_tokens(self) -> int:
        """Return `max_cudagraph_capture_size`, unless `cudagraph_mode` leaves prompts out; none
        before its V1 core."""
        return self._captured_tokens if CUDAGRAPH_MODES[self.cudagraph_mode] else 0

    @property
    def graph_seqs(self) -> int:
        guessed = self.worker.count("num_speculative_tokens") or 0
        return self._captured_tokens // (1 + guessed)

    @property
    def _captured_tokens(self) -> int:
        if self.is_eager or self.is_v0:
            return 0
        limits = self.limits()
        given = self.worker.count("max_cudagraph_capture_size")
        return min(given or min(2 * limits.max_seqs, _GRAPH_TOKENS), limits.max_batched_tokens)

    def uncovered(self) -> list[str]:
        gpu = self.worker.gpu
        grace = (gpu.architecture or "").startswith("Grace")
        return [f"hosts with Grace processors ({gpu.name})"] if grace else []

    # --- how it is started ------------------------------------------------------------------------

    def command(self, site: Site) -> Command:
        """Return `vllm serve`, as 0.33 spells it (`vllm serve --help=all`). Several nodes: its own
        processes where ranks reach over nodes (`--nnodes`), else replicas dealt over the nodes."""
        worker = self.worker
        weights = self.weights(site)
        notes = weights.notes
        chunks, prefixes = (
            worker.switch("enable_chunked_prefill"),
            worker.switch("prefix_caching"),
        )
        flags: Flags = [
            ("served-model-name", site.served_name),
            ("tensor-parallel-size", worker.tp),
            ("pipeline-parallel-size", over_one(worker.pp)),
            ("data-parallel-size", over_one(worker.dp)),
            ("enable-expert-parallel", worker.ep > 1),
            ("enable-eplb", worker.switch("eplb") is True),
            ("enable-dbo", worker.switch("two_batch_overlap") is True),
            *weights.flags,
            ("kv-cache-dtype", self.kv_flag(_KV_FLAGS, site)),
            ("max-model-len", worker.count("max_model_len", "max_seq_len")),
            *((name, worker.argument(name)) for name in _OWN_FLAGS),
            ("enforce-eager", worker.switch("enforce_eager")),
            ("enable-chunked-prefill", chunks),
            ("no-enable-chunked-prefill", chunks is False),
            ("enable-prefix-caching", prefixes),
            ("no-enable-prefix-caching", prefixes is False or site.role == "encode"),
            *self._task_flags,
            ("compilation-config", self._compilation),
            ("speculative-config", self._speculation),
            ("kv-transfer-config", _TRANSFERS.get(site.role or "")),
            *self._encoding_flags(site),
            *self._offload_flags,
            *self.lora_flags,
            *self._picture_flags,
        ]
        ranks = worker.moe_ranks if worker.attention_dp else worker.tp * worker.dp
        if worker.ep > 1 and worker.ep != ranks:
            notes += (f"vLLM deals experts over all {ranks} ranks, not over {worker.ep}",)
        program = [site.program or "vllm", "serve", weights.model]
        backend, renamed = worker.argument("attention_backend"), {}
        if self.version < _STRUCTURED_OUTPUTS_SINCE:
            renamed["structured-outputs-config.backend"] = "guided-decoding-backend"
        if self.version < _ATTENTION_FLAG_SINCE:
            renamed["attention-backend"] = ""
        env = (
            (("VLLM_ATTENTION_BACKEND", backend),)
            if backend and "attention-backend" in renamed
            else ()
        )
        command = Command(
            program,
            flags,
            self._spell_nodes(site),
            notes,
            entry=2,
            negates=True,
            renamed=renamed,
            env=env,
        )
        if site.role not in _TRANSFERS:
            return command
        port = str(
            _SIDE_PORT + _SIDE_PORTS * site.place
        )  # each rank of attention-DP adds its number
        return command._replace(env=(*env, (f"{_SIDE}_PORT", port)), own_address=f"{_SIDE}_HOST")

    router_in_image = False
    encoding = PictureHandover(since=(0, 13), keeps_tower=True, again_until=(0, 32))
    """0.11.1 had it first, with a connector of another name. Its proxy sent pictures on; that of
    0.32 sends their grids in their place (rewrite_for_decode), which 0.25 does not take
    (allow_missing_mm_embeddings)."""

    def router(self, site: Site, workers: Sequence[Site]) -> Command:
        """Return vllm-router (a package of its own), which waits for the prefill worker's answer,
        and hands its transfer's parameters to the decode worker. Before encoders it is the proxy
        among vLLM's examples, which has each picture encoded first."""
        if any(worker.role == "encode" for worker in workers):
            roles = {"encode": ("encode",), "prefill": ("prefill",), "decode": ("both", "decode")}
            named = {
                name: ",".join(worker.address for worker in workers if worker.role in served)
                for name, served in roles.items()
            }
            return Command(
                ["python3", "disagg_epd_proxy.py"],
                [(f"{name}-servers-urls", urls or "disable") for name, urls in named.items()],
            )
        urls = [word for worker in workers for word in (f"--{worker.role}", worker.address)]
        return Command(
            ["vllm-router", "--vllm-pd-disaggregation", *urls], [("policy", "power_of_two")]
        )

    def _encoding_flags(self, site: Site) -> Flags:
        """Return those of a worker that encodes pictures, or has them encoded: embeddings are files
        of a folder that all see."""
        encodes = site.role == "encode"
        if not encodes and (not site.encoders or site.role == "decode"):
            return []
        config = {
            "ec_connector": "ECExampleConnector",
            "ec_role": "ec_producer" if encodes else "ec_consumer",
            "ec_connector_extra_config": {"shared_storage_path": _EMBEDDINGS_FOLDER},
        }
        return [
            ("ec-transfer-config", json.dumps(config)),
            ("enable-request-id-headers", True),
        ]

    @property
    def _offload_flags(self) -> Flags:
        worker, backend = self.worker, self.worker.argument("kv_offload")
        host = worker.memory_bytes("kv_host")
        if host is None:
            return []
        if backend == "kvbm":
            raise InputError(
                "kv_offload=kvbm: is started by Dynamo; start it yourself, and give `bench` its URL"
            )
        return [
            ("kv-offloading-size", f"{host / worker.dp / GIB:g}"),
            ("kv-offloading-backend", backend),
        ]

    @property
    def _task_flags(self) -> Flags:
        """Return what makes it give vectors or scores; a model that is made for that needs no
        conversion."""
        task = self.worker.task
        if task is None:
            return []
        if self.version >= _RUNNERS_SINCE:
            convert = {"embed": "embed", "score": "classify"}[task]
            made = self.worker.model.is_encoder
            return [("runner", "pooling"), ("convert", None if made else convert)]
        return [("task", task if self.version >= _TASKS_SINCE else "embedding")]

    @property
    def _compilation(self) -> str | None:
        mode = self.worker.argument("cudagraph_mode")
        return None if mode is None else json.dumps({"cudagraph_mode": self.cudagraph_mode.upper()})

    @property
    def _speculation(self) -> str | None:
        tokens = self.worker.count("num_speculative_tokens")
        if tokens is None:
            return None
        draft = self.worker.draft
        config: dict[str, Any] = (
            {"method": "mtp"}
            if draft is None
            else {"method": "draft_model", "model": name_draft(draft)}
        )
        if draft is not None and draft.model.vocab != self.worker.model.vocab:
            config |= {"use_heterogeneous_vocab": True}
        return json.dumps({**config, "num_speculative_tokens": tokens})

    def _spell_nodes(self, site: Site) -> list[Flags]:
        worker, nodes = self.worker, self.worker.nodes
        if nodes == 1:
            return []
        first = addresses_of(worker, site)[0]
        local = worker.dp // nodes
        if worker.dp > 1 and worker.dp % nodes == 0:
            common: Flags = [
                ("data-parallel-size-local", local),
                ("data-parallel-address", first),
                ("data-parallel-rpc-port", _RPC_PORT),
            ]
            return [
                [
                    *common,
                    *([("data-parallel-start-rank", i * local), ("headless", True)] if i else []),
                ]
                for i in range(nodes)
            ]
        return [
            [
                ("nnodes", nodes),
                ("node-rank", i),
                ("master-addr", first),
                ("master-port", _MASTER_PORT),
                ("headless", i > 0),
            ]
            for i in range(nodes)
        ]


def padding_bytes(model: Model, rank: Rank) -> float:
    """Return padding: MXFP4 kernels work on a hidden size of whole 256: gpt-oss's 2880 becomes
    3072. (Measured on an H100: 13.47 GiB of weights for gpt-oss-20b, 64.38 for 120b; 13.45 and
    64.55 so, 12.82 and 60.77 without.)
    """
    return rank.mxfp4_bytes * (-(-model.hidden // 256) * 256 / model.hidden - 1)


def rope_bytes(model: Model, context_tokens: int | None) -> float:
    """Return bytes of sines and cosines that it keeps: context × rotated numbers of a head, bf16,
    once per size of head."""
    rotated = set()
    for run in model.kinds:
        if isinstance(run.attention, FullAttention):
            rotated.add(run.attention.head_dim)
        elif run.attention is not None and not isinstance(run.attention, LinearAttention):
            rotated.add(run.attention.rope_dim)
    return 2.0 * (context_tokens or 0) * sum(rotated)


def _is_small_or_has_sinks(run: Layers) -> bool:
    return isinstance(run.attention, FullAttention) and (
        run.attention.head_dim == 64 or run.attention.sinks
    )
