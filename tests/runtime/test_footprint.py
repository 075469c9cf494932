"""What stays out of the daemon: OpenSSL unless it speaks TLS, the C++ runtime, the metadata of packages."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from gpuwarden.config.model import Config, load
from gpuwarden.config.sources import Sources
from gpuwarden.runtime.footprint import speaks_tls
from support.daemons import FakeHost, RunningDaemon

NEEDS_IT = {
    "a web-config file": '[publish]\nweb_config = "/etc/gpuwarden/web.yml"\n',
    "a webhook by https": '[notify.webhook.pager]\nurl = "https://pager.example"\n',
    "a webhook whose address is in a file": '[notify.webhook.pager]\nurl_file = "/etc/gpuwarden/pager"\n',
    "a Prometheus by https": '[breaker]\nprometheus = "https://prometheus.example"\n',
    "Kubernetes": "[kubernetes]\nenabled = true\n",
}
DOES_NOT = {
    "nothing": "",
    "a webhook by http": '[notify.webhook.pager]\nurl = "http://pager.example"\n',
    "Slurm and a cloud": '[slurm]\nenabled = true\n[termination]\nsources = ["aws"]\n',
}


def configured(folder: Path, text: str) -> Config:
    file = folder / "gpuwarden.toml"
    file.write_text(text)
    return load(Sources(file=file, required=True, environment={}))


@pytest.mark.parametrize("text", NEEDS_IT.values(), ids=NEEDS_IT)
def test_what_speaks_tls_needs_openssl(tmp_path: Path, text: str) -> None:
    assert speaks_tls(configured(tmp_path, text))


@pytest.mark.parametrize("text", DOES_NOT.values(), ids=DOES_NOT)
def test_what_speaks_no_tls_does_not(tmp_path: Path, text: str) -> None:
    assert not speaks_tls(configured(tmp_path, text))


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, gpus=1)


def python(script: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    environment = {"PYTHONPATH": ":".join(sys.path)}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)


def has_mapped(daemon: RunningDaemon, *libraries: str) -> bool:
    mapped = Path(f"/proc/{daemon.process.pid}/maps").read_text()
    return any(library in mapped for library in libraries)


def test_a_daemon_without_tls_serves_without_openssl_and_the_runtime_of_cpp(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        assert b"gpuwarden_node_health" in daemon.get("/metrics")[1]
        assert not has_mapped(daemon, "libssl", "libcrypto", "libstdc++")


def test_only_who_waits_for_a_shutdown_loads_what_speaks_to_the_bus() -> None:
    script = (
        "import sys, gpuwarden.runtime.serve, gpuwarden_collectors.cloud.shutdown\n"
        "print([name for name in sys.modules if name.startswith('jeepney')])"
    )
    seen = python(script)
    assert (seen.stdout, seen.stderr) == ("[]\n", "")


def test_the_client_of_aiohttp_is_loaded_when_it_is_used() -> None:
    script = (
        "from gpuwarden.runtime.footprint import leave_out; from gpuwarden.config.model import Config\n"
        "leave_out(Config()); import sys, gpuwarden.runtime.serve, aiohttp; from aiohttp import hdrs\n"
        "print('aiohttp.client' in sys.modules, hdrs.__name__, aiohttp.__version__)\n"
        "print(aiohttp.ClientSession.__module__, aiohttp.web_response.__name__, aiohttp.__version__)\n"
        "print(hasattr(aiohttp, 'nothing'), aiohttp.hdrs is hdrs)"
    )
    seen = python(script)
    installed = version("aiohttp")
    assert seen.stdout.split() == [
        *("False", "aiohttp.hdrs", installed), *("aiohttp.client", "aiohttp.web_response", installed), *("False", "True"),
    ]  # fmt: skip
    assert seen.stderr == ""


def test_what_serving_does_not_need_is_not_loaded_and_the_rest_works_without_it() -> None:
    script = (
        "from gpuwarden.runtime.footprint import leave_out; from gpuwarden.config.model import Config\n"
        "leave_out(Config()); import sys, gpuwarden.runtime.serve, html, shutil; from aiohttp import helpers\n"
        "wanted = ('html.entities', 'email.headerregistry', 'bz2', 'lzma', 'difflib', 'fractions')\n"
        "print([name for name in wanted if sys.modules.get(name)], html.escape('<a>'))\n"
        "print(helpers.parse_content_type('text/plain; charset=utf-8')[1]['charset'])\n"
        "from email.policy import HTTP, default; print(HTTP.linesep == '\\r\\n', default.linesep == '\\n')\n"
        "later = ('idna.core', '_pickle', 'http.client'); print([name for name in later if name in sys.modules])\n"
        "from yarl import URL; print(URL('http://bücher.example').raw_host, URL('http://xn--bcher-kva.example').host)\n"
        "import pickle, urllib, urllib.request, idna; print(pickle.loads(pickle.dumps(7)), urllib.request.Request('http://a').host)\n"
        "print(callable(helpers.proxies_from_env), helpers.proxies_from_env() == {}, issubclass(idna.IDNAError, UnicodeError))\n"
        "from asyncio import sslproto; print(sslproto.SSLProtocol.__name__)"
    )
    seen = python(script)
    assert seen.stdout.split() == [
        *("[]", "&lt;a&gt;", "utf-8", "True", "True"), *("[]", "xn--bcher-kva.example", "bücher.example"),
        *("7", "a"), *("True", "True", "True"), "SSLProtocol",
    ]  # fmt: skip
    assert seen.stderr == ""


def test_what_is_not_configured_is_not_loaded() -> None:
    script = (
        "from gpuwarden.runtime.footprint import leave_out; from gpuwarden.config.model import Config\n"
        "leave_out(Config()); import sys, gpuwarden.runtime.serve; from gpuwarden.runtime.app import Daemon\n"
        "rooms = ('actuators.kubernetes', 'actuators.prometheus', 'actuators.azure', 'collect.simulation', 'notify.webhook',\n"
        "         'health.active_test.judgement', 'health.active_test.submission', 'prometheus.client')\n"
        "others = ('gpuwarden_collectors.active_test.facts', 'gpuwarden_collectors.cloud.gcp', 'gpuwarden_collectors.cloud.azure')\n"
        "unwanted = tuple(f'gpuwarden.{room}' for room in rooms) + others\n"
        "print([name for name in sys.modules if name.startswith(unwanted)])"
    )
    seen = python(script)
    assert (seen.stdout, seen.stderr) == ("[]\n", "")


def test_a_daemon_with_an_https_webhook_has_openssl(host: FakeHost) -> None:
    host.configure('[notify.webhook.pager]\nurl = "https://127.0.0.1:1/"\n')
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        assert has_mapped(daemon, "libssl")


def test_every_hash_that_python_guarantees_is_there_without_openssl() -> None:
    script = (
        "from gpuwarden.runtime.footprint import leave_out; from gpuwarden.config.model import Config\n"
        "leave_out(Config()); import hashlib, hmac\n"
        "assert all(hasattr(hashlib, name) for name in hashlib.algorithms_guaranteed)\n"
        "print(hmac.new(b'key', b'text', hashlib.sha256).hexdigest(), hashlib.md5(b'').hexdigest())"
    )
    seen = python(script)
    signature = "6afa9046a9579cad143a384c1b564b9a250d27d6f6a63f9f20bf3a7594c9e2c6"
    assert (seen.stdout.split(), seen.stderr) == ([signature, "d41d8cd98f00b204e9800998ecf8427e"], "")
