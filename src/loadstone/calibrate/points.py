"""Points: published measurements, one a line of CSV, and the deployment and traffic each was taken
with.

docs/accuracy.md has the columns; Point has them too. Missing columns and empty cells are missing
values.
"""

import csv
import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from loadstone.catalogue import Deployment, Gpu, Model, Worker, gpu, model, parse_deployment
from loadstone.catalogue.architecture.precision import dtype_of, kv_dtype_of
from loadstone.catalogue.engines import engine_key
from loadstone.catalogue.find import match_gpu, published_in
from loadstone.catalogue.user_files import is_file
from loadstone.core.errors import InputError
from loadstone.core.files import check_regular
from loadstone.engines import ENGINES
from loadstone.predict.scheduler import policy_of

MOST_ROWS = 200_000
MOST_CHARACTERS = 20_000
MOST_TP = 16

_DECIDE = (
    "num_gpus",
    "nodes",
    "tp",
    "dp",
    "moe_tp",
    "moe_ep",
    "input_len",
    "output_len",
    "prefix_len",
    "arrival_value",
    "num_prompts",
    "range_ratio",
    "range_most",
    "acceptance",
    "cached_len",
    "length_spread",
)
_MEASURED = ("ttft_ms_median", "tpot_ms_median", "output_tok_s")
_MISSING = ("nan", "n/a", "na", "none", "null", "-")
"""How tables write, besides an empty cell, that nothing was measured."""
_MOST = 1e9
"""No count, length or load is larger."""


class Point(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={
        "gpus": "num_gpus",
        "input_tokens": "input_len",
        "output_tokens": "output_len",
        "prefix_tokens": "prefix_len",
        "cached_tokens": "cached_len",
        "load": "arrival",
        "load_value": "arrival_value",
        "requests": "num_prompts",
        "ttft_s": "ttft_ms_median",
        "tpot_s": "tpot_ms_median",
        "itl_s": "itl_ms_median",
        "output_tokens_per_s": "output_tok_s",
    },
):
    """One measurement. Times in seconds. `row` counts from 1, without the header.

    deployment               a shorthand, in place of the columns that say what was measured
    range_ratio, range_most  lengths are uniform between these shares of the nominal ones
    cached_tokens            of each prompt, in the prefix cache when it came; None: not known
    length_spread            lengths of real text: their standard deviation, of their mean; 0:
                             uniform, as above
    acceptance               of a guessed token, where the text is known; None: as assumed
                             everywhere
    exclude, unfitted        why it must not be predicted, or not be fitted on; empty: it may
    wrong                    the first cell that decides a prediction, or was measured, and cannot
                             be read; empty: none
    """

    row: int
    source: str = ""
    engine: str = ""
    engine_version: str = ""
    model: str = ""
    precision: str = ""
    kv_dtype: str = ""
    gpu: str = ""
    gpus: int | None = None
    nodes: int | None = None
    tp: int | None = None
    dp: int | None = None
    moe_ep: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prefix_tokens: int | None = None
    cached_tokens: int | None = None
    load: str = ""
    load_value: float | None = None
    requests: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None
    output_tokens_per_s: float | None = None
    mode: str = ""
    range_ratio: float = 1.0
    range_most: float = 1.0
    length_spread: float = 0.0
    acceptance: float | None = None
    stat: str = ""
    exclude: str = ""
    unfitted: str = ""
    sweep: str = ""
    fold: str = ""
    deployment: str = ""
    wrong: str = ""


_COLUMNS = [field for field in msgspec.structs.fields(Point) if field.name not in ("row", "wrong")]


def read_points(path: Path) -> list[Point]:
    """Read all rows of a points file. Raises InputError where it cannot be read as one."""
    try:
        check_regular(path)
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            csv.field_size_limit(MOST_CHARACTERS)
            reader = csv.DictReader(file)
            names = reader.fieldnames or ()
            missing = [name for name in ("engine", "model", "gpu") if name not in names]
            if missing and "deployment" not in names:
                columns = f"column{'s' if missing[1:] else ''} {', '.join(missing)}"
                form = (
                    "a points file is CSV in UTF-8, its first line names them, or deployment in"
                    " their place"
                )
                raise InputError(f"{path}: no {columns}; {form}")
            twice = sorted({name for name in names if name and list(names).count(name) > 1})
            if twice:
                raise InputError(f"{path}: column {twice[0]} is there twice; keep one")
            points = []
            for number, row in enumerate(reader, 1):
                if number > MOST_ROWS:
                    raise InputError(f"{path}: more than {MOST_ROWS} rows; split it")
                points.append(_point(number, row))
            return points
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; check the path and who may read it") from error
    except csv.Error as error:
        raise InputError(
            f"{path}: line {reader.line_num + 1}: {error}; correct the line"
        ) from error


def _point(number: int, row: Mapping[str | None, object]) -> Point:
    def text(name: str) -> str:
        return str(row.get(name) or "").strip()

    values: dict[str, object] = {"row": number}
    for column in _COLUMNS:
        cell = text(column.encode_name)
        value = _number(cell)
        if column.type is str:
            values[column.name] = cell
        elif column.type == int | None:
            values[column.name] = None if value is None or abs(value) > _MOST else int(value)
        elif column.name == "load_value":
            values[column.name] = math.inf if cell == "inf" else value
        elif column.name.endswith("_s") and "_ms_" in column.encode_name:
            values[column.name] = None if value is None or value <= 0 else value / 1e3
        elif value:
            values[column.name] = value
    wrong = next(filter(None, (_wrong(name, text(name)) for name in (*_DECIDE, *_MEASURED))), "")
    return Point(wrong=wrong, **values)  # type: ignore[arg-type]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _wrong(name: str, text: str) -> str:
    """Say in one line what is wrong with a cell; "" where it is a number that can be, or nothing at
    all."""
    if (
        not text
        or (name == "arrival_value" and text == "inf")
        or (name in _MEASURED and text.lower() in _MISSING)
    ):
        return ""
    value = _number(text)
    if name == "range_ratio" and not (value is not None and 0 < value <= 1):
        return f"{name} {text[:40]!r} is not a share of the length; write a number above 0, up to 1"
    return (
        ""
        if value is not None and 0 <= value <= _MOST
        else f"{name} {text[:40]!r} is not a possible number"
    )


