"""`python -m loadstone.measure.simulated_server`: the process of the timing server."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING, get_args

from loadstone.core.errors import InputError
from loadstone.measure.client.clock import new_event_loop
from loadstone.measure.simulated_server.http import Connection, Metrics, Server
from loadstone.measure.simulated_server.law import DEFAULT_MAX_MODEL_LEN, Law, Options, Usage
from loadstone.measure.simulated_server.stream import Scheduler

if TYPE_CHECKING:
    from loadstone.measure.simulated_server.engine import Engine


async def _serve(args: argparse.Namespace, law: Law, options: Options) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if args.with_parent:
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # errors go to a terminal from which a group of its own is kept
        loop.add_reader(0, lambda: None if os.read(0, 4096) else ended.set())
    engine = None
    if args.deployment is not None:
        engine, options = _engine(loop, args, options)
    server = Server(law if engine is None else None, options, Scheduler(loop), Metrics(options.model), {}, engine)
    listener = await loop.create_server(lambda: Connection(server), args.host, args.port, backlog=4096)
    bound = listener.sockets[0].getsockname()
    print(json.dumps({"url": f"http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}"}), flush=True)
    gc.collect()
    gc.freeze()
    gc.disable()
    await ended.wait()
    listener.close()
    server.scheduler.close()
    if engine is not None:
        engine.close()


def _engine(loop: asyncio.AbstractEventLoop, args: argparse.Namespace, options: Options) -> tuple[Engine, Options]:
    """A deployment's engine, and the form of its answers. Raises InputError."""
    from loadstone.catalogue.deployment.shorthand import parse_deployment
    from loadstone.measure.simulated_server.engine import Engine
    from loadstone.predict.simulator.fleet import fleet_of, longest_request

    deployed = parse_deployment(args.deployment)
    fleet = fleet_of(deployed, acceptance=args.acceptance, profile=args.profile)
    longest, _ = longest_request(deployed, fleet.policy)
    return Engine(loop, fleet), options._replace(model=deployed.model.name, max_model_len=longest)


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM; the exit code."""
    about = "Stream tokens over OpenAI-compatible HTTP at times known beforehand."
    parser = argparse.ArgumentParser("python -m loadstone.measure.simulated_server", description=about)
    parser.add_argument("--law", default=str(Law()), help="ttft=50ms,itl=10ms[,per_input_token=20us]")
    parser.add_argument("--deployment", help="instead of a law, e.g. llama-3.1-70b@8xh200")
    parser.add_argument("--acceptance", type=float, default=None, help="of guessed tokens")
    parser.add_argument("--profile", default=None, help="performance profile that calibrate made")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any; the line on stdout says which")
    parser.add_argument("--tokens-per-event", type=int, default=1, metavar="K")
    parser.add_argument("--usage", choices=get_args(Usage), default="asked")
    parser.add_argument("--no-done", action="store_true", help="send no [DONE]")
    parser.add_argument("--max-model-len", type=int, default=DEFAULT_MAX_MODEL_LEN, metavar="TOKENS")
    parser.add_argument("--keep-truth", action="store_true", help="offer GET /truth: when each event was written")
    parser.add_argument("--with-parent", action="store_true", help="end when stdin does")
    args = parser.parse_args(arguments)
    try:
        law = Law.parse(args.law, "--law")
    except InputError as error:
        parser.error(str(error))
    if args.tokens_per_event < 1 or args.max_model_len < 1:
        parser.error("--tokens-per-event and --max-model-len must be at least 1")
    if not 0 <= args.port < 1 << 16:
        return _refuse(f"--port {args.port}: must be 0 (any) to 65535")
    with contextlib.suppress(ValueError, OSError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    options = Options(args.tokens_per_event, args.usage, not args.no_done, args.max_model_len, args.keep_truth)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        try:
            runner.run(_serve(args, law, options))
        except InputError as error:
            return _refuse(str(error))
        except BrokenPipeError:
            return 0  # who waited to be told where it listens has gone
        except (OSError, OverflowError) as error:
            return _refuse(f"cannot listen on {args.host}:{args.port}: {error}; give another --host or --port")
    return 0


def _refuse(what: str) -> int:
    print(f"loadstone: {what}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
