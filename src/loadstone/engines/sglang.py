"""SGLang's rules, as its source has them (0.5.23: arg_groups/memory_hook.py,
kv_cache_configurator.py).

KV = free after loading − free before loading · (1 − mem_fraction_static)
   = free before loading · mem_fraction_static − weights [− CUDA graphs, where the cache is sized
   after their capture]
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from loadstone.catalogue.deployment.deployment import Worker
from loadstone.core.errors import InputError
from loadstone.engines.habits import Era, Handover, Offload, PictureHandover, Scheduling
from loadstone.engines.launch import Command, Flags, Site, addresses_of, name_draft, over_one
from loadstone.engines.rules import LORA_ARGUMENTS, EngineRules
from loadstone.engines.sharding.adapters import AdapterSlots
from loadstone.engines.sharding.kv_cache import Cache, pooled
from loadstone.engines.sharding.limits import GIB, MIB, BatchLimits, Budget, Version
from loadstone.engines.sharding.pictures import Encoder
from loadstone.engines.sharding.rank import Rank

CONTEXT_BYTES = 0.51 * GIB
"""What is gone before the weights come, one GPU: the CUDA context (an H100, vLLM 0.19's first
snapshot)."""
CONTEXT_TP_BYTES = 1.9 * GIB
"""Likewise with communicators: 8×H200, 137.9 of 139.8 GiB free (SemiAnalysisAI/InferenceX issue
2128)."""
WINDOW_SHARE = 0.8
"""`swa_full_tokens_ratio`: tokens in the windows' pool per token of full attention's."""
STATE_SHARE = 0.9
"""`mamba_full_memory_ratio`: memory for states per memory for KV, where no number of states is set.
"""
REQUEST_STATES = 3
"""MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO: states kept for each running request where prefixes
are cached: its own, that of the prefix it found, and the one it leaves in the cache. With its
`extra_buffer` there are two more."""
_SHARES_STATES_SINCE = (0, 5, 4)
"""From then on hybrids have a prefix cache too (pull request 11214)."""
SPECULATIVE_SEQS = 48
"""max_running_requests where tokens are guessed and it is not given
(speculative_hook._handle_eagle_family)."""
KEEP_FREE = 0.098
"""The floor of its new_token_ratio: SGLANG_INIT_NEW_TOKEN_RATIO 0.7 ·
SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR 0.14."""
DP_CONSERVATIVENESS = 0.3
"""--enable-dp-attention multiplies schedule_conservativeness by it, and so new_token_ratio
(server_args.py)."""

_EXACT_SINCE = (0, 5, 23)
"""From then on all that requests of fixed length (ignore_eos) may still write is left free. Seen in
this release; at the beginning of 2026 (pull request 16807) it was not so."""
_COUNTS_DRAFTS_SINCE = (0, 5, 20)
"""From then on or so it loads draft layers before it sizes the cache, and has them in a token's
bytes (0.5.23: Scheduler.init_model_worker, pool_configurator). Before, it loaded them into memory
that it kept free."""
_AFTER_CAPTURE_SINCE = (0, 5, 20)
_PROMPT_GRAPHS_SINCE = (0, 5, 10)
_LATENT_GRAPH_TOKENS = 2048
"""Largest step with prompts in CUDA graphs for latent attention; otherwise a whole chunk
(ServerArgs, its pull request 15927)."""
_TOWER_MIB, _USUAL_TOWER = 8 * 1024, 24 * 1024**2
"""Layers · width² of the tower that its rule starts from, ViT-L/14."""
_BLIND = ("gemma3", "llama4")
"""Types of text models whose pictures it takes with --enable-multimodal alone."""
_RESERVES_PICTURES_SINCE = (0, 5, 23)
_GRAPH_MIB_PER_SEQ = 2
_GRAPH_MIB_PER_PREFILL_SIZE = 8
_DRAFT_MIB = 2048

_SLOW_ON_B300 = (0, 5, 10), (0, 5, 12)
"""From the first release on, before the second."""
_COMPRESSED_SEQS = 256
"""Likewise of DeepSeek-V4, with guesses and without (its apply_deepseek_v4_defaults, which comes
first)."""

_NEW_SPELLINGS_SINCE, _NEW_GRAPHS_SINCE = (0, 5, 23), (0, 5, 20)
"""--attn-dp-size, whose older form is refused from 2027 on; --cuda-graph-backend-… and its like."""
_OWN_FLAGS = (
    "mem_fraction_static",
    "max_running_requests",
    "max_queued_requests",
    "max_total_tokens",
    "max_prefill_tokens",
    "page_size",
    "scheduler_recv_interval",
    "json_model_override_args",
    "cuda_graph_bs",
    "ep_dispatch_algorithm",
    "load_balance_method",
    "default_priority_value",
    "priority_scheduling_preemption_threshold",
)
"""Arguments of the shorthand that are its own flags by the same names."""
_KV_FLAGS = {"bf16": "bf16", "nvfp4": "nvfp4", "fp8_e5m2": "fp8_e5m2", "fp8": "fp8_e4m3"}
_PREEMPTION_THRESHOLD = 10
"""Its --priority-scheduling-preemption-threshold: a running request gives way where its priority is
lower by more than that (schedule_policy.py, preempt_to_schedule, 0.5.23)."""
_LOWEST = -(1 << 62)
_PRIORITY_SWITCHES = (
    "enable_priority_scheduling",
    "schedule_low_priority_values_first",
    "disable_priority_preemption",
)
_IO_WORKERS, _EMBEDDINGS_BYTES = 4, 100 << 20
"""Its SGLANG_IO_WORKERS and SGLANG_VLM_CACHE_SIZE_MB."""
_DIST_PORT = 20000
_BOOTSTRAP_PORT = 8998

_WINDOWED = (
    "llama4",
    "llama4_text",
    "gpt_oss",
    "mimo_v2_flash",
    "step3p5",
    "step3p7",
    "gemma4",
    "gemma4_text",
    "deepseek_v4",
    "deepseek_ref",
    "inkling_text",
    "gemma4_unified_text",
    "beam",
    "muse_glimmer_text",
    "dots3_note",
    "dots3_note_text",
    "granitemoe_swa",
    "laguna",
    "mellum",
    "muse_spark_text",
)
"""Models (model_type) of whose sliding layers it keeps the window alone (its is_hybrid_swa_model;
DeepSeek-V4 has a cache of its own). Of all others, Gemma 3 among them, it keeps every token of
every layer."""


class Sglang(EngineRules):
    name = "sglang"
    sized = True
    newest = (0, 5, 23)
    eras = (
        Era((0, 5, 11), "0.5.11"),
        Era((0, 5, 10), "graphs"),
        Era((0, 5), "0.5"),
        Era((0, 0), "0.4", old=True),
    )
    """0.5 overlaps host and device; its prompts run in piecewise CUDA graphs by default from about
    0.5.10 on."""
    spelled = EngineRules.spelled.union(LORA_ARGUMENTS) - {"block_size"}
    cache_dtypes = ("fp32", "bf16", "fp16", "nvfp4", "fp8_e5m2", "fp8")
    """Its --kv-cache-dtype."""
    refuses_longer = True
    overrides = "json_model_override_args"
    """The environment variable SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN is needed to insist."""
    marlin = True
    all_pairs = True
    step_argument, seqs_argument = "chunked_prefill_size", "max_running_requests"
    priority_argument = ("enable_priority_scheduling", "true")
    fp8_widening = 410.0
    quantises = True
    loads_first = True
    static_argument = "mem_fraction_static"
    picture_arguments: ClassVar[Mapping[str, Version]] = {
        "limit_mm_per_prompt": (0, 5, 4),
        "mm_enable_dp_encoder": (0, 5, 6),
        "mm_attention_backend": (0, 5),
        "mm_process_config": (0, 5, 9),
    }
    processor_argument = "mm_process_config"
    handover = Handover(
        reserves_first=True,
        spare_tokens=512,
        takes_slot=True,
        first_by="prefill",
        by_chunk=True,
        latency_s=0.05,
        twice_up_to=32,
        since=(0, 4, 6),
        by_room=True,
        balances_since=(0, 5, 8),
    )
    """Room is kept for a prompt and num_reserved_decode_tokens before the prompt is computed
    (decode.py, pop_preallocated); up to 32 slots have twice as many more for requests on their way
    (pre_alloc_size); the sender writes chunk by chunk (send_kv_chunk). Latency: what DeepSeek-R1's
    first tokens took longer than predicted at up to 16 users (docs/accuracy.md); of it Mooncake's
    benchmarks have 0.5 to 2 ms. A prefill rank of attention-DP is bootstrap_room modulo dp
    (follow_bootstrap_room of its pull request 16110; before, round_robin did the same).
    """
    encoding = PictureHandover(
        since=(0, 5, 7),
        types=("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "kimi", "deepseek_v3"),
        together=8,
    )
    """Of handle_encoder_disaggregation and SGLANG_ENCODER_MAX_BATCH_SIZE, 0.5.23. Kimi-VL's and
    K2.5's text models are DeepSeek-V3's and K2's."""

    # --- memory -----------------------------------------------------------------------------------

    def limits(self, context_tokens: int | None = None) -> BatchLimits:
        """Return chunk and CUDA-graph batch by the GPU's memory: < 20 GiB 2048, 8 · < 60 GiB 4096,
        32 (48 below 35 GiB; 160 from tp 4) · < 160 GiB 8192, 256 (512 from tp 4) · else 16384, 512.
        `max_seqs` here is the graphs' largest batch; what may run at once follows from the cache,
        see max_seqs(). Before 0.5: 2048 tokens below 25 GB, else 8192.
        """
        worker = self.worker
        gib = worker.gpu.usable_bytes / GIB
        wide = worker.moe_ranks >= 4
        if gib < 20:
            chunk, graph = 2048, 8
        elif gib < 60:
            chunk, graph = 4096, 160 if wide else (48 if gib < 35 else 32)
        elif gib < 160:
            chunk, graph = 8192, 512 if wide else 256
        else:
            chunk, graph = 16_384, 512
        if self.version < (0, 5):
            chunk = 2048 if worker.gpu.usable_bytes < 25e9 else 8192
        return BatchLimits(
            block_tokens=worker.count("page_size") or 1,
            max_batched_tokens=worker.count("chunked_prefill_size", "max_prefill_tokens") or chunk,
            max_seqs=worker.count("cuda_graph_max_bs") or graph,
        )

    def max_seqs(self, limits: BatchLimits, kv_tokens: int) -> int:
        """Return 2048, up to 4096 where the cache holds that many at 512 per whole context; of all
        replicas 48 where tokens are guessed, and 256 of DeepSeek-V4.
        """
        worker = self.worker
        given = worker.count("max_running_requests")
        if given is None and worker.model.model_type == "deepseek_v4":
            given = _COMPRESSED_SEQS
        elif given is None and worker.is_speculative:
            given = SPECULATIVE_SEQS
        if given is not None:
            return max(1, min(given // (worker.dp if worker.attention_dp else 1), kv_tokens // 2))
        context = worker.count("max_model_len", "max_seq_len") or self.model_context or 131_072
        return max(1, min(max(min(kv_tokens * 512 // context, 4096), 2048), kv_tokens // 2))

    @property
    def most_kv_tokens(self) -> int | None:
        return self.worker.count("max_total_tokens")

    def static_fraction(self, limits: BatchLimits) -> float:
        """Return mem_fraction_static where nothing is said: (memory − reserved) / memory, to three
        digits, in MiB

        sized after capture  reserved = 1536 + 128 tp pp: all but MLA, since 0.5.20 or so
        else                 reserved = 512 + 1.5 max(chunk, 2048) + 128 tp pp + graphs, at least 10
                             GiB above 60 GiB; 2048 more where tokens are guessed by its own layers,
                             before 0.5.20 or so: they and their cache come out of it

        The chunk is that of all ranks together: it is dealt out after this
        (_handle_data_parallelism). Of models that see pictures it is 8 GiB less where sized after
        capture, else 0.95 of it, and less for larger towers (adjust_mem_fraction_for_vlm).
        """
        worker = self.worker
        given = worker.fraction("mem_fraction_static")
        if given is not None:
            return given
        total = worker.gpu.usable_bytes / MIB
        ranks = worker.moe_ranks * worker.pp
        if self._sized_after_capture:
            reserved = 1536 + ranks / 8 * 1024
        else:
            reserved = 512 + 1.5 * max(limits.max_batched_tokens, 2048) + ranks / 8 * 1024
            reserved += self._graphs_mib(limits)
            if total > 60 * 1024:
                reserved = max(reserved, 10 * 1024)
            if worker.is_speculative and worker.draft is None and not self.counts_drafts:
                reserved += _DRAFT_MIB
        fraction = max(0.001, round((total - reserved) / total, 3))
        if not self._sees_pictures:
            return fraction
        if self._sized_after_capture:
            return max(0.001, fraction - _TOWER_MIB / total)
        tower = None if worker.model.visual is None else worker.model.visual.tower
        grown = 0.0 if tower is None else tower.depth * tower.width**2 / _USUAL_TOWER - 1
        return fraction * 0.95 * min(1.05, max(0.8, 1 - 0.1 * grown))

    @property
    def _media_limits(self) -> str | None:
        """Return how many of each kind of media a request may have; it takes no sizes of them."""
        text = self.picture_limits
        limits = msgspec.json.decode(text or "{}")
        if not any(isinstance(limit, dict) for limit in limits.values()):
            return text
        counts = {
            kind: limit.get("count") if isinstance(limit, dict) else limit
            for kind, limit in limits.items()
        }
        bounded = {kind: count for kind, count in counts.items() if count is not None}
        return msgspec.json.encode(bounded).decode() if bounded else None

    @property
    def _sees_pictures(self) -> bool:
        """Return whether it serves the model with its tower; of some it does only when told."""
        model = self.worker.model
        return bool(model.vision_parameters) and not model.model_type.startswith(_BLIND)

    @property
    def _embeddings_bytes(self) -> float:
        """Return what is kept out of the cache (mm_runtime_reservation_gb):
        SGLANG_VLM_CACHE_SIZE_MB for embeddings; of Qwen3-VL on a large Hopper
        SGLANG_MM_FEATURE_CACHE_MB for pixels instead."""
        worker = self.worker
        if not self._sees_pictures or self.version < _RESERVES_PICTURES_SINCE:
            return 0.0
        large = worker.gpu.usable_bytes >= 60 * GIB and worker.gpu.architecture == "Hopper"
        hopper = large and worker.nodes == 1 and worker.model.model_type.startswith("qwen3_vl")
        return (1024 if hopper else 100) * MIB

    @property
    def _sized_after_capture(self) -> bool:
        graphs = not self.worker.switch("enforce_eager")
        return (
            graphs
            and not self.worker.model.has_latent_attention
            and self.version >= _AFTER_CAPTURE_SINCE
        )

    def _graphs_mib(self, limits: BatchLimits) -> float:
        """Return what it expects of its graphs itself: 2 per sequence of the largest batch, with
        attention-DP 3 (4.5 above 300) more for every replica's; for prefill 8 per captured size,
        with MLA 1536."""
        worker = self.worker
        if worker.switch("enforce_eager"):
            return 0.0
        total = float(_GRAPH_MIB_PER_SEQ * limits.max_seqs)
        if worker.attention_dp:
            total += limits.max_seqs * worker.dp * (4.5 if limits.max_seqs > 300 else 3)
        if worker.model.has_latent_attention:
            return total + 1536
        return total + _GRAPH_MIB_PER_PREFILL_SIZE * _prefill_sizes(limits.max_batched_tokens)

    def budget(self, rank: Rank, limits: BatchLimits) -> Budget:
        """Return its budget: activations have no piece of their own here: the slack that
        mem_fraction_static leaves is for them."""
        worker, total = self.worker, self.worker.gpu.usable_bytes
        several = worker.gpus > 1 and (worker.tp * worker.pp > 1 or worker.attention_dp)
        context = CONTEXT_TP_BYTES if several else CONTEXT_BYTES
        graphs = self._graphs_mib(limits) * MIB if self._sized_after_capture else 0.0
        slack = (total - context) * (1 - self.static_fraction(limits))
        adapters = self.adapters_bytes(rank)
        pictures = self._embeddings_bytes
        room = total - context - slack - rank.weights_bytes - graphs - adapters - pictures
        states = any(layer.state_bytes for layer in rank.cache)
        return Budget(
            total_bytes=total,
            outside_bytes=0.0,
            weights_bytes=rank.weights_bytes,
            activation_bytes=slack,
            runtime_bytes=context,
            graphs_bytes=graphs,
            state_bytes=max(0.0, room) * STATE_SHARE / (1 + STATE_SHARE) if states else 0.0,
            request_states=REQUEST_STATES if self._shares_states else 1,
            adapters_bytes=adapters,
            embeddings_bytes=pictures,
        )

    def encoder(self, limits: BatchLimits) -> Encoder | None:
        """Return its encoder: all pictures of a batch of prompts; what they take is in the slack
        that mem_fraction_static leaves."""
        encoder = super().encoder(limits)
        if encoder is None:
            return None
        model = self.worker.model
        embedding_bytes = encoder.cache_bytes(model) / encoder.step_tokens
        return msgspec.structs.replace(
            encoder,
            copies=self.copies_tower,
            threads=_IO_WORKERS,
            kept=int(_EMBEDDINGS_BYTES / embedding_bytes),
        )

    @property
    def copies_tower(self) -> bool:
        return self.worker.switch("mm_enable_dp_encoder") is True

    @property
    def adapter_slots(self) -> AdapterSlots | None:
        """Return `max_loras_per_batch` slots (LoRAMemoryPool) for `lora_target_modules`. The host
        keeps all adapters that are loaded. Before 0.5.5 who finds no slot ends the step's list of
        prompts."""
        if not self.has_adapters:
            return None
        worker = self.worker
        return AdapterSlots(
            worker.count("max_loras") or 8,
            worker.count("max_lora_rank") or 16,
            worker.count("max_cpu_loras") or 1 << 30,
            targets=worker.argument("lora_target_modules") or "all",
            needs_base=True,
            passes=self.version >= (0, 5, 5),
            overlaps=worker.switch("enable_lora_overlap_loading") is True,
        )

    @property
    def lora_flags(self) -> Flags:
        worker = self.worker
        if not self.has_adapters:
            return []
        paths, targets = self.lora_words, self.lora_targets
        if paths is None:
            targets = targets or ("all",)  # it is told, where no adapter says
            if worker.argument("max_lora_rank") is None:
                raise InputError(
                    "enable_lora: without adapters at its start sglang is told their largest rank;"
                    " write lora_modules=NAME=PATH, or max_lora_rank=16"
                )
        return [
            ("enable-lora", True),
            ("max-lora-rank", worker.count("max_lora_rank")),
            ("max-loras-per-batch", worker.count("max_loras")),
            ("max-loaded-loras", worker.count("max_cpu_loras")),
            ("lora-target-modules", targets),
            ("lora-paths", paths),
            (
                "enable-lora-overlap-loading",
                worker.switch("enable_lora_overlap_loading") is True,
            ),
        ]

    @property
    def _shares_states(self) -> bool:
        return (
            self.version >= _SHARES_STATES_SINCE
            and self.worker.switch("prefix_caching") is not False
        )

    def cache(self, rank: Rank, limits: BatchLimits) -> Cache:
        return pooled(rank.cache, limits.block_tokens, WINDOW_SHARE)

    @property
    def keeps_windows(self) -> bool:
        return self.worker.model.model_type in _WINDOWED

    @property
    def counts_drafts(self) -> bool:
        return self.version >= _COUNTS_DRAFTS_SINCE

    @property
    def offload(self) -> Offload:
        """Return HiCache's, which writes as `hicache_write_policy` says."""
        back = self.worker.argument("hicache_write_policy") == "write_back"
        return Offload("overlap", "evicted" if back else "through")

    def draft_refusal(self) -> str | None:
        both = self.worker.draft is not None and self.worker.attention_dp
        return (
            "sglang takes no draft model with attention-dp; leave one of the two out"
            if both
            else None
        )

    # --- scheduling and steps ---------------------------------------------------------------------

    def scheduling(self, max_batched_tokens: int) -> Scheduling:
        worker = self.worker
        keep_free, budget = KEEP_FREE, max_batched_tokens
        if worker.attention_dp:
            keep_free *= DP_CONSERVATIVENESS
            # --chunked-prefill-size is dealt out to all ranks; before 0.4.4 each had half of it.
            sharing_ranks = worker.dp if self.version >= (0, 4, 4) else 2
            budget = max(1, max_batched_tokens // sharing_ranks)
        return Scheduling(
            order="prefill-first",
            chunked=worker.model.cross is None,
            keep_free=1.0 if self.version >= _EXACT_SINCE else keep_free,
            route="round-robin",
            poll_steps=worker.count("scheduler_recv_interval") or 0,
            max_batched_tokens=budget,
            max_waiting=worker.count("max_queued_requests"),
            **self._priorities(),
        )

    def _priorities(self) -> dict[str, Any]:
        """Return Scheduling's fields of requests with priorities, as 0.5.23 serves them
        (scheduler.py, _get_new_batch_prefill and _set_or_validate_priority)."""
        worker = self.worker
        sign = -1 if worker.switch("schedule_low_priority_values_first") else 1
        if not worker.switch("enable_priority_scheduling"):
            return {"priority_sign": sign}
        if worker.argument("scheduler_recv_interval") is not None:
            raise InputError(
                f"{worker.name}: priorities are not simulated with scheduler_recv_interval; leave"
                " one of them out"
            )
        unset = _whole_number(worker, "default_priority_value", None)
        threshold = _whole_number(
            worker, "priority_scheduling_preemption_threshold", _PREEMPTION_THRESHOLD
        )
        preempts = not worker.switch("disable_priority_preemption")
        return {
            "priorities": True,
            "priority_sign": sign,
            "unset_priority": _LOWEST if unset is None else sign * unset,
            "preempt_above": threshold if preempts else None,
        }

    @property
    def graph_tokens(self) -> int:
        """Return, from 0.5.10, `piecewise_cuda_graph_max_tokens`, a chunk.

        It switches them off where experts are dealt out, attention is data-parallel, layers are in
        a pipeline, the model sees images, the GPU is not NVIDIA's, or tokens are guessed (by rule
        until its pull request 22128; DeepSeek on 0.5.12 still has 212 ms to a first token then, 85
        without).
        """
        worker, model = self.worker, self.worker.model
        if self.is_eager or self.version < _PROMPT_GRAPHS_SINCE:
            return 0
        if worker.switch("disable_piecewise_cuda_graph"):
            return 0
        sees = model.vision_parameters or model.visual
        if worker.ep > 1 or worker.attention_dp or worker.pp > 1 or sees:
            return 0
        if worker.gpu.vendor != "nvidia" or worker.is_speculative:
            return 0
        latent = model.has_latent_attention
        chunk = _LATENT_GRAPH_TOKENS if latent else self.limits().max_batched_tokens
        return worker.count("piecewise_cuda_graph_max_tokens") or chunk

    @property
    def graph_seqs(self) -> int:
        return 0 if self.is_eager else self.limits().max_seqs

    @property
    def padded_seqs(self) -> int:
        return 0 if self.is_eager else self.worker.count("cuda_graph_bs") or 0

    @property
    def uneven_share(self) -> float:
        return (
            0.0 if self.worker.argument("ep_dispatch_algorithm") == "fake" else super().uneven_share
        )

    def uncovered(self) -> list[str]:
        worker, found = self.worker, []
        if worker.attention_dp and worker.argument("moe_a2a_backend") == "deepep":
            found.append("SGLang's attention data-parallel with DeepEP")
        first, mended = _SLOW_ON_B300
        if worker.gpu.name == "b300" and first <= self.version < mended:
            found.append("SGLang 0.5.10 and 0.5.11 on B300, which run slowly there")
        return found

    # --- how it is started ------------------------------------------------------------------------

    def command(self, site: Site) -> Command:
        """Return `sglang serve`, as 0.5.23 spells it; before 0.5.6 `python3 -m
        sglang.launch_server`. Short forms such as --tp are prefixes that a later release may find
        ambiguous, so names are written in full.
        """
        worker = self.worker
        if worker.nodes > 1 and worker.dp > 1 and not worker.attention_dp:
            raise InputError(
                f"dp{worker.dp}: sglang has its replicas on one node; start one for each, or"
                " use attention-dp"
            )
        weights = self.weights(site)
        new, apart = self.version >= _NEW_SPELLINGS_SINCE, worker.attention_dp
        graphs = self.version >= _NEW_GRAPHS_SINCE
        chunk = -1 if worker.switch("enable_chunked_prefill") is False else None
        flags: Flags = [
            ("served-model-name", site.served_name),
            ("tp-size", worker.moe_ranks),
            ("pp-size", over_one(worker.pp)),
            ("attn-dp-size", worker.dp if apart and new else None),
            # 0.4.1 took as many replicas as ranks, and knew no number of them.
            (
                "dp-size",
                None if apart and (new or self.version < (0, 4, 2)) else over_one(worker.dp),
            ),
            ("enable-dp-attention", apart and not new),
            ("ep-size", over_one(worker.ep)),
            *weights.flags,
            ("kv-cache-dtype", self.kv_flag(_KV_FLAGS, site)),
            ("context-length", worker.count("max_model_len", "max_seq_len")),
            *((name, worker.argument(name)) for name in _OWN_FLAGS),
            ("chunked-prefill-size", chunk or worker.argument("chunked_prefill_size")),
            (
                "cuda-graph-max-bs-decode" if graphs else "cuda-graph-max-bs",
                worker.argument("cuda_graph_max_bs"),
            ),
            (
                "cuda-graph-max-bs-prefill" if graphs else "piecewise-cuda-graph-max-tokens",
                worker.argument("piecewise_cuda_graph_max_tokens"),
            ),
            ("enable-eplb", worker.switch("eplb") is True),
            ("enable-two-batch-overlap", worker.switch("two_batch_overlap") is True),
            ("is-embedding", worker.task is not None),
            *self._eager_flags(graphs),
            ("disable-radix-cache", worker.switch("prefix_caching") is False),
            *((name.replace("_", "-"), worker.switch(name) is True) for name in _PRIORITY_SWITCHES),
            *self._speculation,
            *self._offload_flags,
            *self.lora_flags,
            ("limit-mm-data-per-request", self._media_limits),
            ("mm-enable-dp-encoder", self.copies_tower),
            ("mm-attention-backend", worker.argument("mm_attention_backend")),
            ("mm-process-config", worker.argument("mm_process_config")),
            ("enable-metrics", True),
            *self._pool_flags(site),
        ]
        program = [site.program or "python3", "-m", "sglang.launch_server"]
        if self.version >= (0, 5, 6):
            program = [site.program or "sglang", "serve"]
        program += ["--model-path", weights.model]
        first = addresses_of(worker, site)[0]
        nodes: list[Flags] = [
            [
                ("nnodes", worker.nodes),
                ("node-rank", i),
                ("dist-init-addr", f"{first}:{_DIST_PORT}"),
            ]
            for i in range(worker.nodes)
        ]
        return Command(program, flags, nodes if worker.nodes > 1 else [], weights.notes, port=30000)

    def _pool_flags(self, site: Site) -> Flags:
        """Return those of a worker of a pool: it waits for its peers at a port of its own, and
        DeepEP's kernels are those of its work. Who decodes alone sees no pictures."""
        prefills, apart = site.role == "prefill", site.role in ("prefill", "decode")
        deepep = apart and self.worker.argument("moe_a2a_backend") == "deepep"
        takes_embeddings = bool(site.encoders) and site.role != "decode"
        return [
            ("disaggregation-mode", site.role if apart else None),
            ("disaggregation-bootstrap-port", _BOOTSTRAP_PORT + site.place if prefills else None),
            ("deepep-mode", ("normal" if prefills else "low_latency") if deepep else None),
            ("encoder-only", site.role == "encode"),
            ("language-only", takes_embeddings),
            ("encoder-urls", site.encoders if takes_embeddings else None),
        ]

    def router(self, site: Site, workers: Sequence[Site]) -> Command:
        """Return its own router (package sglang-router), which sends a request to both pools at
        once, each time to the less busy of two workers. Of encoders it knows nothing."""
        program = ["python3", "-m", "sglang_router.launch_router"]
        both = [worker.address for worker in workers if worker.role == "both"]
        program += ["--worker-urls", *both] if both else ["--pd-disaggregation"]
        for worker in workers:
            if worker.role not in ("prefill", "decode"):
                continue
            program += [f"--{worker.role}", worker.address]
            if worker.role == "prefill":
                program.append(str(_BOOTSTRAP_PORT + worker.place))
        return Command(program, [("policy", "power_of_two")])

    @property
    def _offload_flags(self) -> Flags:
        """Return HiCache's: its size is of each rank."""
        host = self.worker.memory_bytes("kv_host")
        if host is None:
            return []
        return [
            ("enable-hierarchical-cache", True),
            (
                "hicache-size",
                max(1, int(host / self.worker.gpus / 1e9)),
            ),  # 0 is twice the KV cache
            ("hicache-write-policy", self.worker.argument("hicache_write_policy")),
        ]

    def _eager_flags(self, new: bool) -> Flags:
        if not self.worker.switch("enforce_eager"):
            off = self.worker.switch("disable_piecewise_cuda_graph") is True
            return [("disable-prefill-cuda-graph" if new else "disable-piecewise-cuda-graph", off)]
        if not new:
            return [("disable-cuda-graph", True)]
        return [
            ("cuda-graph-backend-decode", "disabled"),
            ("cuda-graph-backend-prefill", "disabled"),
        ]

    @property
    def _speculation(self) -> Flags:
        """Return a chain of guesses: by the model's own layers, or by a draft model."""
        tokens, draft = self.worker.count("num_speculative_tokens"), self.worker.draft
        if tokens is None:
            return []
        return [
            ("speculative-algorithm", "EAGLE" if draft is None else "STANDALONE"),
            ("speculative-draft-model-path", None if draft is None else name_draft(draft)),
            ("speculative-num-steps", tokens),
            ("speculative-eagle-topk", 1),
            ("speculative-num-draft-tokens", tokens + 1),
        ]


def _whole_number(worker: Worker, name: str, default: int | None) -> int | None:
    """Return an argument that may be below zero. Raises InputError."""
    text = worker.argument(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        flag = name.replace("_", "-")
        raise InputError(f"--{flag}: {text!r} is not a whole number; write e.g. 10") from None


def _prefill_sizes(chunk: int) -> int:
    """Return how many prefill sizes are captured up to `chunk`: every 4 tokens to 32, 16 to 256, 32
    to 512, 64 to 1024, 256 to 4096, 512 beyond."""
    steps = (
        (4, 4, 32),
        (48, 16, 256),
        (288, 32, 512),
        (576, 64, 1024),
        (1280, 256, 4096),
        (4608, 512, chunk),
    )
    return sum(len(range(first, min(last, chunk) + 1, step)) for first, step, last in steps)
