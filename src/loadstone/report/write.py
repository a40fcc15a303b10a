"""A report to files: one page, one text, one sheet, or a folder of pictures."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple, get_args

from loadstone.analyse.compare.price import Prices, parse_prices
from loadstone.core.errors import InputError
from loadstone.report.charts.theme import Figure
from loadstone.report.data.runs import read_runs
from loadstone.report.pages.document import Report, build

Format = Literal["html", "md", "csv", "png", "svg"]
FORMATS: tuple[Format, ...] = get_args(Format)
RUNS_ALONE = 12
"""Runs of which each has pictures of its own as files: of more nobody looks through them, and they take minutes."""


class Written(NamedTuple):
    """The files, and what is in them."""

    files: list[Path]
    report: Report


def report(
    paths: Sequence[Path],
    out: Path | None = None,
    kind: Format | None = None,
    *,
    given: Sequence[str] = (),
    price: Sequence[str] = (),
) -> Written:
    """Write the report of the runs at `paths`. Raises InputError, one line.

    A file, or a folder of files without a run, is another tool's results: imported for this report alone, with the
    facts that they do not tell in `given` (NAME=VALUE, see importers). `kind`: None takes it from the name of `out`,
    else it is html. Pictures go into a folder, `out`. `out` as `-` is stdout; there are no files then.
    `price`: GPU=DOLLARS an hour.
    """
    prices = parse_prices(price)
    chosen = kind or _kind(out)
    pictures = chosen in ("png", "svg")
    shown = out == Path("-")
    if shown and pictures:
        raise InputError(f"-o -: {chosen} makes several files; name a folder for them")
    made = build_of(paths, given, inside=chosen not in ("md", "csv"), prices=prices)
    if shown:
        sys.stdout.write(_text(made, chosen).encode("utf-8", "replace").decode())
        return Written([], made)
    out = out or Path("report-pictures" if pictures else f"report.{chosen}")
    try:
        if pictures:
            return Written(write_pictures(made, out, chosen), made)
        _write(out, _text(made, chosen))
    except OSError as error:
        raise InputError(
            f"{out}: cannot be written ({error.strerror or error}); give another name with -o"
        ) from error
    return Written([out], made)


def _write(out: Path, text: str) -> None:
    """The whole file, or none."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".part")
    try:
        partial.write_text(text, "utf-8", errors="replace")
        partial.replace(out)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def build_of(paths: Sequence[Path], given: Sequence[str], *, inside: bool, prices: Prices | None = None) -> Report:
    """The report of run folders and of results, which are imported for it alone. Raises InputError."""
    files = [path for path in paths if _is_results(path)]
    folders = [path for path in paths if path not in files]
    left_out: list[str] = []
    if given and not files:
        raise InputError("--set: only for other tools' results, and none was named; run folders hold their own facts")
    with contextlib.ExitStack() as stack:
        if files:
            from loadstone.interop.read import import_files

            scratch = stack.enter_context(TemporaryDirectory(prefix="loadstone-report-"))
            facts = [word for fact in given for word in ("--set", fact)]
            command = ["loadstone", "import", *map(str, files), *facts]
            imported = import_files(files, Path(scratch), given=given, command=command)
            folders += imported.runs
            # Those of a run stand in its verdict.
            left_out = [finding["evidence"] for finding in imported.findings if finding["run"] is None]
        runs, passed_over = read_runs(folders)
        return build(runs, passed_over=[*left_out, *passed_over], inside=inside, prices=prices)


def _is_results(path: Path) -> bool:
    """Whether it is another tool's: a file, or a folder of files without a run."""
    if not path.is_dir() or next(path.rglob("run.json"), None) is not None:
        return path.is_file()
    from loadstone.interop.read.files import files_of

    return bool(files_of([path]))


def _kind(out: Path | None) -> Format:
    suffix = "" if out is None else out.suffix.removeprefix(".").lower()
    if suffix == "":
        return "html" if out != Path("-") else "md"
    for kind in FORMATS:
        if suffix in (kind, {"html": "htm", "md": "markdown"}.get(kind)):
            return kind
    raise InputError(f"-o {out}: .{suffix} is none of {', '.join(FORMATS)}; choose one with --format")


def _text(made: Report, kind: Format) -> str:
    if kind == "md":
        from loadstone.report.pages.markdown import markdown

        return markdown(made)
    if kind == "csv":
        from loadstone.report.pages.csv_sheet import sheet

        return sheet(made)
    from loadstone.report.pages.html import page

    return page(made)


def write_pictures(made: Report, folder: Path, kind: Format) -> list[Path]:
    """Every figure as a file of its own, numbered in the report's order; of more than RUNS_ALONE runs without those
    of single runs, which is said on stderr. `folder` may be named like a picture. Raises InputError.
    """
    from loadstone.report.charts.export import to_png, to_svg

    folder = folder.with_suffix("") if folder.suffix.lower() == f".{kind}" else folder
    folder.mkdir(parents=True, exist_ok=True)
    alone = [figure for part in made.parts for figure in part.figures]
    figures: list[Figure] = [*made.figures, *alone]
    if made.figures and len(made.parts) > RUNS_ALONE:
        figures = made.figures
        if alone:
            said = f"{len(alone)} pictures of single runs are left out, as for more than {RUNS_ALONE} runs"
            print(f"loadstone: {said}; name one run to get its own", file=sys.stderr)
    if not figures:
        raise InputError(
            "these runs give no picture: a curve needs two loads, or records; --format md has their table"
        )
    written = []
    for number, figure in enumerate(figures, 1):
        path = folder / f"{number:03d}-{''.join(c if c.isalnum() else '-' for c in figure.key)}.{kind}"
        path.write_bytes(to_png(figure) if kind == "png" else to_svg(figure).encode())
        written.append(path)
    return written
