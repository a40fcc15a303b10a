"""Renders launches as files for schedulers: what Slurm gets, dstack's tasks, Kubernetes' Jobs.

Slurm's script is the one that a study submits. The others start an engine, in its image, for
somebody who hands them in; Loadstone then measures it as a server that runs already. What a machine
has under `dstack` or `kubernetes` is laid over the rendered text, so that all of their own settings
can be had.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml  # type: ignore[import-untyped]

from loadstone.catalogue.hardware import Gpu
from loadstone.engines.launch import SECRETS
from loadstone.engines.launch import Launch as Commands
from loadstone.studies.commands import commands_of, gpus_per_node, node_addresses, shell_word
from loadstone.studies.file import Kubernetes, MachineSettings, StudyFile
from loadstone.studies.machines.client import check_has_no_mpi
from loadstone.studies.machines.kind import MachineKind, Rendered
from loadstone.studies.plan import PlannedLaunch

_PORT = 8000
_SHM_GIB = 32
_GPU_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "habana.ai/gaudi"}
_SECRET = "loadstone"  # noqa: S105 - the name of an object in Kubernetes
_MEMORY_BAND = 0.15
"""Makers and clouds state the same GPU's memory in GB, in GiB, or as far as it can be used."""


class _SchedulerKind(MachineKind):
    """A scheduler that takes files: it runs an engine in its image."""

    def render(
        self, read: StudyFile, name: str, launch: PlannedLaunch, folder: Path
    ) -> Rendered | None:
        """See MachineKind."""
        machine, engine = read.study.machines[name], launch.settings
        if engine.image is None:
            named = launch.engine in read.study.engines
            raise read.error(
                f"$.engines.{launch.engine}" if named else "$.engines",
                f"{launch.engine} has no image, and {machine.kind} runs images; write image: under"
                " it",
            )
        bare = launch._replace(settings=msgspec.structs.replace(engine, image=None))
        nodes = node_addresses(len(commands_of(bare, (), _PORT).ranks))
        # Reached from outside of its container.
        commands = commands_of(bare, nodes, _PORT, "0.0.0.0")  # noqa: S104
        check_has_no_mpi(commands, "use a machine of Slurm")
        return self.write(f"loadstone-{launch.id}", machine, launch, commands)

    def write(
        self, name: str, machine: MachineSettings, launch: PlannedLaunch, commands: Commands
    ) -> Rendered:
        """Write the file that starts these commands."""
        raise NotImplementedError


class DstackKind(_SchedulerKind):
    """dstack, which takes a task."""

    def write(
        self, name: str, machine: MachineSettings, launch: PlannedLaunch, commands: Commands
    ) -> Rendered:
        """See _SchedulerKind."""

        def address(number: int) -> str:
            further = f'$(echo "$DSTACK_NODES_IPS" | sed -n {number + 1}p)'
            return f'"{further if number else "$DSTACK_MASTER_NODE_IP"}"'

        count, gpus, gpu = len(commands.ranks), gpus_per_node(launch), _gpu(launch)
        variables = commands.ranks[0].env
        task = {
            "type": "task",
            "name": name,
            **({"nodes": count} if count > 1 else {}),
            "image": launch.settings.image,
            "env": [
                *([] if SECRETS[0] in variables else SECRETS[:1]),
                *(f"{k}={v}" for k, v in variables.items()),
            ],
            "commands": [_script(machine, commands, "DSTACK_NODE_RANK", address)],
            "ports": [_PORT],
            "resources": {
                "gpu": _name_gpu_for_dstack(gpu) | {"count": gpus} if gpu and gpus else 0,
                "shm_size": f"{_SHM_GIB}GB",
            },
            **({"max_duration": f"{round(machine.time)}s"} if machine.time else {}),
        }
        hint = f"dstack apply -f, while which it answers at http://localhost:{_PORT}"
        text = _yaml(_lay_over(task, machine.dstack or {}))
        return Rendered(f"{name}.dstack.yml", text, hint, "---")


