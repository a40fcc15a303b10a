"""The provenance of a run is asked of the machine that its engine runs on; see core.provenance."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadstone.core.provenance import GitState, Provenance
from loadstone.core.secrets import blank, blank_words, names_key
from loadstone.engines.launch import Launch

_PREFIXES = (
    "VLLM_",
    "SGLANG_",
    "SGL_",
    "TRTLLM_",
    "TLLM_",
    "LLAMA_ARG_",
    "GGML_",
    "MLX_",
    "HF_HUB_OFFLINE",
    "HF_HUB_ENABLE_",
    "TRANSFORMERS_OFFLINE",
    "TORCH",
    "PYTORCH_",
    "CUDA_",
    "NVIDIA_",
    "NCCL_",
    "GLOO_",
    "UCX_",
    "NVSHMEM_",
    "TRITON_",
    "FLASHINFER_",
    "HIP_",
    "ROCR_",
    "HSA_",
    "RCCL_",
    "AITER_",
    "OMP_",
    "MKL_",
    "KMP_",
    "LD_PRELOAD",
)
"""Variables that decide how an engine runs. Others may be anybody's business."""
_PACKAGES = (
    "import importlib.metadata as m, json, platform; print(json.dumps([platform.python_version(),"
    " {d.metadata['Name']: d.version for d in m.distributions() if d.metadata and"
    " d.metadata['Name']}]))"
)
_EXEC = re.compile(r"'''exec' \"?([^\"\s]*python[^\"\s]*)")
"""How pip begins a program whose interpreter's path is too long for its first line."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ANSWER_S = 30.0
_GIT_S = 5.0


def of_launch(launch: Launch, *, here: bool = True, start_up_s: float | None = None) -> Provenance:
    """Collect the provenance of an engine that runs. `here`: False where its ranks are on other
    machines, which are not asked.
    """
    container = launch.container
    keys = [value for name, value in os.environ.items() if names_key(name) and len(value) > 7]
    commands = tuple(
        tuple(blank(word, keys) for word in blank_words(rank.argv)) for rank in launch.ranks
    )
    first = launch.ranks[0]
    python, packages = _packages(launch) if here else (None, {})
    environment = dict(first.env)
    if here and container is None:
        environment = {
            name: os.environ[name] for name in os.environ if name.startswith(_PREFIXES)
        } | environment
    return Provenance(
        commands=commands,
        image=container.image if container else None,
        image_digest=_digest(container.runtime, container.image, here=here) if container else None,
        python=python,
        packages=packages,
        environment={
            name: blank(value, keys)
            for name, value in sorted(environment.items())
            if not names_key(name)
        },
        start_up_s=start_up_s,
    )


def git_state() -> GitState | None:
    """Return the commit of the folder that this process is in; None: it is in no repository, or
    there is no git."""
    commit = _output(["git", "rev-parse", "HEAD"], _GIT_S)
    if not re.fullmatch("[0-9a-f]{40,64}", commit or ""):
        return None
    # A repository may name a program that watches its files: none is started for our sake.
    changes = _output(["git", "-c", "core.fsmonitor=false", "status", "--porcelain"], _GIT_S)
    return GitState(commit=commit or "", changed=None if changes is None else bool(changes))


def _packages(launch: Launch) -> tuple[str | None, dict[str, str]]:
    """Ask the engine's interpreter for its version and those of its packages; nothing of an engine
    without one."""
    argv, container = launch.ranks[0].argv, launch.container
    if container is not None:
        name = argv[argv.index("--name") + 1] if "--name" in argv else None
        command = [container.runtime, "exec", name, "python3"] if name else None
    else:
        command = _interpreter(argv[0])
    output = _output([*command, "-c", _PACKAGES], _ANSWER_S) if command else None
    try:
        return msgspec.json.decode(output or "", type=tuple[str, dict[str, str]])
    except msgspec.DecodeError:
        return None, {}


def _interpreter(program: str) -> list[str] | None:
    """Find the interpreter of a program that is Python's."""
    path = shutil.which(program)
    if path is None:
        return None
    if Path(path).name.startswith("python"):
        return [path]
    try:
        with Path(path).open("rb") as file:
            first, _, rest = file.read(4096).decode("utf-8", "replace").partition("\n")
        words = shlex.split(first[2:]) if first.startswith("#!") else []
    except (OSError, ValueError):
        return None
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    if words and Path(words[0]).name.startswith("python"):
        return words[:1]
    long = _EXEC.match(rest)
    return [long[1]] if long else None


def _digest(runtime: str, image: str, *, here: bool) -> str | None:
    """Find the digest of the image that a name stands for on this machine."""
    described = image
    if here and runtime in ("docker", "podman") and "@" not in image:
        described = (
            _output(
                [runtime, "image", "inspect", "--format", "{{json .RepoDigests}}", image], _ANSWER_S
            )
            or ""
        )
    digest = _DIGEST.search(described)
    return digest[0] if digest else None


def _output(command: Sequence[str], timeout_s: float) -> str | None:
    """Return what a command prints; None where it fails, or takes too long."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            timeout=timeout_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()
