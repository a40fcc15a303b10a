"""Makes a deployment with pools the commands that start it: each rank of each worker, and the
router before them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from loadstone.catalogue.deployment.deployment import Deployment, Worker
from loadstone.core.errors import InputError
from loadstone.engines import launch_of, rules_of
from loadstone.engines.handover import handover_of
from loadstone.engines.launch import ANYWHERE, HERE, Launch, Site, launch_command

_ALL = "0.0.0.0"  # noqa: S104 - workers and router reach each other there, over nodes
_PORT = 8000
_FIRST_PORT = 101
"""From the router's port to that of a node's first worker."""
_TRAY_GPUS = {"Grace Blackwell": 4, "Grace Blackwell Ultra": 4}
"""Of a rack whose trays are machines of their own."""
_VISIBLE = {"amd": "HIP_VISIBLE_DEVICES", "nvidia": "CUDA_VISIBLE_DEVICES"}


class PooledLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a deployment with pools ready to be started; printed as `loadstone launch --dry-run
    --json`. `pools`: by role its workers, each with its ranks."""

    pools: dict[str, list[Launch]]
    router: Launch
    notes: tuple[str, ...]
    files: dict[str, str]
    schema: int = 1

    def shell_lines(self) -> list[str]:
        """Return a line for each rank of each pool, then the router's, each under a comment that
        says where."""
        lines = []
        for role, workers in (*self.pools.items(), ("router", [self.router])):
            for number, worker in enumerate(workers):
                made, places = worker.shell_lines(), [rank.node for rank in worker.ranks]
                for place, line in zip(
                    places if len(made) > 1 else [", ".join(places)], made, strict=True
                ):
                    lines += [f"# {role} {number}, on {place}", line]
        return lines


def launch_pools(deployment: Deployment, site: Site = ANYWHERE) -> PooledLaunch:
    """Return the commands that start a deployment with pools. `site`: its port is the router's, its
    nodes are those of all workers, prefill first; workers that fit share a node. Raises InputError
    where they cannot be started so.
    """
    handover_of(deployment)
    placed = list(_place(deployment, site))
    hosts = placed[-1][1] + placed[-1][0].nodes
    if site.nodes and len(site.nodes) != hosts:
        raise InputError(
            f"{len(site.nodes)} nodes are named, and the pools take {hosts}; name each"
        )
    host, addresses = _ALL, site.nodes or tuple(f"node{i}" for i in range(hosts))
    if hosts == 1:
        host, addresses = site.host, (HERE if site.host == _ALL else site.host,)
    pools: dict[str, list[Launch]] = {"prefill": [], "decode": []}
    sites = []
    for worker, first, own in placed:
        sites.append(
            msgspec.structs.replace(own, nodes=addresses[first : first + worker.nodes], host=host)
        )
        pools[str(own.role)].append(launch_of(worker, sites[-1]))
    rules = rules_of(deployment.decoder)
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
    router = launch_command(
        msgspec.structs.replace(deployment, nodes=1, arguments=(), split=()),
        rules.router(front, sites),
        front,
    )
    launches = [*pools["prefill"], *pools["decode"], router]
    return PooledLaunch(
        pools=pools,
        router=router,
        notes=tuple(dict.fromkeys(note for each in launches for note in each.notes)),
        files={name: text for each in launches for name, text in each.files.items()},
    )


def _place(deployment: Deployment, site: Site) -> Iterator[tuple[Worker, int, Site]]:
    """Yield every worker over the machines that it takes, the first of these, and the site's part
    there: a port, and a variable that shows it its GPUs alone where there are others."""
    node, place, used, gpu = 0, 0, 0, deployment.pools[0].worker.gpu
    for pool in deployment.pools:
        kind = pool.worker.gpu
        room = 1 << 30 if kind.vendor == "any" else _TRAY_GPUS.get(kind.architecture, kind.per_node)
        hosts = max(pool.worker.nodes, -(-pool.worker.gpus // room))
        worker = msgspec.structs.replace(pool.worker, nodes=hosts)
        for _ in range(pool.workers):
            if used and (worker.gpu != gpu or hosts > 1 or used + worker.gpus > room):
                node, place, used = node + 1, 0, 0
            gpu, own = worker.gpu, site.environment
            if worker.gpus < room and (name := _VISIBLE.get(gpu.vendor)):
                own = ((name, ",".join(map(str, range(used, used + worker.gpus)))), *own)
            port = (site.port or _PORT) + _FIRST_PORT + place
            yield (
                worker,
                node,
                msgspec.structs.replace(
                    site, role=pool.role, place=place, port=port, environment=own
                ),
            )
            node, place, used = (
                node + hosts - 1,
                place + 1,
                room if hosts > 1 else used + worker.gpus,
            )
