"""Reads a study file: which deployments are launched, what is sent to each, how often and where.

It is YAML, and whoever sends it is not trusted: size and depth are bounded, aliases are refused,
and every key is known. Errors say file, line and column, what is wrong, and what to write.
"""

import math
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import yaml  # type: ignore[import-untyped]

from loadstone.catalogue.engines import ENGINES, engine_key
from loadstone.core.errors import InputError
from loadstone.core.files import read_bytes
from loadstone.core.text import excerpt
from loadstone.core.units import parse_seconds
from loadstone.core.yaml_text import RefusedYamlError, check_yaml
from loadstone.engines.launch import Runtime
from loadstone.workload.option_fields import LOAD, WORKLOAD, flags_of
from loadstone.workload.options import Options

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 20
_LONGEST_NUMBER = 100
_MAX_PARALLEL = 256
_TEXT = "tag:yaml.org,2002:str"
_DOCS = "docs/studies.md"
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Seconds(float):
    """A time in a file: `30m`, `1.5s`, or seconds."""


class Share(float):
    """A part of a whole in a file: `5%`, or 0.05."""


class EngineSettings(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="kebab"
):
    """An engine as a study starts it.

    engine     which one, where the name in the study is one of the study's own (`vllm-new: {engine:
               vllm}`)
    version    its release; decides spellings of flags and what is predicted
    image      of a container to start it in; none: the engine that is installed
    container  what runs the image: docker, podman, enroot, pyxis (Slurm's srun --container-image),
               apptainer
    cache      folder of models where the engine runs, mounted into the container; `mounts`: others,
               THERE:INSIDE
    devices    that the container gets beside the GPUs; `options`: of its runtime, passed as they
               are
    program    the path of the engine's program or interpreter, where it is not the one on PATH
    model      what the engine loads, where that is not the study's model: a path or another id
    args       its own flags and values, passed as they are; null or true: a flag without a value
    env        environment variables; secrets come from the environment of who runs the study
    url        of a server that runs already: it is measured and neither started nor stopped
    """

    engine: str | None = None
    version: str | None = None
    image: str | None = None
    container: Runtime = "docker"
    cache: str = "~/.cache/huggingface"
    mounts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    program: str | None = None
    model: str | None = None
    args: dict[str, str | int | float | bool | None] = {}
    env: dict[str, str | int] = {}
    url: str | None = None


class Deployments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Axes whose combinations are the deployments, without those that an entry of `except` matches.

    layout  hardware and parallelism, as behind the @ of a deployment: `8xh200/tp8`
    model   several models; none: the study's
    """

    engine: tuple[str, ...] = ()
    layout: tuple[str, ...] = ("",)
    model: tuple[str, ...] = ()
    excluded: tuple[dict[str, str], ...] = msgspec.field(default=(), name="except")


class StudyLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of a launch (`ready`: seconds until it answers), of a cell (`cell`: seconds; `errors`:
    share of requests that failed) and of the study (`total`: seconds of one `run`)."""

    ready: Seconds = msgspec.field(default_factory=lambda: Seconds(1800))
    cell: Seconds = msgspec.field(default_factory=lambda: Seconds(math.inf))
    errors: Share = msgspec.field(default_factory=lambda: Share(1.0))
    total: Seconds = msgspec.field(default_factory=lambda: Seconds(math.inf))


