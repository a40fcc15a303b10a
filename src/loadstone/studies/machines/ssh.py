"""Hosts reached by SSH. What is started there ends with the process that runs the study, by a
lease.

On the host a shell leads the process group of what it started, and reads lines that come from here
every few seconds. When no more come, or the connection has ended, the group gets SIGTERM and later
SIGKILL. So nothing is left of a supervisor that was killed, or whose network is gone. Of a host,
nothing but a shell is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shlex
import shutil
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from loadstone.core.errors import InputError, TargetError
from loadstone.core.extras import require
from loadstone.engines.launch import SECRETS, join_words
from loadstone.engines.launch import Launch as Commands
from loadstone.measure.engines.process import container_stop
from loadstone.runs.preflight import KEY_VARIABLES
from loadstone.studies.commands import commands_of
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
from loadstone.studies.machines.kind import MachineKind, divide
from loadstone.studies.plan import PlannedLaunch
from loadstone.studies.supervise import LoadClient, Machine, RunningLaunch

_BEAT_S = 3.0
_LEASE_S = 15
_RANK_GRACE_S = 5
CLIENT_GRACE_S = 60
"""A client that is told to end saves what it has."""
_LOST = 255
"""What stands for the exit code where the connection ended first."""
_KEEPALIVE_S = 5
_LOGIN_S = 20
_T = TypeVar("_T")

_LEAD = """\
lead() {{
set -m
{enter} || {{ echo "cannot make a folder for it"; exit 1; }}
{before}
(
{setup}
exec {command}
) </dev/null 2>&1 &
group=$!
(while read -r -t {lease}; do :; done
kill -TERM -- -$group; sleep {grace}; kill -KILL -- -$group) <&3 >/dev/null &
watch=$!
wait $group
status=$?
kill -KILL -- -$group -$watch
{after}
exit $status
}} 2>/dev/null
lead 3<&0
"""
_TEMPORARY = 'mktemp -d "${TMPDIR:-/tmp}/loadstone-XXXXXX"'
_FREE_PORT = """\
while :; do
    port=$((21000 + RANDOM % 8000))
    (exec 3<>/dev/tcp/127.0.0.1/$port) 2>/dev/null || break
