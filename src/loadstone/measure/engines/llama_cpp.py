"""Starts llama.cpp's `llama-server`: found, or fetched where Debian packages can be had, and
launched with a tiny model.

The embedded real engine: a production server with slots, continuous batching and a prompt cache,
ready in a fraction of a second on one core. Its answers are random words; its protocol, queueing
and timing are real.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadstone.core.errors import InputError
from loadstone.core.files import TemporaryFolder, explain_os_error
from loadstone.core.host import cache_folder
from loadstone.engines.llama_cpp import LlamaCpp
from loadstone.measure.engines import tiny_gguf
from loadstone.measure.engines.launch import serve
from loadstone.measure.engines.process import ServerProcess, free_port

_INSTALL = (
    "put llama-server on PATH (brew install llama.cpp, or a build from the llama.cpp releases page"
    " on GitHub)"
)
_READY_TIMEOUT_S = 120.0
_APT_TIMEOUT_S = 600.0

# The first Debian release with llama.cpp. Its programs come with their own loader and C library, so
# that they run on older releases too.
_SUITE = "forky"
_PACKAGES = (
    *("llama.cpp-tools", "libllama0", "libggml0"),
    *("libc6", "libgcc-s1", "libgomp1", "libstdc++6", "libssl3t64", "libzstd1", "zlib1g"),
)
_LIBRARIES = "root/usr/lib/x86_64-linux-gnu"
_WRAPPER = f"""#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
lib=$here/{_LIBRARIES}
exec "$lib/ld-linux-x86-64.so.2" --library-path "$lib:$lib/ggml:$lib/llama" \\
    "$here/root/usr/bin/llama-server" "$@"
"""


def find() -> Path | None:
    """Return the `llama-server` on PATH, else the one that `fetch` left in the cache folder, else
    None."""
    on_path = shutil.which("llama-server")
    if on_path is not None:
        return Path(on_path)
    cached = cache_folder() / LlamaCpp.name / "llama-server"
    return cached if cached.is_file() else None


def fetch(lay_out_apt: Callable[[Path], dict[str, str]] | None = None) -> Path:
    """Unpack Debian's llama.cpp (12 MB to download, 51 MB on disk) into the cache folder; no root,
    nothing installed.

    The packages come from the archive that this machine's apt already uses, and are checked against
    Debian's keys. Safe to run from several processes at once. Raises InputError, with the remedy,
    where this cannot work. `lay_out_apt`: makes the apt that downloads them.
    """
    tools = shutil.which("apt-get"), shutil.which("dpkg")
    if platform.machine() != "x86_64" or None in tools:
        raise InputError(
            f"no llama-server here, and only Debian on x86-64 can fetch it: {_INSTALL}"
        )
    folder = cache_folder() / LlamaCpp.name
    with explain_os_error(f"llama-server cannot be stored in {folder}", "set XDG_CACHE_HOME"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFolder(".llama.cpp-", folder.parent) as work:
            unpacked = work / LlamaCpp.name
            _unpack(work / "apt", unpacked, (lay_out_apt or private_apt)(work / "apt"))
            try:
                unpacked.rename(folder)
            except OSError:  # a folder is never renamed onto a full one: another process was first
                if not (folder / "llama-server").is_file():
                    raise
    return folder / "llama-server"


def launch(
    model: Path | None = None,
    *,
    log_path: Path,
    slots: int = 8,
    context_tokens: int = 4096,
    **others: Any,
) -> ServerProcess:
    """Start a server with `model` (GGUF; default: the tiny one, made on first use) and return when
    it is ready.

    Slots, tokens and the `others` are those of command(). Raises InputError, TargetError.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = command(
        find() or fetch(), model, port=port, slots=slots, context_tokens=context_tokens, **others
    )
    # The user's LLAMA_ARG_… settings would change what is measured and be recorded nowhere.
    env = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_ARG_")}
    return serve(
        words, LlamaCpp.name, log_path=log_path, url=url, env=env, timeout_s=_READY_TIMEOUT_S
    )


def command(
    server: Path,
    model: Path | None = None,
    *,
    port: int,
    slots: int,
    context_tokens: int,
    connections: int = 0,
    cache_prompt: bool = True,
    host: str = "127.0.0.1",
    flags: Sequence[str] = (),
) -> list[str]:
    """Return the words that start `server` on a port of `host`. Raises InputError.

    `slots` requests run at a time, each with room for `context_tokens` of input and output
    together; further ones queue. As many `connections` as are said, and some more, can be open at
    once. `cache_prompt=False` makes the server process every prompt in full. Its name for the model
    is "tiny", or the file's stem. `flags`: more of its own.
    """
    return [
        *(
            str(server),
            "--model",
            str(model or _tiny_model()),
            "--alias",
            model.stem if model else "tiny",
        ),
        *("--host", host, "--port", str(port)),
        *("--parallel", str(slots), "--ctx-size", str(slots * context_tokens)),
        # More than one thread suffers badly where anything else uses the cores.
        *("--threads", "1", "--threads-batch", "1"),
        # Its HTTP library keeps a thread per open connection. Build 11669 doubles this number when
        # it must, older ones do not; one connection too many then waits until another closes.
        *("--threads-http", str(max(slots, connections) + 32)),
        # The old name of --no-ui: old and new versions know it.
        *("--metrics", "--no-webui"),
        *(() if cache_prompt else ("--no-cache-prompt",)),
        *flags,
    ]


