"""What a user may ask, named as the flags are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from loadstone.core.errors import InputError
from loadstone.core.host import path_of
from loadstone.core.units import parse_counts, parse_list, parse_seconds
from loadstone.workload.flag_names import no_such_option
from loadstone.workload.lengths import parse_tokens
from loadstone.workload.request import Endpoint, Route, Structured, Timeouts

DEFAULT_SIM = "llama-3.1-8b@1xh100"
"""What is simulated where nothing is said."""


class Options(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to measure, named as the flags of `loadstone bench`; see `loadstone bench --help`."""

    url: str | Sequence[str] | None = None
    """Several: a fleet of servers with the same model behind them."""
    route: Route | None = None
    """How a fleet's requests are spread; None: sessions stay with a server, other requests go round."""
    engine: Literal["llama.cpp"] | None = None
    sim: str | None = None
    """An embedded server: a deployment, as `llama-3.1-70b@8xh200`, or a law, as `ttft=30ms,itl=5ms`; DEFAULT_SIM
    where True is given, as by the flag alone."""
    deployment: str | None = None
    """What the server at `url` runs on, as `llama-3.1-70b@8xh200/tp8`; of a fleet, all servers together."""
    model: str | None = None
    endpoint: Endpoint | None = None
    tokenizer: str | None = None
    input: str | None = None
    output: str | None = None
    range_ratio: float = 1.0
    prefix: int = 0
    prefix_groups: int = 1
    dataset: Path | None = None
    trace: Path | None = None
    time_scale: Sequence[float] = ()
    """Times of the trace are multiplied by this, a cell each: 0.1 replays it ten times as fast."""
    trace_window_s: tuple[float, float] | None = None
    trace_sample: float | None = None
    length_scale: float | None = None
    skip_bad: bool = False
    turns: str | None = None
    think_time: str | None = None
    plan: Path | None = None
    rate: Sequence[float] = ()
    burstiness: float = 1.0
    ramp: str | None = None
    concurrency: Sequence[int] = ()
    max_concurrency: int | None = None
    requests: Sequence[int] = ()
    requests_per_rate: float | None = None
    duration_s: float | None = None
    grace_s: float = 30.0
    warmup: int | None = None
    slo: str | None = None
    dialect: str | None = None
    """Another tool's numbers of the same records beside ours, e.g. `vllm`."""
    seed: int = 0
    salt: str = "auto"
    flush_cache: bool | None = None
    """Empty the engine's prefix cache before each cell; None: where `salt` does not make prompts new anyway."""
    stream: bool = True
    temperature: float | None = None
    top_p: float | None = None
    sampling_seed: int | None = None
    stop: Sequence[str] = ()
    structured: str | None = None
    headers: Sequence[tuple[str, str]] = ()
    extra_body: Mapping[str, Any] = {}
    proxy: str | None = None
    """http://host:port to go through; proxies named in the environment are not used."""
    timeouts: Timeouts = Timeouts()
    gpu_telemetry: bool | None = None
    """Watch this machine's GPUs; None: where a server shares the machine with the client, and a driver answers."""
    gpu_metrics: Sequence[str] = ()
    """Exporters that tell of the servers' GPUs, `node:9400` or a URL each."""
    workers: int | None = None
    label: str | None = None
    """What tells this setup of an engine from others; reports keep runs of different labels apart."""
    out: Path = Path("runs")
    command: Sequence[str] = ()
    """The command line, for the run's papers; secrets in it are blanked."""

    @property
    def urls(self) -> list[str]:
        return [] if self.url is None else [self.url] if isinstance(self.url, str) else list(self.url)


