"""Makes a deployment the commands that start it: each rank of each worker, and the router before
pools."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from loadstone.catalogue.deployment.deployment import Deployment, Worker
from loadstone.catalogue.deployment.pools import Role
from loadstone.core.errors import InputError
from loadstone.engines import launch_of, rules_of
from loadstone.engines.habits import Route
from loadstone.engines.handover import handover_of
from loadstone.engines.launch import ANYWHERE, HERE, Launch, Site, launch_command

_ALL = "0.0.0.0"  # noqa: S104 - workers and router reach each other there, over nodes
_PORT = 8000
_POLICIES = {"least-busy": "power_of_two", "prefix": "cache_aware", "round-robin": "round_robin"}
"""By where requests go: what both routers call it."""
_SESSION = (("X-Session-ID", "consistent_hash"), ("X-SMG-Routing-Key", "consistent_hashing"))
"""Of vLLM's router and of SGLang's: the header that names a session, and the policy that hashes it.
"""
_FIRST_PORT = 101
"""From the router's port to that of a node's first worker."""
_TRAY_GPUS = {"Grace Blackwell": 4, "Grace Blackwell Ultra": 4}
"""Of a rack whose trays are machines of their own."""
_VISIBLE = {"amd": "HIP_VISIBLE_DEVICES", "nvidia": "CUDA_VISIBLE_DEVICES"}


class DeploymentLaunch(msgspec.Struct, frozen=True):
    """Holds a deployment ready to be started.

    pools   by role its workers, each with its ranks; `both` where one worker does both
    router  before the workers of pools; None: there is one worker
    """

    pools: dict[Role, list[Launch]]
    router: Launch | None = None

    @property
    def launches(self) -> list[Launch]:
        """Return what is started, in order: the workers, and the router last."""
        workers = [worker for pool in self.pools.values() for worker in pool]
        return workers if self.router is None else [*workers, self.router]

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(note for launch in self.launches for note in launch.notes))

    @property
    def files(self) -> dict[str, str]:
        return {name: text for launch in self.launches for name, text in launch.files.items()}

    def document(self) -> dict[str, Any]:
        """Return what `loadstone launch --dry-run --json` prints: one launch as it is, of pools
        each worker by its role."""
        if self.router is None:
            (worker,) = self.launches
            return {"schema": worker.schema, **msgspec.to_builtins(worker)}
        return {
            "schema": self.router.schema,
            **msgspec.to_builtins(self),
            "notes": list(self.notes),
            "files": self.files,
        }

    def front_lines(self, replicas: int, route: Route) -> list[str]:
        """Return what starts a router before so many replicas, each on machines of its own. SGLang
        has its own; vLLM's goes before all that speak OpenAI's API."""
        first = self.launches[-1]
        port = urlsplit(first.url).port or _PORT
        sglang = first.engine == "sglang"
        program = "python3 -m sglang_router.launch_router" if sglang else "vllm-router"
        header, hashed = _SESSION[sglang]
        policy = _POLICIES.get(route, hashed)
        remark = f"; calls of a session bring the same {header}" if route == "hashed" else ""
        urls = " ".join(f"http://replica{number}:{port}" for number in range(replicas))
        return [
            f"# router before {replicas} replicas{remark}",
            f"{program} --policy {policy} --host {_ALL} --port {_PORT} --worker-urls {urls}",
        ]

    def shell_lines(self) -> list[str]:
        """Return a line for each rank, ready to paste; of pools each under a comment that says
        where, the router's last."""
        if self.router is None:
            return [line for launch in self.launches for line in launch.shell_lines()]
        lines = []
        for role, workers in (*self.pools.items(), ("router", [self.router])):
            for number, worker in enumerate(workers):
                commands, places = worker.shell_lines(), [rank.node for rank in worker.ranks]
                if len(commands) == 1:
                    places = [", ".join(places)]
                for place, command in zip(places, commands, strict=True):
                    lines += [f"# {role} {number}, on {place}", command]
        return lines


def launch_deployment(deployment: Deployment, site: Site = ANYWHERE) -> DeploymentLaunch:
    """Return the commands that start a deployment. Of pools the site's port is the router's, its
    nodes are those of all workers, prefill first; workers that fit share a node. Raises InputError
    where they cannot be started so.
    """
    if not deployment.is_split:
        return DeploymentLaunch({"both": [launch_of(deployment.worker, site)]})
    handover_of(deployment)
    placed = list(_place(deployment, site))
    _, last, node, _ = placed[-1]
    hosts = node + last.nodes
    if site.nodes and len(site.nodes) != hosts:
        raise InputError(
            f"{len(site.nodes)} nodes are named, and the pools take {hosts}; name each"
        )
    host, addresses = _ALL, site.nodes or tuple(f"node{i}" for i in range(hosts))
    if hosts == 1:
        host, addresses = site.host, (HERE if site.host == _ALL else site.host,)
    pools: dict[Role, list[Launch]] = {pool.role: [] for pool in deployment.pools}
    sites: list[Site] = []
    for role, worker, first, place in placed:
        nodes = addresses[first : first + worker.nodes]
        encoders = (
            ()
            if role == "encode"
            else tuple(site.address for site in sites if site.role == "encode")
        )
        sites.append(msgspec.structs.replace(place, nodes=nodes, host=host, encoders=encoders))
        pools[role].append(launch_of(worker, sites[-1]))
    decoder = deployment.decoder
    rules = rules_of(decoder)
    front = msgspec.structs.replace(
        site,
        role="router",
        nodes=addresses[:1],
        host=host,
        port=site.port or _PORT,
        arguments=(),
        environment=(),
        runtime=site.runtime if rules.router_in_image else None,
    )
    alone = msgspec.structs.replace(decoder, nodes=1, arguments=())
    return DeploymentLaunch(pools, launch_command(alone, rules.router(front, sites), front))


def _place(deployment: Deployment, site: Site) -> Iterator[tuple[Role, Worker, int, Site]]:
    """Yield every worker over the machines that it takes, with its role, the first of these, and
    the site's part there: a port, and a variable that shows it its GPUs alone where there are
    others."""
    node, place, used, gpu = 0, 0, 0, deployment.prefiller.gpu
    for pool in deployment.pools:
        kind = pool.worker.gpu
        room = 1 << 30 if kind.vendor == "any" else _TRAY_GPUS.get(kind.architecture, kind.per_node)
        hosts = max(pool.worker.nodes, -(-pool.worker.gpus // room))
        worker = msgspec.structs.replace(pool.worker, nodes=hosts)
        for _ in range(pool.workers):
            if used and (worker.gpu != gpu or hosts > 1 or used + worker.gpus > room):
                node, place, used = node + 1, 0, 0
            gpu, environment = worker.gpu, site.environment
            variable = _VISIBLE.get(gpu.vendor)
            if worker.gpus < room and variable is not None:
                visible = ",".join(map(str, range(used, used + worker.gpus)))
                environment = ((variable, visible), *environment)
            port = (site.port or _PORT) + _FIRST_PORT + place
            part = msgspec.structs.replace(
                site, role=pool.role, place=place, port=port, environment=environment
            )
            yield pool.role, worker, node, part
            node += hosts - 1
            place += 1
            used = room if hosts > 1 else used + worker.gpus