def _tiny_model() -> Path:
    path = cache_folder() / f"tiny-{tiny_gguf.fingerprint()}.gguf"
    if not path.is_file():
        with explain_os_error(f"the model cannot be written to {path}", "set XDG_CACHE_HOME"):
            tiny_gguf.write(path)
    return path


def _unpack(apt: Path, target: Path, environment: Mapping[str, str]) -> None:
    """Download the packages with an apt state of its own in folder `apt`; make `target` a folder
    that runs."""
    _run(["apt-get", "-q", "update"], environment, apt)
    _run(["apt-get", "-q", "download", *_PACKAGES], environment, apt)
    target.mkdir()
    for package in sorted(apt.glob("*.deb")):
        _run(["dpkg", "-x", str(package), str(target / "root")], environment, apt)
    # llama.cpp tries every CPU variant beside the running program, which here is the loader, and
    # takes the best one that this processor can run.
    libraries = target / _LIBRARIES
    for variant in libraries.glob("ggml/*/libggml-cpu-*.so"):
        (libraries / variant.name).symlink_to(variant.relative_to(libraries))
    wrapper = target / "llama-server"
    wrapper.write_text(_WRAPPER, "utf-8")
    wrapper.chmod(0o755)
    _run([str(wrapper), "--version"], environment, apt)


def private_apt(folder: Path) -> dict[str, str]:
    """Lay out an apt that knows one suite of this machine's archive; returns the environment that
    selects it."""
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    if not keyring.is_file():
        raise InputError(
            f"llama-server cannot be fetched, {keyring} is missing (package"
            f" debian-archive-keyring): {_INSTALL}"
        )
    for name in ("etc/apt", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):
        (folder / name).mkdir(parents=True)
    system = dict(os.environ, LC_ALL="C")
    # Of the machine's configuration only the network's (proxies, certificates): its hooks are for
    # the real apt.
    settings = _run(["apt-config", "dump"], system, folder).splitlines()
    network = [line for line in settings if line.startswith(("Acquire::http", "Acquire::https"))]
    status = folder / "status"
    status.touch()
    configuration = [
        *network,
        f'Dir "{folder}/";',
        f'Dir::State::status "{status}";',
        'Dir::Etc::netrc "/etc/apt/auth.conf";',
        'Dir::Etc::netrcparts "/etc/apt/auth.conf.d";',
        'APT::Architecture "amd64";',
        'APT::Architectures { "amd64"; };',
        # root's apt would download as a user who may not enter this folder
        'APT::Sandbox::User "";',
        # The signatures are checked, the age of the index is not: mirrors that are frozen or lag
        # are common, and the newest version is not what is wanted, only a genuine one.
        'Acquire::Check-Valid-Until "false";',
        'Acquire::Languages "none";',
        'Acquire::Retries "2";',
    ]
    (folder / "apt.conf").write_text("".join(f"{line}\n" for line in configuration))
    source = f"deb [signed-by={keyring}] {_archive(system, folder)} {_SUITE} main\n"
    (folder / "etc/apt/sources.list").write_text(source)
    return dict(system, APT_CONFIG=str(folder / "apt.conf"))


def _archive(environment: Mapping[str, str], folder: Path) -> str:
    """Return the address of the archive this machine's packages come from."""
    form = "$(COMPONENT) $(RELEASE) $(REPO_URI)"
    for line in _run(
        ["apt-get", "indextargets", "--format", form], environment, folder
    ).splitlines():
        match line.split():
            # Updates that live in an archive of their own, and other makers' archives, do not hold
            # the suite.
            case ["main", release, uri] if "security" not in release:
                return uri
    raise InputError(f"llama-server cannot be fetched, apt has no package source: {_INSTALL}")


def _run(command: list[str], environment: Mapping[str, str], folder: Path) -> str:
    """Return the standard output of a command run in `folder`. Raises InputError with the command's
    last error line."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_APT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"llama-server cannot be fetched, {command[0]} took over {_APT_TIMEOUT_S:g} s:"
            f" {_INSTALL}"
        ) from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        last = ([line for line in lines if line.startswith("E:")] or lines)[-1].strip()
        raise InputError(
            f'llama-server cannot be fetched, {Path(command[0]).name} says "{last}": {_INSTALL}'
        )
    return done.stdout
