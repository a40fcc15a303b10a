"""Reads what servers report of themselves while they are measured: their Prometheus /metrics, about
once a second; and what GPUs do, where they are watched too, through NVML or an exporter beside the
servers.

A bystander: threads of the owner's process, never of a worker's; nothing that a server sends, or
does not send, ends a run or lengthens it. Samples go to server.arrow as the run goes, and to
server.parquet when it is over (store).
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.gpu_metrics import GPUS, POOLS, find_meaning, select_gpu_labels, split_pool
from loadstone.core.secrets import blank_bytes, keys_in
from loadstone.core.text import excerpt
from loadstone.engines.server_metrics import NAMES
from loadstone.measure.engines.http import check_url, http_client, send, shown
from loadstone.measure.nvml import Gpus

INTERVAL_S = 1.0
FLUSH_S = 10.0
SERIES = 256
"""Of each server; those that findings are based on first."""
GPU_SERIES = 1024
"""Of each exporter of GPUs: eight in seven parts each tell eight things and more."""
_TIMEOUT_S = 2.0
_BODY_BYTES = 2 * 1024 * 1024
_LINE_CHARS = 2048
_NAME_CHARS = 128
_LABELS_CHARS = 512
_REST = 4
"""A server is left in peace for at least so many times as long as it, and the reading of it, took.
"""
_CLOSE_S = 5.0
_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)[ \t{]")
_TYPE = re.compile(r"# TYPE ([A-Za-z_:][A-Za-z0-9_:]*) (counter|gauge|histogram|summary)\s*")
_PASSED_OVER = ("_bucket", "_created", "_info")
_PASSED_OVER_FAMILIES = ("python_", "go_", "promhttp_")
_Label = tuple[str, str]


class MetricSample(NamedTuple):
    """Holds one value of one series: `labels` as a JSON object, keys in order."""

    name: str
    labels: str
    value: float


def read_metrics(text: str) -> list[MetricSample]:
    """Return the samples worth keeping of a /metrics page: counters, gauges, sums and counts of
    histograms; at most SERIES.

    A line that is none is passed over, so that one does not cost all others.
    """
    findings: list[str] = []  # lines on which findings are based
    rest: list[str] = []
    types: dict[str, str] = {}
    for line in text.splitlines():
        if len(line) > _LINE_CHARS:
            continue
        type_line = _TYPE.fullmatch(line)
        if type_line is not None:
            types[type_line[1]] = type_line[2]
            continue
        name = _read_name(line)
        if name in NAMES:
            findings.append(line)
        elif 0 < len(name) <= _NAME_CHARS and _is_recorded(name, types) and len(rest) < SERIES:
            rest.append(line)
    return _parse_lines((findings + rest)[:SERIES], list)


def read_gpu_metrics(text: str) -> list[MetricSample]:
    """Return the samples of an exporter's page that tell of GPUs, with the labels that tell of
    which; at most GPU_SERIES."""
    lines = [
        line
        for line in text.splitlines()
        if len(line) <= _LINE_CHARS and find_meaning(_read_name(line)) is not None
    ]
    return _parse_lines(lines[:GPU_SERIES], select_gpu_labels)


def _read_name(line: str) -> str:
    """Return the name of the series that a line is of; "" where it is of none."""
    sample = _SAMPLE.match(line)
    return sample[1] if sample is not None else ""


def _parse_lines(
    lines: Iterable[str], select: Callable[[Iterable[_Label]], list[_Label] | None]
) -> list[MetricSample]:
    """Return the samples of lines, each with the labels that `select` keeps; None: without it."""
    samples = []
    for line in lines:
        with contextlib.suppress(ValueError, IndexError, KeyError):
            for family in text_string_to_metric_families(line + "\n"):
                for sample in family.samples:
                    labels = select(sample.labels.items())
                    document = "" if labels is None else _as_json(dict(labels))
                    if 0 < len(document) <= _LABELS_CHARS:
                        samples.append(MetricSample(sample.name, document, float(sample.value)))
    return samples


def _is_recorded(name: str, types: dict[str, str]) -> bool:
    if name.endswith(_PASSED_OVER) or name.startswith(_PASSED_OVER_FAMILIES):
        return False
    if types.get(name) == "gauge":
        return not name.endswith("_total")  # which is the mark of a counter, and these may fall
    if "counter" in (types.get(name), types.get(name.removesuffix("_total"))):
        return True
    base, _, last = name.rpartition("_")
    return last in ("sum", "count") and types.get(base) in ("histogram", "summary")


def _as_json(labels: dict[str, str]) -> str:
    return msgspec.json.encode(dict(sorted(labels.items()))).decode()


class Observer:
    """Reads `urls`, each the whole URL of a server's /metrics, while its block lasts. Raises
    nothing.

    The place of a URL is the server's number, of the target's URLs or of the workers behind a
    router; None where one has no metrics. `exporters`: pages that tell of GPUs, as exporter() gives
    them; they get none of the `headers`, which are the servers'. Times count from `origin_ns`
    (CLOCK_MONOTONIC), the run's. `notes` says, one line each, what could not be had.
    """

    def __init__(
        self,
        folder: Path,
        urls: Sequence[str | None],
        origin_ns: int,
        *,
        headers: Iterable[tuple[str, str]] = (),
        proxy: str | None = None,
        interval_s: float = INTERVAL_S,
        flush_s: float = FLUSH_S,
        gpus: Gpus | None = None,
        exporters: Sequence[str] = (),
    ) -> None:
        self.notes: list[str] = []
        self._folder = folder
        self._origin_ns = origin_ns
        self._headers = list(headers)
        self._keys = keys_in(self._headers)
        self._proxy = proxy
        self._interval_s = interval_s
        self._flush_s = flush_s
        self._lock = threading.Lock()
        self._rows: list[tuple[float, int, str, str, float]] = []
        self._file: Any = None
        self._keeps = True
        self._flushed_s = time.monotonic()
        self._closing = False
        pages = [
            *enumerate(urls),
            *((POOLS.get(role, GPUS), url) for role, url in map(split_pool, exporters)),
        ]
        self._wake: list[threading.Event] = []
        self._threads = [
            self._thread(self._watch, number, url) for number, url in pages if url is not None
        ]
        if gpus is not None:
            self._threads.append(self._thread(self._watch_gpus, gpus))

    def __enter__(self) -> Observer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take a last look at every server, then server.parquet."""
        self._closing = True
        self.look()
        deadline = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            self._flush()
            if self._file is not None:
                with contextlib.suppress(OSError):
                    self._file.close()
                run_folder.seal_server(self._folder)
            self._keeps = False  # a thread that hangs adds nothing any more

    def look(self) -> None:
        """Have every server read now, as where a cell begins or ends. Does not wait for it."""
        for event in self._wake:
            event.set()

    def _thread(self, watch: Callable[..., None], *watched: Any) -> threading.Thread:
        """Return a daemon: an interpreter that ends does not wait for a server that hangs."""
        wake = threading.Event()
        self._wake.append(wake)
        return threading.Thread(target=watch, args=(wake, *watched), daemon=True, name="observer")

    def _watch(self, wake: threading.Event, number: int, url: str) -> None:
        failed: str | None = None
        pages_of = "of GPUs" if number < 0 else "of the engine"
        try:
            headers = self._headers if number >= 0 else ()
            with http_client(url, headers, self._proxy, _TIMEOUT_S) as http:
                while True:
                    closing = self._closing
                    wake.clear()
                    begun_s = time.monotonic()
                    reason = self._read(http, number, url)
                    if reason is not None and failed is None:
                        self.notes.append(
                            f"{url}: {reason}; its metrics {pages_of} are missing meanwhile"
                        )
                    failed = reason
                    if closing:
                        return
                    took_s = time.monotonic() - begun_s
                    wake.wait(
                        max(self._interval_s - took_s, _REST * took_s if reason is None else 1.0)
                    )
        except Exception as error:  # a bystander: whatever it is, the run goes on
            self.notes.append(f"{url}: no longer read ({type(error).__name__})")

    def _watch_gpus(self, wake: threading.Event, gpus: Gpus) -> None:
        try:
            while True:
                closing = self._closing
                wake.clear()
                begun_ns = time.monotonic_ns()
                samples = [
                    MetricSample(reading.name, _as_json({"gpu": str(reading.gpu)}), reading.value)
                    for reading in gpus.read()
                ]
                self._keep(
                    ((begun_ns + time.monotonic_ns()) / 2 - self._origin_ns) * 1e-9, GPUS, samples
                )
                if closing:
                    return
                wake.wait(self._interval_s)
        except Exception as error:  # a bystander, as above
            self.notes.append(f"GPUs: no longer read ({type(error).__name__})")

    def _read(self, http: httpx.Client, number: int, url: str) -> str | None:
        """Return one look at a server; why there is none of it, if so."""
        begun_ns = time.monotonic_ns()
        body = _page(http, url)
        if isinstance(body, str):
            return body
        # The server counted somewhere between the question and its answer.
        time_s = ((begun_ns + time.monotonic_ns()) / 2 - self._origin_ns) * 1e-9
        text = blank_bytes(body, self._keys).decode("utf-8", "replace")
        samples = read_gpu_metrics(text) if number < 0 else read_metrics(text)
        self._keep(time_s, number, samples)
        return None if samples else "no metrics in the answer"

    def _keep(self, time_s: float, number: int, samples: list[MetricSample]) -> None:
        with self._lock:
            if self._keeps:
                self._rows += [(time_s, number, *sample) for sample in samples]
                if time.monotonic() - self._flushed_s >= self._flush_s:
                    self._flush()

    def _flush(self) -> None:
        """Append what was read to server.arrow. A full disk ends the keeping, not the run."""
        import pyarrow as pa

        self._flushed_s = time.monotonic()
        if not self._rows:
            return
        schema = run_folder.server_schema()
        columns = [
            pa.array(column, field.type)
            for column, field in zip(zip(*self._rows, strict=True), schema, strict=True)
        ]
        self._rows = []
        message = pa.RecordBatch.from_arrays(columns, schema=schema).serialize()
        try:
            if self._file is None:
                self._file = (self._folder / "server.arrow").open("wb", buffering=0)
                self._file.write(schema.serialize())
            self._file.write(message)
        except OSError as error:
            self.notes.append(
                f"{self._folder / 'server.arrow'}: {error.strerror}; the servers' metrics end here"
            )
            self._keeps = False


