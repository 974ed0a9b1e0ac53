"""`ringline certs`: what it makes, what it never overwrites, and until when it is valid."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from ringline.cli.main import app
from ringline.errors import CallerError
from ringline.net.tls import TlsFiles


def certs(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, ["certs", *map(str, arguments)])
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def refused(*arguments: str | Path) -> str:
    """The sentence of the error that `main` makes an exit code of."""
    done = CliRunner().invoke(app, ["certs", *map(str, arguments)])
    assert isinstance(done.exception, CallerError)
    assert done.stdout == ""
    return str(done.exception)


def certificate(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def days_left(file: Path) -> int:
    left = certificate(file).not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return round(left / datetime.timedelta(days=1))


def test_a_ring_of_certificates_is_made_by_one_command_each(tmp_path):
    ring = tmp_path / "new" / "ring"
    assert str(ring / "ca.pem") in certs("init", ring)
    out = certs("node", ring, "alpha", "192.168.1.10", "fd00::1", "alpha.lan")
    assert "valid for    alpha, 192.168.1.10, fd00::1, alpha.lan" in out
    assert sorted(os.listdir(ring)) == ["alpha-key.pem", "alpha.pem", "ca-key.pem", "ca.pem"]
    files = TlsFiles(*(str(ring / name) for name in ("alpha.pem", "alpha-key.pem", "ca.pem")))
    assert "GMT" in files.check()


def test_keys_are_for_their_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        certs("init", tmp_path / "ring")
        certs("node", tmp_path / "ring", "alpha")
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "ring").iterdir()}
    assert modes["ca-key.pem"] == modes["alpha-key.pem"] == 0o600
    assert modes["ca.pem"] == modes["alpha.pem"] == 0o644
    assert (tmp_path / "ring").stat().st_mode & 0o777 == 0o700


def test_names_and_addresses_stand_in_the_certificate_as_what_they_are(tmp_path):
    certs("init", tmp_path)
    certs("node", tmp_path, "alpha", "10.0.0.7", "::1", "alpha.example.org", "alpha")
    extensions = certificate(tmp_path / "alpha.pem").extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["alpha", "alpha.example.org"]
    addresses = [ipaddress.ip_address(text) for text in ("10.0.0.7", "::1")]
    assert names.get_values_for_type(x509.IPAddress) == addresses
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    authority = certificate(tmp_path / "ca.pem").extensions
    assert authority.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_machine_may_be_named_by_its_address(tmp_path):
    certs("init", tmp_path)
    certs("node", tmp_path, "fd00::7")
    names = certificate(tmp_path / "fd00__7.pem").extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert names.value.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("fd00::7")]


def test_expiry_is_chosen_and_no_certificate_outlives_its_ca(tmp_path):
    certs("init", tmp_path, "--days=100")
    certs("node", tmp_path, "short", "--days=7")
    certs("node", tmp_path, "long", "--days=1000")
    found = [days_left(tmp_path / f"{name}.pem") for name in ("ca", "short", "long")]
    assert found == [100, 7, 100]
    assert CliRunner().invoke(app, ["certs", "init", str(tmp_path), "--days=0"]).exit_code == 2


def test_nothing_is_overwritten_unless_it_is_asked_for(tmp_path):
    certs("init", tmp_path)
    certs("node", tmp_path, "alpha")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for arguments in (("init", tmp_path), ("node", tmp_path, "alpha")):
        assert "exists: --force replaces it" in refused(*arguments)
    (tmp_path / "alpha.pem").unlink()
    assert "alpha-key.pem exists" in refused("node", tmp_path, "alpha")
    assert (tmp_path / "alpha-key.pem").read_bytes() == before["alpha-key.pem"]
    certs("node", tmp_path, "alpha", "--force")
    assert (tmp_path / "alpha-key.pem").read_bytes() != before["alpha-key.pem"]
    assert (tmp_path / "alpha-key.pem").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "ca-key.pem").read_bytes() == before["ca-key.pem"]


@pytest.mark.parametrize("name", ["ca", "../alpha", "a b", "", "-x-", "a" * 70])
def test_a_name_that_is_none_is_refused(name, tmp_path):
    certs("init", tmp_path)
    assert "cannot name a certificate" in refused("node", tmp_path, "--", name)


@pytest.mark.parametrize("host", ["10.0.0.1:50052", "10.0.0.0/8", "a b", "ä"])
def test_a_host_that_is_none_is_refused(host, tmp_path):
    certs("init", tmp_path)
    assert "neither a host name nor an address" in refused("node", tmp_path, "alpha", host)


def test_a_folder_without_a_ca_is_told_what_to_do(tmp_path):
    assert f"`ringline certs init {tmp_path}`" in refused("node", tmp_path, "alpha")


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    assert "cannot write to" in refused("init", file / "below")
