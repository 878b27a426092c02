"""A small real HTTP server that answers with pages captured from SGLang, with figures that can be set.

    python captured_server.py --port P --capture FOLDER

``POST /_set`` takes JSON: ``values`` (metric name -> value), ``grow`` (metric name -> units per second),
``running``, ``missing`` (paths that answer 404), ``delays`` (path -> seconds), ``health`` (status), ``info``
(entries of /server_info). ``GET /_asked`` gives how often each path was asked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from aiohttp import web


class Server:
    def __init__(self, capture: Path) -> None:
        self.metrics = (capture / "metrics-load.txt").read_text()
        self.loads = json.loads((capture / "v1-loads-load.json").read_text())
        self.info = json.loads((capture / "server_info.json").read_text())
        self.models = json.loads((capture / "v1-models.json").read_text())
        self.state: dict[str, Any] = {"values": {}, "missing": [], "delays": {}, "health": 200, "info": {}}
        self.asked: Counter[str] = Counter()
        self.grow: dict[str, float] = {}
        self.began = 0.0

    @web.middleware
    async def before(self, request: web.Request, handler: Any) -> web.StreamResponse:
        path = request.path
        if not path.startswith("/_"):
            self.asked[path] += 1
            await asyncio.sleep(self.state["delays"].get(path, 0))
            if path in self.state["missing"]:
                return web.json_response({"detail": "Not Found"}, status=404)
        response: web.StreamResponse = await handler(request)
        return response

    def page(self) -> str:
        values = dict(self.state["values"])
        elapsed = asyncio.get_running_loop().time() - self.began
        for name, rate in self.grow.items():
            values[name] = values.get(name, 0.0) + rate * elapsed
        text = self.metrics
        for name, value in values.items():
            metric, _, mode = name.partition("/")
            labels = r"\{[^}]*" + (f'mode="{mode}"' if mode else "") + r"[^}]*\}"
            text, count = re.subn(
                rf"^(sglang:{metric}{labels}) \S+$", rf"\g<1> {value}", text, flags=re.MULTILINE
            )
            if not count:
                extra = f'engine_type="unified",mode="{mode}"' if mode else 'engine_type="unified"'
                text += f"sglang:{metric}{{{extra}}} {value}\n"
        return text

    async def get_metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.page(), content_type="text/plain")

    async def get_loads(self, request: web.Request) -> web.Response:
        running = self.state.get("running")
        if running is not None:
            self.loads["loads"][0]["num_running_reqs"] = running
        return web.json_response(self.loads)

    async def get_info(self, request: web.Request) -> web.Response:
        return web.json_response({**self.info, **self.state["info"]})

    async def get_models(self, request: web.Request) -> web.Response:
        return web.json_response(self.models)

    async def get_health(self, request: web.Request) -> web.Response:
        return web.Response(status=self.state["health"])

    async def set(self, request: web.Request) -> web.Response:
        change = await request.json()
        self.grow = change.pop("grow", self.grow)
        self.began = asyncio.get_running_loop().time()
        self.state.update(change)
        return web.json_response({})

    async def get_asked(self, request: web.Request) -> web.Response:
        return web.json_response(dict(self.asked))

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self.before])
        app.router.add_get("/metrics", self.get_metrics)
        app.router.add_get("/v1/loads", self.get_loads)
        app.router.add_get("/server_info", self.get_info)
        app.router.add_get("/v1/models", self.get_models)
        app.router.add_get("/health", self.get_health)
        app.router.add_post("/_set", self.set)
        app.router.add_get("/_asked", self.get_asked)
        return app


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--capture", type=Path, required=True)
    arguments = parser.parse_args()
    server = Server(arguments.capture)
    web.run_app(server.app(), host="127.0.0.1", port=arguments.port, print=None, handle_signals=True)


if __name__ == "__main__":
    main()
