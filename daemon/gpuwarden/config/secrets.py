"""Reads secrets from files or systemd's credentials. The configuration, which `config show` prints, contains none.

A key for a secret contains its location: the absolute path of a file, or the name of a credential (`LoadCredential=` or
`SetCredentialEncrypted=` in the unit), which systemd places into `$CREDENTIALS_DIRECTORY`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from gpuwarden.base.files import read_regular
from gpuwarden_collectors.dataclass import dataclass

VARIABLE = "CREDENTIALS_DIRECTORY"
EXPECTED = 'an absolute path such as "/etc/gpuwarden/token", or the name of a systemd credential such as "token"'
SECRET_MAX = 16 << 10  # bytes; a token of a cloud's identity service has two or three thousand
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")  # no leading dot, no slash


class SecretError(Exception):
    """A secret cannot be read. The message has its location, the cause and the remedy, but no part of the secret."""


@dataclass(frozen=True, slots=True)
class SecretFile:
    """The location of a secret, which may be shown."""

    where: str

    @classmethod
    def parse(cls, text: str) -> SecretFile:
        """Parse the name of a credential, or an absolute path. Raises ValueError for other texts."""
        sound = _NAME.fullmatch(text) if "/" not in text else text.startswith("/") and text.isprintable()
        if not sound or len(text) > 4095:
            raise ValueError(f"expected {EXPECTED}, found {text[:60]!r}")
        return cls(text)

    def __str__(self) -> str:
        return self.where

    def path(self, environment: Mapping[str, str] = os.environ) -> Path:
        """Return the path. Raises SecretError for a credential that systemd did not pass."""
        if self.where.startswith("/"):
            return Path(self.where)
        folder = environment.get(VARIABLE, "")
        if not folder.startswith("/"):
            undone = f"cannot read the credential {self.where!r}: systemd gave this process none"
            raise SecretError(
                f"{undone}; add LoadCredential={self.where}:/path to the unit, or name a file by its path"
            )
        return Path(folder) / self.where

    def read(self, environment: Mapping[str, str] = os.environ) -> str:
        """Read the secret, one stripped line. May block on the file system. Raises SecretError."""
        text = self.text(environment).strip()
        if not text or not text.isprintable():
            raise SecretError(f"{self.path(environment)} does not hold a secret: expected one line of printable text")
        return text

    def text(self, environment: Mapping[str, str] = os.environ) -> str:
        """Read the whole file, for certificates and keys. Raises SecretError."""
        path = self.path(environment)
        try:
            data = read_regular(path, SECRET_MAX + 1)
        except OSError as error:
            raise SecretError(f"cannot read the secret {path}: {error.strerror}") from None
        if len(data) > SECRET_MAX:
            raise SecretError(f"{path} is larger than {SECRET_MAX} bytes: is it a secret?")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise SecretError(f"{path} does not hold a secret: expected text in UTF-8") from None

    def exposed(self, environment: Mapping[str, str] = os.environ) -> str:
        """Return how others than owner and group can access the file, or "". Raises SecretError."""
        path = self.path(environment)
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise SecretError(f"cannot look at the secret {path}: {error.strerror}") from None
        if mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
            return f"{path} has mode {stat.S_IMODE(mode):04o}: chmod o-rw,g-w {path}"
        return ""
