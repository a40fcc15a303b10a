"""TensorRT-LLM's rules (PyTorch backend).

KV = (total − weights − activation − runtime) · free_gpu_memory_fraction The fraction is 0.9 and a
block 32 tokens where nothing is said (KvCacheConfig); 2048 requests and 8192 tokens per step
(BuildConfig, PyTorch LLM arguments). Activations are not its own arithmetic but that of
activation_bytes().
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from loadstone.catalogue.architecture.precision import FORMATS
from loadstone.catalogue.checkpoints import Checkpoint
from loadstone.core.errors import InputError
from loadstone.engines.habits import Era, Handover, Offload, Scheduling
from loadstone.engines.launch import (
    Command,
    Flags,
    Site,
    Weights,
    choose_weights,
    launch_settings,
    name_draft,
    over_one,
)
from loadstone.engines.rules import LORA_ARGUMENTS, EngineRules
from loadstone.engines.sharding.adapters import AdapterSlots, adapter_numbers
from loadstone.engines.sharding.limits import BatchLimits, Budget
from loadstone.engines.sharding.rank import LOGIT_BYTES, Rank, activation_bytes, shape_of
from loadstone.engines.vllm import runtime_bytes

_OLD_GPUS = ("Volta", "Turing")
_AMPERE_SINCE = (0, 18)
"""The release whose support matrix has Ampere as the oldest architecture, as all since."""
_NATIVE = {"fp8": "fp8", "nvfp4": "fp4"}
"""Weights that it multiplies as they are or not at all: FP8 from Ada on, NVFP4 from Blackwell on
(support matrices of 0.18.2 and of Model Optimizer). vLLM and SGLang widen them from Ampere on."""

_OWN_FLAGS = ("max_batch_size", "max_num_tokens")
_KV_FLAGS = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "nvfp4": "nvfp4",
    "fp8": "fp8",
}
_SETTINGS_FILE, _ROUTER_FILE = "trtllm.yaml", "disagg.yaml"
_DEVICE_CACHE, _HOST_CACHE_BYTES = 0.02, 1 << 30
"""Its PeftCacheConfig (1.3.0rc3; 0.05 in the C++ one)."""
_ADAPTERS_SINCE = (1, 0)
_LORA_SETTINGS = ("max_lora_rank", "max_loras", "max_cpu_loras")
_UNREAD = ("neuralmagic", "redhatai")


class TensorrtLlm(EngineRules):
    name = "tensorrt-llm"
    sized = True
    newest = (1, 3)
    eras = (Era((1, 3), "1.3"), Era((1, 0), "1.0"), Era((0, 0), "0.x", old=True))
    """1.0 (PyTorch backend) overlaps host and device."""
    cache_dtypes = ("fp32", "bf16", "fp16", "nvfp4", "fp8")
    """Its KvCacheConfig."""
    step_argument, seqs_argument = "max_num_tokens", "max_batch_size"
    fp8_widening = 200.0
    spelled = EngineRules.spelled.union(LORA_ARGUMENTS) - {
        "eplb",
        "limit_mm_per_prompt",
        "task",
        "two_batch_overlap",
    }
    handover = Handover(
        reserves_first=False,
        spare_tokens=None,
        takes_slot=True,
        first_by="prefill",
        by_chunk=False,
        latency_s=0.005,
        buffers=True,
    )
    """The orchestrator waits for the context server, whose first token it hands on
    (first_gen_tokens); the generation server lets in what is sure to fit; max_tokens_in_buffer is
    that of the longest prompt (disagg-serving.md of its documentation). Latency: a round trip over
    HTTP."""

    def limits(self, context_tokens: int | None = None) -> BatchLimits:
        return BatchLimits(
            block_tokens=self.worker.count("block_size") or 32,
            max_batched_tokens=self.worker.count("max_num_tokens") or 8192,
            max_seqs=self.worker.count("max_batch_size") or 2048,
        )

    def budget(self, rank: Rank, limits: BatchLimits) -> Budget:
        total = self.worker.gpu.usable_bytes
        share = self.worker.fraction("free_gpu_memory_fraction") or 0.9
        activation = activation_bytes(self.worker, rank, limits, LOGIT_BYTES)
        runtime = runtime_bytes(self.worker)
        free = max(0.0, total - rank.weights_bytes - activation - runtime)
        return Budget(total, free * (1 - share), rank.weights_bytes, activation, runtime)

    @property
    def adapter_slots(self) -> AdapterSlots | None:
        """Return those that its PEFT cache holds: `device_cache_percent` of what weights and KV
        cache leave, in the host `host_cache_size` bytes."""
        if not self.has_adapters:
            return None
        worker, limits = self.worker, self.limits()
        slots = AdapterSlots(
            0,
            worker.count("max_lora_rank") or 64,
            allocated=False,
            targets=worker.argument("lora_target_modules") or "all",
        )
        numbers = adapter_numbers(worker.model, shape_of(worker), 0, slots.targets)
        share = worker.fraction("device_cache_percent") or _DEVICE_CACHE
        room = share * self.budget(self.ranks[0], limits).outside_bytes
        adapter_bytes = slots.rank * numbers * FORMATS[worker.model.dtype].bytes
        held = int(room / adapter_bytes)
        host = int((worker.count("host_cache_size") or _HOST_CACHE_BYTES) / adapter_bytes)
        return msgspec.structs.replace(
            slots,
            slots=min(held, worker.count("max_loras") or held),
            host=max(held, min(host, worker.count("max_cpu_loras") or host)),
        )

    def max_seqs(self, limits: BatchLimits, kv_tokens: int) -> int:
        """Return the most requests: max_batch_size is of each batch in its pipeline."""
        return limits.max_seqs * self.worker.pp

    @property
    def offload(self) -> Offload:
        """Return its secondary pool, `host_cache_size`."""
        return Offload("blocking", "evicted")

    def hardware_refusal(self) -> str | None:
        gpu, weights = self.worker.gpu, self.worker.weights_dtype
        if gpu.vendor != "nvidia":
            return f"tensorrt-llm runs on NVIDIA's GPUs alone, not on a {gpu.name}"
        if gpu.architecture in _OLD_GPUS and self.version >= _AMPERE_SINCE:
            return f"tensorrt-llm runs from Ampere on, not on a {gpu.name}"
        if weights in _NATIVE and _NATIVE[weights] not in gpu.flops_per_s:
            return (
                f"tensorrt-llm takes {weights} weights only where the GPU multiplies them, and no"
                f" {gpu.name} does; int4 would work"
            )
        return None

    def scheduling(self, max_batched_tokens: int) -> Scheduling:
        """Return whole prompts beside decodes; ranks of attention-DP are given requests by how many
        they have."""
        worker = self.worker
        chunked = worker.switch("enable_chunked_prefill") is True
        if worker.attention_dp:
            return Scheduling(
                chunked=chunked, keep_free=1.0, hold_steps=worker.count("timeout_iters") or 0
            )
        share = worker.fraction("batch_wait_max_tokens_ratio") or 0.0
        return Scheduling(
            chunked=chunked,
            keep_free=1.0,
            route="round-robin",
            gather_steps=worker.count("batch_wait_timeout_iters") or 0,
            gather_tokens=int(share * max_batched_tokens),
        )

    def weights(self, site: Site) -> Weights:
        """Return what it loads: where it builds an engine, it quantises to FP8 then."""
        built = self.worker.argument("backend") == "tensorrt"
        return choose_weights(self.worker, site, self.reads, built)

    def reads(self, checkpoint: Checkpoint) -> bool:
        """Return whether it does: not what compressed-tensors and AutoAWQ write."""
        foreign = checkpoint.publisher in _UNREAD or (
            checkpoint.weights == "int4" and checkpoint.publisher != "nvidia"
        )
        return super().reads(checkpoint) and not foreign

    @property
    def graph_tokens(self) -> int:
        """Return the largest of `capture_num_tokens`, which nobody has by default."""
        return 0 if self.is_eager else self.worker.count("capture_num_tokens") or 0

    def uncovered(self) -> list[str]:
        picks = any(getattr(run.attention, "top_tokens", None) for run in self.worker.model.kinds)
        return ["TensorRT-LLM with sparse attention (DSA)"] if picks else []

    @property
    def latent_launches(self) -> int | None:
        """Return what for prompts its host takes: 1.8 ms a layer of DeepSeek, where a layer of
        Llama takes 0.44."""
        return None if self.era == "0.x" else 36

    # --- how it is started ------------------------------------------------------------------------

    def command(self, site: Site) -> Command:
        """Return `trtllm-serve serve`, as 1.3.0rc3 spells it: flags have underscores, and what has
        no flag is in a file of YAML, which overrides them."""
        worker = self.worker
        if worker.dp > 1 and not worker.attention_dp:
            raise InputError(
                f"dp{worker.dp}: trtllm-serve has no replicas; start one for each, or use"
                " attention-dp"
            )
        built = worker.argument("backend") == "tensorrt"
        tasks = worker.gpus // worker.nodes if worker.nodes > 1 else 1
        weights = self.weights(site)
        notes = weights.notes
        if built and site.model is None:
            note = (
                "each start builds the engine; `trtllm-build` builds it once: name its folder with"
                " --model"
            )
            notes += (note,)
        flags: Flags = [
            ("tp_size", worker.moe_ranks),
            ("pp_size", over_one(worker.pp)),
            ("ep_size", over_one(worker.ep)),
            ("gpus_per_node", tasks if worker.nodes > 1 else None),
            ("max_seq_len", worker.count("max_model_len", "max_seq_len")),
            *((name, worker.argument(name)) for name in _OWN_FLAGS),
            ("enable_chunked_prefill", worker.switch("enable_chunked_prefill")),
        ]
        settings = self._make_settings(site, weights)
        name = _SETTINGS_FILE if site.role is None else f"trtllm-{site.role}.yaml"
        if settings:
            flags.append(("config" if self.version >= (1, 2) else "extra_llm_api_options", name))
        files = ((name, msgspec.yaml.encode(settings).decode()),) if settings else ()
        program = [site.program or "trtllm-serve", "serve", weights.model]
        if worker.nodes > 1:
            program = ["trtllm-llmapi-launch", *program]
        return Command(program, flags, [], notes, files, underscores=True, tasks=tasks)

    def router(self, site: Site, workers: Sequence[Site]) -> Command:
        """Return its orchestrator, `trtllm-serve disaggregated`, with its file."""
        settings: dict[str, Any] = {"hostname": site.host, "port": site.port}
        for role, key in (("prefill", "context_servers"), ("decode", "generation_servers")):
            urls = [
                worker.address.removeprefix("http://") for worker in workers if worker.role == role
            ]
            settings[key] = {
                "num_instances": len(urls),
                "urls": urls,
                "router": {"type": "load_balancing"},
            }
        files = ((_ROUTER_FILE, msgspec.yaml.encode(settings).decode()),)
        program = [site.program or "trtllm-serve", "disaggregated", "-c", _ROUTER_FILE]
        return Command(program, [], files=files, listening=())

    def _make_settings(self, site: Site, weights: Weights) -> dict[str, Any]:
        """Return what the file has. The fraction is there since releases have named its flag
        differently, and some take the file's kv_cache_config for all of it."""
        worker = self.worker
        host = worker.memory_bytes("kv_host")
        cache = _given(
            free_gpu_memory_fraction=worker.fraction("free_gpu_memory_fraction"),
            dtype=self.kv_flag(_KV_FLAGS, site),
            tokens_per_block=worker.count("block_size"),
            enable_block_reuse=worker.switch("prefix_caching"),
            host_cache_size=None if host is None else int(host / worker.gpus),
        )
        transfer = None
        if site.role is not None:
            longest = worker.count("max_model_len", "max_seq_len")
            transfer = {"backend": "DEFAULT", **_given(max_tokens_in_buffer=longest)}
        settings = _given(
            kv_cache_config=cache or None,
            cache_transceiver_config=transfer,
            # Its documentation asks for that of servers that compute prompts alone.
            disable_overlap_scheduler=True if site.role == "prefill" else None,
            enable_attention_dp=worker.attention_dp or None,
        )
        if self.is_eager:
            settings["cuda_graph_config"] = None
        ratio, steps = worker.argument("batch_wait_max_tokens_ratio"), worker.count("timeout_iters")
        captured = worker.count("capture_num_tokens")
        quantised = ("quantization", "fp8") in weights.flags
        balance = {"enable_balance": True, "timeout_iters": steps}
        graphs = {"enable_piecewise_cuda_graph": True, "capture_num_tokens": [captured]}
        settings |= _given(
            speculative_config=self._speculation,
            batch_wait_timeout_iters=worker.count("batch_wait_timeout_iters"),
            batch_wait_max_tokens_ratio=None if ratio is None else float(ratio),
            attention_dp_config=None if steps is None else balance,
            torch_compile_config=None if captured is None else graphs,
            dtype=dict(weights.flags).get("dtype"),
            quant_config={"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"} if quantised else None,
        )
        if self.has_adapters:
            if self.version < _ADAPTERS_SINCE:
                raise InputError(
                    f"lora_modules: trtllm-serve {worker.engine_version} is not started with"
                    " adapters here; version=1.0 and later are"
                )
            settings["lora_config"] = _given(
                lora_dir=list(self.adapter_paths.values()) or None,
                lora_target_modules=self.lora_targets,
                **{name: worker.count(name) for name in _LORA_SETTINGS},
            )
            settings |= _given(
                peft_cache_config=_given(
                    device_cache_percent=worker.fraction("device_cache_percent"),
                    host_cache_size=worker.count("host_cache_size"),
                )
                or None
            )
        for key, value in launch_settings(worker):
            group, dot, name = key.partition(".")
            (settings.setdefault(group, {}) if dot else settings)[name or group] = value
        return settings

    @property
    def _speculation(self) -> dict[str, Any] | None:
        tokens, draft = self.worker.count("num_speculative_tokens"), self.worker.draft
        if tokens is None:
            return None
        if draft is None:
            return {"decoding_type": "MTP", "num_nextn_predict_layers": tokens}
        return {
            "decoding_type": "Draft_Target",
            "max_draft_len": tokens,
            "speculative_model": name_draft(draft),
        }


def _given(**settings: Any) -> dict[str, Any]:
    """Return the settings that have a value."""
    return {name: value for name, value in settings.items() if value is not None}
