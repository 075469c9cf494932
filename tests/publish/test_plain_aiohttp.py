"""The daemon has none of the certificates that its host trusts, and leaves the variables that name them as they were."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.web_certificates import authority

PROGRAM = """
import os, ssl
before, others = dict(os.environ), ssl.create_default_context().get_ca_certs()
import gpuwarden.publish.web.http
from aiohttp import connector
trusted = [len(context.get_ca_certs()) for context in (connector._SSL_CONTEXT_VERIFIED, connector._SSL_CONTEXT_UNVERIFIED)]
print(trusted, dict(os.environ) == before, len(others), ssl.create_default_context().get_ca_certs() == others)
"""


def test_aiohttp_has_no_certificates_and_what_else_asks_over_tls_has_them(tmp_path: Path) -> None:
    """The variables name one certificate; its client would have that one twice."""
    (tmp_path / "site.pem").write_bytes(authority().cert_pem.bytes())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONPATH": os.pathsep.join(sys.path), "SSL_CERT_FILE": str(tmp_path / "site.pem"), "SSL_CERT_DIR": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[0, 0] True 1 True\n", "")


def test_to_import_aiohttp_sets_no_variable_that_was_not_there() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("[0, 0] True"), done.stderr
