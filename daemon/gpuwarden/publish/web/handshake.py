"""The TLS handshake of one connection, by asyncio's TLS layer."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import closing, suppress

from gpuwarden.publish.web import http as web
from gpuwarden.publish.web.tls import Tls

NOT_TLS = b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nThis port serves HTTPS, not HTTP.\n"


async def handshake(handler: web.RequestHandler, sock: socket.socket, tls: Tls, within: float) -> str:
    """Do the TLS handshake; `within`: seconds. Return the failure, or "". Raises OSError if the peer has left."""
    loop = asyncio.get_running_loop()
    with closing(sock.dup()) as again:  # asyncio closes its socket at the first byte that is not TLS
        try:
            await loop.connect_accepted_socket(
                lambda: handler, sock, ssl=tls.context, ssl_handshake_timeout=within, ssl_shutdown_timeout=within
            )
        except ssl.SSLError as error:
            error.__traceback__ = None  # asyncio's frames keep it and 256 KiB alive in a cycle
            if error.reason == "HTTP_REQUEST":
                with suppress(OSError):
                    again.send(NOT_TLS)
            return error.reason or "TLS"
        except ConnectionAbortedError as error:
            error.__traceback__ = None
            return "not finished in time"
        except OSError as error:
            error.__traceback__ = None
            raise
    return ""
