"""The web-config file: what exporter-toolkit takes is taken, what cannot be honoured is reported, and a secret never is."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwarden.publish.web.config import read
from gpuwarden.publish.web.rules import WebConfig, WebConfigError
from support.commands import gpuwarden
from support.web_certificates import Site, authority, hashed, pem, users

HASH = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
TLS = "tls_server_config:\n"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def faults(site: Site, *sections: str) -> list[str]:
    with pytest.raises(WebConfigError) as raised:
        read(site.write(*sections))
    return [str(fault).removeprefix(f"{site.path}: ") for fault in raised.value.faults]


def fault(site: Site, *sections: str) -> str:
    (only,) = faults(site, *sections)
    return only


def test_everything_of_the_format_is_taken(site: Site) -> None:
    served = site.serve() + site.demand(sans=["prometheus", "10.0.0.1"])
    config = read(
        site.write(
            served,
            "  min_version: TLS13\n  max_version: TLS13\n  cipher_suites: [TLS_AES_128_GCM_SHA256]",
            "  curve_preferences: [CurveP384]\n  prefer_server_cipher_suites: no",
            f'http_server_config:\n  http2: false\n  headers:\n    X-XSS-Protection: 1\n    X-Frame-Options: "deny"\n'
            f"basic_auth_users:\n  alice: {HASH}\n  yes: '{HASH}'\n  12: {HASH}\n",
            "rate_limit:\n  interval: 1m0.5s\n  burst: 20\n",
        )
    )
    assert config.tls is not None
    assert config.tls.verifies
    assert config.tls.allowed_sans == {"prometheus", "10.0.0.1"}
    assert config.tls.context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert not config.tls.context.options & ssl.OP_CIPHER_SERVER_PREFERENCE
    assert set(config.users) == {"alice", "yes", "12"}
    assert config.headers == {"X-XSS-Protection": "1", "X-Frame-Options": "deny"}
    assert (config.rate_limit.interval, config.rate_limit.burst) == (60.5, 20)
    assert config.warnings == ()


def test_certificate_and_key_may_be_in_the_file_itself(site: Site) -> None:
    certificate, key = (data.decode().replace("\n", "\n    ") for data in pem(authority().issue_cert("localhost")))
    config = read(site.write(f"{TLS}  cert: |\n    {certificate}\n  key: |\n    {key}\n"))
    assert config.tls is not None
    assert 0 < config.tls.life < float("inf")


def test_an_empty_file_requires_nothing_and_that_is_shown(site: Site) -> None:
    for text in (
        "",
        "# nothing\n",
        "tls_server_config:\nbasic_auth_users:\n",
        "rate_limit:\n  interval: 0\n  burst: 0",
    ):
        config = read(site.write(text))
        assert config.tls is None
        assert config.users == {}
        assert any("every client that can connect is served" in warning for warning in config.warnings)


def test_files_are_resolved_relative_to_the_web_config_file(site: Site) -> None:
    site.write(site.serve())
    (site.folder / "below").mkdir()
    link = site.folder / "below" / "web.yml"
    link.write_text("tls_server_config:\n  cert_file: ../server.crt\n  key_file: ../server.key\n")
    assert read(link).tls is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tls_server_config:\n  cert_filse: x", "tls_server_config.cert_filse: unknown key; did you mean 'cert_file'?"),
        ("basic_auth: {}", "basic_auth: unknown key; did you mean 'basic_auth_users'?"),
        ("basic_auth_users: {a: x}", "basic_auth_users.a: expected a bcrypt hash"),
        (f"basic_auth_users: {{'a:b': {HASH}}}", "basic_auth_users.a:b: expected a name without a colon"),
        (f"basic_auth_users: {{a: {HASH.replace('$10$', '$31$')}}}", "basic_auth_users.a: expected a cost of 4 to 18"),
        ("http_server_config: {headers: {Server: x}}", "headers.Server: expected one of Content-Security-Policy"),
        ("http_server_config: {headers: {X-Frame-Options: x}}", "headers.X-Frame-Options: expected deny or sameorigin"),
        ('http_server_config: {headers: {X-XSS-Protection: "a\\nb"}}', "expected one line"),
        ("http_server_config: {http2: maybe}", "http_server_config.http2: expected true or false, found 'maybe'"),
        ("rate_limit: {interval: 1}", "rate_limit.interval: expected a duration"),
        ("rate_limit: {interval: 1s}", "rate_limit.burst: expected at least 1"),
        ("rate_limit: {interval: 1s, burst: many}", "rate_limit.burst: expected a whole number"),
        ("tls_server_config: {min_version: TLS14}", "min_version: expected one of TLS10, TLS11, TLS12, TLS13"),
        ("junk", "expected a table with keys such as"),
        ("a: 1\na: 2", "expected YAML in line 2: a duplicate key"),
        ("a: [", "expected YAML in line 1"),
        ("a: &a [*a]", "expected YAML"),
        ("a: !!python/object/apply:os.system [x]", "expected YAML"),
        ("[" * 5000, "expected YAML"),
    ],
)
def test_a_fault_is_reported_with_its_key(site: Site, text: str, expected: str) -> None:
    assert any(expected in message for message in faults(site, text)), faults(site, text)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("  max_version: TLS11", "max_version: expected TLS12 or TLS13"),
        ("  min_version: TLS13\n  max_version: TLS12", "expected no less than min_version"),
        ("  cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]", "unknown cipher 'TLS_RSA_WITH_RC4_128_SHA'; supported are TLS_AES"),
        ("  cipher_suites: [TLS_AES_128_GCM_SHA256]\n  max_version: TLS12", "expected one for TLS 1.2"),
        ("  curve_preferences: [P256]", "expected one of CurveP256"),
        ("  client_auth_type: RequireAnyClientCert", "expected RequireAndVerifyClientCert"),
        ("  client_allowed_sans: [a]", "expected RequireAndVerifyClientCert beside client_allowed_sans"),
        ("  client_allowed_sans: []", "client_allowed_sans: expected at least one name"),
        ("  client_ca_file: server.crt", "beside a client CA"),
        ("  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: nowhere", "nowhere: No such file"),
        ("  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: server.key", "expected certificates in PEM"),
        ("  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: .", "it is not a file"),
        ("  cert: x", "expected cert or cert_file, found both"),
    ],
)  # fmt: skip
def test_tls_that_cannot_be_had_as_asked_is_refused(site: Site, lines: str, expected: str) -> None:
    assert expected in fault(site, site.serve() + lines)


def _pythons() -> list[str]:
    """Return this Python and the distribution's: they differ in the curves that they can set (Debian 12's has no X25519)."""
    debian = Path("/usr/bin/python3.11")
    return [sys.executable, *([str(debian)] if debian.exists() and sys.version_info[:2] == (3, 11) else [])]


@pytest.mark.parametrize("python", _pythons())
def test_a_curve_that_this_python_cannot_set_is_a_fault_and_the_next_of_the_list_is_used(
    site: Site, python: str
) -> None:
    script = (
        "import sys, ssl\nfrom pathlib import Path\nfrom gpuwarden.publish.web.config import WebConfigError, read\n"
        "try: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ecdh_curve('X25519'); able = True\n"
        "except Exception: able = False\n"
        "try: print(able, *read(Path(sys.argv[1])).warnings)\n"
        "except WebConfigError as error: print(able, *error.faults)\n"
    )

    ours = [
        path for path in sys.path if not Path(path).is_relative_to(sys.base_prefix)
    ]  # this Python's library is not for the other

    def outcome(curves: str) -> str:
        path = site.write(site.serve() + f"  curve_preferences: [{curves}]\n")
        run = subprocess.run(
            [python, "-c", script, str(path)], env={"PYTHONPATH": os.pathsep.join(ours)}, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        return run.stdout + run.stderr

    alone, listed = outcome("X25519"), outcome("X25519, CurveP256")
    if alone.startswith("True"):
        assert (alone.strip(), "X25519 is used" in listed) == ("True", True)
    else:
        assert "cannot set X25519: expected one of CurveP256, CurveP384, CurveP521" in alone
        assert "CurveP256 is used, and no other" in listed


def test_tls_without_certificate_or_key_is_never_served_in_the_clear(site: Site) -> None:
    assert "cert_file: expected a file" in faults(site, f"{TLS}  min_version: TLS13")[0]
    assert "key_file: expected a file" in fault(
        site, site.serve().replace("key_file: server.key", "max_version: TLS13")
    )


def test_a_key_of_another_certificate_or_under_a_password_is_refused(site: Site) -> None:
    section = site.serve()
    (site.folder / "server.key").write_bytes(pem(authority().issue_cert("a"))[1])
    assert "the key belongs to another certificate" in fault(site, section)
    (site.folder / "server.key").write_text("no key")
    assert "expected a certificate in PEM and the key that belongs to it" in fault(site, section)


def test_all_faults_are_reported_at_once(site: Site) -> None:
    messages = faults(site, f"{TLS}  cert_file: none\n  key_file: none\n  x: 1\nbasic_auth_users: {{a: b}}\ny: 2\n")
    assert len(messages) == 5


@pytest.mark.parametrize(
    "text",
    [
        "basic_auth_users: alice:hunter2",
        "basic_auth_users: {alice: hunter2}",
        "basic_auth_users: {alice: [hunter2]}",
        "basic_auth_users:\n  alice: hunter2: x",
        "basic_auth_users:\n  alice: 'hunter2",
        "basic_auth_users:\n  alice: %hunter2",
        "basic_auth_users:\n  alice: !hunter2 x",
        "basic_auth_users:\n  alice: *hunter2",
        "tls_server_config: hunter2",
        "tls_server_config: {key: hunter2}",
        "tls_server_config: {key: hunter2, key_file: x}",
        "hunter2",
    ],
)
def test_no_fault_quotes_a_secret(site: Site, text: str) -> None:
    assert "hunter2" not in "".join(faults(site, text))


def test_what_is_read_shows_no_secret(site: Site) -> None:
    config = read(site.write(site.serve(), users(alice="hunter2")))
    assert "$2y$" not in repr(config)
    assert "$2y$" not in repr(WebConfig(users={"alice": HASH}))


def warnings(site: Site, *sections: str) -> str:
    return "\n".join(read(site.write(*sections)).warnings)


def test_what_protects_no_less_though_not_as_asked_is_a_warning(site: Site) -> None:
    served = site.serve()
    assert "HTTP/2 is not supported" in warnings(site, served, "http_server_config: {http2: true}")
    assert "TLS12 is the lowest" in warnings(site, f"{served}  min_version: TLS10")
    assert "CurveP256 is used, and no other" in warnings(site, f"{served}  curve_preferences: [CurveP256, X25519]")
    assert "no certificate is requested" in warnings(site, f"{served}  client_auth_type: RequestClientCert")
    assert "any authority that this host trusts" in warnings(
        site, f"{served}  client_auth_type: VerifyClientCertIfGiven"
    )
    assert "passwords go over the network" in warnings(site, users(a="b"))
    slow = f"basic_auth_users: {{a: {HASH.replace('$10$', '$15$')}}}"
    assert "a login takes seconds" in warnings(site, served, slow)


def test_secrets_that_anybody_may_read_are_a_warning(site: Site) -> None:
    served = site.serve()
    assert warnings(site, served, users(a="b")) == ""
    (site.folder / "server.key").chmod(0o644)
    assert "server.key may be read by every user: chmod o-r" in warnings(site, served)
    site.write(users(a="b"))
    site.path.chmod(0o644)
    assert "web.yml holds passwords or a key" in "\n".join(read(site.path).warnings)


def test_a_file_may_begin_with_the_mark_of_editors_on_windows(site: Site) -> None:
    site.path.write_bytes(b"\xef\xbb\xbf" + users(a="b").encode())
    assert read(site.path)


def test_a_file_that_is_none_or_too_large_is_refused(site: Site) -> None:
    with pytest.raises(WebConfigError, match="cannot read it: No such file or directory"):
        read(site.path)
    with pytest.raises(WebConfigError, match="cannot read it: it is not a file"):
        read(Path("/dev/zero"))
    with pytest.raises(WebConfigError, match="more than 1048576 bytes"):
        read(site.write("#" * (1 << 20) + "\n"))
    site.path.write_bytes(b"\xff")
    with pytest.raises(WebConfigError, match="not text in UTF-8"):
        read(site.path)


@pytest.mark.parametrize("verb", [("run", "--simulate", "1"), ("config", "check")])
def test_a_fault_is_reported_before_anything_starts(site: Site, verb: tuple[str, ...]) -> None:
    site.write("tls_server_config: {cert_file: server.crt}\nbasic_auth_user: {}")
    (site.folder / "gw.toml").write_text(f'publish.web_config = "{site.path}"')
    done = gpuwarden(*verb, "--config", site.folder / "gw.toml", temporary=site.folder)
    assert (done.returncode, done.stdout) == (64, "")
    assert "the web configuration (publish.web_config) has 3 faults" in done.stderr
    assert "basic_auth_user: unknown key; did you mean 'basic_auth_users'?" in done.stderr


def test_a_valid_file_is_reported_as_such_and_its_content_is_not_shown(site: Site) -> None:
    site.write(site.serve(), f"basic_auth_users:\n  alice: {hashed('hunter2')}")
    (site.folder / "gw.toml").write_text(f'publish.web_config = "{site.path}"')
    checked, shown = (
        gpuwarden("config", action, "--config", site.folder / "gw.toml", temporary=site.folder)
        for action in ("check", "show")
    )
    assert "the configuration is valid" in checked.stdout
    assert f'web_config = "{site.path}"' in shown.stdout
    assert "alice" not in checked.stdout + shown.stdout
