"""A deployment as the keyword arguments of its engine's own interface in Python, made of its command line's flags."""

from __future__ import annotations

from typing import Any

import msgspec

from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.core.errors import InputError
from loadstone.engines.launch import Command, Site, launch_flags

OFFLINE_ENGINES = ("vllm", "sglang", "tensorrt-llm", "transformers")
_ONE_REPLICA = ("vllm", "transformers")
_OF_SERVERS = frozenset(
    ("continuous_batching", "enable_metrics", "config", "extra_llm_api_options", "gpus_per_node", "served_model_name",
     "cb_block_size", "no_cb_use_cuda_graph", "cb_max_batch_tokens", "cb_max_memory_percent", "default_seed",
     "backend")
)  # fmt: skip
_TENSORRT_LLM = {
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "ep_size": "moe_expert_parallel_size",
}
"""Its LLM's arguments (LlmArgs, 1.3.0rc3) for flags of its server."""
_IN_CACHE_CONFIG = "free_gpu_memory_fraction"


class Keywords(msgspec.Struct, frozen=True):
    """What the engine's interface is made of.

    program    the engine's own command, whose interpreter has the engine installed
    model      id or path
    arguments  the others by their names, a JSON object
    """

    engine: str
    program: str
    model: str
    arguments: str
    notes: tuple[str, ...]


def keywords_of(deployment: Deployment, command: Command, site: Site, model: str) -> Keywords:
    """As `command` says it. Raises InputError where one process cannot hold the deployment, or the engine has no such
    interface."""
    engine = deployment.engine
    if engine not in OFFLINE_ENGINES:
        known = ", ".join(OFFLINE_ENGINES)
        raise InputError(f"{engine} has no interface for batches that is used here; engine= one of {known}")
    if deployment.nodes > 1:
        raise InputError(f"nodes={deployment.nodes}: a batch runs on one node; leave nodes out")
    if engine in _ONE_REPLICA and deployment.dp > 1:
        raise InputError(f"dp{deployment.dp}: {engine}'s interface holds one replica; leave dp out")
    if engine == "transformers" and deployment.gpus > 1:
        raise InputError(f"{deployment.gpus} GPUs: transformers takes a batch on one; name one")
    arguments: dict[str, Any] = {}
    for _, content in command.files:
        arguments |= msgspec.yaml.decode(content)
    own = [(name, True if value is None else value) for name, value in site.arguments]
    for flag, text in [*command.flags, *launch_flags(deployment, command, site), *own]:
        name, value = flag.lstrip("-").replace("-", "_"), _plain(text)
        if not name.replace(".", "_").isidentifier():
            raise InputError(f"--argument {flag}={text}: write NAME=VALUE, with a keyword of {engine}'s interface")
        if value is None or text is False or name in _OF_SERVERS:
            continue
        if engine == "tensorrt-llm" and name == _IN_CACHE_CONFIG:
            arguments.setdefault("kv_cache_config", {})[name] = value
        elif name.startswith("no_"):
            arguments[name.removeprefix("no_")] = False
        elif "." in name:
            group, _, key = name.partition(".")
            arguments.setdefault(group, {})[key] = value
        else:
            arguments[_TENSORRT_LLM.get(name, name) if engine == "tensorrt-llm" else name] = value
    return Keywords(engine, command.program[0], model, msgspec.json.encode(arguments).decode(), command.notes)


def _plain(value: Any) -> Any:
    """A flag's text as the value that its parser makes of it: a number, true or false, JSON; else the text."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return {"True": True, "False": False}.get(value, value)
