"""The timing server: OpenAI-compatible HTTP, and SGLang's /generate, that stream tokens at times
known beforehand.

It is the target of `loadstone bench` when none is given, and the bench on which the client itself
is measured. It therefore costs little (it shares the host with the client) and keeps time: one heap
of streams by due time, one kernel timer, times absolute from the arrival of the request so that
nothing drifts. The bytes follow vLLM 0.32, and SGLang 0.5.

Run `loadstone serve-sim ttft=30ms,itl=5ms`, or `with start(FixedLatency()) as server:` and
`server.url`.

Request header `X-Loadstone-Truth: 1` puts an SSE comment `: t=<CLOCK_MONOTONIC ns at the write>`
before each event. With `keep_truth` the server keeps those times instead, and streams are the bytes
they always are: GET /truth answers `{"<X-Request-Id>": [ns when the request was read, ns at the
write of each event with text, …], …}`, and forgets them.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from loadstone.core.errors import LoadstoneError
from loadstone.measure.simulated_server.settings import MODEL, FixedLatency, Settings

__all__ = ["MODEL", "FixedLatency", "Settings", "TimingServer", "start"]


class TimingServer(NamedTuple):
    """A timing server that runs in another process."""

    url: str
    pid: int


@contextlib.contextmanager
def start(latency: FixedLatency | str, **others: Any) -> Iterator[TimingServer]:
    """Run a timing server as a child process until the block ends, or this process does.

    `latency`: when tokens are due; or the shorthand of a deployment, as `llama-3.1-70b@8xh200`,
    whose scheduler decides. `others`: fields of `settings.Settings`, which raises InputError.
    Raises LoadstoneError if the server does not come up; why is on stderr.
    """
    others["latency" if isinstance(latency, FixedLatency) else "deployment"] = latency
    settings = Settings(with_parent=True, **others)
    argument = msgspec.json.encode(settings).decode()
    command = [sys.executable, "-P", "-m", "loadstone.measure.simulated_server", argument]
    pipe = subprocess.PIPE
    # A group of its own keeps Ctrl-C from it; in this session it shares processors with the client
    # as with a sibling.
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, process_group=0) as process:
        try:
            line = process.stdout.readline() if process.stdout else b""
            if not line:
                raise LoadstoneError("the timing server did not start; stderr says why")
            yield TimingServer(json.loads(line)["url"], process.pid)
        finally:
            process.kill()  # it holds nothing worth saving
