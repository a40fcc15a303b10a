"""Run folders: written as the run goes, whole again after any crash, readable by everything that
reads Parquet.

    runs/<run_id>/
        .owner             while a process works on it: a lock that nobody else takes meanwhile
        run.json           RunInfo, from the first moment
        plan.parquet       the plan; its description in the schema's metadata
        journal-<w>.arrow  while running: what worker w saw, appended twice a second; stays where it
                           was damaged
        server.arrow       while running: what the servers said of themselves in /metrics, where
                           they do
        records.parquet    after: one row per request, columns as RequestRecord
        server.parquet     after: what server.arrow held
        answers.parquet    where answers were graded: their grades; their texts only on request
        summary.json       after: the numbers, as `loadstone bench --json` prints them
        log.txt            what was said

What is written at once is there whole or not at all.
"""

from loadstone.core.run_folder.answers import STEP, GradedAnswer, read_answers, write_answers
from loadstone.core.run_folder.assembly import INTERRUPTED, assemble
from loadstone.core.run_folder.folder import (
    create,
    log,
    read_info,
    run_id,
    write_failure,
    write_info,
    write_json,
)
from loadstone.core.run_folder.journal import (
    HEADER_BYTES,
    RESERVE_BYTES,
    Journal,
    JournalWriter,
    damaged_journals,
    is_held,
    read_header,
)
from loadstone.core.run_folder.marks import find_changed, seal
from loadstone.core.run_folder.owner import OWNER, own
from loadstone.core.run_folder.plan import cut_to_issued, read_plan, write_plan
from loadstone.core.run_folder.records import (
    EVENT_LISTS,
    check_cells,
    journal_schema,
    read_columns,
    read_records,
    records_schema,
    write_records,
)
from loadstone.core.run_folder.server import read_server, seal_server, server_schema, write_server

__all__ = [
    "EVENT_LISTS",
    "HEADER_BYTES",
    "INTERRUPTED",
    "OWNER",
    "RESERVE_BYTES",
    "STEP",
    "GradedAnswer",
    "Journal",
    "JournalWriter",
    "assemble",
    "check_cells",
    "create",
    "cut_to_issued",
    "damaged_journals",
    "find_changed",
    "is_held",
    "journal_schema",
    "log",
    "own",
    "read_answers",
    "read_columns",
    "read_header",
    "read_info",
    "read_plan",
    "read_records",
    "read_server",
    "records_schema",
    "run_id",
    "seal",
    "seal_server",
    "server_schema",
    "write_answers",
    "write_failure",
    "write_info",
    "write_json",
    "write_plan",
    "write_records",
    "write_server",
]
