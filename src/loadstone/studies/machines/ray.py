"""Ray: the nodes of a launch are a placement group, its ranks actors on them that outlive the
study's process.

An actor is found again by its name, in a namespace that the journal has before anything is placed.
Each leads its rank by a shell, as a host reached by SSH does (ssh.py): when the actor ends, so does
the rank. Nodes must have Loadstone.
"""

import contextlib
import hashlib
import io
import os
import signal
import socket
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from loadstone.core.errors import InputError, TargetError
from loadstone.core.extras import require
from loadstone.core.signals import SIGNALS
from loadstone.engines.launch import SECRETS
from loadstone.engines.launch import Launch as Commands
from loadstone.runs.preflight import KEY_VARIABLES
from loadstone.studies.commands import commands_of, gpus_per_node
from loadstone.studies.file import MachineSettings, StudyFile
from loadstone.studies.journal import Handle, StudyJournal
from loadstone.studies.machines import client
from loadstone.studies.machines.client import (
    LedProcess,
    LedRanks,
    RemoteMachine,
    check_has_no_mpi,
    check_is_started,
    running_launch,
)
from loadstone.studies.machines.kind import MachineKind
from loadstone.studies.machines.ray_host import RankHost
from loadstone.studies.machines.ssh import (
    CLIENT_GRACE_S,
    add_secrets,
    choose_client,
    make_client_script,
    make_rank_script,
)
from loadstone.studies.plan import PlannedLaunch
from loadstone.studies.supervise import Machine, RunningLaunch

_POLL_S = 0.3
_ANSWER_S = 60.0
_END_S = 30.0
_REACH_S = 10.0
_LOST = 255
"""What stands for the exit code where the node was lost first."""


class RayKind(MachineKind):
    """The nodes of a cluster of Ray."""

    def make(self, read: StudyFile, name: str) -> Sequence[Machine]:
        """See MachineKind."""
        machine = read.study.machines[name]
        return [RayMachine(machine, read.study) for _ in range(machine.parallel)]


class RayMachine(RemoteMachine):
    """Places a launch on nodes of a cluster, one rank a node."""

    kind = "ray"

    @contextlib.contextmanager
    def running(
        self, launch: PlannedLaunch, folder: Path, journal: StudyJournal, left: Handle
    ) -> Iterator[RunningLaunch]:
        """See supervise.Machine."""
        check_is_started(launch)
        count = len(commands_of(launch, (), 1).ranks)
        place = hashlib.sha256(bytes(folder.absolute())).hexdigest()[:8]
        namespace = f"loadstone-{self._study}-{launch.id}-{place}"
        with _connect(self._machine.ray or "auto", namespace) as ray:
            actors = _find_actors(ray, namespace, count) if left else []
            port = int(str(left["port"])) if actors else 0
            if not actors:
                _end_actors(ray, namespace)
            handle: Handle = {"kind": self.kind, "namespace": namespace, "port": port}
            journal.write("launch", launch=launch.id, handle=handle)
            try:
                taken_up = bool(actors)
                actors = actors or _place_actors(ray, namespace, count, gpus_per_node(launch))
                places = _get(ray, [actor.place.remote() for actor in actors])
                addresses = tuple(address for address, _ in places)
                port = port or places[0][1]
                handle = handle | {"port": port}
                journal.write("launch", launch=launch.id, handle=handle)
                commands = commands_of(launch, addresses, port, addresses[0])
                check_has_no_mpi(commands)
                with _start_ranks(
                    ray, commands, actors, folder, self._machine.setup, taken_up
                ) as ranks:
                    ranks.wait_ready(self._limits.ready)
                    first = RayClient(ray, actors[0], self._machine, folder, ranks.check)
                    with choose_client(self._machine, {None: first}, folder, ranks.check) as sender:
                        yield running_launch(ranks, handle, sender)
            finally:
                _end_actors(ray, namespace)

    def release(self, left: Handle) -> None:
        """End the actors, if there are any still."""
        namespace = str(left.get("namespace"))
        if not namespace.startswith("loadstone-"):
            raise InputError(
                f"journal.jsonl names {namespace!r}, which is no launch of a study; end it by hand"
            )
        with _connect(self._machine.ray or "auto", namespace) as ray:
            _end_actors(ray, namespace)


def _start_ranks(
    ray: Any,
    commands: Commands,
    actors: Sequence[Any],
    folder: Path,
    setup: tuple[str, ...],
    goes: bool,
) -> LedRanks:
    """Start the ranks, one an actor. `goes`: they run already."""

    def start(i: int, log_path: Path, on_end: Callable[[], None]) -> RayProcess:
        text = None if goes else add_secrets(make_rank_script(commands, i, setup), SECRETS)
        return RayProcess(ray, actors[i], text, log_path, on_end, f"node {commands.ranks[i].node}")

    return LedRanks(commands, commands.url, folder, start)


