"""The other half of a layer: one MLP, or a router with many."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from loadstone.catalogue.matrix import Matrix, vector


class DenseMlp(msgspec.Struct, frozen=True):
    """`matrices` 3: gated (gate, up, down); 2: not (up, down)."""

    intermediate: int
    matrices: Literal[2, 3] = 3
    bias: bool = False

    def weights(self, hidden: int) -> tuple[Matrix, ...]:
        return tuple(mlp_weights("mlp", hidden, self.intermediate, self.matrices, self.bias))


class Experts(msgspec.Struct, frozen=True):
    """A router and `experts` MLPs, of which a token takes `per_token`; beside them one dense MLP that all tokens
    pass, of width `shared_intermediate` (all shared experts together; 0: none).

    `latent`: the routed experts work at this width, between two projections of their own (else at hidden).
    `shared_gate`: the shared part has a gate of one number. `router_bias`: a correction per expert.
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

    def weights(self, hidden: int) -> tuple[Matrix, ...]:
        width = self.latent or hidden
        found = [Matrix("mlp.gate", hidden, self.experts, "router", quantisable=False)]
        if self.router_bias:
            found.append(vector("mlp.gate.bias", self.experts, "router"))
        if self.latent:
            found += [
                Matrix("mlp.fc1_latent_proj", hidden, self.latent, "mlp"),
                Matrix("mlp.fc2_latent_proj", self.latent, hidden, "mlp"),
            ]
        for matrix in mlp_weights("mlp.experts", width, self.intermediate, self.matrices, self.bias):
            found.append(
                msgspec.structs.replace(
                    matrix, kind="experts", split="expert", copies=self.experts, active=self.per_token
                )
            )
        if self.shared_intermediate:
            found += mlp_weights("mlp.shared_experts", hidden, self.shared_intermediate, self.matrices, False)
        if self.shared_gate:
            found.append(Matrix("mlp.shared_expert_gate", hidden, 1, "router", quantisable=False))
        return tuple(found)


def mlp_weights(name: str, hidden: int, intermediate: int, matrices: int, bias: bool) -> list[Matrix]:
    found = [Matrix(f"{name}.gate_proj", hidden, intermediate, "mlp", "column")] if matrices == 3 else []
    found += [
        Matrix(f"{name}.up_proj", hidden, intermediate, "mlp", "column"),
        Matrix(f"{name}.down_proj", intermediate, hidden, "mlp", "row"),
    ]
    if bias:
        found.append(vector(f"{name}.bias", (matrices - 1) * intermediate + hidden, "mlp"))
    return found


Mlp: TypeAlias = DenseMlp | Experts
