"""Reads which precision a checkpoint keeps each matrix in: `quantization_config`, or
`hf_quant_config.json` beside it.

The dialects: DeepSeek's `fp8` with blocks, `mxfp4`, `compressed-tensors`, NVIDIA's ModelOpt
(`quant_algo`), AWQ, GPTQ, bitsandbytes. All say what is quantised and list modules that are not;
they differ in how they write names.
"""

import re
from collections import defaultdict
from fnmatch import fnmatchcase
from typing import Any

from loadstone.catalogue.architecture.matrix import Matrix
from loadstone.catalogue.architecture.precision import FORMATS, Format
from loadstone.catalogue.config.families import tables
from loadstone.catalogue.config.fields import Fields

_MOST_NAMES = 200_000
_ALGORITHMS = {"FP8": "fp8", "W4A": "int4", "W8A8": "int8", "INT8": "int8"}
"""How ModelOpt's names of algorithms begin."""
_MOST_GLOBS = 500
_MOST_EXPRESSIONS = 100
_LAYER = re.compile(r"(?:^|\.)layers\.([0-9]+)(?=[.*]|$)")
_NUMBERED = re.compile(r"\.[0-9]|[\[?]|\\d")
"""In a pattern: it may be about some layers and not others."""
_SAFE = re.compile(r"(?:[\w.\-$^]|\\\.|\\d\+|\.\*|\([\w|.\-]*\))*")
"""Regular expressions taken from a config: literals, `.*` and plain alternatives. Nothing nested,
so that no pattern can take exponential time."""


def _paths_of(layer: int | None, matrix: Matrix, experts_apart: bool = False) -> list[str]:
    """Return what checkpoints may call this matrix of this layer, in dotted names. `experts_apart`:
    Gemma keeps experts and router beside the MLP, not within.
    """
    if layer is None:
        short = {"lm_head": "head", "embed_tokens": "embed"}.get(matrix.name, matrix.name)
        return [
            *(
                f"{prefix}{matrix.name}"
                for prefix in ("", "model.", "language_model.", "backbone.")
            ),
            short,
        ]
    names = tables().checkpoint_names
    home, *rest = matrix.name.split(".")
    tails = [""]
    for part in rest:
        tails = [f"{tail}.{choice}" for tail in tails for choice in names.part.get(part, (part,))]
    homes = [f".{name}" for name in names.home.get(home, (home,))]
    if experts_apart and matrix.kind in ("experts", "router"):
        homes = [""]
    return [
        f"{prefix}.{layer}{name}{tail}"
        for prefix in names.prefix
        for name in homes
        for tail in tails
    ]


class Patterns:
    """Matches a list of module names, globs and `re:` expressions."""

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
        """Return whether it can be used: bounds keep a hostile list from taking for ever."""
        if len(pattern) > 500 or pattern.count("*") > 6:
            return False
        if pattern.startswith("re:"):
            text = pattern[3:]
            if len(self._expressions) >= _MOST_EXPRESSIONS or not _SAFE.fullmatch(text):
                return False
            self._expressions.append(re.compile(text))
            self._uniform &= not _NUMBERED.search(text)
            return True
        match = _LAYER.search(pattern)
        # `layers.1*` is about layer 1 and 10 to 19, and is looked at for every layer; `layers.1.*`
        # is about one.
        layer = int(match[1]) if match and not pattern[match.end() :].startswith("*") else None
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
        """Return whether nothing here is about this layer in particular."""
        return self._uniform and layer not in self._layers

    def match(self, layer: int | None, paths: list[str]) -> bool:
        if self._names and any(self._named(layer, path) for path in paths):
            return True
        globs = self._globs.get(None, []) + (
            self._globs.get(layer, []) if layer is not None else []
        )
        if any(
            fnmatchcase(path, glob) or fnmatchcase(path, f"{glob}.*")
            for glob in globs
            for path in paths
        ):
            return True
        return any(expression.match(path) for expression in self._expressions for path in paths)

    def _named(self, layer: int | None, path: str) -> bool:
        """Match a name, which is about all it stands in, between dots: `gate` about
        `model.layers.0.mlp.gate.weight`."""
        whole = f".{path}."
        for part in path.split("."):
            for number in (layer, None) if layer is not None else (None,):
                if any(name in whole for name in self._names.get((number, part), ())):
                    return True
        return False


