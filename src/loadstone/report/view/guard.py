"""The door: which requests reach the page at all, and the headers that every answer has.

- Only GET and HEAD: nothing here changes anything.
- Host must be an address, localhost or a name that was given: a name that somebody else's DNS
  points here (rebinding) is refused, since its pages could read ours.
- Other sites' pages may link here, but may not fetch or embed (Fetch Metadata, W3C).
- With a token: the URL's `token` opens, and leaves a cookie; every other request needs that cookie.
"""

import ipaddress
import re
import secrets
import sys
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from loadstone.report.data.wording import clean
from loadstone.report.view.pages import opening

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:;"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253})(:[0-9]{1,5})?")


class Guard:
    """ASGI middleware. `names`: hosts, beside addresses and localhost, that the page may be called
    by.

    `token`: what a first visit must bring, None where none is needed; `cookie`: the name it is kept
    under.
    """

    def __init__(
        self, app: ASGIApp, *, names: Iterable[str] = (), token: str | None = None, cookie: str = ""
    ) -> None:
        self._app = app
        self._names = {name.lower().rstrip(".") for name in names} | {"localhost"}
        self._token = token
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        begun = False

        async def with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._answer(scope)
        try:
            await (self._app if answer is None else answer)(scope, receive, with_headers)
        except Exception as error:
            # Whatever somebody thinks of sending: a line, not a traceback, and the page goes on.
            print(
                f"loadstone view: {clean(scope['path'])}: {type(error).__name__}:"
                f" {clean(str(error))}",
                file=sys.stderr,
            )
            if not begun:
                await PlainTextResponse("This cannot be answered.\n", 500)(
                    scope, receive, with_headers
                )

    def _answer(self, scope: Scope) -> Response | None:
        """Answer in the page's place; None if the request may pass."""
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This page is read-only.\n", 405, {"allow": "GET, HEAD"})
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return PlainTextResponse(
                "This page does not serve this host name. Use an IP address, or allow the name with"
                " --name.\n",
                421,
            )
        site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
        if site in ("cross-site", "same-site") and mode != "navigate":
            return PlainTextResponse("Requests from another site are refused.\n", 403)
        return None if self._token is None else self._unlock(scope, headers, self._token)

    def _is_ours(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].strip("[]").lower().rstrip(".")
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True

    def _unlock(self, scope: Scope, headers: Headers, token: str) -> Response | None:
        try:
            query = parse_qs(
                scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=100
            )
        except ValueError:
            return PlainTextResponse("The address has more than 100 fields.\n", 400)
        tokens = query.pop("token", [])
        if tokens:
            if not _same(tokens[0], token):
                return PlainTextResponse(
                    "Wrong token: use the URL that `loadstone view` printed.\n", 401
                )
            # Not a redirect: one that begins at another site would arrive without the
            # SameSite=Strict cookie. The path is as it came, beginning with one slash: `//host`
            # would lead elsewhere.
            path = "/" + scope["raw_path"].decode("latin-1").lstrip("/\\")
            rest = urlencode(query, doseq=True)
            answer = HTMLResponse(opening(f"{path}?{rest}" if rest else path))
            answer.set_cookie(self._cookie, token, path="/", httponly=True, samesite="strict")
            return answer
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            cookies.clear()
        kept = cookies.get(self._cookie)
        if kept is not None and _same(kept.value, token):
            return None
        return PlainTextResponse(
            "A token is needed: use the URL that `loadstone view` printed.\n", 401
        )


def _same(sent: str, token: str) -> bool:
    """Compare in a time that tells nothing of where they differ."""
    return secrets.compare_digest(sent.encode("utf-8", "replace"), token.encode())