class RayProcess(LedProcess):
    """A process that an actor leads; see measure.engines.launch.Rank. A thread of ours copies its
    log."""

    def __init__(
        self,
        ray: Any,
        actor: Any,
        text: str | None,
        log_path: Path,
        on_end: Callable[[], None] = lambda: None,
        node: str = "the node",
    ) -> None:
        super().__init__(log_path, on_end, CLIENT_GRACE_S + _END_S)
        self._ray, self._actor, self._node = ray, actor, node
        if text is not None:
            _get(ray, [actor.lead.remote(text)])
        log_path.write_bytes(b"")
        threading.Thread(target=self._follow, daemon=True).start()

    def end(self) -> None:
        super().end()
        with contextlib.suppress(
            Exception
        ):  # Ray's errors have no common base; a lost actor has ended
            self._actor.end.remote()

    def _follow(self) -> None:
        offset, code = 0, None
        with self.log_path.open("ab", buffering=0) as log:
            while code is None:
                try:
                    wanted = self._actor.read.remote({"stdout": offset})
                    (piece,), code = self._ray.get(wanted, timeout=_ANSWER_S)
                except Exception as error:
                    self.lost = f"{self._node} or its part of Ray was lost ({type(error).__name__})"
                    log.write(f"{self.lost}\n".encode())
                    code = _LOST
                    break
                log.write(piece)
                offset += len(piece)
                if code is None:
                    time.sleep(_POLL_S)
        self._ended(code if code >= 0 else 128 - code)


class RayClient:
    """Sends the load from the first node, and brings the run folder back."""

    def __init__(
        self,
        ray: Any,
        first: Any,
        machine: MachineSettings,
        folder: Path,
        check: Callable[[], None],
    ) -> None:
        self._ray, self._machine, self._check = ray, machine, check
        self._log = folder / "client.log"
        self._first = first

    def bench(self, words: Sequence[str], out: Path) -> None:
        """See supervise.Client."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = _get(self._ray, [self._first.node.remote()])[0]
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = self._ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy=strategy)(
            RankHost
        ).remote()
        try:
            _, work, _ = _get(self._ray, [actor.about.remote()])[0]

            def put(file: Path, name: str) -> str:
                return self._put(actor, file, name)

            script = make_client_script(self._machine, words, put, work)
            text = add_secrets(script, KEY_VARIABLES)
            try:
                process = RayProcess(self._ray, actor, text, self._log)
                client.follow(process, "the first node", self._check)
            finally:
                _unpack(_get(self._ray, [actor.packed.remote("runs")])[0], out)
                _get(self._ray, [actor.clean.remote()])
        finally:
            self._ray.kill(actor)

    def _put(self, actor: Any, file: Path, name: str) -> str:
        if file.is_dir():  # as of a tokenizer: the nodes must have it
            return str(file)
        return str(_get(self._ray, [actor.put.remote(name, file.read_bytes())])[0])


def _unpack(content: bytes, out: Path) -> None:
    if content:
        out.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(out, filter="data")


# --- the cluster ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _connect(address: str, namespace: str) -> Iterator[Any]:
    """Connect to Ray for as long as the context lasts. Raises InputError."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    require("ray", "ray", "machines with ray")
    import ray

    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    host, _, port = address.rpartition(":")
    try:
        if port.isdecimal():  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), _REACH_S).close()
        ray.init(
            address=address,
            namespace=namespace,
            log_to_driver=False,
            logging_level="FATAL",
            configure_logging=False,
        )
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"no Ray cluster is reached at {address} ({reason}); give the head's host:port"
        ) from error
    finally:
        for (
            number,
            handler,
        ) in handlers.items():  # Ray has handlers of its own; a study ends as it decides
            if handler is not None:
                signal.signal(number, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def _name(number: int) -> str:
    return f"rank-{number}"


def _find_actors(ray: Any, namespace: str, count: int) -> list[Any]:
    """Find the actors of a launch that goes on; none where one of them is missing."""
    try:
        actors = [ray.get_actor(_name(number), namespace=namespace) for number in range(count)]
        ray.get([actor.place.remote() for actor in actors], timeout=_ANSWER_S)
    except Exception:
        return []
    return actors


def _place_actors(ray: Any, namespace: str, count: int, gpus: int) -> list[Any]:
    """Place an actor on each of as many nodes, once there is room. Raises TargetError where there
    never is."""
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    fit = [
        node
        for node in ray.nodes()
        if node["Alive"]
        and node["Resources"].get("GPU", 0) >= gpus
        and node["Resources"].get("CPU", 0) >= 1
    ]
    if len(fit) < count:
        size = f" with {gpus} GPUs" if gpus else ""
        raise TargetError(f"{count} nodes{size} are needed, and the Ray cluster has {len(fit)}")
    needs = {"CPU": 1} | ({"GPU": gpus} if gpus else {})
    group = placement_group(
        [needs] * count, strategy="STRICT_SPREAD", name=namespace, lifetime="detached"
    )
    ray.get(group.ready())  # however long it waits: that is not the engine's time
    return [
        ray.remote(
            name=_name(number),
            namespace=namespace,
            lifetime="detached",
            num_cpus=1,
            num_gpus=gpus,
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=number
            ),
        )(RankHost).remote()
        for number in range(count)
    ]


def _end_actors(ray: Any, namespace: str) -> None:
    """End the actors and give the nodes back."""
    from ray.util.placement_group import remove_placement_group

    for named in ray.util.list_named_actors(all_namespaces=True):
        if named["namespace"] == namespace:
            with contextlib.suppress(Exception):
                actor = ray.get_actor(named["name"], namespace=namespace)
                ray.get(actor.clean.remote(), timeout=_POLL_S * 10)
                ray.kill(actor)
    with contextlib.suppress(Exception):
        remove_placement_group(ray.util.get_placement_group(namespace))


def _get(ray: Any, references: list[Any]) -> list[Any]:
    """Return what an actor gives. Raises TargetError where a node is lost."""
    try:
        answers: list[Any] = ray.get(references, timeout=_ANSWER_S)
    except Exception as error:
        raise TargetError(
            f"a node of the Ray cluster does not answer ({type(error).__name__})"
        ) from error
    return answers
