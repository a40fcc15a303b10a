"""The deployment that a measured server is: as the user declares it, or as a simulated engine
reports itself."""

import re
from typing import Any

import msgspec

from loadstone.analyse.run_facts import engine_name
from loadstone.catalogue.deployment.deployment import DeployedPool, Deployment
from loadstone.catalogue.deployment.shorthand import (
    leave_engine_out,
    names_engine,
    parse_deployment,
    parse_named,
)
from loadstone.catalogue.engines import ENGINES, engine_key
from loadstone.core.errors import InputError
from loadstone.core.record import Target
from loadstone.core.text import excerpt
from loadstone.engines.table import SIMULATED
from loadstone.engines.triton import BACKENDS
from loadstone.measure.engines import attach
from loadstone.workload.options import TargetOptions


def declared_deployment(options: TargetOptions) -> Deployment | None:
    """Return the deployment that the user declares the server to be. Raises InputError: no such
    deployment, or no server to declare it of.
    """
    if options.launch is not None:
        if options.deployment is not None:
            raise InputError(
                "--deployment and --launch, which has one of its own; leave --deployment out"
            )
        return parse_deployment(options.launch)
    if options.deployment is None:
        return None
    if options.sim is not None:
        raise InputError(
            "--deployment and --sim, which has a deployment of its own; leave --deployment out"
        )
    if not options.urls:
        raise InputError(
            "--deployment says what the server at a URL runs on; give its URL, or leave it out"
        )
    return parse_deployment(options.deployment)


def describe(options: TargetOptions, declared: Deployment | None, target: Target) -> dict[str, Any]:
    """Describe the deployment of a server that was probed, as RunInfo.settings.deployment has it,
    with doubts where the server reports something else than the user declares; empty where nobody
    describes it. Raises InputError.
    """
    text = options.launch or options.deployment
    if declared is None or text is None:
        return simulated_record(target) or {}
    differences = doubts(declared, target)
    return deployment_record(text, declared, target) | (
        {"doubts": differences} if differences else {}
    )


def deployment_record(text: str, deployed: Deployment, target: Target) -> dict[str, Any]:
    """Describe what the user declared as `text`, for a server that was probed, as
    RunInfo.settings.deployment has it.

    Engine and version are the server's where it reports them, else as declared; a default of the
    shorthand counts for nothing. The model has the name that it is served by, since servers use
    aliases. Raises InputError where the user named another engine than the server does.
    """
    worker = deployed.decoder
    declared = worker.engine if names_engine(text) else None
    behind = target.engine == "Triton" and declared in BACKENDS
    may_differ = behind or target.engine in (None, SIMULATED)
    if declared and not may_differ and engine_name(declared) != target.engine:
        raise InputError(
            f"--deployment {text!r}: its engine is {declared}, and {target.url} says that it is"
            f" {target.engine}; correct it, or leave the engine and its own arguments out"
        )
    reported = None if behind else target.engine
    key = engine_key(reported) if reported else None
    engine = key if key in ENGINES else reported or declared
    version = (None if behind else target.engine_version) or worker.engine_version
    reported_engine: dict[str, Any] = {}
    if engine in ENGINES:
        # What a server says may hold commas, which would be options of the shorthand.
        plain = version if re.fullmatch("[0-9A-Za-z.+_-]+", version or "") else None
        reported_engine = {"engine": engine, "engine_version": plain}
    named = Deployment(tuple(_rename(pool, reported_engine) for pool in deployed.pools))
    record = deployed.to_settings()
    if named.is_split:
        record["pools"] = named.to_settings()["pools"]
    return record | {
        "model": target.model or deployed.model.name,
        "architecture": record["model"],
        "engine": engine,
        "engine_version": version,
        "name": named.name if engine in ENGINES else leave_engine_out(named.name),
        "stated": text,
    }


def _rename(pool: DeployedPool, engine: dict[str, Any]) -> DeployedPool:
    """Return the pool with the engine that a server reports. A node of the user's own is in a file;
    its GPU, which is kept, says enough."""
    worker = pool.worker
    node = None if pool.role == "both" and worker.has_own_hardware else worker.node
    worker = msgspec.structs.replace(worker, node=node, **engine)
    return msgspec.structs.replace(pool, worker=worker)


def simulated_record(target: Target) -> dict[str, Any] | None:
    """Describe a simulated engine as it reports itself; None: of another server, or where it
    simulates what only a file on its machine describes. No file is read for a name that a server
    gives.
    """
    text = attach.simulated_deployment(target)
    if text is None:
        return None
    try:
        deployed = parse_named(text, None)
    except (InputError, OSError, ValueError):  # the last two: a name that no path can have
        return None
    record = deployment_record(deployed.name, deployed, target)
    del record["stated"]  # by the user
    return record | {"simulates": deployed.decoder.engine, "stated_by": "server"}


def doubts(deployed: Deployment, target: Target) -> list[str]:
    """List what a server reports of its model and what is not so of the declared deployment, a line
    each. Servers use aliases, so that none of it is an error.
    """
    model, differences = deployed.model, []
    names = [name.rsplit("/", 1)[-1] for name in (model.name, *model.aliases)]
    served = _letters(target.model.rstrip("/").rsplit("/", 1)[-1])
    if served and not any(_letters(name) in served or served in _letters(name) for name in names):
        differences.append(f"the server names its model {excerpt(target.model, 80)}")
    entries = target.models.get("data") if isinstance(target.models, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        meta = (
            entry.get("meta")
            if isinstance(entry, dict) and entry.get("id") == target.model
            else None
        )
        parameters = meta.get("n_params") if isinstance(meta, dict) else None
        if isinstance(parameters, int) and not 0.8 < parameters / model.parameters < 1.25:
            differences.append(
                f"the server's model has {parameters:.3g} parameters, not {model.parameters:.3g}"
            )
    context = target.max_model_tokens
    limit = deployed.decoder.count("max_model_len", "max_seq_len")
    if context is not None and limit is not None and context != limit:
        differences.append(f"the server's context is {context:,} tokens, not {limit:,}")
    elif (
        context is not None
        and model.max_context_tokens is not None
        and context > model.max_context_tokens
    ):
        longest = model.max_context_tokens
        differences.append(
            f"the server's context is {context:,} tokens, beyond the model's {longest:,}"
        )
    return differences


def _letters(name: str) -> str:
    return re.sub("[^0-9a-z]", "", name.lower())
