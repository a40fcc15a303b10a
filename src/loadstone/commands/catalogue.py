"""`loadstone catalogue`: GPUs, models and nodes, and several of a kind side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from loadstone.commands.output import print_json, print_rows
from loadstone.core.errors import InputError
from loadstone.core.units import parse_picture_size

if TYPE_CHECKING:
    from loadstone.catalogue import Gpu, Model, Node
    from loadstone.catalogue.visual.visual import Visual


def _complete(incomplete: str) -> list[str]:
    """Offer kinds and names to a shell."""
    names = [item.name for _, every, _ in _kinds().values() for item in every()]
    return [word for word in (*_kinds(), *names) if word.startswith(incomplete)]


Row: TypeAlias = tuple[str, str, float | str | None]
"""(what, unit, number or word)"""

_T, _G, _GIB = 1e12, 1e9, 1 << 30


def catalogue(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help=(
                "gpus, models or nodes, then names, files or parts of names; one that is found has"
                " all its fields, sources and assumptions"
            ),
            autocompletion=_complete,
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(help="show these side by side, with ratios to the first, e.g. h100,h200"),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(help="what a picture becomes, by its size: 1920x1080, or several with commas"),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="with --image: as this engine takes it, e.g. llama.cpp,image_max_tokens=4096"
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print as JSON on stdout")] = False,
) -> None:
    """Show what is known of GPUs, models and nodes, with sources."""
    kinds = _kinds()
    names = list(words or ())
    if not names and compare is None:
        for kind, (_, every, _) in kinds.items():
            offered = [item.name for item in every()]
            print(f"{len(offered)} {kind}: loadstone catalogue {kind}; one: {offered[-1]}")
        return
    kind = names.pop(0) if names and names[0] in kinds else _kind_of([*names, compare or ""][0])
    find, every, rows_of = kinds[kind]
    if image is not None:
        if kind != "models" or not names or compare is not None:
            raise InputError("--image: name models, e.g. catalogue models qwen3-vl-8b --image …")
        _show_pictures(names, image, engine, as_json=json)
        return
    if engine is not None:
        raise InputError("--engine: goes with --image, which it counts as that engine does")
    if compare is not None:
        compared = [name.strip() for name in compare.split(",") if name.strip()]
        if len(compared) < 2 or names:
            raise InputError(
                "--compare: write at least two names with commas, and no other names, e.g."
                " h100,h200"
            )
        items = [find(name) for name in compared]
        table = [rows_of(item) for item in items]
        if json:
            print_json(_comparison(kind, items, table))
        else:
            print_rows(*_set_side_by_side([item.name for item in items], table))
        return
    whole, parts = _find(names, find, every)
    items = whole if names else list(every())
    if json:
        print_json({"schema": 1, kind: [_document(item) for item in [*items, *parts]]})
        return
    for item in whole:
        lines = [(fact, _show(value), unit) for fact, unit, value in rows_of(item)]
        print_rows(
            [item.name, "", ""], [*lines, *((fact, text, "") for fact, text in _remarks(item))]
        )
    listed = parts if names else items
    if listed:
        print_rows(*_listing(kind, listed, rows_of))


def _kinds() -> dict[str, tuple[Any, Any, Any]]:
    """Return of each kind what finds one, what lists all, and what makes rows of one."""
    from loadstone import catalogue as facts

    return {
        "gpus": (facts.gpu, facts.gpus, gpu_rows),
        "models": (facts.model, facts.models, model_rows),
        "nodes": (facts.node, facts.nodes, node_rows),
    }


def _kind_of(name: str) -> str:
    """Return the kind of which there is one with this name, or with a part of it. Raises
    InputError."""
    for kind, (find, every, _) in _kinds().items():
        try:
            if any(_find([name.partition(",")[0]], find, every)):
                return kind
        except InputError:
            continue
    raise InputError(
        f"catalogue: {name!r} is in no name of a GPU, model or node; loadstone catalogue lists them"
    )


def _find(names: Sequence[str], find: Any, every: Any) -> tuple[list[Any], list[Any]]:
    """Return the items of these names, and those that have one of the others in theirs. Raises
    InputError: a name that is in none."""
    whole, parts = [], []
    for name in names:
        word = name.lower()
        holding = [
            item
            for item in every()
            if any(word in alias.lower() for alias in (item.name, *item.aliases))
        ]
        exact = any(word in (item.name.lower(), *item.aliases) for item in holding)
        if exact or not holding:
            whole.append(find(name))
        else:
            parts += holding
    return whole, parts


def _show_pictures(models: Sequence[str], sizes: str, engine: str | None, *, as_json: bool) -> None:
    """Print what pictures of these sizes become, a line each. Raises InputError: no size, or a
    model of which no rule is known."""
    documents, lines, remarks = [], [], []
    for name, visual in (_find_visual(name, engine) for name in models):
        for width, height in [parse_picture_size(size, "--image") for size in sizes.split(",")]:
            counted = visual.count(width, height)
            flops = visual.flops(counted)
            documents.append(
                {"model": name, "width": width, "height": height, **counted._asdict()}
                | {"patches": counted.patches, "encoder_flops": flops}
            )
            grid = f"{counted.columns}x{counted.rows}"
            numbers = (len(counted.tiles), counted.patches, counted.tokens, counted.markers)
            work = _show(None if flops is None else flops / _T)
            cells = (f"{width}x{height}", grid, *map(str, numbers), str(counted.cross), work)
            lines.append((name, *cells))
        remarks += [f"{name}: {text}" for text in visual.assumed]
    if as_json:
        print_json({"schema": 1, "pictures": documents, "assumed": remarks})
        return
    heads = ["model", "picture", "grid", "tiles", "patches", "tokens", "markers", "cross attention"]
    print_rows([*heads, "encoder, TFLOP"], lines, ["model", "tiles", "markers"])
    for text in remarks:
        print(f"assumed: {text}")


def _find_visual(name: str, engine: str | None) -> tuple[str, Visual]:
    """Return a model's name, and how it, or an engine with it, takes pictures. Raises
    InputError."""
    from loadstone.catalogue import parse_worker
    from loadstone.catalogue.find import find_visual
    from loadstone.engines import rules_of

    name, visual = find_visual(name)
    if engine is not None:
        visual = rules_of(parse_worker(f"{name}@1xh200/tp1,engine={engine}")).visual
    if visual is None:
        raise InputError(
            f"{name}: takes no pictures, or its model_type is none whose tokens of a picture are"
            " known; docs/images.md lists these"
        )
    return name, visual


def gpu_rows(gpu: Gpu) -> list[Row]:
    rows: list[Row] = [
        ("vendor", "", gpu.vendor),
        ("memory", "GiB", gpu.hbm_bytes / _GIB),
        ("usable", "GiB", gpu.usable_bytes / _GIB),
        ("bandwidth", "TB/s", gpu.hbm_bytes_per_s / _T),
    ]
    for dtype in ("bf16", "fp16", "fp8", "int8", "fp4"):
        flops = gpu.flops_per_s.get(dtype)
        rows.append((dtype, "TFLOP/s dense", None if flops is None else flops / _T))
    nic = gpu.nic_bytes_per_s
    return [
        *rows,
        ("link", "", gpu.link),
        ("link bandwidth", "GB/s per direction", gpu.link_bytes_per_s / _G),
        ("of a pair", "GB/s per direction", gpu.pair_bytes_per_s / _G),
        ("joined by it", "GPUs", gpu.per_node),
        ("network", "GB/s per direction", None if nic is None else nic / _G),
        ("TDP", "W", gpu.tdp_w),
    ]


def model_rows(model: Model) -> list[Row]:
    return [
        ("parameters", "B", model.parameters / _G),
        ("active", "B", model.active_parameters / _G),
        ("layers", "", model.layer_count),
        ("hidden", "", model.hidden),
        ("weights", "", model.weights_dtype),
        ("weights as published", "GB", model.weights_bytes() / _G),
        ("weights in bf16", "GB", model.weights_bytes("bf16") / _G),
        ("KV cache", "", model.kv_dtype),
        ("KV cache per token", "B", model.kv_bytes_per_token()),
        ("KV cache per token in bf16", "B", model.kv_bytes_per_token("bf16")),
        ("state per sequence", "B", model.state_bytes),
        ("longest context", "tokens", model.max_context_tokens),
        ("draft layers", "B", model.draft_parameters / _G),
        ("vision tower", "B", model.vision_parameters / _G),
    ]


def node_rows(node: Node) -> list[Row]:
    return [
        ("GPUs", "", node.gpus),
        ("GPU", "", node.gpu),
        ("processor", "", node.cpu),
        ("processors", "", node.cpus),
        ("cores", "", node.cores),
        ("RAM", "GiB", None if node.ram_bytes is None else node.ram_bytes / _GIB),
        ("scale-up", "", node.scale_up),
        ("scale-out", "", node.scale_out),
        ("adapters", "", node.nics),
        (
            "adapter",
            "GB/s per direction",
            None if node.nic_bytes_per_s is None else node.nic_bytes_per_s / _G,
        ),
    ]


def _show(value: float | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{round(value, 2 if abs(value) >= 10 else 3):.12g}"


def _remarks(item: Gpu | Model | Node) -> Iterator[tuple[str, str]]:
    if item.aliases:
        yield "aliases", ", ".join(item.aliases)
    sources = item.source if isinstance(item.source, dict) else {"all": item.source}
    for key, text in sources.items():
        yield "source" if key == "all" else f"source of {key}", text
    for text in getattr(item, "notes", ()):
        yield "note", text
    for text in getattr(item, "assumed", ()):
        yield "assumed", text


_BRIEF = {
    "gpus": (
        "memory",
        "usable",
        "bandwidth",
        "bf16",
        "fp8",
        "fp4",
        "link",
        "link bandwidth",
        "TDP",
    ),
    "models": (
        "parameters",
        "active",
        "weights",
        "weights as published",
        "KV cache per token",
        "longest context",
    ),
    "nodes": ("GPUs", "GPU", "processor", "cores", "RAM", "adapters", "adapter"),
}


_SPARE = {
    "gpus": ("usable", "link", "fp4", "TDP", "link bandwidth"),
    "models": ("weights as published", "active"),
    "nodes": ("adapter", "adapters", "processor"),
}


def _listing(
    kind: str, items: Sequence[Any], rows_of: Any
) -> tuple[list[str], list[tuple[str, ...]], list[str]]:
    """Make heads, a line for each item, and the heads that a narrow terminal can spare."""
    units = {fact: unit for fact, unit, _ in rows_of(items[0])}
    heads = [f"{fact}, {units[fact]}" if units[fact] else fact for fact in _BRIEF[kind]]
    lines = []
    for item in items:
        values = {fact: _show(value) for fact, _, value in rows_of(item)}
        lines.append((item.name, *(values[fact] for fact in _BRIEF[kind])))
    head_of = dict(zip(_BRIEF[kind], heads, strict=True))
    return ["name", *heads], lines, [head_of[fact] for fact in _SPARE[kind]]


def _set_side_by_side(
    names: list[str], table: list[list[Row]]
) -> tuple[list[str], list[tuple[str, ...]]]:
    """Make a line per number; after each name but the first stands its ratio to the first."""
    heads = ["", "unit", names[0]]
    for name in names[1:]:
        heads += [name, f"÷ {names[0]}"]
    lines = []
    for rows in zip(*table, strict=True):
        fact, unit, first = rows[0]
        if all(value is None for _, _, value in rows):
            continue
        line = [fact, unit, _show(first)]
        for _, _, value in rows[1:]:
            ratio = _ratio(value, first)
            line += [_show(value), "" if ratio is None else f"{ratio:.2f}"]
        lines.append(tuple(line))
    return heads, lines


def _ratio(value: float | str | None, first: float | str | None) -> float | None:
    if (
        value is None
        or first is None
        or isinstance(value, str)
        or isinstance(first, str)
        or not first
    ):
        return None
    return value / first


def _comparison(kind: str, items: Sequence[Any], table: list[list[Row]]) -> dict[str, Any]:
    rows = [
        {
            "what": lines[0][0],
            "unit": lines[0][1],
            "values": [value for _, _, value in lines],
            "ratios": [_ratio(value, lines[0][2]) for _, _, value in lines],
        }
        for lines in zip(*table, strict=True)
    ]
    return {"schema": 1, "kind": kind, "names": [item.name for item in items], "rows": rows}


def _document(item: Gpu | Model | Node) -> dict[str, Any]:
    """Return hardware as the catalogue has it; of a model, what follows from its config."""
    import msgspec

    from loadstone.catalogue import Model

    if not isinstance(item, Model):
        fields: dict[str, Any] = msgspec.to_builtins(item)
        return fields
    computed = {
        "layers": item.layer_count,
        "weights_bytes": item.weights_bytes(),
        "kv_bytes_per_token": item.kv_bytes_per_token(),
        "kv_bytes_per_token_bf16": item.kv_bytes_per_token("bf16"),
    }
    return {
        name: computed[name] if name in computed else getattr(item, name) for name in _OF_A_MODEL
    }


_OF_A_MODEL = (
    "name",
    "aliases",
    "parameters",
    "active_parameters",
    "parameters_by_kind",
    "draft_parameters",
    "vision_parameters",
    "layers",
    "hidden",
    "vocab",
    "weights_dtype",
    "weights_bytes",
    "kv_dtype",
    "kv_bytes_per_token",
    "kv_bytes_per_token_bf16",
    "state_bytes",
    "max_context_tokens",
    "source",
    "assumed",
)
"""Keys of a model's document, in their order."""
