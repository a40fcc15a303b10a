"""Says why an engine does not take what a deployment names: pictures, tiers, adapters, a launch."""

from loadstone.catalogue.engines import CHOICES
from loadstone.core.errors import InputError
from loadstone.engines.rules import COMMON, LORA_ARGUMENTS, EngineRules

_CROSS_UNTIL: dict[str, tuple[int, ...]] = {"vllm": (0, 10, 2), "llama.cpp": ()}
"""The last release that loads models with cross attention; (): none (vLLM's registry.py)."""


def refuse_pictures(rules: EngineRules) -> str | None:
    """Return why its release does not take pictures as the deployment says."""
    worker = rules.worker
    for name, since in rules.picture_arguments.items():
        if worker.argument(name) is not None and rules.version < since:
            release = ".".join(map(str, since))
            return (
                f"{name}: {worker.engine} {worker.engine_version} has no such argument; leave"
                f" it out, or use {release}"
            )
    if rules.most_pictures is not None and "limit_mm_per_prompt" not in rules.spelled:
        return f"limit_mm_per_prompt: {worker.engine} has no such argument; leave it out"
    if worker.model.cross is not None and worker.engine in _CROSS_UNTIL:
        until = _CROSS_UNTIL[worker.engine]
        if not until or rules.version > until:
            return f"{worker.engine} does not load models with cross attention here; use sglang"
    return None


def refuse_tiers(rules: EngineRules) -> str | None:
    """Return why it cannot keep KV blocks where the deployment says."""
    worker = rules.worker
    host, disk = (worker.memory_bytes(name) for name in ("kv_host", "kv_disk"))
    if host is None and disk is None:
        return None
    offload = rules.offload
    if offload is None:
        name = "kv_host" if host is not None else "kv_disk"
        return (
            f"{name}: {worker.engine} keeps no KV cache outside of the GPUs here; leave it"
            " out, or use vllm"
        )
    if host is None:
        return "kv_disk lies below the host's memory; give kv_host too"
    if disk is not None and not offload.disk:
        return f"kv_disk: {worker.engine} is not simulated with one; leave it out, or use vllm"
    if worker.switch("prefix_caching") is False:
        return "kv_host: nothing is found again without a prefix cache; leave out prefix_caching=0"
    return None


def refuse_adapters(rules: EngineRules) -> str | None:
    """Return why it cannot have the adapters that the deployment names."""
    if not rules.has_adapters:
        return None
    slots, engine = rules.adapter_slots, rules.worker.engine
    if slots is None:
        return (
            f"LoRA adapters in {engine} are not sized or simulated here; leave"
            f" {', '.join(name for name, _ in rules.worker.arguments if name in LORA_ARGUMENTS)}"
            " out, or use vllm"
        )
    if slots.slots < 1:
        return "no slot for an adapter has room in its cache; raise device_cache_percent"
    if slots.host < slots.slots:
        return (
            f"max_cpu_loras={slots.host} is below the {slots.slots} slots of the GPU, and"
            f" {engine} refuses that; write at least {slots.slots}"
        )
    return None


def check_launch(rules: EngineRules) -> None:
    """Raises InputError for what its command line cannot say: what the engine does not have,
    and what simulations alone have, to contrast with what engines do."""
    worker = rules.worker
    refusal = refuse_tiers(rules)
    if refusal is not None:
        raise InputError(refusal)
    if worker.argument("kv_disk") is not None:
        raise InputError(
            "kv_disk: no command here says that; start the engine yourself, and give `bench`"
            " its URL"
        )
    counts = ("tp", "pp", "dp", "ep", "nodes")
    if worker.task is not None and "task" not in rules.spelled:
        raise InputError(
            f"{worker.model.name}: {worker.engine} is not started for vectors or scores here;"
            " use vllm, sglang or llama.cpp"
        )
    wanted = [name for name in counts if getattr(worker, name) > 1]
    wanted += ["attention-dp"] if worker.attention_dp else []
    wanted += ["kv"] if worker.kv_dtype != worker.model.kv_dtype else []
    wanted += [name for name, _ in worker.arguments if name in (*COMMON, *LORA_ARGUMENTS)]
    for name in wanted:
        if name not in rules.spelled:
            raise InputError(f"{name}: no command of {worker.engine} says that; leave it out")
    if worker.is_speculative and worker.draft is None and not worker.model.draft_layers:
        raise InputError(
            f"num_speculative_tokens: {worker.model.name} has no layers that guess tokens;"
            " name a smaller model with draft=MODEL, or leave it out"
        )
    for name, choices in CHOICES.items():
        value = rules.worker.argument(name)
        if value is not None and value != choices[0]:
            raise InputError(
                f"{name}={value}: no engine does so, it can only be simulated; leave it out"
            )
