"""`python -m loadstone.measure.simulated_server SETTINGS`: the process of a timing server; SETTINGS
are JSON."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING

import msgspec

from loadstone.catalogue.find import find_visual
from loadstone.core.errors import InputError
from loadstone.measure.client.clock import new_event_loop
from loadstone.measure.simulated_server.http import ServerConnection, ServerCounters, ServerState
from loadstone.measure.simulated_server.settings import Settings
from loadstone.measure.simulated_server.stream import WriteScheduler
from loadstone.measure.wire.wire import list_wires

if TYPE_CHECKING:
    from loadstone.catalogue.visual.visual import Visual
    from loadstone.predict.simulator.fleet import Fleet


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or Ctrl-C; its URL is the one line on stdout. Raises InputError, before
    it listens."""
    fleet = None
    visual = find_visual(settings.vision)[1] if settings.vision else None
    if settings.deployment:
        from loadstone.catalogue.deployment.shorthand import parse_deployment
        from loadstone.engines import rules_of
        from loadstone.predict.simulator.fleet import fleet_of, longest_request

        deployed = parse_deployment(settings.deployment)
        visual = visual or rules_of(deployed.decoder).visual
        fleet = fleet_of(deployed, acceptance=settings.acceptance, profile=settings.profile)
        longest, _ = longest_request(deployed, fleet.policy)
        settings = msgspec.structs.replace(
            settings,
            deployment=deployed.name,
            model=deployed.model.name,
            adapters=tuple(rules_of(deployed.decoder).adapter_paths),
            max_model_len=longest,
        )
    with contextlib.suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # Whoever waited to be told where it listens may have gone.
    with (
        asyncio.Runner(loop_factory=new_event_loop) as runner,
        contextlib.suppress(BrokenPipeError),
    ):
        runner.run(_serve(settings, fleet, visual))


async def _serve(settings: Settings, fleet: Fleet | None, visual: Visual | None) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if settings.with_parent:
        signal.signal(
            signal.SIGTTOU, signal.SIG_IGN
        )  # errors go to a terminal from which a group of its own is kept
        loop.add_reader(0, lambda: None if os.read(0, 4096) else ended.set())
    engine = None
    if fleet is not None:
        from loadstone.measure.simulated_server.engine import RealTimeEngine

        engine = RealTimeEngine(loop, fleet)
    wires = {
        wire.simulated.path: wire.simulated for wire in list_wires().values() if wire.simulated
    }
    server = ServerState(
        settings,
        WriteScheduler(loop),
        ServerCounters(settings.model),
        wires,
        {},
        {},
        engine,
        visual,
    )
    try:
        listener = await loop.create_server(
            lambda: ServerConnection(server), settings.host, settings.port, backlog=4096
        )
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"cannot listen on {settings.host}:{settings.port}: {error}; give another --host or"
            " --port"
        ) from error
    host, port = listener.sockets[0].getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    print(json.dumps({"url": f"http://{host}:{port}"}), flush=True)
    gc.collect()
    gc.freeze()
    gc.disable()
    await ended.wait()
    listener.close()
    server.scheduler.close()
    if engine is not None:
        engine.close()


if __name__ == "__main__":
    try:
        serve(msgspec.json.decode(sys.argv[1], type=Settings))
    except InputError as error:
        print(f"loadstone: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
