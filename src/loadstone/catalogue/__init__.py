"""Holds facts, each with its source: models from their `config.json`, GPUs and nodes from their
data sheets."""

from loadstone.catalogue.architecture.model import Model
from loadstone.catalogue.deployment.deployment import Deployment, Worker
from loadstone.catalogue.deployment.shorthand import parse_deployment, parse_worker
from loadstone.catalogue.find import entries_of, find_gpu, find_model, find_node, kept_hardware
from loadstone.catalogue.hardware import Gpu, Node

__all__ = [
    "Deployment",
    "Gpu",
    "Model",
    "Node",
    "Worker",
    "gpu",
    "gpus",
    "model",
    "models",
    "node",
    "nodes",
    "parse_deployment",
    "parse_worker",
]


model, gpu, node = find_model, find_gpu, find_node


def models() -> tuple[Model, ...]:
    return tuple(map(find_model, entries_of("models")))


def gpus() -> tuple[Gpu, ...]:
    """Return the catalogue's, and those of the user's folder."""
    kept = [hardware for hardware in kept_hardware() if isinstance(hardware, Gpu)]
    return (*map(find_gpu, entries_of("gpus")), *kept)


def nodes() -> tuple[Node, ...]:
    """Return the nodes of the catalogue, and of the user's folder."""
    kept = [hardware for hardware in kept_hardware() if isinstance(hardware, Node)]
    return (*map(find_node, entries_of("nodes")), *kept)
