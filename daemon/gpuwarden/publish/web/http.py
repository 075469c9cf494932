"""The parts of aiohttp's server in use. `aiohttp.web` would add applications, routes and static files: 1 MiB."""

import gpuwarden.publish.web.plain_aiohttp  # noqa: F401 - before any other import of aiohttp

# isort: split
from aiohttp import web_protocol
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from aiohttp.web_server import Server

web_protocol.MAX_MSG_QUEUE_SIZE = 1
"""Requests of one connection that are parsed ahead of the one being served. Not an option of the server; the default of
32 costs 64 KiB for each client that reads nothing.
"""

__all__ = ("BaseRequest", "RequestHandler", "Server", "StreamResponse")