def options_of(given: Mapping[str, Any], own: Collection[str] = ()) -> Options:
    """Options by their flags' names (with _ for -), or by those of the fields, each as a flag's text or as a value.

    A time that is a number is in seconds; one value may stand for a list of it; None is an option left out. `own`:
    options that the caller has besides, to be named where there is none of a name.
    Raises InputError, one line, where there is no such option, or a value is none of its kind.
    """
    asked: dict[str, Any] = {}
    timeouts: dict[str, float] = {}
    for name, said in given.items():
        value = _plain(said)
        flag = f"--{name.replace('_', '-')}"
        if name in _TIMEOUTS:
            if value is not None:
                timeouts[_TIMEOUTS[name]] = parse_seconds(str(value), flag)
            continue
        field = FIELDS.get(name, name)
        if field not in Options.__struct_fields__:
            if name in ("json", "strict"):
                raise InputError(
                    f"{name}: of the command alone; here its document comes back, with a verdict in each cell"
                )
            raise no_such_option(name, [*own, *_FLAGS, *_TIMEOUTS], "bench")
        if field in asked:
            raise InputError(f"{name}: given twice, by two names; give one")
        if value is not None:
            asked[field] = _READERS[field](value, flag) if field in _READERS else value
    if timeouts:
        asked["timeouts"] = Timeouts(**timeouts)
    try:
        return msgspec.convert(asked, Options, strict=False)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`").partition("[")[0]
        if what.startswith("Invalid enum value"):
            choices = [choice for kind in get_args(get_type_hints(Options)[name]) for choice in get_args(kind)]
            what += f"; choose one of {', '.join(choices)}"
        raise InputError(f"--{_FLAG_OF.get(name, name).replace('_', '-')}: {what}") from error


def value_of(value: Any, kind: Any, flag: str) -> Any:
    """A value of a flag that is none of Options, as a `kind`. Raises InputError."""
    try:
        return msgspec.convert(_plain(value), kind, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(f"{flag}: {error}") from error


def _plain(value: Any) -> Any:
    """A number or truth value of numpy's, an array without dimensions too, as Python's; all else as it is."""
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    return value.item() if kind in ("b", "i", "u", "f") and value.shape == () else value


def _text(value: Any, flag: str) -> str:
    return str(value)


def _path(value: Any, flag: str) -> Path:
    try:
        return path_of(value)
    except TypeError:
        raise InputError(f"{flag}: a path is needed, and this is of type {type(value).__name__}") from None


def _urls(value: Any, flag: str) -> str | list[Any]:
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return value  # type: ignore[no-any-return]
    urls = list(value)
    if not urls:
        raise InputError(f"{flag}: a list without a URL; name a server, or give None for an embedded one")
    return urls


def _seconds(value: Any, flag: str) -> float:
    return parse_seconds(str(value), flag)


def _several(value: Any) -> str:
    """Numbers as a flag's text has them."""
    if isinstance(value, str):
        return value
    return ",".join(map(str, value if hasattr(value, "__iter__") else [value]))


def _numbers(value: Any, flag: str) -> list[float]:
    text = _several(value)
    return parse_list(text, flag) if text or isinstance(value, str) else []


def _counts(value: Any, flag: str) -> list[int]:
    text = _several(value)
    return parse_counts(text, flag) if text or isinstance(value, str) else []


def _scales(value: Any, flag: str) -> list[float]:
    """`0.1` or `1/10`, several with commas."""
    scales = []
    text = _several(value)
    for part in text.split(",") if text or isinstance(value, str) else ():
        number, slash, divisor = part.partition("/")
        values = parse_list(f"{number},{divisor}" if slash else number, flag)
        if slash and values[1] == 0:
            raise InputError(f"{flag}: {part!r} divides by zero; write 0.1 or 1/10")
        scales.append(values[0] / values[1] if slash else values[0])
    return scales


def _window(value: Any, flag: str) -> tuple[float, float]:
    text = ":".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
    start, colon, end = text.partition(":")
    if not colon:
        raise InputError(f"{flag}: {text!r} is not a span of time; write FROM:TO, e.g. 0s:10m")
    window = parse_seconds(start or "0", flag), parse_seconds(end, flag)
    if window[0] >= window[1]:
        raise InputError(f"{flag}: {text!r} ends before it begins; write FROM:TO, e.g. 0s:10m")
    return window


def _headers(value: Any, flag: str) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [(str(name), str(text)) for name, text in value.items()]
    headers = []
    for each in [value] if isinstance(value, str) or not hasattr(value, "__iter__") else value:
        name, colon, text = each.partition(":") if isinstance(each, str) else _pair(each)
        if not colon:
            raise InputError(f"{flag}: write 'Name: value'")
        headers.append((name.strip(), text.strip()))
    return headers


def _pair(given: Any) -> tuple[str, str, str]:
    """A header's name, ":" and value; no ":" where `given` is none."""
    pair = tuple(map(str, given)) if isinstance(given, Sequence) else ()
    return (pair[0], ":", pair[1]) if len(pair) == 2 else ("", "", "")


def _extra_body(value: Any, flag: str) -> dict[str, Any]:
    try:
        fields = msgspec.json.decode(value) if isinstance(value, str) else value
    except msgspec.DecodeError as error:
        raise InputError(f"{flag}: no JSON ({error}); write e.g. '{{\"top_k\": 40}}'") from None
    if not isinstance(fields, Mapping):
        raise InputError(f"{flag}: not a JSON object; write e.g. '{{\"top_k\": 40}}'")
    return dict(fields)


def _stops(value: Any, flag: str) -> list[str]:
    return list(value) if hasattr(value, "__iter__") and not isinstance(value, str) else [value]


FIELDS = {"duration": "duration_s", "grace": "grace_s", "trace_window": "trace_window_s", "header": "headers"}
"""Of Options, where they are named otherwise than their flag."""
_FLAG_OF = {field: flag for flag, field in FIELDS.items()}
_TIMEOUTS = {f"timeout_{name}": f"{name}_s" for name in ("connect", "first", "idle", "total")}
_FLAGS = [_FLAG_OF.get(field, field) for field in Options.__struct_fields__ if field not in ("timeouts", "command")]
_READERS: dict[str, Callable[[Any, str], Any]] = {
    "url": _urls,
    **dict.fromkeys(("out", "dataset", "trace", "plan"), _path),
    **dict.fromkeys(("concurrency", "requests"), _counts),
    **dict.fromkeys(("input", "output", "turns", "think_time", "label"), _text),
    **dict.fromkeys(("duration_s", "grace_s"), _seconds),
    "sim": lambda value, flag: (DEFAULT_SIM if value else None) if isinstance(value, bool) else value,
    "rate": _numbers,
    "time_scale": _scales,
    "trace_window_s": _window,
    "prefix": lambda value, flag: parse_tokens(str(value), flag),
    "headers": _headers,
    "extra_body": _extra_body,
    "stop": _stops,
    "gpu_metrics": lambda value, flag: [url for each in _stops(value, flag) for url in str(each).split(",")],
}


def parse_structured(text: str) -> Structured:
    """A Structured from `json-schema:…`, `regex:…` or `grammar:…`; a schema or grammar itself, or a file's path.

    Raises InputError.
    """
    kind, colon, given = text.partition(":")
    if not colon or kind not in ("json-schema", "regex", "grammar") or not given.strip():
        raise InputError(f"--structured: {text[:40]!r}: write json-schema:FILE, grammar:FILE or regex:PATTERN")
    if kind == "regex":
        return Structured("regex", given)
    inline = given.lstrip().startswith("{") if kind == "json-schema" else "::=" in given
    if not inline:
        try:
            given = Path(given).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no text"
            raise InputError(f"--structured: {given}: cannot be read ({reason}); give a file") from error
    if kind == "grammar":
        return Structured("grammar", given)
    try:
        schema = msgspec.json.decode(given, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"--structured: not a JSON schema ({error}); give a JSON object") from error
    return Structured("json_schema", schema)
