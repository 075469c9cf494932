"""The configuration in an archive: every key that a site may put a secret into is set, and none of it is shown."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from gpuwarden.config.model import load
from gpuwarden.config.sources import Sources
from gpuwarden.features.bundle.secrets import address, shown

SECRETS = """
[breaker]
prometheus = "https://prometheus.example:9090/hunter2-prefix"
prometheus_token = "{file}"
[publish]
runbooks = "https://wiki.example/hunter2-space"
[exec.exclude]
command = ["/usr/local/sbin/out", "--password=hunter2-exec"]
[plugins.mine]
command = ["/usr/local/bin/check", "-H", "hunter2-plugin"]
[notify.exec.pager]
command = ["/usr/local/sbin/page", "hunter2-notify"]
[notify.webhook.chat]
url = "https://hooks.example/services/hunter2-path?token=hunter2-query"
key = "{file}"
token = "{file}"
[notify.webhook.other]
url_file = "{file}"
basic = "{file}"
[termination.aws]
endpoint = "http://169.254.169.254"
[kubernetes]
kubeconfig = "/root/.kube/config"
"""


def test_no_secret_of_any_key_is_in_it_and_it_is_toml_that_names_where_secrets_are(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2-content\n")
    secret.chmod(0o600)
    file = tmp_path / "gpuwarden.toml"
    file.write_text(SECRETS.replace("{file}", str(secret)))
    text = shown(
        load(Sources(file=file, environment={"GPUWARDEN_NOTIFY__WEBHOOK__ENV__URL": "https://env.example/hunter2-env"}))
    )
    assert "hunter2" not in text
    parsed = tomllib.loads(text)
    assert parsed["notify"]["webhook"]["chat"]["url"] == "https://hooks.example/left-out"
    assert parsed["notify"]["webhook"]["chat"]["token"] == str(secret)
    assert parsed["notify"]["webhook"]["env"]["url"] == "https://env.example/left-out"
    assert parsed["notify"]["exec"]["pager"]["command"] == ["/usr/local/sbin/page", "(1 arguments left-out)"]
    assert parsed["plugins"]["mine"]["command"] == ["/usr/local/bin/check", "(2 arguments left-out)"]
    assert parsed["breaker"]["prometheus"] == "https://prometheus.example:9090/left-out"


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://user:hunter2@host.example:8443/a?b=hunter2#hunter2", "https://host.example:8443/left-out"),
        ("http://[2001:db8::1]:80/", "http://[2001:db8::1]:80"),
        ("http://host.example", "http://host.example"),
        ("unix:///run/dcgm.sock", "unix:///run/dcgm.sock"),
        ("http://host:hunter2/", "left-out"),
        ("://hunter2", "left-out"),
    ],
)
def test_of_an_address_scheme_host_and_port_are_left(url: str, kept: str) -> None:
    assert address(url) == kept
