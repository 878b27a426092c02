"""The HTTP application: routes, errors in SGLang's shape, the access log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from dflash_engine.api import RequestError
from dflash_engine.server.admin import AdminRoutes
from dflash_engine.server.log import logger
from dflash_engine.server.native import NativeRoutes
from dflash_engine.server.openai import OpenAiRoutes
from dflash_engine.server.requests import MAX_BODY
from dflash_engine.server.state import Phase, ServerContext

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_KINDS = {400: "BadRequestError", 404: "NotFoundError", 409: "ConflictError", 413: "BadRequestError"}

_POLLED = frozenset({"/metrics", "/v1/loads", "/health", "/ready"})


def error_response(request: web.Request, message: str, status: int) -> web.Response:
    """An error as SGLang answers it: OpenAI's object under /v1, ``{"error": {...}}`` elsewhere."""
    kind = _KINDS.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
    if request.path.startswith("/v1/"):
        body: dict[str, object] = {
            "object": "error",
            "message": message,
            "type": kind,
            "param": None,
            "code": status,
        }
    else:
        body = {"error": {"message": message, "type": kind, "code": status}}
    return web.json_response(body, status=status)


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every failure is one answer to one request; the server lives on."""
    try:
        return await handler(request)
    except (asyncio.CancelledError, ConnectionError):
        raise
    except web.HTTPException as refused:
        return error_response(request, refused.reason, refused.status)
    except Exception as raised:
        error = _first(raised)
        if isinstance(error, ConnectionError):
            raise error from raised
        if isinstance(error, RequestError):
            return error_response(request, error.message, error.status)
        logger.exception("%s %s failed", request.method, request.path, exc_info=error)
        return error_response(request, "internal error; see the server's log", 500)


def _first(error: BaseException) -> BaseException:
    """The first cause inside the groups that a task group raises."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@web.middleware
async def access_log(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The line that uvicorn writes in SGLang's log; a monitor's polls that went well are left out."""
    response = await handler(request)
    if request.method == "GET" and request.path in _POLLED and response.status == 200:
        return response
    peer = request.transport.get_extra_info("peername") if request.transport else None
    where = f"{peer[0]}:{peer[1]}" if peer else "-"
    path = "".join(c if c.isprintable() else "?" for c in request.path_qs[:200])
    logger.info(
        'INFO:     %s - "%s %s HTTP/1.1" %d %s', where, request.method, path, response.status, response.reason
    )
    return response


@web.middleware
async def closing(request: web.Request, handler: Handler) -> web.StreamResponse:
    """New text requests are refused while the server stops."""
    if request.method == "POST" and app_context(request).phase in (Phase.STOPPING, Phase.FAILED):
        return error_response(request, "the server is stopping", 503)
    return await handler(request)


CONTEXT: web.AppKey[ServerContext] = web.AppKey("context", ServerContext)


def app_context(request: web.Request) -> ServerContext:
    """The context of the application behind a request."""
    return request.app[CONTEXT]


def build_app(context: ServerContext) -> web.Application:
    """The whole application."""
    app = web.Application(middlewares=[access_log, errors, closing], client_max_size=MAX_BODY)
    app[CONTEXT] = context
    app.add_routes(NativeRoutes(context).routes())
    app.add_routes(OpenAiRoutes(context).routes())
    app.add_routes(AdminRoutes(context).routes())
    return app
