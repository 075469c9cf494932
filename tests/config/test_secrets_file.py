"""A secret is given by its file, is read from there, and is shown nowhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwarden.config.model import Config, load
from gpuwarden.config.render import as_toml
from gpuwarden.config.secrets import SECRET_MAX, SecretError, SecretFile
from gpuwarden.config.sources import Sources
from support.daemons import FakeHost

SECRET = "s3cret-of-nobody-else"


def test_a_path_is_a_file_and_a_bare_name_is_a_credential_of_systemd(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"  {SECRET}\n")
    environment = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert SecretFile.parse("token").read(environment) == SecretFile.parse(f"{tmp_path}/token").read({}) == SECRET
    with pytest.raises(SecretError, match=r"LoadCredential=token:/path"):
        SecretFile.parse("token").read({})


@pytest.mark.parametrize("text", ["", "a/b", "../token", ".hidden", "to ken", "token\n", "-x", "/a\nb", "n" * 300])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected an absolute path"):
        SecretFile.parse(text)


@pytest.mark.parametrize("data", [b"", b"\n", b"two\nlines", b"\xff\xfe", b"bell\x07", b"x" * (SECRET_MAX + 1)])
def test_a_file_without_a_valid_secret_is_reported_without_its_text(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(data)
    with pytest.raises(SecretError) as raised:
        SecretFile(str(file)).read()
    assert str(file) in str(raised.value)
    for part in ("two", "xxxx", "bell"):
        assert part not in str(raised.value)


def test_a_file_that_would_hold_the_reader_up_is_no_secret(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "none", "."):
        with pytest.raises(SecretError):
            SecretFile(f"{tmp_path}/{name}").read()


def test_a_folder_in_the_place_of_a_secret_uses_up_no_descriptors(tmp_path: Path) -> None:
    """A container engine makes one where a file that is to be mounted does not exist, and a webhook reads its token for each connection."""
    (tmp_path / "token").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(SecretError, match="Is a directory"):
            SecretFile(str(tmp_path / "token")).read()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_file_that_others_can_read_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(SECRET)
    for mode, open_to_others in ((0o600, False), (0o640, False), (0o644, True), (0o660, True)):
        file.chmod(mode)
        assert bool(SecretFile(str(file)).exposed()) is open_to_others


def test_the_configuration_names_it_and_shows_no_more(tmp_path: Path) -> None:
    file = tmp_path / "gpuwarden.toml"
    (tmp_path / "token").write_text(SECRET)
    file.write_text(f'[breaker]\nprometheus = "http://localhost:9090"\nprometheus_token = "{tmp_path}/token"\n')
    config = load(Sources(file=file, required=True))
    assert config.breaker.prometheus_token == SecretFile(f"{tmp_path}/token")
    shown = as_toml(config, {})
    assert f'prometheus_token = "{tmp_path}/token"' in shown
    assert SECRET not in shown
    assert "# prometheus_token is not set" in as_toml(Config(), {})


@pytest.mark.slow
def test_a_daemon_with_secrets_shows_them_nowhere(tmp_path: Path) -> None:
    """The places are its log, its pages, its sockets' answers, its files, `config show` and `doctor`."""
    host = FakeHost(tmp_path, 1)
    token = tmp_path / "token"
    token.write_text(SECRET)
    host.configure(
        f'[breaker]\nprometheus = "http://127.0.0.1:1"\nprometheus_token = "{token}"\n[log]\nlevel = "debug"\n',
    )
    shown: list[str] = []
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        pages = ("/metrics", "/heartbeat", "/v1/status", "/v1/findings", "/v1/events", "/")
        shown += [daemon.get(page)[1].decode() for page in pages]
        for words in (
            ("status", "--json", "--run-dir", host.run_dir), ("config", "show", "--config", host.config),
            ("doctor", "--json", "--config", host.config), ("reload", "--run-dir", host.run_dir),
        ):  # fmt: skip
            done = host.command(*words)
            assert done.stdout, done.stderr
            shown += [done.stdout, done.stderr]
        assert daemon.stop() == 0
        shown.append(daemon.lines())
    files = [file for folder in (host.run_dir, host.state_dir) for file in folder.rglob("*") if file.is_file()]
    shown += [file.read_bytes().decode("latin-1") for file in files]
    assert not [text for text in shown if SECRET in text]
