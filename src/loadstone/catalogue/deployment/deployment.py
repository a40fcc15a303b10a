"""Says which model runs where and how: a deployment is pools of workers, a worker one engine."""

from __future__ import annotations

import contextlib
import re
from typing import Any, cast, get_args

import msgspec

from loadstone.catalogue.architecture.model import Model, Pooling
from loadstone.catalogue.checkpoints import split_precision
from loadstone.catalogue.deployment.pools import Role
from loadstone.catalogue.engines import DEFAULT_ENGINE, OFF, ON
from loadstone.catalogue.hardware import Gpu, Node
from loadstone.core.errors import InputError
from loadstone.core.plan import PoolingTask

_PLAIN = (
    "gpus",
    "nodes",
    "tp",
    "pp",
    "dp",
    "ep",
    "attention_dp",
    "weights_dtype",
    "kv_dtype",
    "engine",
    "engine_version",
)
"""Fields of a deployment that its description has as they are."""


_MAX_NODE_GPUS = 16
_MEMORY = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([gt]i?b)")
_UNITS = {"gb": 1e9, "tb": 1e12, "gib": 2.0**30, "tib": 2.0**40}


class Draft(msgspec.Struct, frozen=True):
    """Holds a small model that guesses tokens for the large one to verify, with weights and a KV
    cache of its own."""

    model: Model
    weights_dtype: str
    named: str = ""


