"""Makes a deployment with pools the commands that start it: each rank of each worker, and the router before them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from loadstone.catalogue.deployment.deployment import DeployedPool, Deployment
from loadstone.catalogue.deployment.pools import Role
from loadstone.core.errors import InputError
from loadstone.engines import launch_of, rules_of
from loadstone.engines.handover import handover_of
from loadstone.engines.launch import HERE, Launch, Site, launch_command
from loadstone.engines.rules import Route

_ALL = "0.0.0.0"  # noqa: S104 - workers and router reach each other there, over nodes
_PORT = 8000
_FIRST_PORT = 101
"""From the router's port to that of a node's first worker."""
_TRAY_GPUS = 4
"""Of a Grace Blackwell rack, whose 18 trays are machines of their own."""
_VISIBLE = {"amd": "HIP_VISIBLE_DEVICES", "nvidia": "CUDA_VISIBLE_DEVICES"}


class LaunchedPool(msgspec.Struct, frozen=True):
    """Holds the workers of a pool ready to be started, each with its ranks."""

    role: Role
    workers: tuple[Launch, ...]


class PooledLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a deployment with pools ready to be started; printed as `loadstone launch --dry-run --json`. `url`: where
    its router will answer."""

    engine: str
    url: str
    pools: tuple[LaunchedPool, ...]
    router: Launch
    notes: tuple[str, ...]
    files: dict[str, str]
    schema: int = 1

    def shell_lines(self) -> list[str]:
        """Return a line for each rank of each pool, then the router's, each under a comment that says where."""
        lines = []
        for pool in self.pools:
            for number, worker in enumerate(pool.workers):
                made = worker.shell_lines()
                places = [rank.node for rank in worker.ranks]
                places = places if len(made) > 1 else [", ".join(places)]
                for place, line in zip(places, made, strict=True):
                    lines += [f"# {pool.role} worker {number}, on {place}", line]
        return [*lines, f"# router, on {self.router.ranks[0].node}", *self.router.shell_lines()]


def launch_pools(deployment: Deployment, site: Site, route: Route | None = None) -> PooledLaunch:
    """Return the commands that start a deployment with pools. `site`: its port is the router's, its nodes are those
    of all workers, prefill first; workers that fit share a node. Raises InputError where they cannot be started so.
    """
    handover_of(deployment)
    port = site.port or _PORT
    placed = list(_place(deployment))
    hosts = placed[-1][2] + _hosts_of(placed[-1][0].worker)
    if site.nodes and len(site.nodes) != hosts:
        raise InputError(f"{len(site.nodes)} nodes are named, and the pools take {hosts}; name each")
    addresses = site.nodes or tuple(f"node{i}" for i in range(hosts))
    if hosts == 1:
        addresses = (HERE if site.host == _ALL else site.host,)
    host = site.host if hosts == 1 else _ALL
    made: dict[Role, list[Launch]] = {"prefill": [], "decode": []}
    sites: list[Site] = []
    for pool, place, first, gpu, visible in placed:
        worker = msgspec.structs.replace(pool.worker, nodes=_hosts_of(pool.worker))
        there = addresses[first : first + worker.nodes]
        environment = (*((visible,) if visible else ()), *site.environment)
        sites.append(
            msgspec.structs.replace(
                site, role=pool.role, place=place, first_gpu=gpu, nodes=there, host=host,
                port=port + _FIRST_PORT + place, environment=environment,
            )
        )  # fmt: skip
        made[pool.role].append(launch_of(worker, sites[-1]))
    rules = rules_of(deployment.pools[-1].worker)
    front = msgspec.structs.replace(
        site, role="router", nodes=addresses[:1], host=host, port=port, arguments=(), environment=(),
        runtime=site.runtime if rules.router_in_image else None,
    )  # fmt: skip
    command = rules.router(front, sites, route)
    bare = msgspec.structs.replace(deployment, nodes=1, arguments=(), pools=())
    router = launch_command(bare, command, front)
    launches = [*made["prefill"], *made["decode"], router]
    return PooledLaunch(
        engine=deployment.engine,
        url=router.url,
        pools=tuple(LaunchedPool(role, tuple(workers)) for role, workers in made.items()),
        router=router,
        notes=tuple(dict.fromkeys(note for each in launches for note in each.notes)),
        files={name: text for each in launches for name, text in each.files.items()},
    )


def _place(deployment: Deployment) -> Iterator[tuple[DeployedPool, int, int, int, tuple[str, str] | None]]:
    """Yield of every worker its pool, its number among those of its node, its first node, its first GPU there, and
    the variable that shows it its GPUs where the node has others."""
    node, place, used, gpu = 0, 0, 0, deployment.pools[0].worker.gpu
    for pool in deployment.pools:
        worker, hosts = pool.worker, _hosts_of(pool.worker)
        room = 1 << 30 if worker.gpu.vendor == "any" else _gpus_of_host(worker)
        for _ in range(pool.workers):
            if used and (worker.gpu != gpu or hosts > 1 or used + worker.gpus > room):
                node, place, used = node + 1, 0, 0
            gpu, name = worker.gpu, _VISIBLE.get(worker.gpu.vendor)
            visible = None
            if name and worker.gpus < room:
                visible = name, ",".join(map(str, range(used, used + worker.gpus)))
            yield pool, place, node, used, visible
            place, used = place + 1, used + worker.gpus
            if hosts > 1:
                node, used = node + hosts - 1, room


def _gpus_of_host(worker: Deployment) -> int:
    rack = worker.gpu.architecture.startswith("Grace Blackwell")
    return _TRAY_GPUS if rack else worker.gpu.per_node


def _hosts_of(worker: Deployment) -> int:
    """Count the machines of a worker: of a rack its trays."""
    if worker.gpu.vendor == "any":
        return worker.nodes
    return max(worker.nodes, -(-worker.gpus // _gpus_of_host(worker)))
