"""Providers that follow Standard Webhooks: the id and the time are signed with the body."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from onceward.sources.body_kind import BodyKind
from onceward.sources.presets.preset import Preset
from onceward.sources.presets.vendor_schemes.hook_mesh import HOOK_MESH_V1
from onceward.sources.schemes import ED25519, Hmac, Signature, Token
from onceward.sources.schemes.algorithms import as_base64, as_base64_or_text, as_text_or_base64

V1: Final = Signature(
    at="header:webhook-signature",
    separator=" ",
    prefix="v1,",
    encoding="base64",
    timestamp="header:webhook-timestamp",
    content="{header:webhook-id}.{timestamp}.{body}",
    algorithm=Hmac(secret_encoding=as_base64),
    tolerance_seconds=300,
)
V1A: Final = replace(V1, prefix="v1a,", algorithm=ED25519)
SVIX: Final = replace(
    V1,
    at="header:svix-signature|header:webhook-signature",
    timestamp="header:svix-timestamp|header:webhook-timestamp",
    content="{header:svix-id|header:webhook-id}.{timestamp}.{body}",
)
ID: Final = "header:webhook-id"
SVIX_ID: Final = "header:svix-id|header:webhook-id"

PRESETS: Final = (
    Preset(
        name="standard-webhooks",
        title="Standard Webhooks",
        schemes={"v1": V1, "v1a": V1A},
        id=ID,
        type="json:type",
        reference="json:data.id",
        auto_retry_hours=75.6,
    ),
    Preset(
        name="svix",
        title="Svix",
        schemes={"v1": SVIX, "v1a": replace(SVIX, prefix="v1a,", algorithm=ED25519)},
        id=SVIX_ID,
        type="json:type|json:eventType|json:event_type",
        auto_retry_hours=27.6,
    ),
    Preset(
        name="clerk",
        title="Clerk",
        schemes=SVIX,
        id=SVIX_ID,
        type="json:type",
        reference="json:data.id",
    ),
    Preset(
        name="resend",
        title="Resend",
        schemes=SVIX,
        id=SVIX_ID,
        type="json:type",
        reference="json:data.email_id|json:data.id",
    ),
    Preset(
        name="lithic",
        title="Lithic",
        schemes=V1,
        id=ID,
        type="json:event_type",
    ),
    Preset(
        name="polar",
        title="Polar",
        schemes=replace(V1, algorithm=Hmac(secret_encoding=as_text_or_base64)),
        id=ID,
        type="json:type",
        reference="json:data.id",
        note="The key is the secret's text. Like Polar's own library, the preset also tries the "
        "secret decoded from base64.",
    ),
    Preset(
        name="openai",
        title="OpenAI",
        schemes=replace(V1, algorithm=Hmac(secret_encoding=as_base64_or_text)),
        id=ID,
        type="json:type",
        reference="json:data.id",
    ),
    Preset(
        name="replicate",
        title="Replicate",
        schemes=V1,
        id=ID,
        type="json:status",
        reference="json:id",
        note="Replicate documents no tolerance; 300 s is the default of Standard Webhooks.",
    ),
    Preset(
        name="finch",
        title="Finch",
        schemes=replace(
            V1,
            at="header:Finch-Signature",
            timestamp="header:Finch-Timestamp",
            content="{header:Finch-Event-Id}.{timestamp}.{body}",
        ),
        id="header:Finch-Event-Id",
        type="json:event_type",
        reference="json:connection_id",
    ),
    Preset(
        name="hookmesh",
        title="Hook Mesh",
        schemes={
            "v1": HOOK_MESH_V1,
            "v1-base64": replace(HOOK_MESH_V1, algorithm=Hmac(secret_encoding=as_base64)),
            "body": Signature(at="header:x-hookmesh-signature"),
        },
        body_kind=BodyKind.JSON_OBJECT,
        id="json:event_id|header:Webhook-Id",
        type="json:event_type",
        auto_retry_hours=48,
        other_uses="its other schemes: an id and a time before the body are no JSON object, and "
        "the beginning of one is no id",
        note="The documentation shows two formats and does not say whether the secret is base64: "
        "set the scheme that your account uses.",
    ),
    Preset(
        name="gitlab",
        title="GitLab",
        schemes={"signing-token": V1, "static-token": Token(at="header:X-Gitlab-Token")},
        id="header:Idempotency-Key|header:webhook-id|body:sha256",
        type="json:object_kind|json:event_name|header:X-Gitlab-Event",
        reference="json:project.path_with_namespace",
        keep_headers=("X-Gitlab-Event", "X-Gitlab-Instance", "X-Gitlab-Webhook-UUID"),
        note="A static token proves who sends, not what is sent.",
    ),
)
