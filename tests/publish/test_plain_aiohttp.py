"""The daemon has none of the certificates that its host trusts, and leaves the variables that name them as they were."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, ssl
before, others = dict(os.environ), ssl.create_default_context().get_ca_certs()
import gpuwarden.publish.web.http
from aiohttp import connector
trusted = [len(context.get_ca_certs()) for context in (connector._SSL_CONTEXT_VERIFIED, connector._SSL_CONTEXT_UNVERIFIED)]
print(trusted, dict(os.environ) == before, ssl.create_default_context().get_ca_certs() == others)
"""


@pytest.mark.parametrize("variables", [{}, {"SSL_CERT_FILE": "/etc/site.pem", "SSL_CERT_DIR": "/etc/site"}])
def test_aiohttp_has_no_certificates_and_what_else_asks_over_tls_has_them(variables: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONPATH": os.pathsep.join(sys.path), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[0, 0] True True\n", "")
