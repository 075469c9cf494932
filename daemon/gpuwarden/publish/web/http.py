"""The parts of aiohttp's server in use. `aiohttp.web` would add applications, routes and static files: 1 MiB."""

import gpuwarden.publish.web.plain_aiohttp  # noqa: F401 - before any other import of aiohttp

# isort: split
from aiohttp import web_protocol
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from aiohttp.web_server import Server

web_protocol.MAX_MSG_QUEUE_SIZE = 2
"""Requests of one connection that are parsed ahead of the one being served. Not an option of the server; the default of
32 costs 64 KiB for each client that reads nothing. With 1 every request stops and starts the reading of its connection:
two calls of epoll_ctl, and a fifth of the time of a response from memory (`bench_scrape`).
"""

__all__ = ("BaseRequest", "RequestHandler", "Server", "StreamResponse")
