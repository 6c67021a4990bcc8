import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from fedgraph.commands.deployment.credentials import make_test_credentials
from fedgraph.commands.deployment.server_command import names_of_certificate
from fedgraph.federation.identity import check_proof, prove, read_public_keys
from fedgraph.support.errors import RunError


def test_the_certificate_is_for_the_hosts_and_of_the_authority(tmp_path):
    made = make_test_credentials(tmp_path / "new", ["superlink.example", "10.0.0.7", "::1"], ["mercy"], days=3)
    assert names_of_certificate(made.certificate, made.key, made.authority) == ["superlink.example", "10.0.0.7", "::1"]
    certificate = x509.load_pem_x509_certificate(made.certificate.read_bytes())
    now = datetime.now(UTC)
    assert certificate.not_valid_before_utc < now < certificate.not_valid_after_utc < now + timedelta(days=3.1)
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_each_node_has_a_key_of_its_own_by_its_clients_name(tmp_path):
    names = ["mercy", "st. olav / north"]
    made = make_test_credentials(tmp_path, ["localhost"], names)
    keys = read_public_keys(made.public_keys)
    assert set(keys) == set(names)
    for name, other in (names, names[::-1]):
        proof = prove(made.private_key(name), "challenge", 7, [name])
        check_proof(keys, proof, "challenge", 7, [name])
        with pytest.raises(Exception, match="does not have the private key"):
            check_proof(keys, proof, "challenge", 7, [other])


def test_only_the_owner_can_read_private_keys(tmp_path):
    made = make_test_credentials(tmp_path, ["localhost"], ["mercy"])
    for file in (made.key, made.private_key("mercy")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    written = {file.name for file in tmp_path.rglob("*") if file.is_file()}
    assert written == {"ca.crt", "server.crt", "server.key", "mercy", "mercy.pub"}, "the authority's key is not kept"


def test_nothing_is_written_over(tmp_path):
    make_test_credentials(tmp_path, ["localhost"], ["mercy"])
    with pytest.raises(RunError, match="is not empty"):
        make_test_credentials(tmp_path, ["localhost"], ["mercy"])
    with pytest.raises(RunError, match="node names must differ"):
        make_test_credentials(tmp_path / "new", ["localhost"], ["mercy", "mercy"])
