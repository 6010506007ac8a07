"""Attacks on joined values: the signed text of a capture, cut at other places."""

import binascii
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlencode

from onceward.sources.schemes import Signature
from tests.captures import FORGED_BODY, Case, Sent, form
from tests.keys import TOPIC

LIMIT: Final = 300
"""How many cuts are tried; a repeatable sample of more."""
NEAR: Final = 40
"""How far a boundary moves where several can move at once."""

Recut = Callable[[Case, Sent], Iterator[Sent]]


def recut(of: Case, genuine: Sent) -> Iterator[Sent]:
    """Yield requests whose signed values join to the same text."""
    if isinstance(of.scheme, Signature):
        yield from recut_template(of.scheme, genuine, of.source.url or "")
    elif of.preset.name in VENDOR_RECUTS:
        yield from VENDOR_RECUTS[of.preset.name](of, genuine)


def cuts(literals: list[bytes], values: list[bytes]) -> list[list[bytes]]:
    """Return other values that, between the same literals, join to the same text."""
    content = b"".join(a + b for a, b in zip(literals, [*values, b""], strict=True))
    found: list[list[bytes]] = []

    def extend(start: int, chosen: list[bytes]) -> None:
        place = len(chosen)
        if len(found) > LIMIT * 20:
            return
        if place == len(values) - 1:
            end = len(content) - len(literals[-1])
            if content.endswith(literals[-1]) and end >= start:
                found.append([*chosen, content[start:end]])
            return
        literal, usual = literals[place + 1], start + len(values[place])
        for end in range(start, len(content) + 1):
            is_near = len(values) == 2 or abs(end - usual) <= NEAR
            if is_near and content.startswith(literal, end):
                extend(end + len(literal), [*chosen, content[start:end]])

    extend(len(literals[0]), [])
    others = [chosen for chosen in found if chosen != values]
    # A sample that is the same in each run.
    return others if len(others) <= LIMIT else random.Random(7).sample(others, LIMIT)  # noqa: S311


# Templates.


def recut_template(scheme: Signature, genuine: Sent, url: str) -> Iterator[Sent]:
    """Cut at other places; what cannot be moved, such as a hash, counts as literal text."""
    pieces = re.split(r"\{([^{}]+)\}", scheme.content)
    literals, names, values = [b""], [], []
    for place, piece in enumerate(pieces):
        value = read(scheme, genuine, piece, url) if place % 2 else None
        if value is not None:
            names.append(piece)
            values.append(value)
            literals.append(b"")
        elif place % 2:
            return  # computed from the body, so that another cut has another text
        else:
            literals[-1] += piece.encode()
    if len(names) < 2:
        return
    for chosen in cuts(literals, values):
        changed: Sent | None = genuine
        for name, value in zip(names, chosen, strict=True):
            changed = changed and write(scheme, changed, name, value, url)
        if changed is not None:
            yield changed


def read(scheme: Signature, genuine: Sent, name: str, url: str) -> bytes | None:
    if name in ("body", "method"):
        return genuine.body if name == "body" else genuine.method.encode()
    if name == "timestamp":
        return read_time(scheme, genuine)
    if name == "url":
        return f"{url.partition('?')[0]}{'?' if genuine.query else ''}{genuine.query}".encode()
    if name.startswith("header:"):
        return genuine.header(header_key(name, genuine)) or None
    if not name.startswith("json:"):
        return None
    value = json.loads(genuine.body)
    for step in name[5:].split("."):
        value = value[step]
    return str(value).encode()


def header_key(name: str, genuine: Sent) -> bytes:
    keys = [part[7:].lower().encode() for part in name.split("|")]
    return next((key for key in keys if genuine.header(key)), keys[0])


def read_time(scheme: Signature, genuine: Sent) -> bytes | None:
    selector = scheme.timestamp or ""
    if not selector.startswith("list:"):
        return read(scheme, genuine, selector, "")
    prefix, separator = selector[5:].encode(), (scheme.separator or "").encode()
    items = genuine.header(header_key(scheme.at, genuine)).split(separator)
    return next((item[len(prefix) :] for item in items if item.startswith(prefix)), None)


