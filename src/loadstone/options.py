"""What a user may ask, named as the flags are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from loadstone.client.protocol import Route, Timeouts
from loadstone.errors import InputError
from loadstone.wire.ask import Endpoint, Structured


class Options(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to measure, named as the flags of `loadstone bench`; see `loadstone bench --help`."""

    url: str | Sequence[str] | None = None
    """Several: a fleet of servers with the same model behind them."""
    route: Route | None = None
    """How a fleet's requests are spread; None: sessions stay with a server, other requests go round."""
    engine: Literal["llama.cpp"] | None = None
    sim: str | None = None
    """An embedded server: a deployment, as `llama-3.1-70b@8xh200`, or a law, as `ttft=30ms,itl=5ms`."""
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
    workers: int | None = None
    out: Path = Path("runs")
    command: Sequence[str] = ()
    """The command line, for the run's papers; secrets in it are blanked."""

    @property
    def urls(self) -> list[str]:
        return [] if self.url is None else [self.url] if isinstance(self.url, str) else list(self.url)


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
        raise InputError(f"--structured: no JSON schema ({error}); give a JSON object") from error
    return Structured("json_schema", schema)
