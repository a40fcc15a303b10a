"""Which device operators are timed on, as torch and the driver describe it."""

from __future__ import annotations

import contextlib
import platform

from loadstone.core.nvml import Gpus
from loadstone.gpubench.points import Device


def describe_device(device: str, gpus: Gpus | None) -> Device:
    """`device`: a torch device that is there."""
    import torch

    versions = {"torch": str(torch.__version__), "python": platform.python_version()}
    if device == "cpu":
        return Device(
            name="cpu",
            memory_bytes=0,
            multiprocessors=torch.get_num_threads(),
            l2_bytes=0,
            capability="",
            driver=None,
            power_limit_w=None,
            sm_clock_max_mhz=None,
            software=versions,
        )
    properties = torch.cuda.get_device_properties(device)
    with contextlib.suppress(ImportError):
        import triton

        versions["triton"] = str(triton.__version__)
    versions["cuda"] = str(torch.version.cuda)
    versions["cudnn"] = str(torch.backends.cudnn.version())
    number = number_of(device, gpus)
    said = gpus.describe()[number] if gpus is not None and number is not None else None
    return Device(
        name=properties.name,
        memory_bytes=int(properties.total_memory),
        multiprocessors=int(properties.multi_processor_count),
        l2_bytes=int(getattr(properties, "L2_cache_size", 0)) or 64 * 1024 * 1024,
        capability=f"{properties.major}.{properties.minor}",
        driver=gpus.driver if gpus is not None else None,
        power_limit_w=said.power_limit_w if said is not None else None,
        sm_clock_max_mhz=said.sm_clock_max_mhz if said is not None else None,
        software=versions,
    )


def number_of(device: str, gpus: Gpus | None) -> int | None:
    """NVML's number of torch's `device`; None where it cannot be told."""
    import torch

    if gpus is None or device == "cpu":
        return None
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    # Without a UUID the one GPU that there is will be it.
    return gpus.number_of(uuid) if uuid else 0 if torch.cuda.device_count() == 1 else None