class Kubernetes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Additions to a rendered Job: fields of its pod and of the engine's container, as Kubernetes
    has them."""

    namespace: str | None = None
    pod: dict[str, Any] = {}
    container: dict[str, Any] = {}


class MachineSettings(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="kebab"
):
    """A place where launches run: one of `local`, `ssh` (hosts), `partition` (Slurm), `ray` (its
    address, or `auto`); or what launches are rendered for: `dstack` (fields of its tasks),
    `kubernetes`; or `type`, the kind of another package, with the `settings` that it reads.

    parallel  launches at a time
    client    the host that sends the load; none: the first node of the launch
    account, qos, time, setup  of Slurm: accounting, limits, and lines of shell before the engine
    user, port, key            of SSH
    """

    local: bool = False
    ssh: tuple[str, ...] = ()
    partition: str | None = None
    ray: str | None = None
    parallel: int = 1
    client: str | None = None
    python: str | None = None
    setup: tuple[str, ...] = ()
    account: str | None = None
    qos: str | None = None
    time: Seconds | None = None
    options: tuple[str, ...] = ()
    user: str | None = None
    port: int | None = None
    key: str | None = None
    dstack: dict[str, Any] | None = None
    kubernetes: Kubernetes | None = None
    type: str | None = None
    settings: dict[str, Any] = {}

    @property
    def kind(self) -> str:
        """Name the back end that runs it."""
        if self.type is not None:
            return self.type
        if self.dstack is not None or self.kubernetes is not None:
            return "kubernetes" if self.dstack is None else "dstack"
        return "ssh" if self.ssh else "slurm" if self.partition else "ray" if self.ray else "local"


class Study(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of a study file. `workloads` and `loads`: options of `bench`, by their flags'
    names."""

    study: str
    deployments: Deployments
    workloads: dict[str, dict[str, Any]] = msgspec.field(default_factory=lambda: {"default": {}})
    loads: dict[str, Any] | list[dict[str, Any]] = {}
    model: str | None = None
    engines: dict[str, EngineSettings] = {}
    repeats: int = 1
    order: Literal["interleaved", "sequential"] = "interleaved"
    restart: Literal["repeat", "never"] = "repeat"
    slo: str | None = None
    seed: int = 0
    limits: StudyLimits = msgspec.field(default_factory=StudyLimits)
    machines: dict[str, MachineSettings] = msgspec.field(
        default_factory=lambda: {"local": MachineSettings(local=True)}
    )


class Mark(NamedTuple):
    """A place in the file, both counted from 1."""

    line: int
    column: int


class StudyFile(NamedTuple):
    """A study as it was read, with the place of each key and item:
    `marks["$.loads.concurrency"]`."""

    path: Path
    study: Study
    marks: Mapping[str, Mark]

    def error(self, where: str, problem: str) -> InputError:
        """Return an error of one line about what stands at `where`, or at the nearest place above
        it."""
        while where not in self.marks:
            where = where[: max(where.rfind("."), where.rfind("["), 1)]
        mark = self.marks[where]
        return InputError(f"{self.path}:{mark.line}:{mark.column}: {problem}")


def read_study(path: Path) -> StudyFile:
    """Read the study in `path`. Raises InputError: file, line, column, key, remedy."""
    content = read_bytes(path, _MAX_BYTES, "give a study file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: this is no UTF-8 text; give a study file") from None
    value, marks = _decode(path, text)
    read = StudyFile(path, Study(study="", deployments=Deployments()), marks)
    # One by one first: of a mapping's values msgspec does not say which was wrong.
    for key, kind in (("engines", EngineSettings), ("machines", MachineSettings)):
        entries = value.get(key) if isinstance(value, dict) else None
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            _convert(read, entry, kind, f"$.{key}.{name}")
    read = read._replace(study=_convert(read, value, Study, "$"))
    _check(read)
    return read


def _convert(read: StudyFile, value: Any, kind: type[_Struct], at: str) -> _Struct:
    try:
        return msgspec.convert(value, kind, dec_hook=_quantity)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        where = at + path.rstrip("`")
        unknown = re.search(r"unknown field `(.*)`", problem)
        if unknown is not None:
            raise read.error(
                f"{where}.{unknown[1]}", f"{unknown[1]}: no such key here; see {_DOCS}"
            ) from None
        key = where.replace("[...]", "").rpartition(".")[2]
        problem = problem[:1].lower() + problem[1:]
        raise read.error(where, problem if key == "$" else f"{key}: {problem}") from None


def _quantity(kind: type, value: Any) -> Any:
    """Parse a time or a share. Raises ValueError, as msgspec wants it."""
    text = str(value).strip()
    if kind is Seconds:
        try:
            seconds = parse_seconds(text, "a time")
        except InputError as error:
            raise ValueError(str(error)) from None
        if not seconds > 0:
            raise ValueError(f"{text!r} is no time; write e.g. 30m")
        return Seconds(seconds)
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise ValueError(f"{text!r} is no share of the requests; write e.g. 5%")
    return Share(share)


# --- YAML with the places of what it says ---------------------------------------------------------