def _page(http: httpx.Client, url: str) -> bytes | str:
    """Return a page's body; a text where there is none of it: why."""
    try:
        answer, body, whole = send(
            http, http.build_request("GET", url), limit_s=_TIMEOUT_S, max_bytes=_BODY_BYTES
        )
    except httpx.ReadTimeout:
        return f"no whole answer within {_TIMEOUT_S:g} s"
    except httpx.DecodingError as error:
        return excerpt(str(error))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"no answer ({type(error).__name__})"
    if answer.status_code != 200:
        return f"HTTP {answer.status_code}"
    return body if whole else f"more than {_BODY_BYTES} bytes"


def exporter(named: str, proxy: str | None = None) -> str:
    """Return the page of an exporter of GPUs, from `node:9400` or a whole URL, where it tells of
    any; after `prefill=` or `decode=`, where all its GPUs are that pool's.

    Raises InputError where no such page is there, or nothing on it that is known of GPUs.
    """
    role, url = split_pool(named)
    page, text = _named_page("--gpu-metrics", url, "node:9400", (), proxy)
    if not read_gpu_metrics(text):
        raise InputError(
            f"--gpu-metrics {shown(page)}: no known GPU metrics there; name DCGM's exporter, AMD's "
            "device-metrics-exporter or nvidia_gpu_exporter"
        )
    return f"{role}={page}" if role else page


