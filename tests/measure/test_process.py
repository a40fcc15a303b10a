import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from conftest import eventually, gone
from loadstone.core.errors import TargetError
from loadstone.measure.engines import process
from loadstone.measure.engines.launch import serve
from loadstone.measure.engines.process import ServerProcess, container_stop, free_port

SERVE = (
    "import http.server, sys; "
    "h = http.server.SimpleHTTPRequestHandler; "
    "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), h).serve_forever()"
)
SLEEP = "import time; time.sleep(600)"


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def written_pid(path: Path) -> int:
    assert eventually(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


@pytest.mark.process
def test_a_server_is_ready_and_then_gone(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = tmp_path / "made" / "server.log"
    with serve(
        python(SERVE, str(port)), "x", log_path=log, url=url, ready="/", timeout_s=20
    ) as server:
        assert server.url == url
        assert server.exit_code() is None
        assert os.getpgid(server.pid) == server.pid  # Ctrl-C in the owner's terminal goes elsewhere
        assert os.getsid(server.pid) == os.getsid(0)  # and the scheduler counts it with the client
    assert gone(server.pid)
    assert server.exit_code() == 128 + signal.SIGTERM
    server.stop()
    assert "GET / HTTP" in log.read_text()


@pytest.mark.process
def test_the_environment_is_the_one_given(tmp_path: Path) -> None:
    code = "import os; print(os.environ.get('COLOUR'), os.environ.get('HOME'))"
    with ServerProcess(python(code), log_path=tmp_path / "log", env={"COLOUR": "blue"}) as server:
        assert eventually(lambda: server.exit_code() == 0)
    assert (tmp_path / "log").read_text() == "blue None\n"


@pytest.mark.process
def test_a_server_that_ends_at_once_is_one_line_with_the_end_of_its_log(tmp_path: Path) -> None:
    code = "import sys; print('starting'); print(); print('no   such model', file=sys.stderr, flush=True); sys.exit(3)"
    with pytest.raises(TargetError) as caught:
        serve(
            python(code),
            "x",
            log_path=tmp_path / "server.log",
            url=f"http://127.0.0.1:{free_port()}",
        )
    message = str(caught.value)
    assert "x ended with exit code 3" in message
    assert "no such model" in message
    assert str(tmp_path / "server.log") in message
    assert "\n" not in message


@pytest.mark.process
def test_another_server_on_the_port_is_not_taken_for_this_one(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}"
    with (
        serve(
            python(SERVE, str(port)),
            "x",
            log_path=tmp_path / "first",
            url=url,
            ready="/",
            timeout_s=20,
        ),
        pytest.raises(TargetError, match="the port is in use"),
    ):
        serve(python(SLEEP), "y", log_path=tmp_path / "second", url=url, ready="/")


@pytest.mark.process
def test_a_server_that_never_answers_is_reported_after_the_time_given(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(TargetError, match=r"not ready after .* it wrote nothing"):
        serve(python(SLEEP), "x", log_path=tmp_path / "log", url=url, timeout_s=0.2)


@pytest.mark.process
def test_a_command_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="cannot start no-such-server: No such file or directory"):
        ServerProcess(["no-such-server"], log_path=tmp_path / "log")


@pytest.mark.process
def test_stop_also_ends_what_the_server_started_and_what_ignores_sigterm(tmp_path: Path) -> None:
    child = "import os, sys, pathlib, time; pathlib.Path(sys.argv[1]).write_text(f'{os.getpid()}\\n'); time.sleep(600)"
    code = (
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
    )
    pid_file = tmp_path / "pid"
    with ServerProcess(python(code, child, str(pid_file)), log_path=tmp_path / "log") as server:
        grandchild = written_pid(pid_file)
    assert gone(server.pid)
    assert eventually(lambda: gone(grandchild))
    assert server.exit_code() == 128 + signal.SIGKILL


@pytest.mark.process
@pytest.mark.parametrize(
    "fork", [False, True], ids=["alone", "with a fork that keeps the pipe open"]
)
def test_kill_9_of_the_owner_ends_the_server(tmp_path: Path, fork: bool) -> None:
    owner_code = textwrap.dedent(
        """
        import os, sys, time
        from pathlib import Path
        from loadstone.measure.engines.process import ServerProcess
        folder = Path(sys.argv[1])
        server = ServerProcess([sys.executable, "-c", sys.argv[2]], log_path=folder / "log")
        if sys.argv[3] == "True":
            forked = os.fork()
            if forked == 0:
                time.sleep(600)
            (folder / "forked").write_text(f"{forked}\\n")
        (folder / "pid").write_text(f"{server.pid}\\n")
        time.sleep(600)
        """
    )
    with subprocess.Popen(python(owner_code, str(tmp_path), SLEEP, str(fork))) as owner:
        pid = written_pid(tmp_path / "pid")
        assert not gone(pid)
        owner.kill()
    try:
        assert eventually(lambda: gone(pid))
    finally:
        if fork:
            with contextlib.suppress(ProcessLookupError):
                os.kill(written_pid(tmp_path / "forked"), signal.SIGKILL)


AWAY = """
import os, signal, sys, time
if not os.fork():
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if away := os.fork():
        with open(sys.argv[1], "w") as file:
            print(away, file=file)
        os._exit(0)
    time.sleep(600)
os.wait()
"""


@pytest.mark.process
@pytest.mark.parametrize("then", ["", "time.sleep(600)"])
def test_what_the_server_sent_away_from_itself_ends_too(tmp_path: Path, then: str) -> None:
    pid_path = tmp_path / "pid"
    with ServerProcess(python(AWAY + then, str(pid_path)), log_path=tmp_path / "log") as server:
        pid = written_pid(pid_path)
        assert eventually(lambda: server.exit_code() == 0) if not then else not gone(pid)
    assert eventually(lambda: gone(pid))


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_strikes_its_guard_ends_all_the_same(
    tmp_path: Path, number: signal.Signals
) -> None:
    code = f"import os, time; os.kill(os.getppid(), {int(number)}); time.sleep(600)"
    server = ServerProcess(python(code), log_path=tmp_path / "log")
    if number == signal.SIGKILL:
        assert eventually(lambda: server.exit_code() is not None)
    server.stop()
    server.stop()
    assert eventually(lambda: gone(server.pid))


def test_a_log_without_end_keeps_its_beginning_and_its_end(
    tmp_path: Path,
) -> None:
    log = (tmp_path / "log").open("a+b")
    limits = {"max_bytes": 1000, "begin_bytes": 100, "end_bytes": 50}
    with log:
        os.write(log.fileno(), b"a" * 1000)
        process.bound_log(log.fileno(), **limits)
        assert (tmp_path / "log").stat().st_size == 1000
        os.write(log.fileno(), b"z" * 60)
        process.bound_log(log.fileno(), **limits)
        os.write(log.fileno(), b"more")
    assert (tmp_path / "log").read_bytes() == b"a" * 100 + process.CUT + b"z" * 50 + b"more"


@pytest.mark.process
def test_the_log_of_a_server_is_bounded(tmp_path: Path) -> None:
    code = "import os, time\nfor _ in range(160): os.write(2, bytes(1 << 20))\ntime.sleep(600)"
    with ServerProcess(python(code), log_path=tmp_path / "log"):
        assert eventually(lambda: (tmp_path / "log").stat().st_size > 100 << 20)
        assert eventually(lambda: (tmp_path / "log").stat().st_size < 80 << 20)


@pytest.mark.process
@pytest.mark.parametrize("kill", [False, True])
def test_a_container_is_stopped_also_where_what_started_it_was_killed(
    tmp_path: Path, kill: bool
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(
        f'#!/bin/sh\n[ "$1" = run ] && exec sleep 600\necho "$@" >{tmp_path}/stopped\n'
    )
    docker.chmod(0o755)
    with ServerProcess(
        [str(docker), "run", "--name", "engine", "image"], log_path=tmp_path / "log"
    ) as server:
        if kill:
            os.kill(server._guard.pid, signal.SIGKILL)
    assert (tmp_path / "stopped").read_text() == "stop -t 5 engine\n"
    assert container_stop(["/bin/echo", "run", "--name", "engine"]) == ()
    assert container_stop(["podman", "run", "--name"]) == ()
