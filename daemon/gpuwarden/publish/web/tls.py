"""TLS by `tls_server_config` of a web-config file: the context for handshakes, and the accepted clients.

The values are those of Go's crypto/tls, from which the format comes. Each is translated for OpenSSL, or refused if
Python's OpenSSL cannot implement it. The protection is never weaker than the file configures.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from datetime import UTC, datetime
from typing import Any, Literal

from gpuwarden.publish.web.files import Files
from gpuwarden_collectors.dataclass import dataclass

Version = Literal["TLS10", "TLS11", "TLS12", "TLS13"]
ClientAuth = Literal[
    "",
    "NoClientCert",
    "RequestClientCert",
    "RequireAnyClientCert",
    "RequireClientCert",
    "VerifyClientCertIfGiven",
    "RequireAndVerifyClientCert",
]
Curve = Literal["CurveP256", "CurveP384", "CurveP521", "X25519"]
AddFault = Callable[[str, str], None]
"""(key, description of the fault)"""

CURVES: Mapping[Curve, str] = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}
TLS13_CIPHERS = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
CIPHERS: Mapping[str, str] = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
"""Names in Go's CipherSuites() for TLS 1.2, and in OpenSSL. TLS 1.3 ciphers cannot be chosen, as in Go."""


@dataclass(frozen=True, slots=True)
class TlsServerConfig:
    """The section `tls_server_config`, as written."""

    cert: str = ""
    key: str = field(default="", repr=False)
    client_ca: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    client_auth_type: ClientAuth = ""
    client_allowed_sans: tuple[str, ...] | None = None
    min_version: Version = "TLS12"
    max_version: Version = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    curve_preferences: tuple[Curve, ...] = ()
    prefer_server_cipher_suites: bool = True


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS as configured.

    `begins`, `ends`: Unix times between which the certificate is valid. `allowed_sans` empty: any name is accepted.
    """

    context: ssl.SSLContext
    begins: float
    ends: float
    allowed_sans: frozenset[str]

    @property
    def verifies(self) -> bool:
        """True if every client needs a certificate of the authority."""
        return self.context.verify_mode == ssl.CERT_REQUIRED

    @property
    def life(self) -> float:
        return self.ends - self.begins

    def refusal(self, certificate: Mapping[str, Any] | None) -> str:
        """Return why a client with this certificate (from `getpeercert`) is refused; "" if it is not."""
        if not self.allowed_sans:
            return ""
        names = subject_names(certificate or {})
        if names & self.allowed_sans:
            return ""
        shown = ", ".join(sorted(names)) or "none"
        return f"its certificate has no name of client_allowed_sans (it has: {shown[:200]})"


def build(settings: TlsServerConfig, files: Files, fault: AddFault, warn: Callable[[str], None]) -> Tls | None:
    """Build the TLS settings and report faults to `fault`; None without a certificate and a key."""
    certificate = _one_of(settings, "cert", files.certificate, files, fault)
    key = _one_of(settings, "key", files.key, files, fault)
    authority = _one_of(settings, "client_ca", files.certificate, files, fault, needed=False)
    verify = _verification(settings, fault, warn, authority=bool(authority))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = verify
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Go, an intermediate authority may be the anchor
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0  # a resumed session could outlive its certificate
    context.set_alpn_protocols(["http/1.1"])
    _versions(context, settings, fault, warn)
    _ciphers(context, settings, fault)
    _curve(context, settings, fault, warn)
    if authority:
        _authority(context, authority, fault)
    elif verify != ssl.CERT_NONE:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    if not certificate or not key:
        return None
    _identity(context, certificate, key, fault)
    return Tls(context, *_validity(certificate), frozenset(map(_name, settings.client_allowed_sans or ())))


def _one_of(
    settings: TlsServerConfig,
    name: str,
    read: Callable[[str, str], bytes],
    files: Files,
    fault: AddFault,
    *,
    needed: bool = True,
) -> bytes:
    """Return the inline text, or the content of the named file; empty after a fault, or if absent and not needed."""
    inline: str = getattr(settings, name)
    path: str = getattr(settings, f"{name}_file")
    if inline and path:
        fault(f"tls_server_config.{name}", f"expected {name} or {name}_file, found both")
        return b""
    if path:
        return read(f"tls_server_config.{name}_file", path)
    if not inline and needed:
        fault(f"tls_server_config.{name}_file", "expected a file: TLS needs a certificate and its key")
    elif inline and name == "key":
        files.holds_secrets = True
    return inline.encode()


def _verification(
    settings: TlsServerConfig, fault: AddFault, warn: Callable[[str], None], *, authority: bool
) -> ssl.VerifyMode:
    key, kind = "tls_server_config.client_auth_type", settings.client_auth_type
    if kind in ("RequireAnyClientCert", "RequireClientCert"):
        fault(
            key,
            f"{kind} accepts any certificate that a client made for itself, which protects nothing and is not "
            "supported: expected RequireAndVerifyClientCert",
        )
    verify = {"VerifyClientCertIfGiven": ssl.CERT_OPTIONAL, "RequireAndVerifyClientCert": ssl.CERT_REQUIRED}.get(
        kind, ssl.CERT_NONE
    )
    if verify == ssl.CERT_NONE and authority:
        fault(key, "expected RequireAndVerifyClientCert or VerifyClientCertIfGiven beside a client CA")
    if verify == ssl.CERT_NONE and settings.client_allowed_sans:
        fault(key, "expected RequireAndVerifyClientCert beside client_allowed_sans: an unverified name proves nothing")
    if settings.client_allowed_sans == ():
        fault("tls_server_config.client_allowed_sans", "expected at least one name: an empty list admits no client")
    if verify != ssl.CERT_NONE and not authority:
        warn(f"{key}: without client_ca_file certificates of any authority that this host trusts are accepted")
    if kind == "RequestClientCert":
        warn(f"{key}: RequestClientCert checks nothing, so that no certificate is requested")
    return verify


def _versions(context: ssl.SSLContext, settings: TlsServerConfig, fault: AddFault, warn: Callable[[str], None]) -> None:
    if settings.max_version in ("TLS10", "TLS11"):
        fault("tls_server_config.max_version", f"expected TLS12 or TLS13, found {settings.max_version}: it is broken")
    elif settings.min_version == "TLS13" and settings.max_version == "TLS12":
        fault("tls_server_config.max_version", "expected no less than min_version, found TLS12 beside TLS13")
    if settings.min_version in ("TLS10", "TLS11"):
        warn(f"tls_server_config.min_version: {settings.min_version} is broken; TLS12 is the lowest version supported")
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if settings.min_version == "TLS13" else ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2 if settings.max_version == "TLS12" else ssl.TLSVersion.TLSv1_3


def _ciphers(context: ssl.SSLContext, settings: TlsServerConfig, fault: AddFault) -> None:
    if not settings.prefer_server_cipher_suites:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    unknown = [name for name in settings.cipher_suites if name not in CIPHERS and name not in TLS13_CIPHERS]
    if unknown:
        supported = ", ".join((*TLS13_CIPHERS, *CIPHERS))
        fault("tls_server_config.cipher_suites", f"unknown cipher {unknown[0][:60]!r}; supported are {supported}")
        return
    chosen = [CIPHERS[name] for name in settings.cipher_suites if name in CIPHERS]
    if chosen:
        try:
            context.set_ciphers(":".join(chosen))
        except ssl.SSLError:  # a system policy such as FIPS forbids all of them
            fault(
                "tls_server_config.cipher_suites",
                f"OpenSSL allows none of {', '.join(settings.cipher_suites)} on this host",
            )
    elif settings.cipher_suites and settings.max_version == "TLS12":
        fault("tls_server_config.cipher_suites", "expected one for TLS 1.2, which is the most that max_version allows")
    elif settings.cipher_suites:
        context.minimum_version = ssl.TLSVersion.TLSv1_3


def _curve(context: ssl.SSLContext, settings: TlsServerConfig, fault: AddFault, warn: Callable[[str], None]) -> None:
    """Set the first supported curve. Python sets only one, and some builds lack X25519 (Debian 12's 3.11.2)."""
    key, wanted = "tls_server_config.curve_preferences", settings.curve_preferences
    if not wanted:
        return
    chosen = next((name for name in wanted if _can_set(context, name)), None)
    if chosen is None:
        possible = ", ".join(name for name in CURVES if _can_set(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), name))
        fault(
            key,
            f"the Python that runs gpuwarden cannot set {', '.join(wanted)}: expected one of {possible}, or no such key",
        )
    elif len(wanted) > 1:
        warn(f"{key}: only one can be set: {chosen} is used, and no other")


