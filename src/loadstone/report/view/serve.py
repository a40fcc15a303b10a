"""`loadstone view`: the page on a socket, until it is interrupted."""

import ipaddress
import os
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from loadstone.core.errors import InputError
from loadstone.report.view.run_list import RunList

NICE = 10
"""The client that measures goes before the page that watches, where both share a host."""


def serve(
    runs: Sequence[Path],
    *,
    host: str,
    port: int,
    token: bool,
    names: Sequence[str],
    on_ready: Callable[[str], None],
) -> None:
    """Serve the page until SIGINT or SIGTERM. `on_ready` gets the URL to open, once.

    `token`: ask for one on loopback too; elsewhere it is always asked for. Raises InputError, one
    line.
    """
    import uvicorn

    from loadstone.report.view.app import ViewApp
    from loadstone.report.view.connection import BrowserConnection
    from loadstone.report.view.guard import Guard

    run_list = RunList(runs)
    listener = listen(host, port)
    address, bound = listener.getsockname()[:2]
    loopback = ipaddress.ip_address(address).is_loopback
    secret = None if loopback and not token else secrets.token_urlsafe(32)
    callers = [*names, host, *([] if loopback else [socket.gethostname(), socket.getfqdn()])]
    # Cookies are not kept apart by port: two pages on one host must not overwrite each other's.
    guarded = Guard(
        ViewApp(run_list).app(), names=callers, token=secret, cookie=f"loadstone-{bound}"
    )
    server = uvicorn.Server(
        uvicorn.Config(
            guarded,
            http=BrowserConnection,
            log_level="critical",  # whoever sends nonsense would fill the terminal
            access_log=False,  # it would have the token in it
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
    )
    os.nice(NICE)
    on_ready(url_of(host, address, bound, secret))
    if not loopback:
        print(
            "The connection is not encrypted: on a network others share, use an SSH tunnel.",
            file=sys.stderr,
        )
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass  # how this ends
    finally:
        listener.close()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises InputError."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = addresses[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except (OSError, OverflowError, UnicodeError) as error:
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or error
        raise InputError(
            f"--host {host} --port {port}: cannot listen there ({reason}); --port 0 takes any"
        ) from error


def url_of(host: str, address: str, port: int, token: str | None) -> str:
    """Give the URL to open: by this host's name if all addresses are listened on."""
    everywhere = ipaddress.ip_address(address).is_unspecified
    name = socket.gethostname() if everywhere else host
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")