def worker_page(url: str, headers: Iterable[tuple[str, str]], proxy: str | None = None) -> str:
    """Return the page of metrics of an engine behind a router, from `node:8101` or a whole URL.

    Raises InputError where no such page is there, or no engine's metrics on it.
    """
    page, text = _named_page("--worker-metrics", url, "node:8101", headers, proxy)
    if not any(sample.name in NAMES for sample in read_metrics(text)):
        raise InputError(
            f"--worker-metrics {shown(page)}: no engine's metrics there; name workers, not the"
            " router"
        )
    return page


def _named_page(
    flag: str, url: str, example: str, headers: Iterable[tuple[str, str]], proxy: str | None
) -> tuple[str, str]:
    """Return the whole URL of a page of metrics that a flag names, and its text."""
    try:
        parts = check_url(url if "://" in url else f"http://{url}")
    except InputError:
        # It might be told with a password.
        raise InputError(
            f"{flag}: this URL cannot be used; write {example} or http://{example}/metrics, without"
            " a name or password"
        ) from None
    page = parts.geturl() if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/metrics"
    with http_client(page, headers, proxy, _TIMEOUT_S) as http:
        body = _page(http, page)
    if isinstance(body, str):
        raise InputError(f"{flag} {shown(page)}: {body}; name one that runs, e.g. {example}")
    return page, body.decode("utf-8", "replace")
