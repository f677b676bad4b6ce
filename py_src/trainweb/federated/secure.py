"""Secure aggregation: masks that are gone in the sum alone. `web/src/federated/secure.ts` is the same, byte for byte.

Each pair of members agrees on a secret (ECDH on P-256). HKDF-SHA256 makes a key of it, and AES-256 in counter mode
makes a stream of words of the key; one of the two adds it to its numbers, the other one subtracts it. Numbers are
integers modulo 2^32, so the masks are gone exactly. After Bonawitz et al. (https://eprint.iacr.org/2017/281), without
the shares that let a server go on when a member is lost: then the round has to be done again.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainweb import messages
from trainweb.federated.updates import as_vector
from trainweb.settings import Number

BOUND, WEIGHT = Number(above=0), Number(above=0, most=1)
LARGEST = 2**31 - 1
LABEL = b"trainweb secure aggregation 1"
POINT_BYTES = 65
"""An uncompressed point of P-256."""
CHECK_WORDS = 4
"""Zeros behind the numbers: a rest of masks in their sum shows there, except one time in 2^128."""
NAME = re.compile(r"[!-~]{1,64}")
"""Allowed names of members: all hosts sort them alike."""


def _library(name: str) -> Any:
    try:
        return importlib.import_module(f"cryptography.hazmat.primitives.{name}")
    except ImportError:
        raise messages.NEEDS_EXTRA(what="cryptography", extra="federated") from None


class SecureMember:
    """A member of one round, with its own keys.

    Parameters
    ----------
    name : str
        Its name among the members: printable ASCII without spaces.
    round : str
        The round's name, the same for all; no other round may have it.
    private_key : bytes, optional
        DER (PKCS 8) of a key of P-256; made anew by default.

    Attributes
    ----------
    public_key : bytes
        65 bytes, for all the others.

    Raises
    ------
    ModelError
        An argument is out of range.
    UnsupportedError
        cryptography is not installed.
    """

    def __init__(self, name: str, round: str, private_key: bytes | None = None) -> None:
        self._elliptic, self._formats = _library("asymmetric.ec"), _library("serialization")
        self.name, self._round = checked_name("name", name), checked_name("round", round)
        if private_key is None:
            self._private = self._elliptic.generate_private_key(self._elliptic.SECP256R1())
        else:
            self._private = self._read(private_key)
        encoding, form = self._formats.Encoding.X962, self._formats.PublicFormat.UncompressedPoint
        self.public_key: bytes = self._private.public_key().public_bytes(encoding, form)
        self._is_used = False

    def _read(self, key: bytes) -> Any:
        expected = "the DER of a private key of P-256"
        try:
            private = self._formats.load_der_private_key(key, None)
        except (TypeError, ValueError):
            raise messages.BAD_SETTING(name="private_key", value=type(key).__name__, expected=expected) from None
        if getattr(getattr(private, "curve", None), "name", None) != "secp256r1":
            raise messages.BAD_SETTING(name="private_key", value=type(private).__name__, expected=expected)
        return private

    def mask(self, update: Any, public_keys: Mapping[str, bytes], bound: float, weight: float = 1.0) -> np.ndarray:
        """Return the masked update to send instead; only once, because two of one round would show their difference.

        Parameters
        ----------
        update : array_like
            Float32 vector.
        public_keys : mapping of str to bytes
            Of all members by name, this one among them.
        bound : float
            Largest magnitude of an element of an update, the same for all: the clip norm, say, and the largest noise.
            The more it is, the coarser the numbers: the sum is exact to ``bound * members / 2^31`` or so a member.
        weight : float
            Share with which the update counts, above 0 and at most 1: its examples over the most that a client may
            have. The server learns the sum of all weights, not each.

        Returns
        -------
        ndarray
            Uint32, five elements longer than the update.

        Raises
        ------
        ModelError
            An element is beyond the bound, keys are wrong or two the same, or there are fewer than two members.
        SessionError
            Another update was masked already.
        """
        BOUND.check("bound", bound)
        WEIGHT.check("weight", weight)
        vector = as_vector("update", update)
        members = self._checked(public_keys)
        largest = float(np.abs(vector).max())
        if largest > bound:
            raise messages.BEYOND_BOUND(value=largest, bound=bound)
        if self._is_used:
            raise messages.MASKED_TWICE()
        steps = np.floor(vector.astype(np.float64) * weight * scale_of(bound, len(members)) + 0.5)
        counted = math.floor(weight * scale_of(1.0, len(members)) + 0.5)
        masked = np.concatenate([steps, [counted], np.zeros(CHECK_WORDS)]).astype(np.int64).astype(np.uint32)
        for other in members:
            if other != self.name:
                words = self._words(other, public_keys[other], len(masked))
                masked = masked + words if self.name < other else masked - words
        self._is_used = True
        return masked

    def _checked(self, public_keys: Any) -> list[str]:
        if not isinstance(public_keys, Mapping) or len(public_keys) < 2:
            raise messages.BAD_SETTING(name="public_keys", value=public_keys, expected="keys of two members or more")
        if public_keys.get(self.name) != self.public_key:
            raise messages.NO_MEMBER(name=self.name)
        for name, key in public_keys.items():
            checked_name("public_keys", name)
            if not isinstance(key, bytes) or len(key) != POINT_BYTES:
                expected = f"{POINT_BYTES} bytes"
                raise messages.BAD_SETTING(name=f"public_keys[{name!r}]", value=type(key).__name__, expected=expected)
        if len(set(public_keys.values())) < len(public_keys):
            raise messages.SAME_KEY()
        return sorted(public_keys)

    def _words(self, other: str, public_key: bytes, count: int) -> np.ndarray:
        derivation, hashes, ciphers = _library("kdf.hkdf"), _library("hashes"), _library("ciphers")
        try:
            point = self._elliptic.EllipticCurvePublicKey.from_encoded_point(self._private.curve, public_key)
        except ValueError:
            expected = "a point of P-256"
            raise messages.BAD_SETTING(name=f"public_keys[{other!r}]", value="other bytes", expected=expected) from None
        secret = self._private.exchange(self._elliptic.ECDH(), point)
        info = b"\0".join([LABEL, *(name.encode() for name in sorted((self.name, other)))])
        key = derivation.HKDF(hashes.SHA256(), 32, self._round.encode(), info).derive(secret)
        stream = ciphers.Cipher(ciphers.algorithms.AES(key), ciphers.modes.CTR(bytes(16))).encryptor()
        return np.frombuffer(stream.update(bytes(4 * count)), "<u4")


def checked_name(what: str, name: Any) -> str:
    """A name that sorts alike everywhere."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise messages.BAD_SETTING(name=what, value=name, expected="1 to 64 printable ASCII characters without spaces")
    return name