class Worker(msgspec.Struct, frozen=True):
    """Holds one replica of an engine as it is started: model, hardware, engine, precision,
    parallelism.

    gpus = tp · pp · dp, over all `nodes`. tp, pp, dp are those of the attention: `dp` replicas,
    each with its own scheduler and KV cache, each cut `tp` ways within layers and `pp` ways between
    them.
    attention_dp  the replicas share one set of experts, so these are cut over tp · dp ranks (vLLM's
                  `--data-parallel-size` with a mixture of experts; SGLang's
                  `--enable-dp-attention`, whose `--tp 8 --dp 8` is tp1,dp8 here)
    ep            over how many ranks whole experts are dealt out; 1: every rank has a slice of each
                  expert
    node          the node that was named, if one was
    arguments     the engine's own, as (name, value)
    draft         the model that the argument of that name names
    named         the model as it was written, where several have the shapes of its entry; see
                  named_checkpoint()
    """

    model: Model
    gpu: Gpu
    gpus: int
    nodes: int = 1
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    attention_dp: bool = False
    weights_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    engine: str = DEFAULT_ENGINE
    engine_version: str | None = None
    arguments: tuple[tuple[str, str], ...] = ()
    node: Node | None = None
    draft: Draft | None = None
    named: str = ""

    @property
    def name(self) -> str:
        """Return the shorthand that gives this worker again."""
        parts = [f"tp{self.tp}"]
        parts += [
            f"{key}{value}"
            for key, value in (("pp", self.pp), ("dp", self.dp), ("ep", self.ep))
            if value > 1
        ]
        if self.nodes > 1:
            parts.append(f"nodes={self.nodes}")
        if self.attention_dp:
            parts.append("attention-dp")
        if self.kv_dtype != self.model.kv_dtype:
            parts.append(f"kv={self.kv_dtype}")
        parts.append(f"engine={self.engine}")
        if self.engine_version:
            parts.append(f"version={self.engine_version}")
        parts += [f"{key}={value}" for key, value in self.arguments]
        model = next((alias for alias in self.model.aliases if "/" not in alias), self.model.name)
        stored = self.model.weights_dtype
        if self.named and not self.model.given:
            model, stored = self.named, split_precision(self.named)[1] or stored
        weights = "" if self.weights_dtype == stored else f":{self.weights_dtype}"
        gpus = f"{self.gpus}x{self.gpu.given or self.gpu.name}"
        hardware = f"{self.nodes}x{self.node.given or self.node.name}" if self.node else gpus
        return f"{model}{weights}@{hardware}/{','.join(parts)}"

    @property
    def has_own_hardware(self) -> bool:
        """Return whether a file of the user's describes its GPU, or its node."""
        return bool(self.gpu.given or (self.node and self.node.given))

    @property
    def moe_ranks(self) -> int:
        """Return the ranks that one set of experts is cut over: by whole experts `ep` ways, within
        experts moe_ranks / ep."""
        return self.tp * self.dp if self.attention_dp else self.tp

    @property
    def nodes_crossed(self) -> int:
        """Return the nodes that one replica reaches over, with those that share its experts; 1: no
        network is between its ranks."""
        per_node = max(-(-self.gpus // self.nodes), self.rack_gpus)
        return -(-self.moe_ranks * self.pp // per_node)

    @property
    def rack_gpus(self) -> int:
        """Return the GPUs of a rack whose links join all of them, so that its trays are one node;
        0: it has none."""
        return self.gpu.per_node if self.gpu.per_node > _MAX_NODE_GPUS else 0

    @property
    def drafting(self) -> Worker | None:
        """Return the named draft as a worker of its own, where engines place it: whole on the
        last stage of a pipeline, cut over the ranks that the model is, in its checkpoint's
        precision (vLLM 0.32's draft_tensor_parallel_size, SGLang 0.5.23's StandaloneDraftWorker).
        """
        if self.draft is None:
            return None
        return msgspec.structs.replace(
            self,
            model=self.draft.model,
            named=self.draft.named,
            weights_dtype=self.draft.weights_dtype,
            gpus=self.tp,
            nodes=-(-self.tp * self.nodes // self.gpus),
            pp=1,
            dp=1,
            ep=1,
            attention_dp=False,
            arguments=tuple(
                (name, value)
                for name, value in self.arguments
                if name not in ("draft", "num_speculative_tokens")
            ),
            node=None,
            draft=None,
        )

    @property
    def is_speculative(self) -> bool:
        """Return whether it guesses tokens and verifies them."""
        return (self.argument("num_speculative_tokens") or "0") != "0"

    @property
    def task(self) -> Pooling | None:
        """Return what is asked of it in place of text: as the argument `task` says, or its model
        is. Raises InputError."""
        text = self.argument("task")
        if text is None:
            return self.model.pooling
        if text not in get_args(Pooling):
            raise InputError(f"task={text}: is not known; write task=embed or task=score")
        return cast(Pooling, text)

    def argument(self, name: str) -> str | None:
        return dict(self.arguments).get(name)

    def count(self, *names: str) -> int | None:
        """Return the first of these arguments that was given, a whole number of at least 1. Raises
        InputError."""
        for name in names:
            text = self.argument(name)
            if text is None:
                continue
            if text.isascii() and text.isdigit() and 1 <= int(text) < 2**40:
                return int(text)
            raise InputError(
                f"{_flag(name)}: {text!r} is not a whole number of at least 1; write e.g. 8192"
            )
        return None

    def fraction(self, name: str) -> float | None:
        """Return an argument that is a number above 0 and up to 1. Raises InputError."""
        text = self.argument(name)
        if text is None:
            return None
        with contextlib.suppress(ValueError):
            if 0 < float(text) <= 1:
                return float(text)
        raise InputError(
            f"{_flag(name)}: {text!r} is not a fraction; write a number above 0 and up to 1,"
            " e.g. 0.9"
        )

    def memory_bytes(self, name: str) -> float | None:
        """Return an argument that is a size of memory, in bytes. Raises InputError."""
        text = self.argument(name)
        if text is None:
            return None
        match = _MEMORY.fullmatch(text.lower())
        if match is None or not float(match[1]):
            raise InputError(
                f"{name}={text!r}: is a size of memory with its unit; write e.g. {name}=512gb"
            )
        return float(match[1]) * _UNITS[match[2]]

    def switch(self, name: str) -> bool | None:
        """Return an argument that is true or false. Raises InputError."""
        text = self.argument(name)
        if text is None:
            return None
        if text.lower() not in (*ON, *OFF):
            raise InputError(f"{_flag(name)}: {text!r} is neither true nor false")
        return text.lower() in ON

    def to_settings(self) -> dict[str, Any]:
        """Return what a run keeps of it."""
        return {
            # Of a model and hardware of the user's own, whose files may be gone when the run is
            # read, all there was.
            "model": (
                {"name": self.model.name, **self.model.given}
                if self.model.given
                else self.model.name
            ),
            "gpu": msgspec.to_builtins(self.gpu) if self.has_own_hardware else self.gpu.name,
            **{name: getattr(self, name) for name in _PLAIN},
            "arguments": dict(self.arguments),
            "name": self.name,
        }


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class DeployedPool(msgspec.Struct, frozen=True):
    """Holds the workers of a deployment that have one role: so many alike."""

    role: Role
    workers: int
    worker: Worker

    @property
    def gpus(self) -> int:
        return self.workers * self.worker.gpus

    @property
    def name(self) -> str:
        return f"{self.role}={self.workers}*({self.worker.name.rpartition('@')[2]})"


class Deployment(msgspec.Struct, frozen=True):
    """Holds pools of workers: one worker that does both, or a pool that prefills and one that
    decodes, in this order. One that encodes pictures may stand before either."""

    pools: tuple[DeployedPool, ...]

    @classmethod
    def of(cls, worker: Worker) -> Deployment:
        """Return the deployment of one worker that prefills and decodes."""
        return cls((DeployedPool("both", 1, worker),))

    @property
    def is_split(self) -> bool:
        """Return whether there are pools."""
        return len(self.pools) > 1

    @property
    def encoders(self) -> DeployedPool | None:
        """Return the pool that encodes pictures; None: whoever computes prompts does."""
        return self.pools[0] if self.pools[0].role == "encode" else None

    @property
    def language(self) -> tuple[DeployedPool, ...]:
        """Return the pools that have the language model."""
        return self.pools[1:] if self.encoders else self.pools

    @property
    def hands_over(self) -> bool:
        """Return whether prefill and decode have workers of their own."""
        return len(self.language) > 1

    @property
    def boards_w(self) -> float:
        """Return the watts of all GPU boards at their limits."""
        return sum(pool.gpus * pool.worker.gpu.tdp_w for pool in self.pools)

    @property
    def prefiller(self) -> Worker:
        """Return the worker that computes prompts."""
        return self.language[0].worker

    @property
    def decoder(self) -> Worker:
        """Return the worker that writes answers, which holds a request's whole cache."""
        return self.pools[-1].worker

    @property
    def worker(self) -> Worker:
        """Return the only worker. Raises InputError where there are pools, whose workers differ."""
        if self.is_split:
            raise InputError(
                f"{self.name}: has pools, and here one worker is asked for; write e.g."
                f" {self.decoder.name}"
            )
        return self.decoder

    @property
    def model(self) -> Model:
        return self.decoder.model

    def asked_for(self, task: PoolingTask | None) -> Deployment:
        """Return the deployment that answers this; None: it writes text. Raises InputError where
        its model does not."""
        name, pooling = self.model.name, self.decoder.task
        if task is None:
            if pooling is None:
                return self
            endpoint = "rerank" if pooling == "score" else "embeddings"
            raise InputError(
                f"{name}: is an encoder, which writes no text; give --endpoint {endpoint}"
            )
        if task == "embeddings" and pooling == "score":
            raise InputError(f"{name}: scores texts, and gives no vectors; give --endpoint rerank")
        if pooling is not None:
            return self
        worker = self.worker
        argument = ("task", "embed" if task == "embeddings" else "score")
        arguments = tuple(sorted((*worker.arguments, argument)))
        return Deployment.of(msgspec.structs.replace(worker, arguments=arguments))

    @property
    def gpus(self) -> int:
        return sum(pool.gpus for pool in self.pools)

    @property
    def nodes(self) -> int:
        return sum(pool.workers * pool.worker.nodes for pool in self.pools)

    @property
    def name(self) -> str:
        """Return the shorthand that gives this deployment again."""
        if not self.is_split:
            return self.decoder.name
        model = self.prefiller.name.rpartition("@")[0]
        return f"{model}@{'+'.join(pool.name for pool in self.pools)}"

    def to_settings(self) -> dict[str, Any]:
        """Return what a run keeps of it: RunInfo.settings.deployment, see analyse/run_facts.py. Of
        pools the parallelism is that of a decode worker, for display."""
        settings = self.decoder.to_settings()
        if not self.is_split:
            return settings
        pools = [
            {"role": pool.role, "workers": pool.workers, **pool.worker.to_settings()}
            for pool in self.pools
        ]
        whole = {"gpus": self.gpus, "nodes": self.nodes, "name": self.name, "pools": pools}
        return settings | whole
