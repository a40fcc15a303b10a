"""The page's addresses. What is slow runs in a thread; a report is made once for each state of its
runs.

/                        the list, narrowed by q, engine, source, trusted, slo, in the order of
                         sort; part=rows: its table alone
/groups/NAME             the report of a study, or of a search's probes
/runs/KEY                the report of a run; its live page while it has no records
/runs/KEY/live.json      what the live page draws
/compare?run=K&run=K     several runs in one report, two compared
/assets/NAME             scripts and styles
"""

import asyncio
import hashlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from loadstone.core.errors import InputError
from loadstone.report.data.wording import clean
from loadstone.report.view import pages
from loadstone.report.view.live import look
from loadstone.report.view.run_list import RunList, RunRow, signature

MOST_COMPARED = 20
INSIDE = 2
"""Runs whose records a report of several draws, too: more would make it slow."""
_KEPT_BYTES = 64 * 1024 * 1024
_MAX_TEXT = 200
_CHOICES = ("engine", "source", "trusted", "slo", "sort", "group")


def report_page(rows: Sequence[RunRow]) -> str:
    """Write the report of these runs, of two of them below their comparison."""
    from loadstone.analyse.stored_run import read_run
    from loadstone.report.pages.document import build
    from loadstone.report.pages.html import body

    runs = [read_run(row.folder) for row in rows]
    report = build(runs, inside=len(runs) <= INSIDE)
    comparison = pages.comparison(*rows) if len(rows) == 2 else ""
    return pages.report(body(report), report.title, comparison)


class ViewApp:
    """The pages over one list of runs. `make_page`: writes the report of some of them."""

    def __init__(
        self,
        runs: RunList,
        make_page: Callable[[Sequence[RunRow]], str] = report_page,
    ) -> None:
        self._runs = runs
        self._make_page = make_page
        self._made: OrderedDict[object, str] = OrderedDict()
        self._making = asyncio.Lock()
        """One report at a time: who waits for it takes no thread from those who want the list."""

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/", self.listing),
                Route("/runs/{key}", self.run),
                Route("/runs/{key}/live.json", self.live),
                Route("/compare", self.compare),
                Route("/groups/{name}", self.group),
                Route("/assets/{name}", self.asset),
            ],
            exception_handlers={HTTPException: _refuse, InputError: _refuse},
        )

    def listing(self, request: Request) -> Response:
        query = {name: clean(value, _MAX_TEXT) for name, value in request.query_params.items()}
        start = query.get("start", "")
        chosen = pages.Filter(
            text=query.get("q", ""),
            start=int(start) if start.isascii() and start.isdigit() and len(start) < 9 else 0,
            **{name: query.get(name, "") for name in _CHOICES},
        )
        rows = self._runs.rows()
        write = pages.rows_part if query.get("part") == "rows" else pages.listing
        return _answer_tagged(request, write(rows, chosen))

    async def run(self, request: Request) -> Response:
        row = await run_in_threadpool(self._row, request.path_params["key"])
        if row.state == "unreadable":
            return HTMLResponse(pages.message(row.name, "This run cannot be read.", row.why))
        return HTMLResponse(pages.live(row) if row.live else await self._report([row]))

    def live(self, request: Request) -> Response:
        row = self._row(request.path_params["key"])
        if not row.live:
            return JSONResponse({"schema": 1, "state": row.state})
        return JSONResponse(look(row))

    async def compare(self, request: Request) -> Response:
        keys = list(dict.fromkeys(request.query_params.getlist("run")))
        if not 2 <= len(keys) <= MOST_COMPARED:
            ticked = f"{len(keys)} runs are ticked." if len(keys) != 1 else "One run is ticked."
            remedy = f"Go back and tick two, or up to {MOST_COMPARED} for one report."
            return HTMLResponse(pages.message("Compare", ticked, remedy), 400)
        rows = [await run_in_threadpool(self._row, key) for key in keys]
        waiting = [row.name for row in rows if row.live or row.state == "unreadable"]
        if waiting:
            text = f"These have no result to compare: {', '.join(waiting)}."
            return HTMLResponse(pages.message("Compare", text), 409)
        if request.query_params.get("as") != "given":
            rows.sort(
                key=lambda row: (row.created, row.key)
            )  # what was there first is what a change is judged by
        return HTMLResponse(await self._report(rows))

    async def group(self, request: Request) -> Response:
        rows = await run_in_threadpool(self._runs.rows)
        name = request.path_params["name"]
        members = [row for row in rows if row.group == name and row.comparable]
        if not members:
            raise HTTPException(404, "There is no such study here.")
        return HTMLResponse(await self._report(members[::-1]))

    def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        text = pages.asset(name[:40])
        if text is None:
            raise HTTPException(404)
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        return Response(text, media_type=kind, headers={"cache-control": "private, max-age=86400"})

    def _row(self, key: str) -> RunRow:
        row = self._runs.find(key)
        if row is None:
            raise HTTPException(404, "There is no such run here; it may have been removed.")
        return row

    async def _report(self, rows: Sequence[RunRow]) -> str:
        async with self._making:
            return await run_in_threadpool(self._page_of, rows)

    def _page_of(self, rows: Sequence[RunRow]) -> str:
        """Return the page of these runs' report, or of why there is none; kept until one of their
        files changes."""
        files = ("run.json", "summary.json", "records.parquet", "server.parquet")
        key = tuple((row.key, signature(row.folder, files)) for row in rows)
        if key not in self._made:
            try:
                self._made[key] = self._make_page(rows)
            except InputError as error:
                return pages.message(
                    rows[0].name, "There is no report of this yet.", clean(str(error), 400)
                )
            except Exception as error:
                # Files of others' making may be wrong in ways nobody thought of; this page is about
                # them.
                why = f"{type(error).__name__}: {clean(str(error), 300)}"
                print(
                    f"loadstone view: {', '.join(row.name for row in rows)}: {why}", file=sys.stderr
                )
                return pages.message(rows[0].name, "No report can be made of these files.", why)
            while len(self._made) > 1 and sum(map(len, self._made.values())) > _KEPT_BYTES:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return self._made[key]


def _answer_tagged(request: Request, text: str) -> Response:
    """Return a page, or nothing where the browser has this very one."""
    tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:20]}"'
    headers = {"etag": tag, "cache-control": "private, no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return HTMLResponse(text, headers=headers)


def _refuse(request: Request, error: Exception) -> Response:
    code = error.status_code if isinstance(error, HTTPException) else 404
    text = clean(error.detail if isinstance(error, HTTPException) else str(error), 300)
    if request.url.path.endswith(".json"):
        return JSONResponse({"schema": 1, "error": text}, code)
    return HTMLResponse(pages.message("Not here", text), code)