def scale_of(bound: float, members: int) -> float:
    """Steps of the fixed point in 1: the most, as a power of two, with which a sum cannot overflow."""
    # Each number is rounded by half a step at most.
    return 2.0 ** math.floor(math.log2((LARGEST / members - 0.5) / bound))


def add_masked(masked: Mapping[str, Any], members: Sequence[str], bound: float) -> tuple[np.ndarray, float]:
    """The sum of the members' updates, each times its weight, and the sum of the weights.

    Divide the one by the other for the weighted mean. Nothing is learned of single updates, if the members were given
    the true keys of each other.

    Parameters
    ----------
    masked : mapping of str to ndarray
        The message of each member.
    members : sequence of str
        All members that were given each other's keys.
    bound : float
        As the members had it.

    Returns
    -------
    tuple of ndarray and float
        The sum is float64.

    Raises
    ------
    ModelError
        Vectors are of several lengths or none, or the weights do not add up, as they do where a member had other keys.
    SessionError
        A member is missing: its masks are in the sum, which says nothing. Begin a round with new keys, of the present
        members.
    """
    BOUND.check("bound", bound)
    is_list = isinstance(members, Sequence) and not isinstance(members, str)
    if not isinstance(masked, Mapping) or not is_list or len(members) < 2:
        raise messages.BAD_SETTING(name="members", value=members, expected="the names of two members or more")
    names = [checked_name("members", name) for name in members]
    missing = sorted(set(names) - set(masked))
    if missing:
        raise messages.MEMBER_LOST(names=", ".join(missing))
    if len(set(names)) < len(names) or set(masked) != set(names):
        raise messages.BAD_SETTING(name="masked", value=sorted(map(str, masked)), expected="one vector a member")
    total = np.zeros(0, np.uint32)
    for name in names:
        vector = np.asarray(masked[name])
        is_long = vector.ndim == 1 and len(vector) > 1 + CHECK_WORDS
        if vector.dtype != np.uint32 or not is_long or len(total) not in (0, len(vector)):
            raise messages.BAD_SETTING(name=f"masked[{name!r}]", value=str(vector.dtype), expected="a vector of uint32")
        total = vector.copy() if not len(total) else total + vector
    if total[-CHECK_WORDS:].any():
        raise messages.OTHER_MASKS()
    values = total[:-CHECK_WORDS].astype(np.int32).astype(np.float64)
    return values[:-1] / scale_of(bound, len(names)), float(values[-1] / scale_of(1.0, len(names)))