class KubernetesKind(_SchedulerKind):
    """Kubernetes, which takes a Job with a pod for each rank, which all end where one does, and the
    Service that gives the pods names."""

    def write(
        self, name: str, machine: MachineSettings, launch: PlannedLaunch, commands: Commands
    ) -> Rendered:
        """See _SchedulerKind."""
        additions = machine.kubernetes or Kubernetes()
        count, gpus, gpu = len(commands.ranks), gpus_per_node(launch), _gpu(launch)
        script = _script(
            machine, commands, "JOB_COMPLETION_INDEX", lambda number: f"{name}-{number}.{name}"
        )
        container = {
            "name": "engine",
            "image": launch.settings.image,
            # Kubernetes fills in $(NAME) itself, where a shell would run a command.
            "command": ["sh", "-c", script.replace("$(", "$$(")],
            "env": [{"name": key, "value": value} for key, value in commands.ranks[0].env.items()],
            "envFrom": [{"secretRef": {"name": _SECRET, "optional": True}}],
            "ports": [{"containerPort": _PORT}],
            "resources": {"limits": {_GPU_RESOURCES[gpu.vendor]: gpus} if gpu and gpus else {}},
            "readinessProbe": {
                "httpGet": {"path": commands.ready, "port": _PORT},
                "periodSeconds": 5,
            },
            # A path of the container.
            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
        }
        pod = {
            "restartPolicy": "Never",
            "subdomain": name,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 60,
            "containers": [_lay_over(container, additions.container)],
            "volumes": [
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{_SHM_GIB}Gi"}}
            ],
        }
        about = {
            "name": name,
            **({"namespace": additions.namespace} if additions.namespace else {}),
        }
        service = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # ranks look for each other before they serve
            "selector": {"batch.kubernetes.io/job-name": name},
            "ports": [{"port": _PORT}],
        }
        job = {
            "completions": count,
            "parallelism": count,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            **({"activeDeadlineSeconds": round(machine.time)} if machine.time else {}),
            "template": {"spec": _lay_over(pod, additions.pod)},
        }
        text = _yaml(
            {"apiVersion": "v1", "kind": "Service", "metadata": about, "spec": service},
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": job},
        )
        hint = f"kubectl apply -f; in its namespace it answers at http://{name}-0.{name}:{_PORT}"
        return Rendered(f"{name}.yaml", text, hint, "---")


def _name_gpu_for_dstack(gpu: Gpu) -> dict[str, Any]:
    """Return how dstack calls a GPU: `a100-pcie-40gb` is A100 with about 40 GB, `rtx-6000-ada`
    RTX6000ADA."""
    name = re.sub(r"-(pcie|\d+gb)", "", gpu.name)
    gib = gpu.hbm_bytes / 2**30
    low, high = (round(gib * (1 + sign * _MEMORY_BAND)) for sign in (-1, 1))
    return {"name": re.sub(r"^rtx-(?=a\d)|-", "", name).upper(), "memory": f"{low}GB..{high}GB"}


def _script(
    machine: MachineSettings, commands: Commands, rank: str, address: Callable[[int], str]
) -> str:
    """Return what `sh` runs in a container, which becomes the engine. `rank`: the variable with the
    rank's number."""
    lines = ["set -e", *machine.setup]
    lines += [
        f"printf %s {shlex.quote(text)} >/tmp/{name}" for name, text in commands.files.items()
    ]
    ranks = []
    for command in commands.ranks:
        # Paths of the container.
        words = (
            f"/tmp/{word}" if word in commands.files else word  # noqa: S108
            for word in command.argv
        )
        ranks.append(f"exec {' '.join(shell_word(word, address) for word in words)}")
    if len(ranks) == 1:
        return "\n".join([*lines, *ranks])
    return "\n".join(
        [*lines, f"case ${rank} in", *(f"{i}) {line} ;;" for i, line in enumerate(ranks)), "esac"]
    )


def _gpu(launch: PlannedLaunch) -> Gpu | None:
    return launch.parsed.decoder.gpu if launch.parsed else None


def _lay_over(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `overlay` laid over it: mappings are joined, lists appended, all else
    replaced."""
    result = dict(base)
    for key, value in overlay.items():
        present = result.get(key)
        if isinstance(present, Mapping) and isinstance(value, Mapping):
            result[key] = _lay_over(present, value)
        elif isinstance(present, list) and isinstance(value, list):
            result[key] = [*present, *value]
        else:
            result[key] = value
    return result


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # there are no types of it
    """Writes text of several lines as it is, and everything as often as it occurs."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Dumper.add_representer(str, _text)


def _yaml(*documents: Mapping[str, Any]) -> str:
    text: str = yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, width=1 << 20, allow_unicode=True
    )
    return text
