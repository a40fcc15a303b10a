"""A report to files: one page, one text, one sheet, or a folder of pictures."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from loadstone.analyse.compare.price import check_prices, parse_prices
from loadstone.core.errors import InputError
from loadstone.core.files import check_file, explain_os_error
from loadstone.report.data.runs import read_runs
from loadstone.report.pages.document import INSIDE_RUNS, Report, build
from loadstone.report.pages.study import StudyPart

Format = Literal["html", "md", "csv", "png", "svg"]
FORMATS: tuple[Format, ...] = get_args(Format)
_SUFFIXES: dict[str, Format] = {**{kind: kind for kind in FORMATS}, "htm": "html", "markdown": "md"}


class Written(NamedTuple):
    """The files, and what is in them."""

    files: list[Path]
    report: Report


def report(
    folders: Sequence[Path],
    out: Path | None = None,
    kind: Format | None = None,
    *,
    passed_over: Sequence[str] = (),
    price: Sequence[str] = (),
    study: StudyPart | None = None,
) -> Written:
    """Write the report of these runs, or folders of runs. Raises InputError, one line.

    `kind`: None takes it from the name of `out`, else it is html. Pictures go into a folder, `out`.
    `out` as `-` is stdout; there are no files then. `passed_over`: what could not be read before.
    `price`: GPU=DOLLARS an hour. `study`: that the runs are of.
    """
    prices = parse_prices(price)
    kind = kind or _kind(out)
    pictures = kind in ("png", "svg")
    on_stdout = out == Path("-")
    if out is not None and not on_stdout and not pictures:
        check_file(out)
    if on_stdout and pictures:
        raise InputError(f"-o -: {kind} makes several files; name a folder for them")
    runs, unreadable = read_runs(folders)
    check_prices(prices, (run.facts for run in runs))
    passed_over = [*passed_over, *unreadable]
    made = build(
        runs, passed_over=passed_over, drawn=kind not in ("md", "csv"), prices=prices, study=study
    )
    if on_stdout:
        sys.stdout.write(_text(made, kind).encode("utf-8", "replace").decode())
        return Written([], made)
    path = out or Path("report-pictures" if pictures else f"report.{kind}")
    with explain_os_error(f"{path}: cannot be written", "give another name with -o"):
        if pictures:
            return Written(write_pictures(made, path, kind), made)
        _write(path, _text(made, kind))
    return Written([path], made)


def _write(out: Path, text: str) -> None:
    """Write the whole file, or none."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".part")
    try:
        partial.write_text(text, "utf-8", errors="replace")
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


def _kind(out: Path | None) -> Format:
    suffix = "" if out is None else out.suffix.removeprefix(".").lower()
    if suffix == "":
        return "html" if out != Path("-") else "md"
    if suffix not in _SUFFIXES:
        raise InputError(
            f"-o {out}: .{suffix} is none of {', '.join(FORMATS)}; choose one with --format"
        )
    return _SUFFIXES[suffix]


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
    """Write every figure as a file of its own, numbered in the report's order; of more than
    INSIDE_RUNS runs without those of single runs, which is said on stderr. `folder` may be named
    like a picture. Raises InputError.
    """
    from loadstone.report.pages.html import save_picture

    folder = folder.with_suffix("") if folder.suffix.lower() == f".{kind}" else folder
    folder.mkdir(parents=True, exist_ok=True)
    of_runs = [figure for part in made.parts for figure in part.figures]
    figures = [*made.figures, *of_runs]
    if made.figures and len(made.parts) > INSIDE_RUNS:
        figures = made.figures
        if of_runs:
            omitted = (
                f"{len(of_runs)} pictures of single runs are left out, as for more than"
                f" {INSIDE_RUNS} runs"
            )
            print(f"loadstone: {omitted}; name one run to get its own", file=sys.stderr)
    if not figures:
        raise InputError(
            "these runs give no picture: a curve needs two loads, or records; --format md has their"
            " table"
        )
    written = []
    for number, figure in enumerate(figures, 1):
        path = (
            folder / f"{number:03d}-{''.join(c if c.isalnum() else '-' for c in figure.key)}.{kind}"
        )
        save_picture(figure, path)
        written.append(path)
    return written