def _decode(path: Path, text: str) -> tuple[Any, dict[str, Mark]]:
    """Return what the file says, as plain Python, and where it says it."""
    loader = None
    try:
        check_yaml(text, _MAX_DEPTH, aliases=False)
        loader = yaml.CSafeLoader(text)
        node = loader.get_single_node()
        marks: dict[str, Mark] = {"$": Mark(1, 1)}
        value = None if node is None else _read_value(loader, node, "$", marks)
    except RefusedYamlError as refusal:
        raise InputError(f"{path}:{refusal.line}:{refusal.column}: {refusal}") from None
    except (yaml.YAMLError, ValueError) as error:
        place = getattr(error, "problem_mark", None)
        position = f":{place.line + 1}:{place.column + 1}" if place is not None else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise InputError(f"{path}{position}: no YAML ({problem})") from None
    finally:
        if loader is not None:
            loader.dispose()
    return value, marks


def _locate(node: yaml.Node) -> Mark:
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)


def _read_value(loader: yaml.CSafeLoader, node: yaml.Node, at: str, marks: dict[str, Mark]) -> Any:
    marks.setdefault(at, _locate(node))
    if isinstance(node, yaml.SequenceNode):
        return [
            _read_value(loader, child, f"{at}[{i}]", marks) for i, child in enumerate(node.value)
        ]
    if isinstance(node, yaml.MappingNode):
        result = {}
        for key, content in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is None or key.tag == "tag:yaml.org,2002:merge":
                raise RefusedYamlError("a key is a plain word here", key.start_mark)
            if name in result:
                raise RefusedYamlError(f"{name} is given twice", key.start_mark)
            marks[f"{at}.{name}"] = _locate(key)
            result[name] = _read_value(loader, content, f"{at}.{name}", marks)
        return result
    if "\0" in node.value:
        raise RefusedYamlError("a NUL, which no program takes", node.start_mark)
    if node.tag != _TEXT and len(node.value) > _LONGEST_NUMBER:
        raise RefusedYamlError(f"a number of {len(node.value):,} digits", node.start_mark)
    try:
        value = loader.construct_object(node)
    except (ValueError, LookupError, AttributeError, ArithmeticError):  # as PyYAML says it
        raise RefusedYamlError(
            f"{excerpt(node.value, 40)!r} does not fit its tag", node.start_mark
        ) from None
    if not isinstance(value, str | int | float | bool | None):
        return node.value  # a date is text here
    return value


# --- what the schema cannot say -------------------------------------------------------------------

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Names become parts of paths, labels and job names."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_A_REQUEST = (
    "endpoint",
    "history",
    "extra_body",
    "timeout_connect_s",
    "timeout_first_s",
    "timeout_idle_s",
    "timeout_total_s",
)
_OF_THE_STUDY = ("seed", "salt", "flush_cache", "plan")
_OF_SLURM = ("account", "qos", "time", "options")
_OF_HOSTS = ("user", "port", "key", "client", "python")
_NOT_RENDERED = ("account", "qos", "options", *_OF_HOSTS)
_OF_OTHER_MACHINES = {
    "ssh": _OF_SLURM,
    "local": (*_OF_SLURM, *_OF_HOSTS, "setup"),
    "ray": _OF_SLURM,
    "dstack": _NOT_RENDERED,
    "kubernetes": _NOT_RENDERED,
}
_KINDS = ("local", "ssh", "partition", "ray", "dstack", "kubernetes")
ACCEPTANCE = "acceptance"
"""An option of a workload, whose text decides it: simulations take it, and what is measured has its
own."""
WORKLOAD_FLAGS = {
    flag.dashed
    for field, flag in flags_of(Options).items()
    if (flag.heading == WORKLOAD and field not in _OF_THE_STUDY) or field in _OF_A_REQUEST
} | {ACCEPTANCE}
LOAD_FLAGS = {flag.dashed for flag in flags_of(Options).values() if flag.heading == LOAD}
"""Options of `bench` that a study\'s workloads and loads may have."""


def _check(read: StudyFile) -> None:
    """Refuse what is of the right type and means nothing."""
    study = read.study
    names = [("$.study", study.study)]
    names += [
        (f"$.{key}.{name}", name)
        for key in ("engines", "workloads", "machines")
        for name in getattr(study, key)
    ]
    for place, name in names:
        if not NAME.fullmatch(name):
            raise read.error(
                place, f"{name!r} is no name; write up to 64 letters, digits, dots and hyphens"
            )
    if study.repeats < 1:
        raise read.error("$.repeats", f"repeats: {study.repeats}; write at least 1")
    _check_engines(read)
    _check_exclusions(read)
    _check_machines(read)
    _check_flags(read)


