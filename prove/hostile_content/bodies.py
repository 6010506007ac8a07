"""Bodies that a filter, a key, a model and a handler could read in different ways."""

import json
import random

STATUSES = (b'"paid"', b'"paid"', b'"paid"', b'"unpaid"', b'"PAID"', b'"pa\\u0069d"', b'"paid "',
            b'"\\u0000paid"', b"1", b"true", b"null", b'["paid"]')  # fmt: skip
CUSTOMERS = (b'"c1"', b'"c2"', b'"c1"', b'"\xc3\xa9"', b'"\\u00e9"', b"5", b'"5"', b"5.0", b'""',
             b"null", b"[]", b"false")  # fmt: skip
NAMES = (
    b"x",
    b"status ",
    b"Status",
    b"customer\\u0000",
    b"data",
    b"",
    b"st\\u0061tus",
    b"customer",
)
LEVELS = (1, 10, 199, 201, 498, 499, 500, 501, 640, 900, 974, 996, 1_001, 5_000)
DIGITS = (1, 19, 20, 309, 499, 500, 501, 640, 641, 4_300, 4_301, 10_000)
SCALARS = (b"1e400", b"-1e400", b"1e308", b"1e309", b"0.1e-999", b"-0", b"01", b"1.", b".5", b"+1",
           b"NaN", b"-Infinity", b"tru", b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'"\\ud800"',
           b'"\\ud83d\\ude00"', b'"\\ude00\\ud83d"', b'"\x00"', b'"\x1f"', b'"\x7f"', b'"\\x"',
           b'"' + b'[{\\\\\\"' * 400 + b'"', b"'a'", b"[1,]", b'{"a":1,}', b"{}")  # fmt: skip
SANE = (b"1", b"-1.5e3", b'"x"', b"null", b"[1, 2]", b'{"status": "unpaid"}')
AROUND = (*[b"%s"] * 12, b" \r\n\t%s\n", b"\xef\xbb\xbf%s", b"%s\x00", b"%s{}",
          b"[%s]", b"\x0b%s", b"%s,", b'"%s"')  # fmt: skip


def hostile_body(rng: random.Random) -> bytes:
    """Return a body. About half of them are JSON within the limits."""
    customer = rng.choice((b'"c%d"' % rng.randrange(50), rng.choice(CUSTOMERS)))
    members = [(b"status", rng.choice(STATUSES)), (b"customer", customer)]
    if rng.random() < 0.2:
        members.append((b"status", rng.choice(STATUSES)))
    if rng.random() < 0.1:
        members.append((b"customer", rng.choice(CUSTOMERS)))
    more = rng.choice((0, 0, 1, 1, 2, 20))
    members += [(rng.choice(NAMES), _value(rng)) for _ in range(more)]
    rng.shuffle(members)
    body = rng.choice(AROUND) % b"{%s}" % b",".join(b'"%s":%s' % member for member in members)
    if rng.random() < 0.1:
        return _damaged(rng, body)
    if rng.random() < 0.03:
        return body.decode("latin-1").encode(rng.choice(("utf-16", "utf-32-le")))
    return body


def _value(rng: random.Random) -> bytes:
    kind = rng.randrange(9)
    if kind == 0:
        levels = rng.choice(LEVELS)
        opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
        return opening * levels + b"1" + closing * (levels - (rng.random() < 0.05))
    if kind == 1:
        return rng.choice((b"%s", b"-%s", b"0.%s", b"%s.5", b"1e%s", b'"%s"')) % (
            b"9" * rng.choice(DIGITS)
        )
    if kind == 2:
        return json.dumps({"status": "paid", "customer": ["c1", {"status": "x"}]}).encode()
    return rng.choice(SCALARS if kind == 3 else SANE)


def _damaged(rng: random.Random, body: bytes) -> bytes:
    """Return a body with a byte changed, or cut."""
    at = rng.randrange(len(body))
    if rng.random() < 0.3:
        return body[:at]
    return body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :]
