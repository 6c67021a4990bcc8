from __future__ import annotations

from dataclasses import replace

import pytest

from fedgraph.privacy.secret.sealed import Context, KeyPair, fingerprint, open_sealed, seal
from fedgraph.support.errors import ReplyError, RunError

CONTEXT = Context(run="a", owner="sensor", aggregator="node", request="embed 1")


def test_opens_with_the_right_key_only():
    keys, other = KeyPair.create(), KeyPair.create()
    sealed = seal(keys.public, b"share", CONTEXT)
    assert b"share" not in sealed
    assert len(sealed) == 5 + 48
    assert open_sealed(keys, sealed, CONTEXT) == b"share"
    with pytest.raises(ReplyError, match="owner 'sensor' for aggregator 'node'"):
        open_sealed(other, sealed, CONTEXT)


@pytest.mark.parametrize("part", ["run", "owner", "aggregator", "request"])
def test_opens_in_its_own_context_only(part):
    keys = KeyPair.create()
    with pytest.raises(ReplyError, match="cannot be opened"):
        open_sealed(keys, seal(keys.public, b"share", CONTEXT), replace(CONTEXT, **{part: "other"}))


def test_parts_of_a_context_do_not_run_into_each_other():
    assert Context("a", "b", "c", "d").to_bytes() != Context("a", 'b", "c', "c", "d").to_bytes()
    assert Context("ab", "", "c", "d").to_bytes() != Context("a", "b", "c", "d").to_bytes()


def test_every_changed_byte_is_noticed():
    keys = KeyPair.create()
    sealed = seal(keys.public, b"share", CONTEXT)
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(ReplyError):
            open_sealed(keys, bytes(changed), CONTEXT)
    for short in (b"", sealed[:20], sealed[:-1]):
        with pytest.raises(ReplyError):
            open_sealed(keys, short, CONTEXT)


def test_same_message_never_looks_the_same():
    keys = KeyPair.create()
    assert seal(keys.public, b"share", CONTEXT)[32:] != seal(keys.public, b"share", CONTEXT)[32:]


def test_keys_can_be_kept_and_are_not_printed():
    keys = KeyPair.create()
    kept = KeyPair.from_private_bytes(keys.private_bytes())
    assert kept.public == keys.public
    assert open_sealed(kept, seal(keys.public, b"x", CONTEXT), CONTEXT) == b"x"
    assert repr(keys) == "KeyPair()"
    assert fingerprint(keys.public) == fingerprint(kept.public) != fingerprint(KeyPair.create().public)


def test_unusable_keys_are_said():
    with pytest.raises(RunError, match="aggregator 'node'"):
        seal(b"short", b"share", CONTEXT)
    with pytest.raises(RunError, match="aggregator 'node'"):
        seal(bytes(32), b"share", CONTEXT)
    with pytest.raises(RunError, match="32 bytes, not 5"):
        KeyPair.from_private_bytes(b"short")
