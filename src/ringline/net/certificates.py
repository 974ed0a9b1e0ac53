"""The certificates of a ring: its own CA, and one for each machine, made with one command each.

Keys are ECDSA P-256, without a pass phrase, in files that only their owner can read. A machine's
certificate serves both directions: a node is dialled by the coordinator and dials other nodes.
Validity begins an hour early, since clocks differ. Nothing that exists is overwritten unless that
is asked for. Times are UTC.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ringline.errors import CallerError

__all__ = ["Issued", "make_authority", "make_certificate"]

_CA: Final = "ca"
_EARLY: Final = datetime.timedelta(hours=1)
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,62}[A-Za-z0-9])?")
_DNS_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate that was made.

    Attributes:
        certificate: its file; key: the file of its private key.
        names: host names and addresses that it is valid for.
        expires: when its time ends, UTC.
    """

    certificate: Path
    key: Path
    names: tuple[str, ...]
    expires: datetime.datetime


def make_authority(folder: Path, *, name: str, days: int, force: bool = False) -> Issued:
    """Make a ring's CA in a folder: `ca.pem`, which every machine gets, and `ca-key.pem`.

    Args:
        folder: made where it is missing.
        name: the CA's name, for people.
        days: how long it is valid.
        force: whether a CA that is there is replaced; its certificates are worth nothing then.

    Raises:
        CallerError: there is a CA already, or the files cannot be written.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    begin, end = _validity(days)
    usage = _usage(signs_certificates=True)
    own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _builder(subject, subject, key.public_key(), begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(own_id, critical=False)
        .sign(key, hashes.SHA256())
    )
    return _write(folder, _CA, certificate, key, (), force=force)


def make_certificate(
    folder: Path,
    name: str,
    hosts: Sequence[str] = (),
    *,
    days: int,
    force: bool = False,
) -> Issued:
    """Make a machine's certificate in the folder of its ring's CA: `NAME.pem`, `NAME-key.pem`.

    Args:
        folder: where make_authority() left the CA.
        name: of the machine; it is valid for it as a host name or an address.
        hosts: more host names and addresses under which the machine is dialled.
        days: how long it is valid, at most as long as the CA.
        force: whether files that are there are replaced.

    Raises:
        CallerError: there is no CA, a name cannot be used, or the files cannot be written.
    """
    if not _NAME.fullmatch(name) or name == _CA:
        raise CallerError(
            f"{name!r} cannot name a certificate: use the machine's host name or address"
        )
    authority, authority_key = _load_authority(folder)
    names = tuple(dict.fromkeys([name, *hosts]))
    key = ec.generate_private_key(ec.SECP256R1())
    begin, end = _validity(days)
    end = min(end, authority.not_valid_after_utc)
    own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = (
        _builder(_subject(name), authority.subject, key.public_key(), begin, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(both, critical=False)
        .add_extension(x509.SubjectAlternativeName(list(map(_host, names))), critical=False)
        .add_extension(own_id, critical=False)
        .add_extension(issuer_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return _write(folder, name, certificate, key, names, force=force)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _validity(days: int) -> tuple[datetime.datetime, datetime.datetime]:
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    return now - _EARLY, now + datetime.timedelta(days=days)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    begin: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(begin, end - _EARLY))
        .not_valid_after(end)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(text: str) -> x509.GeneralName:
    """A host as a certificate names it: an address is told from a name by how it is written."""
    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        pass
    if not _DNS_NAME.fullmatch(text):
        raise CallerError(
            f"{text!r} is neither a host name nor an address; ports and networks do not belong in "
            "a certificate"
        )
    return x509.DNSName(text)


def _load_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate_file, key_file = _files(folder, _CA)
    try:
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
    except OSError as error:
        raise CallerError(
            f"there is no CA in {folder} ({error.filename}: {error.strerror}): make one with "
            f"`ringline certs init {folder}`"
        ) from None
    except (ValueError, TypeError) as error:
        raise CallerError(f"the CA in {folder} cannot be used ({error})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CallerError(f"{key_file} is no key that `ringline certs init` has made")
    return certificate, key


def _files(folder: Path, name: str) -> tuple[Path, Path]:
    """Certificate and key; a colon of an IPv6 address is none of a file's name."""
    stem = name.replace(":", "_")
    return folder / f"{stem}.pem", folder / f"{stem}-key.pem"


def _write(
    folder: Path,
    name: str,
    certificate: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    names: tuple[str, ...],
    *,
    force: bool,
) -> Issued:
    certificate_file, key_file = _files(folder, name)
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in (key_file, certificate_file):
            if not force and file.exists():
                raise CallerError(f"{file} exists: --force replaces it")
        _replace(key_file, secret, 0o600)
        _replace(certificate_file, certificate.public_bytes(pem), 0o644)
    except OSError as error:
        raise CallerError(f"cannot write to {folder}: {error.strerror}") from None
    return Issued(certificate_file, key_file, names, certificate.not_valid_after_utc)


def _replace(file: Path, text: bytes, mode: int) -> None:
    """Write a file whole or not at all; nobody else can read it at any moment."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            os.fchmod(descriptor, mode)
            opened.write(text)
        draft.replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
