"""The other side of bench_scrape: an aiohttp server that answers every request with constant bytes.

Run as `memory_server.py PAGE PAGE_GZIP`; prints its port, and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from aiohttp import web


async def serve(plain: bytes, packed: bytes) -> None:
    about = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8", "Vary": "Accept, Accept-Encoding"}

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=packed, headers={**about, "Content-Encoding": "gzip"})
        return web.Response(body=plain, headers=about)

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(*(Path(name).read_bytes() for name in sys.argv[1:])))
