"""What is used of aiohttp's server. `aiohttp.web` would bring applications, routes, static files and sessions: 1 MiB."""

import gpuwarden.publish.web.plain_aiohttp  # noqa: F401 - before aiohttp is imported in another way

# isort: split
from aiohttp import web_protocol
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from aiohttp.web_server import Server

web_protocol.MAX_MSG_QUEUE_SIZE = 1
"""Requests of one connection that are parsed ahead of the one that is being answered. It is no option of the server; by default they are 32 of
2 KiB, of each client that reads nothing.
"""

__all__ = ("BaseRequest", "RequestHandler", "Server", "StreamResponse")
