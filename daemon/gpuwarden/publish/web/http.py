"""What is used of aiohttp's server. `aiohttp.web` would bring applications, routes, static files and sessions: 1 MiB."""

from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse
from aiohttp.web_server import Server

__all__ = ("BaseRequest", "RequestHandler", "Response", "Server", "StreamResponse")