# --- what a checkpoint says -----------------------------------------------------------------------


class Rules:
    """Tells how each matrix of a checkpoint is kept."""

    def __init__(self, experts_apart: bool) -> None:
        self.experts_apart = experts_apart
        self.kv_dtype: str | None = None
        self.base: Format | None = None
        """What a matrix has that nothing else is said of."""
        self.experts: Format | None = None
        """Likewise for routed experts, where it differs."""
        self.kept = Patterns([])
        self.groups: list[tuple[Format, Patterns]] = []
        self.named: dict[str, Format] = {}
        self.assumed: list[str] = []
        self._usual: dict[str, Format | None] = {}

    def format(self, layer: int | None, matrix: Matrix) -> Format | None:
        """Return a matrix's format; None: full precision."""
        patterns = (self.kept, *(targets for _, targets in self.groups))
        if layer is None or self.named or not all(pattern.alike(layer) for pattern in patterns):
            return self._looked_up(layer, matrix)
        # No pattern is about this layer in particular: what holds for one such layer holds for all.
        if matrix.name not in self._usual:
            self._usual[matrix.name] = self._looked_up(layer, matrix)
        return self._usual[matrix.name]

    def _looked_up(self, layer: int | None, matrix: Matrix) -> Format | None:
        paths = _paths_of(layer, matrix, self.experts_apart)
        for path in paths:
            for name in (path, path.rpartition(".")[0]):
                if name in self.named:
                    return self.named[name]
        if self.kept.match(layer, paths):
            return None
        for form, targets in self.groups:
            if targets.match(layer, paths):
                return form
        if not matrix.quantisable:
            return None
        return self.experts if matrix.kind == "experts" and self.experts is not None else self.base


def read_quantisation(
    config: Fields, beside: dict[str, Any] | None, experts_apart: bool = False
) -> Rules | None:
    """Read the rules; `beside`: what hf_quant_config.json holds. None where nothing is
    quantised."""
    settings = config.inner("quantization_config")
    experts = config.text("expert_dtype")
    if beside is not None and isinstance(beside.get("quantization"), dict):
        beside = beside["quantization"]
    if settings is None and beside is None:
        return None
    fields = settings or Fields(beside or {}, f"{config.where}, hf_quant_config.json")
    rules = Rules(experts_apart)
    kept: list[str] = []
    for source in (fields, Fields(beside, "hf_quant_config.json") if beside else None):
        if source is not None:
            _read_one(source, rules, kept)
    if experts in ("fp4", "mxfp4"):
        rules.experts = FORMATS["mxfp4"]
    rules.kept = Patterns(list(dict.fromkeys(kept)))
    refused = rules.kept.refused + [name for _, targets in rules.groups for name in targets.refused]
    if refused:
        rules.assumed.append(
            f"patterns of the quantisation config not understood, ignored: {', '.join(refused[:3])}"
        )
    if rules.base is None and not rules.groups and not rules.named:
        method = fields.text("quant_method", default="modelopt")
        rules.assumed.append(f"quantisation {method!r} not understood: full precision assumed")
    return rules