done
echo $port
"""


class SshKind(MachineKind):
    """Hosts that are reached by SSH, divided among launches that run at a time."""

    def make(self, read: StudyFile, name: str) -> Sequence[Machine]:
        """See MachineKind."""
        machine = read.study.machines[name]
        shares = divide(read, name, machine.ssh, "hosts")
        parts = [msgspec.structs.replace(machine, ssh=share) for share in shares]
        return [SshMachine(part, read.study) for part in parts]


class SshMachine(RemoteMachine):
    """Starts a launch on the first of its hosts. Each is reached as `ssh` would, by its
    configuration and keys, and refused where its own key is not known.
    """

    kind = "ssh"

    @contextlib.contextmanager
    def running(
        self, launch: PlannedLaunch, folder: Path, journal: StudyJournal, left: Handle
    ) -> Iterator[RunningLaunch]:
        """See supervise.Machine."""
        check_is_started(launch)
        count = len(commands_of(launch, (), 1).ranks)
        names = self._machine.ssh[:count]
        if len(names) < count:
            raise InputError(
                f"{count} nodes are needed, and this machine has {len(names)}; name more under ssh"
            )
        further = {self._machine.client or names[0]} - {client.HERE, *names}
        journal.write("launch", launch=launch.id)
        with connect(self._machine, (*names, *further)) as hosts:
            ranks = hosts[:count]
            by_name = {host.name: host for host in hosts}
            sender = by_name.get(self._machine.client or names[0])
            alone = "127.0.0.1" if sender is ranks[0] else ranks[0].address
            port = int(ranks[0].output(_FREE_PORT))
            commands = commands_of(launch, tuple(host.address for host in ranks), port, alone)
            check_has_no_mpi(commands, "use a machine of Slurm")
            with _start_ranks(commands, ranks, folder, self._machine.setup) as running:
                running.wait_ready(self._limits.ready)
                sends = SshClient(sender, self._machine, folder, running.check) if sender else None
                yield running_launch(running, {"hosts": list(names)}, sends)

    def release(self, left: Handle) -> None:
        """Do nothing: what was started here has ended with its supervisor."""


def _start_ranks(
    commands: Commands, hosts: Sequence[SshHost], folder: Path, setup: tuple[str, ...]
) -> LedRanks:
    """Start the ranks, one a host."""

    def start(i: int, log_path: Path, on_end: Callable[[], None]) -> RemoteProcess:
        return hosts[i].start(make_rank_script(commands, i, setup), SECRETS, log_path, on_end)

    address = urlsplit(commands.url)
    return LedRanks(
        commands, hosts[0].tunnel(address.hostname or "", address.port or 0), folder, start
    )


class SshClient:
    """Sends the load from a host, and brings the run folder back."""

    def __init__(
        self, host: SshHost, machine: MachineSettings, folder: Path, check: Callable[[], None]
    ) -> None:
        self._host = host
        self._machine = machine
        self._log = folder / "client.log"
        self._check = check
        place = f"{socket.gethostname()}:{folder.absolute()}"
        self._work = (
            f'"${{TMPDIR:-/tmp}}"/loadstone-{hashlib.sha256(place.encode()).hexdigest()[:8]}'
        )

    def bench(self, words: Sequence[str], out: Path) -> None:
        """See supervise.Client."""
        # What a supervisor that was killed has left is known by its name.
        work = self._host.output(f"rm -rf {self._work}-*; mktemp -d {self._work}-XXXXXX").strip()
        try:

            def put(file: Path, name: str) -> str:
                return self._host.send(file, f"{work}/{name}")

            script = make_client_script(self._machine, words, put, work)
            process = self._host.start(script, KEY_VARIABLES, self._log)
            client.follow(process, self._host.name, self._check)
        finally:
            self._host.fetch(f"{work}/runs", out)
            self._host.output(f"rm -rf {shlex.quote(work)}")


@contextlib.contextmanager
def choose_client(
    machine: MachineSettings,
    own: Mapping[str | None, LoadClient],
    folder: Path,
    check: Callable[[], None],
) -> Iterator[LoadClient | None]:
    """Yield who sends the load: a node of the launch, this process (None), or a host that is
    reached by SSH. `own`: the nodes by their names, under None the one that does where the study
    names no host.
    """
    host = machine.client
    if host == client.HERE:
        yield None
    elif host is None or host in own:
        yield own[host]
    else:
        with connect(machine, [host]) as (connection,):
            yield SshClient(connection, machine, folder, check)


def make_script(
    argv: Sequence[str],
    env: Mapping[str, str],
    setup: Sequence[str],
    files: Mapping[str, str],
    work: str | None,
    grace_s: int,
) -> str:
    """Make the script for a host's shell. Secrets follow it line by line, then the lines that keep
    it going."""
    preparation = [
        f"printf %s {shlex.quote(text)} >{shlex.quote(name)}" for name, text in files.items()
    ]
    preparation += ['while IFS= read -r secret && [ -n "$secret" ]; do export "$secret"; done <&3']
    variables = [f"{name}={value}" for name, value in env.items()]
    words = container_stop(argv)
    stop = ["(", *setup, shlex.join(words), ") >/dev/null"] if words else []
    return _LEAD.format(
        enter=f"cd {shlex.quote(work)}" if work else f'cd "$({_TEMPORARY})"',
        before="\n".join(preparation),
        setup="\n".join(setup),
        command=join_words(["env", *variables, *argv]),
        lease=_LEASE_S,
        grace=grace_s,
        after="\n".join((*stop, ":" if work else 'rm -rf "$PWD"')),
    )


def make_client_script(
    machine: MachineSettings, words: Sequence[str], put: Callable[[Path, str], str], work: str
) -> str:
    """Make the script of `loadstone bench` with these words in the folder `work`, into which `put`
    copies the files that they name; its runs are in `runs` there."""
    sent = [client.copy_named_file(word, put) for word in words]
    argv = (machine.python or "python3", "-m", "loadstone", "bench", *sent, "--out=runs")
    return make_script(argv, {}, machine.setup, {}, work, CLIENT_GRACE_S)


def make_rank_script(commands: Commands, number: int, setup: Sequence[str]) -> str:
    """Make the script of a rank."""
    rank = commands.ranks[number]
    return make_script(
        commands.words(rank, "."), rank.env, setup, commands.files, None, _RANK_GRACE_S
    )


def add_secrets(script: str, names: Sequence[str]) -> str:
    """Append those of the variables that are set here to a script of make_script()."""
    values = {name: os.environ.get(name, "") for name in names}
    given = "".join(
        f"{name}={value}\n" for name, value in values.items() if value and "\n" not in value
    )
    return f"{script}{given}\n"


# --- connections ----------------------------------------------------------------------------------


@contextlib.contextmanager
def connect(machine: MachineSettings, names: Sequence[str]) -> Iterator[list[SshHost]]:
    """Connect to hosts for as long as the context lasts. Raises InputError where one cannot be
    reached."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="ssh", daemon=True)
    thread.start()
    hosts: list[SshHost] = []
    try:
        for name in names:
            hosts.append(SshHost(loop, machine, name))
        yield hosts
    finally:
        for host in hosts:
            host.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class SshHost:
    """A connection to a host. `address`: the host's, as this machine sees it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, machine: MachineSettings, name: str
    ) -> None:
        require("asyncssh", "ssh", "machines with ssh")
        import asyncssh

        self.name = name
        self._loop = loop
        key = machine.key and str(Path(machine.key).expanduser())
        given: dict[str, Any] = {"username": machine.user, "port": machine.port, "client_keys": key}
        options = {key: value for key, value in given.items() if value is not None}
        problem, remedy = "", "see whether ssh reaches it"
        try:
            self._connection = self._run(
                asyncssh.connect(
                    name,
                    keepalive_interval=_KEEPALIVE_S,
                    connect_timeout=_LOGIN_S,
                    login_timeout=_LOGIN_S,
                    **options,
                )
            )
        except asyncssh.HostKeyNotVerifiable:
            problem, remedy = (
                "its key is not in known_hosts",
                f"connect once with ssh {name}, and check it",
            )
        except asyncssh.PermissionDenied:
            problem, remedy = (
                "it refuses this user and key",
                "see user and key under machines, and ~/.ssh/config",
            )
        except (asyncssh.Error, OSError, ValueError) as error:
            problem = " ".join(str(error).split()) or type(error).__name__
        if problem:
            raise TargetError(f"{name} cannot be reached by SSH: {problem}; {remedy}")
        peer = self._connection.get_extra_info("peername")
        self.address: str = peer[0] if peer else name

    def output(self, script: str) -> str:
        """Run a few lines of shell there; returns what they print. Raises TargetError."""
        done = self._do(self._connection.run("exec bash -s", input=script, check=False))
        if done.exit_status != 0:
            problem = " ".join(str(done.stderr).split())[:300]
            raise TargetError(
                f"{self.name}: a command ended with exit code {done.exit_status}: {problem}"
            )
        return str(done.stdout)

    def start(
        self,
        script: str,
        secrets: Sequence[str],
        log_path: Path,
        on_end: Callable[[], None] = lambda: None,
    ) -> RemoteProcess:
        """Start a script of make_script(), with those of the variables that are set here. `on_end`
        is called when it has ended, in another thread.
        """
        return self._do(RemoteProcess.start(self, add_secrets(script, secrets), log_path, on_end))

    def tunnel(self, host: str, port: int) -> str:
        """Forward a port there; returns the URL of it here."""
        listener = self._do(self._connection.forward_local_port("127.0.0.1", 0, host, port))
        return f"http://127.0.0.1:{listener.get_port()}"

    def send(self, path: Path, remote: str) -> str:
        """Copy a file or a folder to the host; returns where it is."""
        self._do(self._copy("put", str(path), remote))
        return remote

    def fetch(self, remote: str, out: Path) -> None:
        """Bring what lies in a folder there into `out`, each thing whole or not at all. Nothing
        there: nothing."""
        with contextlib.suppress(TargetError):
            self.output(f"cd {shlex.quote(remote)}")
            part = out.with_name(f"{out.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            part.parent.mkdir(parents=True, exist_ok=True)
            self._do(self._copy("get", remote, str(part)))
            out.mkdir(parents=True, exist_ok=True)
            for run in sorted(part.iterdir()):
                run.rename(out / run.name)
            part.rmdir()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._connection.close)
        with contextlib.suppress(TimeoutError):
            self._run(asyncio.wait_for(self._connection.wait_closed(), _KEEPALIVE_S))

    async def _copy(self, verb: str, source: str, target: str) -> None:
        async with self._connection.start_sftp_client() as sftp:
            await getattr(sftp, verb)(source, target, recurse=True)

    def _do(self, work: Awaitable[_T]) -> _T:
        """Wait for the host to do it. Raises TargetError where it does not."""
        import asyncssh

        try:
            return self._run(work)
        except (asyncssh.Error, OSError) as error:
            problem = " ".join(str(error).split()) or "the connection was lost"
            raise TargetError(f"{self.name}: {problem}") from error

    def _run(self, work: Awaitable[_T]) -> _T:
        future = asyncio.run_coroutine_threadsafe(_as_coroutine(work), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


async def _as_coroutine(work: Awaitable[_T]) -> _T:
    """Make the coroutine that asyncio wants of what asyncssh gives."""
    return await work


class RemoteProcess(LedProcess):
    """A process that a host's shell leads; see measure.engines.launch.Rank."""

    def __init__(
        self, host: SshHost, process: Any, log_path: Path, on_end: Callable[[], None]
    ) -> None:
        super().__init__(log_path, on_end, CLIENT_GRACE_S + _LEASE_S)
        self._host = host
        self._process = process
        self._tasks = [asyncio.ensure_future(self._follow()), asyncio.ensure_future(self._beat())]

    @classmethod
    async def start(
        cls, host: SshHost, text: str, log_path: Path, on_end: Callable[[], None]
    ) -> RemoteProcess:
        import asyncssh

        process = await host._connection.create_process(
            "exec bash -s", stdout=str(log_path), stderr=asyncssh.STDOUT
        )
        process.stdin.write(text)
        return cls(host, process, log_path, on_end)

    def end(self) -> None:
        super().end()
        self._host._loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._process.stdin.write_eof()

    async def _beat(self) -> None:
        while not self._is_told:
            self._process.stdin.write("\n")
            await asyncio.sleep(_BEAT_S)

    async def _follow(self) -> None:
        done = await self._process.wait(check=False)
        self._tasks[1].cancel()
        status = done.exit_status
        if status is None:
            self.lost = f"the connection to {self._host.name} was lost"
            with self.log_path.open("a") as log:
                log.write(f"{self.lost}\n")
            status = _LOST
        self._ended(status)
