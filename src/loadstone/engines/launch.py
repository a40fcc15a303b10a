"""Makes a deployment the commands that start it: what all engines' commands have in common.

Each engine's own file says how it spells what a deployment has (EngineRules.command); here these
become a command for each node, natively or in a container. Nothing is started here, and no secret
is in what comes out: variables such as HF_TOKEN are named, so that they are taken from the
environment of who runs the command.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from loadstone.catalogue.architecture.precision import TORCH_DTYPES
from loadstone.catalogue.checkpoints import TUNED, Checkpoint, named_checkpoint, published
from loadstone.catalogue.deployment.deployment import Draft, Worker
from loadstone.catalogue.deployment.pools import Role
from loadstone.catalogue.engines import ENGINES
from loadstone.core.errors import InputError
from loadstone.workload.start_options import StartOptions

Runtime = Literal["docker", "podman", "enroot", "pyxis", "apptainer"]
SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Variables that are handed on by name and never written down."""
_SHM = "32g"
_CACHE = "/root/.cache/huggingface"
HERE = "127.0.0.1"
_LAST_PORT = 65_535
# Others reach it there: other nodes, or what is outside of its container.
_ALL = "0.0.0.0"  # noqa: S104
DTYPES = {ours: theirs for theirs, ours in TORCH_DTYPES.items()}
"""PyTorch's names, which engines' flags take."""
_FLAG = re.compile(r"-{0,2}[A-Za-z][A-Za-z0-9._-]*")
_SECRET = re.compile(
    r"(?:^|[_-])(?:api|admin)[_-]?(?:api[_-])?key$|token$|secret|passw", re.IGNORECASE
)
"""Names of flags and variables whose values nobody else should read; `max_num_batched_tokens` is
none."""
_SETTINGS = "yaml:"
_IN_CONTAINER = "/loadstone"
"""Where a container has the launch's files."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Says where and how a deployment is started; what has no value is as the engine has it by
    default.

    model        what the engine is told to load: a path, or an id; None: the deployment's model by
                 its name
    port         of the server, on every interface of its node where there are several nodes or a
                 container, else on `host`
    nodes        addresses of the nodes, that of rank 0 first; placeholders where they are not known
                 yet
    program      in place of the engine's own program: its path
    runtime      of containers; None: the engine runs as it is installed
    image        in which it runs there
    cache        folder of models on the nodes, mounted into the container
    mounts       further folders that it gets, THERE:INSIDE; `devices`, and `options` of its
                 runtime, likewise
    arguments    of the engine's own command line, as (flag, value), passed as they are; value None:
                 a flag alone
    environment  of the engine
    role         of a worker of a pool: its pool's, or `router`; `place`: its number among the
                 workers of its node
    encoders     addresses of the workers that encode pictures for it
    """

    model: str | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    nodes: tuple[str, ...] = ()
    served_name: str | None = None
    program: str | None = None
    runtime: Runtime | None = None
    image: str | None = None
    cache: str = "~/.cache/huggingface"
    mounts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    arguments: tuple[tuple[str, str | None], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    role: Role | Literal["router"] | None = None
    place: int = 0
    encoders: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """Return the URL of a worker of a pool."""
        return f"http://{self.nodes[0]}:{self.port}"


ANYWHERE = Site()


def site_of(start: StartOptions) -> Site:
    """Return the site that options describe."""
    return Site(
        model=start.model,
        host=start.host,
        port=start.port,
        nodes=tuple(start.nodes),
        served_name=start.served_name,
        program=start.program,
        runtime=start.container,
        image=start.image,
        cache=str(start.cache.expanduser()),
        arguments=tuple(start.arguments),
        environment=tuple(start.environment),
    )


Flags = list[tuple[str, str | int | float | bool | tuple[str, ...] | None]]
"""Names of flags without dashes, and values: True stands alone, False and None are left out;
several words are a value each."""


class Command(NamedTuple):
    """Holds what an engine's own file makes of a deployment.

    program  its words before the flags
    flags    of every node
    nodes    flags that a node has beside them, rank 0 first
    files    that must lie where it starts, by name
    entry    how many words of `program` the entry point of its image has already
    listening  the flags that name address and port, if any does
    ready    path that answers 200 once requests are served
    env      of the engine, whatever the site adds
    own_address  the variable that tells a node its own address, if one does
    negates  whether a switch that is off is said, as --no-NAME
    renamed  older releases' spellings of what only launching knows, by today's; "": said otherwise
    tasks    of each node, where all nodes are one world of MPI; see Launch.tasks_per_node
    model    name that requests must use, where the server itself may not say it
    """

    program: list[str]
    flags: Flags
    nodes: list[Flags] = []  # noqa: RUF012
    notes: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    entry: int = 0
    underscores: bool = False
    port: int = 8000
    listening: tuple[str, ...] = ("host", "port")
    ready: str = "/health"
    env: tuple[tuple[str, str], ...] = ()
    own_address: str | None = None
    negates: bool = False
    renamed: Mapping[str, str] = {}
    tasks: int = 1
    model: str | None = None


class RankCommand(msgspec.Struct, frozen=True):
    """Holds what one node runs. `env`: what it adds to the environment."""

    node: str
    argv: tuple[str, ...]
    env: dict[str, str]


class Container(msgspec.Struct, frozen=True):
    """Describes the container of the ranks: its digest is recorded when it runs, a tag may move.
    `vendor`: of the GPUs that it gets."""

    runtime: Runtime
    image: str
    shm_size: str
    mounts: tuple[str, ...]
    vendor: str = "nvidia"
    devices: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a deployment ready to be started; printed as `loadstone launch --dry-run --json`.

    url             where rank 0 will answer
    files           to be written beside the log before it starts, by name; see words()
    ready           path that answers 200 once requests are served
    tasks_per_node  above 1: all nodes are one world of MPI with so many processes of the same
                    command on each, which `srun --mpi=pmix` starts
    model           name that requests must use, where the server itself may not say it
    role            `prefill`, `decode` or `router` where the deployment has pools
    """

    engine: str
    ranks: tuple[RankCommand, ...]
    url: str
    container: Container | None
    notes: tuple[str, ...]
    files: dict[str, str] = {}
    ready: str = "/health"
    tasks_per_node: int = 1
    model: str | None = None
    role: str | None = None
    schema: int = 1

    def shell_lines(self) -> list[str]:
        """Return a line for each rank, ready to paste into a shell on its node; one for all of a
        world of MPI."""
        ranks, world = self.ranks, []
        if self.tasks_per_node > 1:
            ranks = self.ranks[:1]
            world = ["srun", "--mpi=pmix", "--kill-on-bad-exit=1", f"--nodes={len(self.ranks)}"]
            if self.role:
                world.append(f"--nodelist={','.join(rank.node for rank in self.ranks)}")
            world.append(f"--ntasks-per-node={self.tasks_per_node}")
        lines = []
        for rank in ranks:
            variables = [f"{name}={shlex.quote(value)}" for name, value in rank.env.items()]
            lines.append(" ".join([*variables, join_words([*world, *rank.argv])]))
        return lines

    def words(self, rank: RankCommand, folder: str) -> list[str]:
        """Return the command of a rank, with the launch's files in `folder`."""
        return [self._place(word, folder) for word in rank.argv]

    def _place(self, word: str, folder: str) -> str:
        for name in self.files:
            word = (
                f"{folder}/{name}"
                if word == name
                else word.replace(f"./{name}:", f"{folder}/{name}:")
            )
        return word


def join_words(words: Sequence[str]) -> str:
    """Return a command as a shell reads it, where a word that begins with ~/ is of the home
    there."""
    return " ".join(map(quote_word, words))


def quote_word(word: str) -> str:
    """Quote a word for a shell of the machine on which it is read."""
    return f'"$HOME"/{shlex.quote(word[2:])}' if word.startswith("~/") else shlex.quote(word)


def launch_command(worker: Worker, command: Command, site: Site) -> Launch:
    """Return the commands of all nodes. Raises InputError: a container without an image, something
    that is no flag."""
    addresses = addresses_of(worker, site)
    if len(addresses) != worker.nodes:
        raise InputError(
            f"{len(addresses)} nodes are named, and the deployment has {worker.nodes}; name each"
        )
    alone = worker.nodes == 1 and site.runtime is None
    port = site.port or command.port
    if not 1 <= port <= _LAST_PORT:
        raise InputError(
            f"port {port}: there is none; have --port such that all are from 1 to {_LAST_PORT}"
        )
    listening: Flags = list(
        zip(command.listening, (site.host if alone else _ALL, port), strict=False)
    )
    for name, value in (*site.environment, *site.arguments):
        if value is not None and _SECRET.search(name):
            raise InputError(
                f"{name}: a secret is no part of a command; set it in the environment, as the"
                " engine names it"
            )
    environment = {**dict(command.env), **dict(site.environment)}
    container = None
    if command.tasks > 1 and site.runtime not in (None, "enroot"):
        raise InputError(
            f"--container {site.runtime}: ranks of MPI do not reach each other through it; use"
            " enroot"
        )
    if site.runtime is not None:
        if site.image is None:
            raise InputError(f"--container {site.runtime}: no image; name one with --image")
        mounts = [f"{site.cache}:{_CACHE}", *site.mounts]
        mounts += [f"{word}:{word}" for word in command.program[1:] if word.startswith("/")]
        mounts += [f"./{name}:{_IN_CONTAINER}/{name}" for name, _ in command.files]
        container = Container(
            site.runtime,
            site.image,
            _SHM,
            tuple(mounts),
            worker.gpu.vendor,
            site.devices,
            site.options,
        )
    ranks = []
    for i, address in enumerate(addresses):
        flags = [*command.flags, *listening, *(command.nodes[i] if command.nodes else [])]
        flags += launch_flags(worker, command, site)
        words = _spell_words(flags, command.underscores) + own_words(site, command.underscores)
        argv = [*command.program, *words]
        variables = dict(environment)
        if command.own_address is not None:
            variables = {command.own_address: address, **environment}
        if container is not None:
            where = (f"--nodelist={address}",) if worker.nodes > 1 or site.role else ()
            argv = _wrap_in_container(
                container, command, argv, variables, (f"loadstone-{port}-{i}", *where)
            )
        ranks.append(RankCommand(address, tuple(argv), {} if container else variables))
    return Launch(
        engine=worker.engine,
        ranks=tuple(ranks),
        url=f"http://{site.host if alone and not site.role else addresses[0]}:{port}",
        container=container,
        notes=command.notes,
        files=dict(command.files),
        ready=command.ready,
        tasks_per_node=command.tasks,
        model=command.model,
        role=site.role,
    )


def addresses_of(worker: Worker, site: Site) -> tuple[str, ...]:
    """Return the address of every node, rank 0 first: as they are named, else placeholders; this
    machine where it is the only one."""
    if worker.nodes == 1:
        return site.nodes[:1] if site.role else (HERE,)
    return site.nodes or tuple(f"node{i}" for i in range(worker.nodes))


def _spell_words(flags: Flags, underscores: bool) -> list[str]:
    words = []
    for name, value in flags:
        if value is None or value is False:
            continue
        flag, dot, key = name.partition(".")
        words.append(
            "--" + (flag.replace("-", "_") if underscores else flag.replace("_", "-")) + dot + key
        )
        if isinstance(value, tuple):
            words += value
        elif value is not True:
            words.append(str(value))
    return words


def launch_rows(worker: Worker) -> Iterator[tuple[str, str | bool]]:
    """Yield the deployment's arguments that only launching knows, by the spelling of the engine's
    command line. Raises InputError for a switch that is neither true nor false."""
    engine = ENGINES[worker.engine]
    for name, text in worker.arguments:
        if engine.launch.get(name):
            on = worker.switch(name) if name in engine.switches else None
            yield engine.launch[name], text if on is None else on


def launch_settings(worker: Worker) -> Iterator[tuple[str, str | int | bool]]:
    """Yield those rows of launch_rows() that are keys of a file of settings:
    `moe_config.backend`."""
    for spelling, value in launch_rows(worker):
        if spelling.startswith(_SETTINGS):
            number = isinstance(value, str) and value.isascii() and value.isdigit()
            yield spelling.removeprefix(_SETTINGS), int(value) if number else value


def launch_flags(worker: Worker, command: Command, site: Site) -> Iterator[tuple[str, str | bool]]:
    """Yield the flags of launch_rows()."""
    for today, value in launch_rows(worker):
        spelling = command.renamed.get(today, today)
        if not spelling or spelling.startswith(_SETTINGS):
            continue
        if value is False and command.negates:
            yield (
                (spelling.removeprefix("no-") if spelling.startswith("no-") else f"no-{spelling}"),
                True,
            )
        elif not (site.served_name and spelling in ("served-model-name", "alias")):
            yield spelling, value


def own_words(site: Site, underscores: bool = False) -> list[str]:
    """Return the user's own flags and values as words. Raises InputError for what is no flag."""
    for flag, _ in site.arguments:
        if not _FLAG.fullmatch(flag):
            raise InputError(f"{flag!r} is no flag; write e.g. max_model_len=8192")
    return _spell_words(
        [(flag.lstrip("-"), True if value is None else value) for flag, value in site.arguments],
        underscores,
    )


_DEVICES = {"amd": ("/dev/kfd", "/dev/dri"), "intel": ("/dev/dri",)}
_UNCONFINED = ("--security-opt", "seccomp=unconfined")
_GPU_FLAGS: dict[tuple[str, str], tuple[str, ...]] = {
    ("docker", "nvidia"): ("--gpus", "all"),
    ("podman", "nvidia"): ("--device", "nvidia.com/gpu=all"),
    ("docker", "amd"): ("--group-add", "video", "--group-add", "render", *_UNCONFINED),
    ("podman", "amd"): ("--group-add", "keep-groups", *_UNCONFINED),
    ("apptainer", "nvidia"): ("--nv",),
    ("apptainer", "amd"): ("--rocm",),
}
"""What a runtime is told beside devices so that the container sees GPUs; enroot and pyxis show
NVIDIA's by hooks."""
_ENGINE_IMAGE = re.compile(r"vllm-openai(-[a-z0-9]+)?(?=[:@+]|$)")
"""Images whose entry point is the engine's program; that of others, ROCm's among them, is a shell
or nothing."""
_IMPORT = (
    'exec 9>"$0.lock"; flock 9; test -e "$0" || enroot import -o "$0" "$1"; exec 9>&-; shift; exec'
    ' "$@"'
)


def _wrap_in_container(
    container: Container,
    command: Command,
    argv: list[str],
    environment: dict[str, str],
    place: tuple[str, ...],
) -> list[str]:
    """Return `argv` as it runs in a container. Secrets are named without a value: the runtime takes
    it from its own environment. `place`: the container's name, then what tells Slurm the node.
    """
    runtime, image, mounts = container.runtime, container.image, container.mounts
    argv = [f"{_IN_CONTAINER}/{word}" if word in dict(command.files) else word for word in argv]
    variables = [f"{name}={value}" for name, value in environment.items()]
    bare = bool(_ENGINE_IMAGE.search(image))
    gpus = _GPU_FLAGS.get((runtime, container.vendor), ())
    devices = (*_DEVICES.get(container.vendor, ()), *container.devices)
    if runtime in ("docker", "podman"):
        entry = [] if bare or not command.entry else ["--entrypoint", argv[0]]
        return [
            *(runtime, "run", "--rm", "--init", "--name", place[0]),
            *(*_repeat("--device", devices), *gpus),
            *("--ipc", "host", "--network", "host", "--shm-size", container.shm_size),
            *_repeat("--volume", mounts),
            *_repeat("--env", (*SECRETS, *variables)),
            *(*container.options, *entry, image),
            *argv[command.entry if bare else len(entry) // 2 :],
        ]
    variables.append(f"HF_HOME={_CACHE}")  # there the user is not root, and has another home
    if runtime == "apptainer":
        source = image if "://" in image or image.endswith(".sif") else f"docker://{image}"
        options = (
            *gpus,
            *_repeat("--bind", (*mounts, *container.devices)),
            *_repeat("--env", variables),
            *container.options,
        )
        return ["apptainer", "exec", "--writable-tmpfs", *options, source, *argv]
    mounts = (*mounts, *(f"{device}:{device}" for device in devices))
    if runtime == "pyxis":
        step = ("srun", "--overlap", "--nodes=1", "--ntasks=1", *place[1:])
        step += (f"--container-image={_name_image(image)}",)
        options = (
            "--container-mounts",
            ",".join(mounts),
            "--container-writable",
            "--no-container-entrypoint",
        )
        return [*step, *options, *container.options, "env", *variables, *argv]
    options = (
        *_repeat("--mount", mounts),
        *_repeat("--env", (*SECRETS, *variables)),
        *container.options,
    )
    argv = argv[command.entry if bare else 0 :]
    if image.endswith(".sqsh"):
        return ["enroot", "start", "--rw", *options, image, *argv]
    file = re.sub(r"[^A-Za-z0-9.-]+", "+", image) + ".sqsh"
    source = f"docker://{_name_image(image)}"
    return ["sh", "-c", _IMPORT, file, source, "enroot", "start", "--rw", *options, file, *argv]


def _repeat(flag: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]


def _name_image(image: str) -> str:
    """Return an image as enroot and pyxis name it: its registry, if it has one, before a #."""
    host, slash, rest = image.partition("/")
    return (
        f"{host}#{rest}"
        if slash and re.search(r"[.:]", host) and not image.startswith((".", "/"))
        else image
    )


def over_one(count: int) -> int | None:
    """Return a number of ranks that is said only where it is not 1."""
    return count if count > 1 else None


class Weights(NamedTuple):
    """Holds what an engine loads: its name, the precision of the KV cache that goes with it, flags
    that change its precision when it is loaded, and `first`: the precision in which it is loaded
    before it is quantised, if it is.
    """

    model: str
    kv: str
    flags: Flags = []  # noqa: RUF012
    notes: tuple[str, ...] = ()
    first: str | None = None


def choose_weights(
    worker: Worker, site: Site, reads: Callable[[Checkpoint], bool], quantises: bool
) -> Weights:
    """Return the checkpoint that was named, in the deployment's precision: as it is, as somebody
    publishes it, by what the engine does when it loads, or a folder into which it must be
    converted. Raises InputError.
    """
    model, wanted = worker.model, worker.weights_dtype
    if site.model is not None:
        return Weights(site.model, model.kv_dtype)
    named = named_checkpoint(model, worker.named)
    if wanted == named.weights:
        return Weights(named.name, named.kv)
    if wanted in DTYPES and named.weights in DTYPES:
        return Weights(named.name, named.kv, [("dtype", DTYPES[wanted])])
    readable = [
        row for row in published(model, worker.named) if row.weights == wanted and reads(row)
    ]
    if readable:
        chosen = min(readable, key=lambda row: row.kv != worker.kv_dtype)
        tuned = bool(TUNED.search(chosen.name.lower())) and not TUNED.search(named.name.lower())
        note = f"{named.name} is in {named.weights}; in {wanted} it is published as {chosen.name}"
        return Weights(
            chosen.name, chosen.kv, [], (note + ", the instruct version" if tuned else note,)
        )
    if quantises and wanted == "fp8" and named.weights in DTYPES:
        return Weights(named.name, named.kv, [("quantization", "fp8")], first=named.weights)
    folder = f"./{named.name.rpartition('/')[2]}-{wanted}"
    note = (
        f"no checkpoint of {named.name} in {wanted} is known that {worker.engine} reads, and it"
        " makes none"
    )
    return Weights(
        folder, model.kv_dtype, [], (f"{note}: convert it into {folder}, or name one with --model",)
    )


def name_draft(draft: Draft) -> str:
    """Return the checkpoint of a draft model, in its precision."""
    named, wanted = named_checkpoint(draft.model, draft.named), draft.weights_dtype
    if named.weights == wanted:
        return named.name
    rows = published(draft.model, draft.named)
    return next((row.name for row in rows if row.weights == wanted), named.name)