def _check_engines(read: StudyFile) -> None:
    study = read.study
    for name, engine in study.engines.items():
        for variable in engine.env:
            if not _VARIABLE.fullmatch(variable):
                raise read.error(
                    f"$.engines.{name}.env",
                    f"{variable!r} is no name of a variable; write NAME: value",
                )
        if engine.url is not None:
            _check_url(read, f"$.engines.{name}.url", engine.url)
        elif engine_key(engine.engine or name) is None:
            names = ", ".join(ENGINES)
            raise read.error(
                f"$.engines.{name}", f"{engine.engine or name}: no engine; known are {names}"
            )
    for i, name in enumerate(study.deployments.engine):
        if name not in study.engines and engine_key(name) is None:
            names = ", ".join(dict.fromkeys((*study.engines, *ENGINES)))
            raise read.error(f"$.deployments.engine[{i}]", f"{name}: no engine; known are {names}")


def _check_machines(read: StudyFile) -> None:
    if not read.study.machines:
        raise read.error(
            "$.machines", "machines: none is named; write e.g. here: {local: true}, or leave it out"
        )
    for name, machine in read.study.machines.items():
        kinds = sum(getattr(machine, key) not in (None, False, ()) for key in (*_KINDS, "type"))
        if kinds != 1:
            raise read.error(
                f"$.machines.{name}", f"{name}: {kinds} of {', '.join(_KINDS)}; write one"
            )
        if not 1 <= machine.parallel <= _MAX_PARALLEL:
            problem = f"parallel: {machine.parallel}; write 1 to {_MAX_PARALLEL}"
            raise read.error(f"$.machines.{name}.parallel", problem)
        for key in _OF_OTHER_MACHINES.get(machine.kind, ()):
            if getattr(machine, key):
                raise read.error(
                    f"$.machines.{name}.{key}", f"{key}: a machine of kind {machine.kind} has none"
                )


def _check_flags(read: StudyFile) -> None:
    for name, workload in read.study.workloads.items():
        for key in workload:
            if key not in WORKLOAD_FLAGS:
                raise _no_such_flag(read, f"$.workloads.{name}.{key}", key, WORKLOAD_FLAGS)
    for place, load in load_entries(read.study):
        for key, value in load.items():
            if key not in LOAD_FLAGS:
                raise _no_such_flag(read, f"{place}.{key}", key, LOAD_FLAGS)
            if (
                value is None
            ):  # else a search without bounds would be a load of one request at a time
                raise read.error(
                    f"{place}.{key}", f"{key}: has no value; write one, or leave the key out"
                )


def _check_url(read: StudyFile, at: str, url: str) -> None:
    """Refuse a URL with a password or a key in it, before the journal has it."""
    from loadstone.measure.engines.http import check_url

    try:
        check_url(url)
    except InputError as error:
        raise read.error(at, str(error)) from None


def _no_such_flag(read: StudyFile, at: str, key: str, flags: Collection[str]) -> InputError:
    near = get_close_matches(key, flags, 1)
    where = "loads" if key in LOAD_FLAGS else "workloads" if key in WORKLOAD_FLAGS else None
    hint = (
        f"it stands under {where}"
        if where
        else f"write {near[0]}"
        if near
        else f"known are {', '.join(sorted(flags))}"
    )
    return read.error(at, f"{key}: no such option here; {hint}")


def _check_exclusions(read: StudyFile) -> None:
    axes = {"engine": read.study.deployments.engine, "layout": read.study.deployments.layout}
    axes["model"] = read.study.deployments.model
    for i, exclusion in enumerate(read.study.deployments.excluded):
        for axis, value in exclusion.items():
            place = f"$.deployments.except[{i}].{axis}"
            if axis not in axes:
                raise read.error(place, f"{axis}: no axis; write engine, layout or model")
            if value not in axes[axis]:
                raise read.error(
                    place, f"{axis}: {value!r} is none of this study's, so that nothing is left out"
                )


def load_entries(study: Study) -> list[tuple[str, dict[str, Any]]]:
    """Return each entry of `loads` and its place."""
    if isinstance(study.loads, list):
        return [(f"$.loads[{i}]", entry) for i, entry in enumerate(study.loads)]
    return [("$.loads", study.loads)]