def _can_set(context: ssl.SSLContext, name: Curve) -> bool:
    try:
        context.set_ecdh_curve(CURVES[name])
    except (ssl.SSLError, ValueError):
        return False
    return True


def _authority(context: ssl.SSLContext, authority: bytes, fault: AddFault) -> None:
    try:
        context.load_verify_locations(cadata=authority.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError) as error:
        fault(
            "tls_server_config.client_ca_file", f"expected certificates in PEM, found something else ({_reason(error)})"
        )


def _identity(context: ssl.SSLContext, certificate: bytes, key: bytes, fault: AddFault) -> None:
    def no_password() -> str:
        raise ValueError("it is encrypted")

    try:
        with _as_file(certificate) as chain, _as_file(key) as private:
            context.load_cert_chain(chain, private, no_password)
    except (ssl.SSLError, ValueError, OSError) as error:
        message = "expected a certificate in PEM and the key that belongs to it"
        fault("tls_server_config.cert_file", f"{message}: {_reason(error)}")


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Yield a file name for the data, which OpenSSL requires. The data stays in memory."""
    file = os.memfd_create("pem")
    try:
        os.write(file, data)
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


_REASONS = {
    "KEY_VALUES_MISMATCH": "the key belongs to another certificate",
    "NO_START_LINE": "one of them is not PEM",
    "PEM_LIB": "one of them is not PEM",
    "NOT_ENOUGH_DATA": "it is cut off",
    "EE_KEY_TOO_SMALL": "the key is too short",
}


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        reason = error.reason or "unknown"
        return _REASONS.get(reason, reason)
    return str(error) if type(error) is ValueError else type(error).__name__


# --- content of a certificate


def subject_names(certificate: Mapping[str, Any]) -> frozenset[str]:
    """Return the subject alternative names of the four supported kinds: DNS, IP, e-mail, URI."""
    kinds = ("DNS", "IP Address", "email", "URI")
    return frozenset(_name(name) for kind, name in certificate.get("subjectAltName", ()) if kind in kinds)


def _name(text: str) -> str:
    """Return an address in its canonical form, and other text unchanged."""
    try:
        return str(ipaddress.ip_address(text.strip()))
    except ValueError:
        return text


def _validity(certificate: bytes) -> tuple[float, float]:
    """Return the validity of the first certificate of a PEM file as Unix times; 0 and infinity if it cannot be read."""
    try:
        der = ssl.PEM_cert_to_DER_cert(_first(certificate.decode("ascii", "ignore")))
        body = _inside(_inside(der))
        for _ in range(4 if body[:1] == b"\xa0" else 3):  # version, serial number, algorithm, issuer
            body = _after(body)
        validity = _inside(body)
        return _time(validity), _time(_after(validity))
    except (ValueError, IndexError):
        return 0.0, float("inf")


def _time(der: bytes) -> float:
    form = "%y%m%d%H%M%SZ" if der[0] == 0x17 else "%Y%m%d%H%M%SZ"  # UTCTime, GeneralizedTime
    return datetime.strptime(_inside(der).decode("ascii"), form).replace(tzinfo=UTC).timestamp()


def _first(text: str) -> str:
    end = "-----END CERTIFICATE-----"
    start = text.index("-----BEGIN CERTIFICATE-----")
    return text[start : text.index(end, start) + len(end)]


def _bounds(der: bytes) -> tuple[int, int]:
    """Return the offsets of the content of the first element (X.690, definite lengths)."""
    if der[1] < 0x80:
        return 2, 2 + der[1]
    size = der[1] & 0x7F
    return 2 + size, 2 + size + int.from_bytes(der[2 : 2 + size], "big")


def _inside(der: bytes) -> bytes:
    begin, end = _bounds(der)
    return der[begin:end]


def _after(der: bytes) -> bytes:
    return der[_bounds(der)[1] :]