# --- what was measured ----------------------------------------------------------------------------


def deployment_of(point: Point) -> Deployment:
    """Return the deployment that a point was measured on. Raises InputError with the reason why
    there is none."""
    if point.deployment:
        named = parse_deployment(point.deployment)
        return named if named.is_split else Deployment.of(_runnable(named.worker))
    engine, device, base = _engine(point), _gpu(point.gpu), _model(point.model)
    weights = _weights(point, base)
    if weights != base.weights_dtype and (
        weights == "nvfp4" or (weights == "fp8" and base.has_experts)
    ):
        base = published_in(base, weights) or base
    tp, dp, ep, attention_dp = _parallelism(point, engine, base)
    gpus = tp * dp
    if gpus > device.per_node and not (point.nodes and point.nodes > 1):
        raise InputError(f"{gpus} GPUs on one node")
    for run in base.layers:
        heads = getattr(run.attention, "heads", tp)
        if heads % tp:
            raise InputError(f"tp {tp} does not divide {heads} heads")
    if (
        base.weights_bytes(weights) / gpus > device.usable_bytes
        and "marlin" not in point.precision.lower()
    ):
        raise InputError(
            f"{base.weights_bytes(weights) / 1e9:.0f} GB of weights do not fit {gpus} ×"
            f" {device.name}"
        )
    # NVIDIA's NVFP4 checkpoints are made for an FP8 cache (kv_cache_quant_algo), and engines
    # follow.
    implied = "fp8" if weights == "nvfp4" else base.kv_dtype
    worker = _runnable(
        Worker(
            model=base,
            gpu=device,
            gpus=gpus,
            nodes=max(1, -(-gpus // device.per_node)),
            tp=tp,
            dp=dp,
            ep=ep,
            attention_dp=attention_dp,
            weights_dtype=weights,
            kv_dtype=_kv_dtype(point) or implied,
            engine=engine,
            engine_version=point.engine_version or None,
        )
    )
    return Deployment.of(worker)


def _runnable(worker: Worker) -> Worker:
    """Return the worker, or the same with experts dealt out where slices of them cannot be (a row
    may not say `ep`)."""
    if worker.ep > 1 or worker.moe_ranks == 1:
        return worker
    dealt = msgspec.structs.replace(worker, ep=worker.moe_ranks)
    return dealt if not _can_run(worker) and _can_run(dealt) else worker


def _can_run(worker: Worker) -> bool:
    try:
        policy_of(worker)
    except InputError:
        return False
    return True


def _engine(point: Point) -> str:
    key = engine_key(point.engine.split()[0]) if point.engine else None
    if key not in ENGINES:
        raise InputError(f"engine {point.engine!r} is not modelled")
    return key


@cache
def _gpu(text: str) -> Gpu:
    if is_file(text):
        return gpu(text)
    match = match_gpu(text)
    try:
        return gpu(text if match is None else match.key)
    except InputError:
        raise InputError(f"GPU {text!r} is not in the catalogue") from None


@cache
def _model(text: str) -> Model:
    for name in (text, text.rpartition("/")[2]):
        try:
            return model(name)
        except InputError:
            continue
    raise InputError(f"model {text!r} is not in the catalogue")


def _weights(point: Point, base: Model) -> str:
    text = re.split(r"[\s(?]", point.precision.lower().strip())[0]
    if not text:
        return "bf16" if base.weights_dtype in ("bf16", "fp16") else base.weights_dtype
    name = dtype_of(text, "precision")
    return "mxfp4" if name == "nvfp4" and base.weights_dtype == "mxfp4" else name


def _kv_dtype(point: Point) -> str | None:
    named = point.kv_dtype.strip().lower() not in ("", "auto")
    return kv_dtype_of(point.kv_dtype, "kv_dtype") if named else None


def _parallelism(point: Point, engine: str, base: Model) -> tuple[int, int, int, bool]:
    """Return (tp, dp, ep, attention_dp) in the catalogue's words: tp · dp GPUs. Models with experts
    share them among the data-parallel replicas."""
    if point.gpus == 0 or point.dp == 0:
        raise InputError("parallelism is not said: 0 GPUs")
    tp, dp = point.tp or 0, max(1, point.dp or 0)
    gpus = point.gpus if point.gpus and point.gpus > 0 else max(tp, 1) * dp
    if tp > MOST_TP:
        raise InputError(
            f"tp {tp}: no single instance is cut that finely; the row sums over several"
        )
    if tp == 0:
        raise InputError("parallelism is not said")
    if tp * dp > gpus:
        dp = max(1, gpus // tp)
    if not base.has_experts:
        return tp, dp, 1, False
    attention_dp = dp > 1
    ep = max(1, point.moe_ep or 0)
    if attention_dp and ep == 1 and ENGINES[engine].spreads_experts:
        ep = tp * dp
    ranks = tp * dp if attention_dp else tp
    return tp, dp, ep if ranks % ep == 0 else 1, attention_dp
