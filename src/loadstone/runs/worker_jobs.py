"""The job of each worker: where the servers are, what to send, and how long to wait."""

import contextlib
import socket
import time
from typing import Any
from urllib.parse import SplitResult

import msgspec

from loadstone.core.errors import TargetError
from loadstone.core.plan import Plan
from loadstone.core.version import __version__
from loadstone.engines.table import adapter_field
from loadstone.measure.client.pool import choose_workers
from loadstone.measure.client.protocol import Address, ClassWire, Destination, Job
from loadstone.measure.engines.attach import priority_sign_of
from loadstone.measure.engines.http import check_url
from loadstone.measure.wire.request import make_body, make_path
from loadstone.measure.wire.wire import find_wire
from loadstone.runs.adapters import name_adapter
from loadstone.runs.execution import OpenRun
from loadstone.runs.preflight import ProbedServer, class_headers
from loadstone.workload.options import ClientOptions, Options
from loadstone.workload.request import RequestSpec, Route

_HELD_BYTES = 256 * 1024 * 1024
"""Raw bytes that all streams together may hold undecoded, about."""

_TRIAL_S = 2.0


def route_of(client: ClientOptions, plan: Plan) -> Route:
    return client.route or ("sticky" if plan.has_sessions else "round-robin")


def _destination(
    client: ClientOptions,
    parts: SplitResult,
    path: str,
    headers: list[tuple[str, str]],
    keys: list[str],
) -> Destination:
    """Describe how workers reach one server, and the keys that it may repeat. Raises
    TargetError."""
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    via = check_url(client.proxy) if client.proxy is not None else None
    host_name, host_port = (parts.hostname, port) if via is None else (via.hostname, via.port or 80)
    family, sockaddr = _address(host_name or "", host_port)
    # A proxy forwards plain HTTP, named whole in the request line; for TLS it is asked for a
    # tunnel.
    forward = f"{parts.scheme}://{parts.netloc}" if via is not None and not tls else ""
    bracketed = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname  # IPv6
    given_names = {name.lower() for name, _ in headers}
    fixed = [
        ("Host", parts.netloc),
        ("User-Agent", f"loadstone/{__version__}"),
        ("Content-Type", "application/json"),
        ("Accept", "text/event-stream" if client.stream else "application/json"),
        # A compressed stream would be bunched by the compressor.
        ("Accept-Encoding", "identity"),
    ]
    tls_name = parts.hostname if tls else None
    tunnel = f"{bracketed}:{port}" if via is not None and tls else None
    return Destination(
        address=Address(family, sockaddr, tls_name, tunnel),
        request_line=f"POST {forward}{path} HTTP/1.1",
        headers=[(name, value) for name, value in fixed if name.lower() not in given_names]
        + headers,
        secrets=keys,
    )


def _address(name: str, port: int) -> tuple[int, tuple[Any, ...]]:
    """Resolve a host to address family and socket address; of several, the first that takes a
    connection.

    `localhost` often means ::1 before 127.0.0.1, and many servers listen on the latter alone.
    Raises TargetError.
    """
    try:
        addresses = [
            (int(entry[0]), entry[4])
            for entry in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        ]
    except OSError as error:
        raise TargetError(
            f"{name}: host not found ({error.strerror or error}); correct the URL"
        ) from error
    for family, sockaddr in addresses if len(addresses) > 1 else ():
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.settimeout(_TRIAL_S)
            trial.connect(sockaddr)
            return family, sockaddr
    return addresses[0]


def graded_request(request: RequestSpec) -> RequestSpec:
    """Return what requests whose answers are graded have in common: they end by themselves, in
    whatever form, and always say their temperature, since a server's own is seldom 0.
    """
    sampling = msgspec.structs.replace(
        request.sampling, temperature=request.sampling.temperature or 0.0, stop=()
    )
    return msgspec.structs.replace(
        request,
        ignore_eos=False,
        min_tokens=False,
        structured=None,
        spelling=None,
        sampling=sampling,
    )


def class_wires(plan: Plan, server: ProbedServer) -> list[ClassWire]:
    """Write the bodies and headers of each class of traffic. Raises InputError where one has no
    key."""
    request, sign = server.request, priority_sign_of(server.target)
    numbers = {name: number for number, name in enumerate(plan.adapter_names, start=1)}
    field = adapter_field(server.target.engine)
    wires = []
    for of_class, headers in zip(plan.classes, class_headers(plan), strict=True):
        fields: dict[str, Any] = {}
        if of_class.priority is not None:
            fields["priority"] = sign * of_class.priority
        spec = msgspec.structs.replace(
            request, model=of_class.model or request.model, extra=fields | request.extra
        )
        adapters = {
            numbers[name]: make_body(
                name_adapter(spec, field, of_class, name, server.adapters[name])
            )
            for name in of_class.adapter_names
        }
        wires.append(ClassWire(body=make_body(spec), headers=headers, adapters=adapters))
    return wires


def jobs(options: Options, run: OpenRun, server: ProbedServer) -> list[Job]:
    """Write a job for each worker; times of the run count from now. Raises
    TargetError, InputError."""
    client, plan, info, request = options.client, run.plan, run.info, server.request
    streams = max((load.value for load in plan.cells if not load.is_open), default=1000)
    path = make_path(request)
    given = {name.lower() for name, _ in server.headers}
    fixed = find_wire(request.endpoint).headers
    headers = [*server.headers, *(header for header in fixed if header[0] not in given)]
    destinations = [
        _destination(client, parts, base_path + path, headers, server.keys)
        for parts, base_path in server.addresses
    ]
    graded, classes = make_body(graded_request(request)), class_wires(plan, server)
    origin_ns = time.monotonic_ns()
    return [
        Job(
            folder=str(run.folder),
            worker=worker,
            origin_ns=origin_ns,
            destinations=destinations,
            route=route_of(client, plan),
            endpoint=request.endpoint,
            streams=request.stream,
            body=make_body(request),
            graded_body=graded,
            classes=classes,
            stored=request.stored,
            vocabulary=server.vocabulary,
            salt=info.salt,
            request_tag=f"{info.salt or info.run_id}-",
            traced_as=info.run_id if client.traceparent else None,
            timeouts=client.timeouts,
            grace_s=options.load.grace_s,
            held_limit_bytes=int(min(65_536, max(2048, _HELD_BYTES / streams))),
            watched=options.early_end.stop_when is not None,
            packets=client.clock == "packets",
            ray=client.ray,
        )
        for worker in range(client.workers or choose_workers(plan.cells))
    ]
