"""Finds an engine's own rules by its name. An engine without any is assumed to do what EngineRules
does."""

from __future__ import annotations

import msgspec

from loadstone.catalogue.deployment.deployment import Deployment, Worker
from loadstone.catalogue.deployment.shorthand import parse_deployment
from loadstone.engines import triton
from loadstone.engines.advice import advise, describe_loading
from loadstone.engines.launch import ANYWHERE, Command, Launch, Site, launch_command
from loadstone.engines.llama_cpp import LlamaCpp
from loadstone.engines.mlx_lm import MlxLm
from loadstone.engines.offline.keywords import Keywords, keywords_of
from loadstone.engines.rules import EngineRules
from loadstone.engines.sglang import Sglang
from loadstone.engines.sharding.rank import Rank, ranks_of, shape_of
from loadstone.engines.tensorrt_llm import TensorrtLlm
from loadstone.engines.transformers import Transformers
from loadstone.engines.vllm import Vllm

_SIZED: tuple[type[EngineRules], ...] = (Vllm, Sglang, TensorrtLlm, LlamaCpp)
_STARTED_ONLY: tuple[type[EngineRules], ...] = (MlxLm, Transformers)

ENGINES = {rules.name: rules for rules in _SIZED}
"""Those whose memory and scheduling are known."""
_ALL = {rules.name: rules for rules in _SIZED + _STARTED_ONLY}

EMBEDDED = LlamaCpp.name
"""The engine that is started with a small random model where none is named."""

OLD_ERAS = frozenset(era.name for rules in ENGINES.values() for era in rules.eras if era.old)


def rules_of(deployment: Worker) -> EngineRules:
    """Return the rules of a deployment of one pool. Raises InputError for several, each of which
    has its own."""
    if isinstance(deployment, Deployment):
        deployment = deployment.worker
    return _ALL.get(deployment.engine, EngineRules)(deployment)


def launch_of(deployment: Worker, site: Site = ANYWHERE) -> Launch:
    """Return the commands that start a deployment. Raises InputError where its engine cannot be
    started so."""
    rules = rules_of(deployment)
    if deployment.argument("server") is not None:
        command = triton.command(deployment, site)
        return launch_command(msgspec.structs.replace(deployment, arguments=()), command, site)
    rules, command = _advise(rules, site)
    return launch_command(rules.deployment, command, site)


def _advise(rules: EngineRules, site: Site) -> tuple[EngineRules, Command]:
    """Return the rules of the deployment as it would start, and how, with what is to be said of it;
    see advise()."""
    rules.check_launch()
    deployment = rules.deployment
    notes: list[str] = []
    if deployment.engine in ENGINES and deployment.gpu.vendor != "any":
        changed, notes = advise(rules, ranks(deployment))
        if rules.loads_first and (stored := rules.weights(site).first) is not None:
            notes += describe_loading(
                rules, site, ranks(msgspec.structs.replace(deployment, weights_dtype=stored))
            )
        rules = rules_of(changed)
    command = rules.command(site)
    return rules, command._replace(notes=(*command.notes, *notes))


def launch_named(text: str, site: Site) -> Launch:
    """Return launch_of() a deployment's shorthand, at the checkpoint that it names. Raises
    InputError."""
    return launch_of(parse_deployment(text), site)


def keywords_named(text: str, site: Site) -> Keywords:
    """Return what launch_named() does for the engine's own interface in Python. Raises
    InputError."""
    rules, command = _advise(rules_of(parse_deployment(text)), site)
    return keywords_of(rules.deployment, command, site, rules.model_name(site))


def ranks(deployment: Worker) -> tuple[Rank, ...]:
    """Return a rank for each pipeline stage, first to last; the last one holds the draft model too,
    if any."""
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
