"""Each engine's own rules, by the engine's name. An engine without any is assumed to do what EngineRules does."""

from __future__ import annotations

import msgspec

from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.catalogue.deployment.shorthand import checkpoint_of, parse_deployment
from loadstone.engines import triton
from loadstone.engines.keywords import Keywords, keywords_of
from loadstone.engines.launch import Launch, Site, launch_command
from loadstone.engines.llama_cpp import LlamaCpp
from loadstone.engines.mlx_lm import MlxLm
from loadstone.engines.rules import EngineRules
from loadstone.engines.sglang import Sglang
from loadstone.engines.sharding.rank import Rank, ranks_of, shape_of
from loadstone.engines.tensorrt_llm import TensorrtLlm
from loadstone.engines.transformers import Transformers
from loadstone.engines.vllm import Vllm

ENGINES: dict[str, type[EngineRules]] = {
    "vllm": Vllm, "sglang": Sglang, "tensorrt-llm": TensorrtLlm, "llama.cpp": LlamaCpp,
}  # fmt: skip
"""Those whose memory and scheduling are known."""
_STARTED_ONLY: dict[str, type[EngineRules]] = {"mlx-lm": MlxLm, "transformers": Transformers}

OLD_ERAS = frozenset(era.name for rules in ENGINES.values() for era in rules.eras if era.old)


def rules_of(deployment: Deployment) -> EngineRules:
    return (ENGINES | _STARTED_ONLY).get(deployment.engine, EngineRules)(deployment)


def launch_of(deployment: Deployment, site: Site) -> Launch:
    """The commands that start a deployment. Raises InputError where its engine cannot be started so."""
    rules = rules_of(deployment)
    if deployment.argument("server") is not None:
        command = triton.command(deployment, site)
        return launch_command(msgspec.structs.replace(deployment, arguments=()), command, site)
    rules.check_launch()
    return launch_command(deployment, rules.command(site), site)


def launch_named(text: str, site: Site) -> Launch:
    """As launch_of(), of a deployment's shorthand: the engine loads the very checkpoint that it names, also where the
    catalogue knows several by one name. Raises InputError, as parse_deployment() too does.
    """
    return launch_of(*_named(text, site))


def keywords_named(text: str, site: Site) -> Keywords:
    """As launch_named(), for the engine's own interface in Python. Raises InputError, as keywords_of() too does."""
    deployment, site = _named(text, site)
    rules = rules_of(deployment)
    rules.check_launch()
    return keywords_of(deployment, rules.command(site), site, rules.model_name(site))


def _named(text: str, site: Site) -> tuple[Deployment, Site]:
    deployment = parse_deployment(text)
    checkpoint, decides_precision = checkpoint_of(text)
    if site.model is None and checkpoint is not None:
        field = "model" if decides_precision else "checkpoint"
        site = msgspec.structs.replace(site, **{field: checkpoint})
    return deployment, site


def ranks(deployment: Deployment) -> tuple[Rank, ...]:
    """A rank of each pipeline stage, first to last; the last one holds the draft model beside it, if there is one."""
    rules = rules_of(deployment)
    stages = ranks_of(
        deployment.model,
        shape_of(deployment),
        deployment.weights_dtype,
        rules.kv_dtype,
        rules.state_dtype,
        windows=rules.keeps_windows,
        drafts=bool(rules.draft_layers),
    )
    if (drafting := deployment.drafting) is None:
        return stages
    last, draft = stages[-1], ranks(drafting)[0]
    together = msgspec.structs.replace(
        last,
        weights_bytes=last.weights_bytes + draft.weights_bytes,
        mxfp4_bytes=last.mxfp4_bytes + draft.mxfp4_bytes,
        cache=last.cache + draft.cache,
    )
    return (*stages[:-1], together)
