# SPDX-FileCopyrightText: 2026 the serve_warm authors
# SPDX-License-Identifier: Apache-2.0
"""Ed25519 keys that nobody should trust, and signatures for them that need no private key.

The curve is RFC 8032's, in affine coordinates. This code is slow, and only good for tests.
"""

from __future__ import annotations

import base64

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from serve_warm.trust.keys import ED25519_DER

Point = tuple[int, int]

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
BASE_Y = 4 * pow(5, -1, P) % P
TRIES = 64


def find_x(y: int) -> int | None:
    """Return the even x of the curve's point at `y`; None if there is no such point."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if (x * x - square) % P:
        return None
    return P - x if x & 1 else x


def add(one: Point, two: Point) -> Point:
    (x1, y1), (x2, y2) = one, two
    product = D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, P)
    return x % P, (y1 * y2 + x1 * x2) * pow(1 - product, -1, P) % P


def multiply(factor: int, point: Point) -> Point:
    result = (0, 1)
    while factor:
        if factor & 1:
            result = add(result, point)
        point, factor = add(point, point), factor >> 1
    return result


def encode(y: int, *, sign: int) -> bytes:
    return (y | sign << 255).to_bytes(32, "little")


def small_points() -> list[Point]:
    """Return the eight points of small order."""
    for y in range(2, 100):
        x = find_x(y)
        if x is not None:
            found = multiply(ORDER, (x, y))
            points = [multiply(factor, found) for factor in range(8)]
            if len(set(points)) == 8:
                return points
    raise AssertionError


def small_order() -> list[bytes]:
    """Return all 32-byte encodings of the points of small order that a lenient reader accepts.

    A reader can reduce a y of `P` or more, and can ignore the sign of an x of 0.
    """
    values = sorted({y for _, y in small_points()})
    lifted = [each for y in values for each in (y, y + P) if each < 2**255]
    return [encode(y, sign=sign) for y in lifted for sign in (0, 1)]


def not_canonical() -> list[bytes]:
    """Return all encodings with a y of `P` or more."""
    return [encode(y, sign=sign) for y in range(P, 2**255) for sign in (0, 1)]


def off_curve(count: int) -> list[bytes]:
    """Return encodings of which no point of the curve has the y."""
    found = [y for y in range(2, 20 * count) if find_x(y) is None][:count]
    assert len(found) == count
    return [encode(y, sign=y & 1) for y in found]


def forge(raw: bytes, message: bytes) -> bytes | None:
    """Return a signature of `message` that `cryptography` verifies; None after `TRIES` numbers.

    No private key is used. A signature holds if R equals S times the base point, minus the key
    times a hash. A key of small order has at most eight multiples, so R is S times the base point
    plus one of eight points, and a few tries of S find a match.
    """
    x = find_x(BASE_Y)
    assert x is not None
    public, points, multiple = Ed25519PublicKey.from_public_bytes(raw), small_points(), (0, 1)
    for number in range(TRIES):
        for point in points:
            r_x, r_y = add(multiple, point)
            signature = encode(r_y, sign=r_x & 1) + number.to_bytes(32, "little")
            try:
                public.verify(signature, message)
            except InvalidSignature:
                continue
            return signature
        multiple = add(multiple, (x, BASE_Y))
    return None


def pem_of(raw: bytes) -> str:
    """Return 32 bytes as the PEM of an Ed25519 key, whatever the bytes are."""
    body = base64.b64encode(ED25519_DER + raw).decode()
    return f"-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n"


def loosen(pem: str) -> str:
    """Return a PEM whose base64 has a bit after its data, so another text means the same key."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    place = pem.rindex("=") - 1
    return f"{pem[:place]}{alphabet[alphabet.index(pem[place]) + 1]}{pem[place + 1 :]}"
