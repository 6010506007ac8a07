"""What an adversary does with a captured request: every attack yields changed requests.

The adversary knows captures and what is public: presets, selectors and templates. It has no secret.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode

from onceward.sources.schemes import Signature
from onceward.sources.selectors import HeaderHashSelector, HeaderSelector, parse_selectors
from tests.captures import FORGED_BODY, Case, Sent, form
from tests.recuts import recut

FORGED: Final = "forged"
FORM: Final = b"application/x-www-form-urlencoded"
MULTIPART: Final = b"multipart/form-data; boundary=x"

Attack = Callable[[Case, Sent], Iterator[Sent]]


# The body in other spellings, and with other values.


def respell_body(of: Case, genuine: Sent) -> Iterator[Sent]:
    for body in spellings(genuine.body):
        yield replace(genuine, body=body)
    field = of.preset.form_field
    if field is not None:
        name = field.removeprefix("form:")
        fields = dict(form(genuine.body))
        for inner in spellings(fields.get(name, "").encode()):
            changed = {**fields, name: inner.decode("latin-1")}
            yield replace(genuine, body=urlencode(changed, encoding="latin-1").encode())


def spellings(body: bytes) -> Iterator[bytes]:
    yield from (body + b"\n", b" " + body, body + b" ", b"\xef\xbb\xbf" + body, body + b"\0", b"")
    yield from (body[:-1], body[1:], body[: len(body) // 2], body + body)
    try:
        document = json.loads(body)
    except ValueError:
        yield from form_spellings(body)
        return
    yield from json_spellings(body, document)
    for changed in changed_documents(document):
        yield json.dumps(changed).encode()


def json_spellings(body: bytes, document: Any) -> Iterator[bytes]:
    yield json.dumps(document, indent=1).encode()
    yield json.dumps(document, separators=(",", ":")).encode()
    yield json.dumps(document, sort_keys=True).encode()
    yield json.dumps(document, ensure_ascii=False).encode()
    yield re.sub(rb'(?<=[":a-z])[a-z](?=[a-z"])', lambda it: b"\\u%04x" % it[0][0], body)
    if isinstance(document, dict):
        for name, value in document.items():
            for text in (json.dumps(value), f'"{FORGED}"', "null", "true"):
                member = f"{json.dumps(name)}:{text}".encode()
                yield b"{" + member + b"," + body[1:]
                yield body[:-1] + b"," + member + b"}"
    if isinstance(document, list):
        yield body[:-1] + b"," + body[1:]
        yield json.dumps(document[::-1]).encode()


def changed_documents(document: Any) -> Iterator[Any]:
    """Yield a document with each of its values changed, in several ways, or removed."""
    for path, value in leaves(document):
        for other in (FORGED, None, 7, True, [value], {"a": value}, f"{value}", f"{value} "):
            yield put(document, path, other)
        if isinstance(value, str) and value.isdigit():
            yield put(document, path, int(value))
        yield put(document, path, ...)


def leaves(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    pairs: Any = ()
    if isinstance(document, dict):
        pairs = document.items()
    elif isinstance(document, list):
        pairs = enumerate(document)
    else:
        yield path, document
    for key, value in pairs:
        yield from leaves(value, (*path, key))


def put(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with a value at a path; an ellipsis removes it."""
    if not path:
        return value
    copy = document.copy()
    if value is ... and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = put(copy[path[0]], path[1:], value)
    return copy


def form_spellings(body: bytes) -> Iterator[bytes]:
    fields = form(body)
    yield urlencode(fields[::-1], encoding="latin-1").encode()
    yield urlencode(fields, encoding="latin-1", quote_via=quote).encode()
    yield "&".join(f"{escaped(name)}={escaped(value)}" for name, value in fields).encode()
    yield re.sub(rb"%[0-9A-F]{2}", lambda it: it[0].lower(), body)
    yield body.replace(b"&", b";")
    yield b"&" + body.replace(b"&", b"&&")
    yield multipart(fields)
    for place, (name, value) in enumerate(fields):
        rest = fields[:place] + fields[place + 1 :]
        for others in ([(name, FORGED)], [(name, value)] * 2, [(name, value), (name, FORGED)]):
            yield urlencode(others + rest, encoding="latin-1").encode()
            yield urlencode(rest + others, encoding="latin-1").encode()
        yield urlencode(rest, encoding="latin-1").encode()


def escaped(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode("latin-1"))


def multipart(fields: list[tuple[str, str]]) -> bytes:
    parts = [
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields
    ]
    return ("".join(parts) + "--x--\r\n").encode("latin-1", "replace")


# Headers.


