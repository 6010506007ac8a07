"""Shops, shipping, customers, documents."""

from __future__ import annotations

from typing import Final

from onceward.sources.body_kind import BodyKind
from onceward.sources.challenge import Reply
from onceward.sources.presets import challenges
from onceward.sources.presets.preset import Preset
from onceward.sources.presets.vendor_schemes.box import BOX
from onceward.sources.presets.vendor_schemes.dropbox_sign import DropboxSign
from onceward.sources.schemes import Hmac, Signature, Token
from onceward.sources.schemes.algorithms import as_decomposed_text
from onceward.sources.schemes.times import DAY_SECONDS

PRESETS: Final = (
    Preset(
        name="shopify",
        title="Shopify",
        schemes=Signature(
            at="header:X-Shopify-Hmac-SHA256|header:Shopify-Hmac-SHA256", encoding="base64"
        ),
        body_kind=BodyKind.JSON_OBJECT,
        id=(
            (
                "header:X-Shopify-Event-Id|header:Shopify-Event-Id|"
                "header:X-Shopify-Webhook-Id|header:Shopify-Webhook-Id"
            ),
            "header:X-Shopify-Topic|header:Shopify-Topic",
        ),
        type="header:X-Shopify-Topic|header:Shopify-Topic",
        reference="json:admin_graphql_api_id|json:id",
        keep_headers=(
            "X-Shopify-API-Version",
            "X-Shopify-Shop-Domain",
            "X-Shopify-Topic",
            "X-Shopify-Triggered-At",
            "X-Shopify-Webhook-Id",
        ),
        auto_retry_hours=4,
        other_uses="OAuth and app proxy queries and session tokens: no JSON object",
        note="If several subscriptions share a topic, set id='header:X-Shopify-Webhook-Id'.",
    ),
    Preset(
        name="woocommerce",
        title="WooCommerce",
        schemes=Signature(at="header:X-WC-Webhook-Signature", encoding="base64"),
        id=("header:X-WC-Webhook-Topic", "json:id", "json:date_modified_gmt"),
        type="header:X-WC-Webhook-Topic",
        reference="json:id",
        keep_headers=("X-WC-Webhook-ID", "X-WC-Webhook-Source", "X-WC-Webhook-Topic"),
        auto_retry_hours=0,
        note="Delivery ids are not unique; the topic, the object's id and its last change are.",
    ),
    Preset(
        name="easypost",
        title="EasyPost",
        schemes=Signature(
            at="header:X-Hmac-Signature",
            prefix="hmac-sha256-hex=",
            algorithm=Hmac(secret_encoding=as_decomposed_text),
        ),
        id="json:id",
        type="json:description",
        reference="json:result.id",
    ),
    Preset(
        name="hubspot",
        title="HubSpot",
        schemes=Signature(
            at="header:X-HubSpot-Signature-v3",
            encoding="base64",
            timestamp="header:X-HubSpot-Request-Timestamp",
            time_format="milliseconds",
            content="{method}{url}{body}{timestamp}",
            tolerance_seconds=300,
        ),
        auto_retry_hours=24,
        events="json:[]",
        id=(
            "json:eventId",
            "json:subscriptionId",
            "json:objectId|json:fromObjectId",
            "json:occurredAt",
        ),
        type="json:subscriptionType",
        reference="json:objectId|json:fromObjectId",
        volatile_fields=("attemptNumber",),
        note="Only version 3 signatures.",
        other_uses="requests of cards and UI extensions: their URLs differ",
    ),
    Preset(
        name="intercom",
        title="Intercom",
        schemes=Signature(at="header:X-Hub-Signature", prefix="sha1=", algorithm=Hmac("sha1")),
        id="json:id|body:sha256",
        type="json:topic",
        reference="json:data.item.id",
        challenge=challenges.HEAD_PROBE,
        volatile_fields=("delivered_at", "delivery_attempts", "delivery_status", "first_sent_at"),
    ),
    Preset(
        name="zendesk",
        title="Zendesk",
        schemes=Signature(
            at="header:X-Zendesk-Webhook-Signature",
            encoding="base64",
            timestamp="header:X-Zendesk-Webhook-Signature-Timestamp",
            time_format="iso",
            content="{timestamp}{body}",
            tolerance_seconds=30 * DAY_SECONDS,
        ),
        time_of="event",
        id="json:id|header:X-Zendesk-Webhook-Invocation-Id|body:sha256",
        type="json:type",
        reference="json:detail.id",
        keep_headers=("X-Zendesk-Account-Id", "X-Zendesk-Webhook-Id"),
    ),
    Preset(
        name="typeform",
        title="Typeform",
        schemes=Signature(at="header:Typeform-Signature", prefix="sha256=", encoding="base64"),
        id="json:event_id",
        type="json:event_type",
        reference="json:form_response.token",
    ),
    Preset(
        name="calendly",
        title="Calendly",
        schemes=Signature(
            at="header:Calendly-Webhook-Signature",
            separator=",",
            prefix="v1=",
            timestamp="list:t=",
            content="{timestamp}.{body}",
            tolerance_seconds=180,
        ),
        id=("json:event", "json:payload.uri", "json:created_at"),
        type="json:event",
        reference="json:payload.uri",
    ),
    Preset(
        name="customerio",
        title="Customer.io",
        schemes=Signature(
            at="header:X-CIO-Signature",
            timestamp="header:X-CIO-Timestamp",
            content="v0:{timestamp}:{body}",
            tolerance_seconds=30 * DAY_SECONDS,
        ),
        time_of="event",
        id="json:event_id",
        type=("json:object_type", "json:metric"),
    ),
    Preset(
        name="webflow",
        title="Webflow",
        schemes=Signature(
            at="header:x-webflow-signature",
            timestamp="header:x-webflow-timestamp",
            time_format="milliseconds",
            content="{timestamp}:{body}",
            tolerance_seconds=300,
        ),
        id="body:sha256",
        type="json:triggerType",
    ),
    Preset(
        name="docusign",
        title="DocuSign",
        schemes=Signature(
            at="|".join(f"header:X-DocuSign-Signature-{number}" for number in range(1, 11)),
            encoding="base64",
        ),
        id=("json:event", "json:data.envelopeId", "json:generatedDateTime"),
        type="json:event",
        reference="json:data.envelopeId",
        volatile_fields=("retryCount",),
    ),
    Preset(
        name="dropbox-sign",
        title="Dropbox Sign",
        schemes=DropboxSign(),
        time_of="event",
        form_field="form:json",
        id=(
            "json:event.event_type",
            "json:event.event_time",
            "json:signature_request.signature_request_id",
            "json:event.event_metadata.related_signature_id",
        ),
        type="json:event.event_type",
        reference="json:signature_request.signature_request_id",
        success_response=Reply(200, b"Hello API Event Received"),
        other_uses="nothing known; the secret is also the API key",
        note="The secret is your API key. Only the event's time and type are signed.",
    ),
    Preset(
        name="box",
        title="Box",
        schemes=BOX,
        id="json:id",
        type="json:trigger",
        reference="json:source.id",
    ),
    Preset(
        name="figma",
        title="Figma",
        schemes=Token(at="json:passcode"),
        id=(
            "json:webhook_id",
            "json:event_type",
            "json:timestamp",
            "json:comment_id|json:version_id|json:file_key|json:webhook_id",
        ),
        type="json:event_type",
        volatile_fields=("retries",),
        note="The passcode in the body proves nothing about the rest of the body.",
    ),
)
