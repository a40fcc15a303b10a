"""Run by the interpreter of scripts/engines/manifests: `valid` or its problem, for each
document."""

import sys
from pathlib import Path

import gpuhunt
import kubernetes_validate
import yaml
from dstack._internal.core.errors import ConfigurationError
from dstack._internal.core.models.configurations import parse_apply_configuration


def problem(document):
    if "apiVersion" in document:
        try:
            kubernetes_validate.validate(document, "1.31", strict=True)
        except kubernetes_validate.ValidationError as error:
            return f"{'.'.join(map(str, error.path))}: {error.message[:200]}"
        return None
    try:
        task = parse_apply_configuration(document)
    except ConfigurationError as error:
        return " ".join(str(error).split())
    gpu = task.resources.gpu
    if gpu.name is None:
        return None
    known = [each for each in (*gpuhunt.KNOWN_NVIDIA_GPUS, *gpuhunt.KNOWN_AMD_GPUS)
             if each.name.lower() in [name.lower() for name in gpu.name]]  # fmt: skip
    if not any(gpu.memory.min <= each.memory <= gpu.memory.max for each in known):
        return f"dstack knows no {gpu.name} of {gpu.memory}, only {[each.memory for each in known]}"
    return None


for path in sys.argv[1:]:
    for each in yaml.safe_load_all(Path(path).read_text()):
        print(problem(each) or "valid")