def change_headers(of: Case, genuine: Sent) -> Iterator[Sent]:
    for name, value in genuine.headers:
        for other in (value + b" ", b" " + value, value.upper(), value.lower(), b"", b"forged"):
            yield genuine.with_header(name, other)
        yield genuine.with_header(name, None)
        yield replace(genuine, headers=((name, value), *genuine.headers))
        yield replace(genuine, headers=((name, b"forged"), *genuine.headers))
        yield replace(genuine, headers=(*genuine.headers, (name, b"forged")))
    for key in known_headers(of):
        for text in (b"forged", b"forged-2", b"", genuine.body[:50]):
            yield genuine.with_header(key, text)
    for (one, first), (other, second) in permutations(genuine.headers, 2):
        yield genuine.with_header(one, second).with_header(other, first)
    for content_type in (FORM, MULTIPART, b"application/json", b"", b"multipart/form-data"):
        typed = genuine.with_header(b"content-type", content_type)
        yield typed
        yield replace(typed, body=multipart(form(genuine.body)))


def known_headers(of: Case) -> list[bytes]:
    """Return the headers that the preset reads or keeps."""
    reference = (of.preset.reference,) if of.preset.reference else ()
    texts = [*of.preset.ids, *of.preset.types, *reference, of.scheme.at]
    if isinstance(of.scheme, Signature):
        texts += re.findall(r"\{(\w+:[^{}]+)\}", of.scheme.content)
        texts += [of.scheme.timestamp or "json:x"]
    texts = [text for text in texts if not text.startswith(("list:", "body:"))]
    selectors = [selector for text in texts for selector in parse_selectors(text)]
    keys = [it.key for it in selectors if isinstance(it, HeaderSelector | HeaderHashSelector)]
    kept = [name.lower().encode() for name in of.preset.keep_headers]
    return list(dict.fromkeys([*keys, *kept, b"x-request-id", b"webhook-id", b"x-event-id"]))


def respell_signature(of: Case, genuine: Sent) -> Iterator[Sent]:
    for name in known_headers(of):
        value = genuine.header(name)
        for other in respelled(value) if value else ():
            yield genuine.with_header(name, other)


def respelled(value: bytes) -> Iterator[bytes]:
    yield from (value.replace(b"+", b"-").replace(b"/", b"_"), value.rstrip(b"="), value + b"=")
    yield from (value.swapcase(), value + b"," + value, value + b" " + value, value + b",")
    yield from (value.replace(b",", b", "), b",".join(value.split(b",")[::-1]), value + b"==")
    if value.endswith(b"=") and len(value) > 3:
        alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
        core = value.rstrip(b"=")
        if core[-1] in alphabet:
            yield core[:-1] + bytes([alphabet[alphabet.index(core[-1]) ^ 1]]) + value[len(core) :]
    if value.count(b".") == 2:  # a token: its signature in other letters
        content, _, signature = value.rpartition(b".")
        yield content + b"." + signature + b"=" * (-len(signature) % 4)
        yield content + b"=." + signature


# Content moved between query, form, header and body.


def move_content(_: Case, genuine: Sent) -> Iterator[Sent]:
    body, query = genuine.body.decode("latin-1"), genuine.query
    joined = (body, f"{query}&{body}", f"{body}&{query}", quote(body))
    for other in (*joined, FORGED, "", f"{query}&a=1"):
        yield replace(genuine, query=other)
        yield replace(genuine, query=other, body=b"")
        yield replace(genuine, query=other, body=FORGED_BODY)
        yield replace(genuine, query=other, body=b"id=forged")
    yield replace(genuine, query=f"{query}#{body}")
    yield replace(genuine, body=query.encode("latin-1", "replace"), query="")
    yield replace(genuine, body=b"&".join([query.encode("latin-1", "replace"), genuine.body]))
    for name, value in parse_qsl(query):
        rest = [pair for pair in parse_qsl(query) if pair[0] != name]
        for others in ([(name, FORGED), (name, value)], [(name, value), (name, FORGED)], []):
            yield replace(genuine, query=urlencode(others + rest))
        yield replace(genuine, query=urlencode([(name.upper(), value), *rest]))
    for key, content in genuine.headers:
        yield replace(genuine, body=content)
        yield replace(genuine, query=f"{key.decode()}={quote(content)}")
    for method in ("GET", "PUT", "post"):
        yield replace(genuine, method=method)


def with_other_ids(of: Case, changed: Sent) -> Iterator[Sent]:
    """Yield a request, and the same one under another id where headers carry the id."""
    yield changed
    selectors = [selector for text in of.preset.ids for selector in parse_selectors(text)]
    keys = [selector.key for selector in selectors if isinstance(selector, HeaderSelector)]
    for key in keys:
        yield changed.with_header(key, secrets.token_hex(8).encode())


ATTACKS: Final[dict[str, Attack]] = {
    "respell the body": respell_body,
    "change headers": change_headers,
    "respell the signature": respell_signature,
    "move content": move_content,
    "cut elsewhere": recut,
}