def write(scheme: Signature, changed: Sent, name: str, value: bytes, url: str) -> Sent | None:
    if name == "body":
        return replace(changed, body=value)
    if name == "timestamp":
        return write_time(scheme, changed, value)
    if name == "method":
        return replace(changed, method=value.decode("latin-1"))
    if name == "url":
        base, mark, query = value.decode("latin-1").partition("?")
        is_ours = base == url.partition("?")[0]
        return replace(changed, query=query if mark else "") if is_ours else None
    if name.startswith("json:"):
        document = json.loads(changed.body)
        holder = document
        *path, last = name[5:].split(".")
        for step in path:
            holder = holder[step]
        holder[last] = value.decode("latin-1")
        return replace(changed, body=json.dumps(document).encode())
    return changed.with_header(header_key(name, changed), value)


def write_time(scheme: Signature, changed: Sent, value: bytes) -> Sent | None:
    selector = scheme.timestamp or ""
    if not selector.startswith("list:"):
        return write(scheme, changed, selector, value, "")
    key, prefix = header_key(scheme.at, changed), selector[5:].encode()
    old = prefix + (read_time(scheme, changed) or b"")
    return changed.with_header(key, changed.header(key).replace(old, prefix + value, 1))


# Vendors.


def recut_adyen(_: Case, genuine: Sent) -> Iterator[Sent]:
    document = json.loads(genuine.body)
    item = document["notificationItems"][0]["NotificationRequestItem"]
    names = ("pspReference", "originalReference", "merchantAccountCode", "merchantReference")
    values = [item.get(name, "") for name in names]
    values += [str(item["amount"]["value"]), item["amount"]["currency"]]
    values += [item["eventCode"], item["success"]]
    texts = [value.encode() for value in values]
    for chosen in cuts([b"", *[b":"] * 7, b""], texts):
        cut = [value.decode() for value in chosen]
        amount: Any = int(cut[4]) if cut[4].isdigit() else cut[4]
        changed = {
            **item,
            **dict(zip(names, cut, strict=False)),
            "amount": {"value": amount, "currency": cut[5]},
            "eventCode": cut[6],
            "success": cut[7],
        }
        holder = {"notificationItems": [{"NotificationRequestItem": changed}]}
        yield replace(genuine, body=json.dumps(holder).encode())


def recut_sns(_: Case, genuine: Sent) -> Iterator[Sent]:
    document = json.loads(genuine.body)
    common = ["Timestamp", "TopicArn", "Type"]
    signed = ["Message", "MessageId", *(["Subject"] if "Subject" in document else []), *common]
    content = "".join(f"{name}\n{document[name]}\n" for name in signed)
    for names in (
        ["Message", "MessageId", *common],
        ["Message", "MessageId", "Subject", *common],
        ["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"],
    ):
        pattern = "".join(f"{name}\n(.*)\n" for name in names)
        for lazy in (pattern, pattern.replace("*", "*?")):
            if found := re.fullmatch(lazy, content, re.DOTALL):
                others = {name: document[name] for name in ("Signature", "SignatureVersion")}
                changed = others | dict(zip(names, found.groups(), strict=True))
                yield replace(genuine, body=json.dumps(changed).encode())
    assert TOPIC in content


def recut_paypal(_: Case, genuine: Sent) -> Iterator[Sent]:
    id_key, time_key = b"paypal-transmission-id", b"paypal-transmission-time"
    tail = b"|WH-1|%d" % binascii.crc32(genuine.body)
    for first, second in cuts(
        [b"", b"|", tail], [genuine.header(id_key), genuine.header(time_key)]
    ):
        yield genuine.with_header(id_key, first).with_header(time_key, second)


