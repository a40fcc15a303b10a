"""Counts the other half of a layer: one MLP, or a router with many."""

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

from loadstone.catalogue.architecture.matrix import Matrix, vector


class DenseMlp(msgspec.Struct, frozen=True):
    """Holds one MLP; `matrices` 3: gated (gate, up, down); 2: not (up, down)."""

    intermediate: int
    matrices: Literal[2, 3] = 3
    bias: bool = False

    def weights(self, hidden: int) -> Iterator[Matrix]:
        return _mlp("mlp", hidden, self.intermediate, self.matrices, self.bias)


class Experts(msgspec.Struct, frozen=True):
    """Holds a router and `experts` MLPs, of which a token takes `per_token`; beside them one dense
    MLP that all tokens pass, of width `shared_intermediate` (all shared experts together; 0: none).

    `latent`: the routed experts work at this width, between two projections of their own (else at
    hidden). `shared_gate`: the shared part has a gate of one number. `shared_bias`: on the shared
    part, and around the latent one. `more_choices`: the router weighs so many more, which do
    nothing; `per_token` counts the experts alone, on average. `router_bias`: a correction for each
    that it weighs.
    """

    experts: int
    per_token: int
    intermediate: int
    matrices: Literal[2, 3] = 3
    shared_intermediate: int = 0
    bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    latent: int | None = None
    shared_bias: bool = False
    more_choices: int = 0

    def weights(self, hidden: int) -> Iterator[Matrix]:
        choices = self.experts + self.more_choices
        yield Matrix("mlp.gate", hidden, choices, "router", quantisable=False)
        if self.router_bias:
            yield vector("mlp.gate.bias", choices, "router")
        if self.latent:
            yield Matrix("mlp.fc1_latent_proj", hidden, self.latent, "mlp")
            yield Matrix("mlp.fc2_latent_proj", self.latent, hidden, "mlp")
            if self.shared_bias:
                yield vector("mlp.latent_bias", self.latent + hidden, "mlp")
        for matrix in _mlp(
            "mlp.experts", self.latent or hidden, self.intermediate, self.matrices, self.bias
        ):
            yield msgspec.structs.replace(
                matrix, kind="experts", split="expert", copies=self.experts, active=self.per_token
            )
        if self.shared_intermediate:
            wide, biased = self.shared_intermediate, self.shared_bias
            yield from _mlp("mlp.shared_experts", hidden, wide, self.matrices, biased)
        if self.shared_gate:
            yield Matrix("mlp.shared_expert_gate", hidden, 1, "router", quantisable=False)


def _mlp(name: str, hidden: int, intermediate: int, matrices: int, bias: bool) -> Iterator[Matrix]:
    if matrices == 3:
        yield Matrix(f"{name}.gate_proj", hidden, intermediate, "mlp", "column")
    yield Matrix(f"{name}.up_proj", hidden, intermediate, "mlp", "column")
    yield Matrix(f"{name}.down_proj", intermediate, hidden, "mlp", "row")
    if bias:
        yield vector(f"{name}.bias", (matrices - 1) * intermediate + hidden, "mlp")


Mlp: TypeAlias = DenseMlp | Experts
