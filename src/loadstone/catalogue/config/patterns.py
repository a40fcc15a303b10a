"""Names of modules in checkpoints, and the patterns that quantisation configs have for them."""

from __future__ import annotations

import re
from collections import defaultdict
from fnmatch import fnmatchcase

from loadstone.catalogue.architecture.matrix import Matrix

_MOST_GLOBS = 500
_MOST_EXPRESSIONS = 100
_LAYER = re.compile(r"(?:^|\.)layers\.([0-9]+)(?=[.*]|$)")
_NUMBERED = re.compile(r"\.[0-9]|[\[?]|\\d")
"""In a pattern: it may be about some layers and not others."""
_SAFE = re.compile(r"(?:[\w.\-$^]|\\\.|\\d\+|\.\*|\([\w|.\-]*\))*")
"""Regular expressions taken from a config: literals, `.*` and plain alternatives. Nothing nested, so that no pattern
can take exponential time."""

_PREFIXES = (
    "model.layers",
    "model.language_model.layers",
    "language_model.model.layers",
    "backbone.layers",
    "layers",
)
_HOMES = {
    "self_attn": ("self_attn", "attn", "mixer", "attention"),
    "linear_attn": ("linear_attn", "mixer"),
    "mixer": ("mixer",),
    "mlp": ("mlp", "block_sparse_moe", "ffn", "mixer", "feed_forward"),
}
_PARTS = {
    "gate": ("gate", "router"),
    "shared_experts": ("shared_experts", "shared_expert", "share_expert"),
    "experts": ("experts.0", "experts"),
}
_LEAVES = {"gate_proj": ("gate_proj", "w1"), "up_proj": ("up_proj", "w3"), "down_proj": ("down_proj", "w2")}


def paths_of(layer: int | None, matrix: Matrix, experts_apart: bool = False) -> list[str]:
    """What checkpoints may call this matrix of this layer, in dotted names. `experts_apart`: Gemma keeps experts and
    router beside the MLP, not within.
    """
    if layer is None:
        short = {"lm_head": "head", "embed_tokens": "embed"}.get(matrix.name, matrix.name)
        return [
            matrix.name,
            f"model.{matrix.name}",
            f"language_model.{matrix.name}",
            f"backbone.{matrix.name}",
            short,
        ]
    home, *rest = matrix.name.split(".")
    tails = [""]
    for part in rest:
        choices = _LEAVES.get(part, _PARTS.get(part, (part,)))
        tails = [f"{tail}.{choice}" for tail in tails for choice in choices]
    homes = [f".{name}" for name in _HOMES.get(home, (home,))]
    if experts_apart and matrix.kind in ("experts", "router"):
        homes = [""]
    return [f"{prefix}.{layer}{name}{tail}" for prefix in _PREFIXES for name in homes for tail in tails]


class Patterns:
    """A list of module names, globs and `re:` expressions."""

    def __init__(self, patterns: list[str]) -> None:
        self.refused: list[str] = []
        self._names: dict[tuple[int | None, str], list[str]] = defaultdict(list)
        self._globs: dict[int | None, list[str]] = defaultdict(list)
        self._expressions: list[re.Pattern[str]] = []
        self._layers: set[int] = set()
        self._uniform = True
        for pattern in patterns:
            if not self._take(pattern):
                self.refused.append(pattern[:60])

    def _take(self, pattern: str) -> bool:
        """Whether it can be used: bounds keep a hostile list from taking for ever."""
        if len(pattern) > 500 or pattern.count("*") > 6:
            return False
        if pattern.startswith("re:"):
            text = pattern[3:]
            if len(self._expressions) >= _MOST_EXPRESSIONS or not _SAFE.fullmatch(text):
                return False
            self._expressions.append(re.compile(text))
            self._uniform &= not _NUMBERED.search(text)
            return True
        found = _LAYER.search(pattern)
        # `layers.1*` is about layer 1 and 10 to 19, and is looked at for every layer; `layers.1.*` is about one.
        layer = int(found[1]) if found and not pattern[found.end() :].startswith("*") else None
        if not set("*?[") & set(pattern):
            self._names[layer, pattern.rpartition(".")[2]].append(f".{pattern}.")
        elif len(self._globs[layer]) >= _MOST_GLOBS:
            return False
        else:
            self._globs[layer].append(pattern)
        if layer is not None:
            self._layers.add(layer)
        else:
            self._uniform &= not _NUMBERED.search(pattern)
        return True

    def alike(self, layer: int) -> bool:
        """Whether nothing here is about this layer in particular."""
        return self._uniform and layer not in self._layers

    def match(self, layer: int | None, paths: list[str]) -> bool:
        if self._names and any(self._named(layer, path) for path in paths):
            return True
        globs = self._globs.get(None, []) + (self._globs.get(layer, []) if layer is not None else [])
        if any(fnmatchcase(path, glob) or fnmatchcase(path, f"{glob}.*") for glob in globs for path in paths):
            return True
        return any(expression.match(path) for expression in self._expressions for path in paths)

    def _named(self, layer: int | None, path: str) -> bool:
        """A name is about all it stands in, between dots: `gate` about `model.layers.0.mlp.gate.weight`."""
        whole = f".{path}."
        for part in path.split("."):
            for number in (layer, None) if layer is not None else (None,):
                if any(name in whole for name in self._names.get((number, part), ())):
                    return True
        return False