def recut_mercadopago(_: Case, genuine: Sent) -> Iterator[Sent]:
    """Put the request id into the id of the URL, and the other way round."""
    request_id = genuine.header(b"x-request-id").decode()
    data_id = dict(form(genuine.query.encode()))["data.id"]
    merged = f"{data_id};request-id:{request_id}"
    without = genuine.with_header(b"x-request-id", None)
    yield replace(without, query=urlencode({"data.id": merged}))
    yield replace(genuine, query="").with_header(b"x-request-id", merged.encode())
    yield replace(genuine, query=urlencode({"data.id": data_id.upper()}))
    values = [data_id.encode(), request_id.encode()]
    for first, second in cuts([b"id:", b";request-id:", b";"], values):
        changed = replace(genuine, query=urlencode({"data.id": first.decode()}))
        yield changed.with_header(b"x-request-id", second)


def recut_form(of: Case, genuine: Sent) -> Iterator[Sent]:
    """Move text between the query and the form, and between names and values of the form."""
    base, _, _ = (of.source.url or "").partition("?")
    fields = "".join(name + value for name, value in sorted(set(form(genuine.body))))
    for place in range(1, len(fields)):
        yield replace(genuine, body=urlencode([(fields[:place], fields[place:])]).encode())
        pair = [(fields[:place], ""), (fields[place:], "")]
        yield replace(genuine, body=urlencode(pair).encode())
    content = f"{genuine.query}{fields}"
    assert base
    for place in range(len(content) + 1):
        rest = urlencode([(content[place:], "")]).encode()
        for body in (rest, FORGED_BODY):
            yield replace(genuine, query=content[:place], body=body)


def recut_dropbox_sign(_: Case, genuine: Sent) -> Iterator[Sent]:
    document = json.loads(dict(form(genuine.body))["json"])
    event = document["event"]
    values = [event["event_time"].encode(), event["event_type"].encode()]
    for time, kind in cuts([b"", b"", b""], values):
        document["event"] = {**event, "event_time": time.decode(), "event_type": kind.decode()}
        yield replace(genuine, body=urlencode({"json": json.dumps(document)}).encode())


def recut_hook0(_: Case, genuine: Sent) -> Iterator[Sent]:
    key = b"x-hook0-signature"
    time, names, *signatures = genuine.header(key).split(b",")
    listed = names[2:].split(b" ")
    values = [time[2:], names[2:], *(genuine.header(name) for name in listed), genuine.body]
    for chosen in cuts([b"", *[b"."] * (len(values) - 1), b""], values):
        changed = replace(genuine, body=chosen[-1])
        for name, value in zip(listed, chosen[2:-1], strict=True):
            changed = changed.with_header(name, value)
        new = b",".join([b"t=" + chosen[0], b"h=" + chosen[1], *signatures])
        yield changed.with_header(key, new)
    for count in range(len(listed)):
        rest = b".".join([genuine.header(name) for name in listed[count:]] + [genuine.body])
        shorter = b",".join([time, b"h=" + b" ".join(listed[:count]), *signatures])
        yield replace(genuine, body=rest).with_header(key, shorter)


def recut_contentful(_: Case, genuine: Sent) -> Iterator[Sent]:
    key = b"x-contentful-signed-headers"
    names = genuine.header(key).split(b",")
    for count in range(len(names)):
        yield genuine.with_header(key, b",".join(names[:count]))
        yield genuine.with_header(key, b",".join(names[count:]))
        merged = b";".join([b"%b:%b" % (name, genuine.header(name)) for name in names[count:]])
        yield genuine.with_header(key, b",".join(names[:count])).with_header(names[count], merged)


VENDOR_RECUTS: Final[dict[str, Recut]] = {
    "adyen": recut_adyen,
    "aws-sns": recut_sns,
    "contentful": recut_contentful,
    "dropbox-sign": recut_dropbox_sign,
    "hook0": recut_hook0,
    "mandrill": recut_form,
    "mercadopago": recut_mercadopago,
    "paypal": recut_paypal,
    "twilio": recut_form,
}
