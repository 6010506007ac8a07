"""Payments, banking, invoices."""

from __future__ import annotations

from typing import Final

from onceward.sources.body_kind import BodyKind
from onceward.sources.challenge import Reply
from onceward.sources.presets.preset import Preset
from onceward.sources.presets.vendor_schemes.adyen import AdyenItems
from onceward.sources.presets.vendor_schemes.braintree import CHALLENGE, Braintree
from onceward.sources.presets.vendor_schemes.mercadopago import MercadoPago
from onceward.sources.presets.vendor_schemes.paypal import PayPal
from onceward.sources.schemes import Hmac, Jwt, Signature, Token
from onceward.sources.schemes.algorithms import as_hex

PRESETS: Final = (
    Preset(
        name="stripe",
        title="Stripe",
        schemes=Signature(
            at="header:Stripe-Signature",
            separator=",",
            prefix="v1=",
            timestamp="list:t=",
            content="{timestamp}.{body}",
            tolerance_seconds=300,
        ),
        id="json:id",
        type="json:type",
        reference="json:data.object.id|json:related_object.id",
        auto_retry_hours=72,
        manual_resend_days=30,
        volatile_fields=("pending_webhooks",),
        refused_secrets=dict.fromkeys(
            [f"{kind}_{mode}_" for kind in ("sk", "rk", "pk") for mode in ("live", "test")],
            "is an API key; the signing secret of a webhook begins with whsec_",
        ),
    ),
    Preset(
        name="square",
        title="Square",
        schemes=Signature(
            at="header:x-square-hmacsha256-signature",
            encoding="base64",
            content="{url}{body}",
        ),
        id="json:event_id",
        type="json:type",
        reference="json:data.id",
        keep_headers=("square-environment", "square-retry-number"),
        auto_retry_hours=24,
    ),
    Preset(
        name="paddle",
        title="Paddle",
        schemes=Signature(
            at="header:Paddle-Signature",
            separator=";",
            prefix="h1=",
            timestamp="list:ts=",
            content="{timestamp}:{body}",
            tolerance_seconds=5,
        ),
        id="json:event_id",
        type="json:event_type",
        reference="json:data.id",
        auto_retry_hours=72,
        success_response=200,
        note="Paddle documents a tolerance of 5 s; raise tolerance_seconds if clocks differ more.",
    ),
    Preset(
        name="mollie",
        title="Mollie",
        schemes=Signature(at="header:X-Mollie-Signature", prefix="sha256="),
        id="json:id",
        type="json:type",
        reference="json:entityId",
        note="Older webhooks are unsigned form posts and not supported; fetch the payment from the "
        "API instead.",
    ),
    Preset(
        name="razorpay",
        title="Razorpay",
        schemes=Signature(at="header:X-Razorpay-Signature"),
        id="header:x-razorpay-event-id|body:sha256",
        type="json:event",
        reference="json:payload.payment.entity.id",
        auto_retry_hours=24,
    ),
    Preset(
        name="paystack",
        title="Paystack",
        schemes=Signature(at="header:x-paystack-signature", algorithm=Hmac("sha512")),
        id=("json:event", "json:data.id"),
        type="json:event",
        reference="json:data.reference",
        auto_retry_hours=72,
        success_response=200,
        other_uses="nothing known; the secret is also the API key",
        note="The secret is your account's secret key.",
    ),
    Preset(
        name="flutterwave",
        title="Flutterwave",
        schemes={
            "v3": Token(at="header:verif-hash"),
            "v4": Signature(at="header:flutterwave-signature", encoding="base64"),
        },
        id=("json:event|json:type", "json:data.id", "json:data.status"),
        type="json:event|json:type",
        reference="json:data.id",
    ),
    Preset(
        name="coinbase-commerce",
        title="Coinbase Commerce",
        schemes=Signature(at="header:X-CC-Webhook-Signature"),
        id="json:event.id",
        type="json:event.type",
        reference="json:event.data.code",
        success_response=200,
        volatile_fields=("attempt_number",),
    ),
    Preset(
        name="gocardless",
        title="GoCardless",
        schemes=Signature(at="header:Webhook-Signature"),
        events="json:events[]",
        id="json:id",
        type=("json:resource_type", "json:action"),
        reference="json:links.payment|json:links.mandate|json:links.subscription|json:links.payout",
    ),
    Preset(
        name="lemonsqueezy",
        title="Lemon Squeezy",
        schemes=Signature(at="header:X-Signature"),
        id=("json:meta.event_name", "json:data.id", "json:data.attributes.updated_at"),
        type="json:meta.event_name",
        reference="json:data.id",
        success_response=200,
    ),
    Preset(
        name="checkout-com",
        title="Checkout.com",
        schemes=Signature(at="header:Cko-Signature"),
        id="json:id",
        type="json:type",
        reference="json:data.id",
        manual_resend_days=90,
    ),
    Preset(
        name="plaid",
        title="Plaid",
        schemes=Jwt(
            at="header:Plaid-Verification",
            algorithm="ES256",
            body_claim="request_body_sha256",
            tolerance_seconds=300,
        ),
        id="hash:Plaid-Verification",
        type=("json:webhook_type", "json:webhook_code"),
        reference="json:item_id",
        success_response=200,
        note="Requests carry neither an id nor a time, so each one is a new event. The secret is "
        "Plaid's public verification key: the JSON that /webhook_verification_key/get returns, or "
        "PEM. After a rotation, add the new key.",
    ),
    Preset(
        name="modern-treasury",
        title="Modern Treasury",
        schemes=Signature(at="header:X-Signature"),
        id="header:X-Webhook-ID|body:sha256",
        type=("header:X-Topic", "json:event"),
        reference="json:data.id",
    ),
    Preset(
        name="orb",
        title="Orb",
        schemes=Signature(
            at="header:X-Orb-Signature",
            separator=" ",
            prefix="v1=",
            timestamp="header:X-Orb-Timestamp",
            time_format="iso_zone_optional",
            content="v1:{timestamp}:{body}",
            tolerance_seconds=300,
        ),
        id="json:id",
        type="json:type",
    ),
    Preset(
        name="quickbooks",
        title="QuickBooks",
        schemes=Signature(at="header:intuit-signature", encoding="base64"),
        events="json:eventNotifications[]|json:[]",
        id="json:id|body:sha256",
        type="json:type",
        reference="json:intuitaccountid|json:realmId",
        note="In the older format, a company's changes are one event, identified by its bytes.",
    ),
    Preset(
        name="xero",
        title="Xero",
        schemes=Signature(at="header:x-xero-signature", encoding="base64"),
        events="json:events[]",
        id=("json:resourceId", "json:eventType", "json:eventDateUtc"),
        type=("json:eventCategory", "json:eventType"),
        reference="json:resourceId",
        success_response=Reply(200),
    ),
    Preset(
        name="adyen",
        title="Adyen",
        schemes={
            "items": AdyenItems(),
            "header": Signature(
                at="header:hmacsignature", encoding="base64", algorithm=Hmac(secret_encoding=as_hex)
            ),
        },
        body_kind=BodyKind.JSON_OBJECT,
        events="json:notificationItems[]",
        id=(
            "json:NotificationRequestItem.pspReference",
            "json:NotificationRequestItem.eventCode",
            "json:NotificationRequestItem.success",
        ),
        type="json:NotificationRequestItem.eventCode|json:type",
        reference="json:NotificationRequestItem.pspReference",
        success_response=Reply(200, b"[accepted]"),
        other_uses="items and whole bodies with one key: joined values are no JSON object",
        note="Standard webhooks sign eight fields of each item and nothing else; only "
        "merchantReference may contain a colon. Webhooks of "
        "platforms and of the Management API are signed in a header: scheme='header'.",
    ),
    Preset(
        name="mercadopago",
        title="Mercado Pago",
        schemes=MercadoPago(),
        id=("json:action|json:type", "json:id"),
        type="json:action|json:type",
        reference="query:data.id",
        success_response=200,
        note="The body is not signed: fetch the payment from the API before you trust it.",
    ),
    Preset(
        name="paypal",
        title="PayPal",
        schemes=PayPal(),
        time_of="event",
        id="json:id",
        type="json:event_type",
        reference="json:resource.id",
        auto_retry_hours=72,
        other_uses="webhooks of all accounts: the webhook's id is signed and checked",
        note="The secret is WEBHOOK_ID:certificate, with the certificate from PAYPAL-CERT-URL in "
        "PEM. A CRC-32 of the body is signed, not the body itself.",
    ),
    Preset(
        name="braintree",
        title="Braintree",
        schemes=Braintree(),
        form_field="form:bt_payload",
        body_kind=BodyKind.BASE64_XML,
        id="body:sha256",
        challenge=CHALLENGE,
        other_uses="`tr_data` of redirects and challenge answers: no XML in base64",
        note="The secret is public_key:private_key. The payload of an event is bt_payload: XML in "
        "base64.",
    ),
    Preset(
        name="onfido",
        title="Onfido",
        schemes=Signature(at="header:X-SHA2-Signature"),
        id=(
            "json:payload.resource_type",
            "json:payload.action",
            "json:payload.object.id",
            "json:payload.object.completed_at_iso8601",
        ),
        type="json:payload.action",
        reference="json:payload.object.id",
    ),
)