def _read_one(fields: Fields, rules: Rules, kept: list[str]) -> None:
    algorithm = fields.text("quant_algo").upper()
    method = fields.text("quant_method", default="modelopt" if algorithm else "").lower()
    blocked = fields.entries("weight_block_size")
    kv = fields.find("kv_cache_quant_algo", "kv_cache_scheme")
    rules.kv_dtype = rules.kv_dtype or _kv_dtype(kv[1] if kv else None)
    named = fields.find("quantized_layers")
    if named and isinstance(named[1], dict):
        for name, entry in list(named[1].items())[:_MOST_NAMES]:
            form = (
                _of_algorithm(str(entry.get("quant_algo", "")).upper())
                if isinstance(entry, dict)
                else None
            )
            if form is not None and "*" in str(name):
                rules.groups.append((form, Patterns([str(name)])))
            elif form is not None:
                rules.named[str(name)] = form
    if method == "fp8":
        scale = 8 if "ue8m0" in fields.text("scale_fmt") else 32
        size = _block(blocked, fields)
        rules.base = Format("fp8", 8, size, scale) if size else FORMATS["fp8"]
        kept += _names(fields, "modules_to_not_convert", "ignored_layers")
    elif method == "mxfp4":
        rules.base = FORMATS["mxfp4"]
        kept += _names(fields, "modules_to_not_convert")
    elif method in ("awq", "gptq", "gptq_marlin", "awq_marlin", "auto-round"):
        bits, group = (
            fields.count("bits", "w_bit", default=4, least=1),
            fields.raw("group_size", "q_group_size"),
        )
        zero = 0 if "sym" in fields.values and fields.flag("sym") and method != "gptq" else bits
        size = group if isinstance(group, int) and group > 0 else 0
        rules.base = Format("int4" if bits == 4 else f"int{bits}", bits, size, 16, zero)
        kept += _names(fields, "modules_to_not_convert")
    elif method == "bitsandbytes":
        four = fields.flag("load_in_4bit", "_load_in_4bit")
        rules.base = Format("int4", 4, 64, 32) if four else FORMATS["int8"]
        kept += _names(fields, "llm_int8_skip_modules")
    elif algorithm and algorithm != "MIXED_PRECISION":
        rules.base = _of_algorithm(algorithm)
        if rules.base is None:
            rules.assumed.append(
                f"quant_algo {algorithm[:40]!r} not understood: full precision assumed"
            )
        kept += _names(fields, "exclude_modules", "ignore")
    elif not rules.named and not rules.groups:
        _read_groups(fields, rules)
        kept += _names(fields, "ignore", "exclude_modules")


def _read_groups(fields: Fields, rules: Rules) -> None:
    """Read groups of compressed-tensors and newer ModelOpt: formats, and the modules each is
    for."""
    groups = fields.find("config_groups")
    if groups is None or not isinstance(groups[1], dict):
        return
    for entry in list(groups[1].values())[:1000]:
        modules = Fields(entry if isinstance(entry, dict) else {}, f"{fields.where}, config_groups")
        group = modules.inner("weights")
        if group is None:
            continue
        bits, size = (
            group.count("num_bits", default=8, least=1),
            group.optional_count("group_size") or 0,
        )
        if group.text("type", default="int") == "float":
            form = FORMATS["fp8"] if bits == 8 else FORMATS["mxfp4" if size == 32 else "nvfp4"]
        else:
            zero = 0 if group.flag("symmetric", default=True) else bits
            form = Format(f"int{bits}", bits, size, 16, zero)
        targets = [str(name) for name in modules.entries("targets") or ["Linear"]]
        if "Linear" in targets:
            rules.base = rules.base or form
        else:
            rules.groups.append((form, Patterns(targets)))


def _of_algorithm(name: str) -> Format | None:
    if "NVFP4" in name or name == "FP4":
        return FORMATS["nvfp4"]
    if "MXFP4" in name:
        return FORMATS["mxfp4"]
    return next(
        (FORMATS[form] for start, form in _ALGORITHMS.items() if name.startswith(start)), None
    )


def _kv_dtype(value: Any) -> str | None:
    if isinstance(value, dict):
        value = "FP8" if value.get("num_bits") == 8 else None
    if not isinstance(value, str):
        return None
    return {"FP8": "fp8", "INT8": "int8", "NVFP4": "nvfp4"}.get(value.upper())


def _block(sizes: list[Any] | None, fields: Fields) -> int:
    if sizes is None:
        return 0
    size = 1
    for value in sizes[:4]:
        size *= fields.check_count("weight_block_size", value, least=1)
    return size


def _names(fields: Fields, *names: str) -> list[str]:
    return [name for name in fields.entries(*names) or [] if isinstance(name, str)]
