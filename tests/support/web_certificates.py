"""Certificates for the tests of the web server: an authority of their own, and what it signs."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import bcrypt
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@cache
def authority(name: str = "scrapers") -> trustme.CA:
    return trustme.CA(organization_name=name)


def pem(certificate: trustme.LeafCert) -> tuple[bytes, bytes]:
    return b"".join(blob.bytes() for blob in certificate.cert_chain_pems), certificate.private_key_pem.bytes()


@dataclass
class Site:
    """The folder of a web-config file, with what it names."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "web.yml"

    def write(self, *sections: str) -> Path:
        """Replace the file at once, as an editor does."""
        new = self.folder / "web.yml.new"
        new.write_text("\n".join(sections))
        new.chmod(0o600)
        new.replace(self.path)
        return self.path

    def serve(self, *names: str, life: timedelta = timedelta(days=90), old: bool = False) -> str:
        """A certificate of the server and its key, as files; the section that names them."""
        begins = datetime.now(UTC) - timedelta(days=200 if old else 1)
        leaf = authority("servers").issue_cert(*(names or ("localhost",)), not_before=begins, not_after=begins + life)
        chain, key = pem(leaf)
        for name, data in (("server.crt", chain), ("server.key", key)):
            new = self.folder / f"{name}.new"
            new.write_bytes(data)
            new.chmod(0o600)
            new.replace(self.folder / name)
        return "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"

    def demand(self, kind: str = "RequireAndVerifyClientCert", sans: Sequence[str] = ()) -> str:
        """Lines below `tls_server_config`: certificates of the scrapers' authority are wanted."""
        (self.folder / "ca.crt").write_bytes(authority().cert_pem.bytes())
        lines = f"  client_auth_type: {kind}\n  client_ca_file: ca.crt\n"
        return lines + (f"  client_allowed_sans: [{', '.join(map(repr, sans))}]\n" if sans else "")


def trusting(certificate: tuple[bytes, bytes] | None = None, folder: Path | None = None) -> ssl.SSLContext:
    """A client that trusts the servers' authority, with a certificate of its own, if it has one."""
    context = ssl.create_default_context()
    authority("servers").configure_trust(context)
    if certificate is not None:
        assert folder is not None
        file = folder / f"client-{abs(hash(certificate))}.pem"
        file.write_bytes(b"".join(certificate))
        context.load_cert_chain(file)
    return context


def with_uri(uri: str) -> tuple[bytes, bytes]:
    """A client certificate of the scrapers' authority whose only name is a URI, as SPIFFE has them."""
    ca = authority()
    signer = serialization.load_pem_private_key(ca.private_key_pem.bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(ca.cert_pem.bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(issuer.subject).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )  # fmt: skip
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), private


def users(*, cost: int = 4, **passwords: str) -> str:
    """`basic_auth_users` with the least cost that bcrypt has, since nothing is asserted about it."""
    lines = (f"  {name}: {hashed(password, cost)}" for name, password in passwords.items())
    return "\n".join(["basic_auth_users:", *lines]) + "\n"


def hashed(password: str, cost: int = 4) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode().replace("$2b$", "$2y$")
