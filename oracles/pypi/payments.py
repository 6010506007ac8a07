"""Payments, banking, invoices."""

from __future__ import annotations

import base64
from dataclasses import replace
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from oracles.keys import (
    Keys,
    hexadecimal,
    named_certificate,
    p256_pem,
    text,
    user_and_password,
)
from oracles.oracle import FORM, Oracle, Request, of_json, swapping
from oracles.pypi.tokens import checked_token, token_for


def _stripe_verifies(request: Request, secret: str) -> bool:
    import stripe

    header = request.header("Stripe-Signature")
    return stripe.WebhookSignature.verify_header(request.body, header, secret, tolerance=300)


def _stripe_signs(request: Request, secret: str) -> Request:
    import stripe

    header = stripe.WebhookSignature.generate_signature_header(request.text, secret)
    return request.adding(Stripe_Signature=header)


def _square_verifies(request: Request, secret: str) -> bool:
    from square.utils.webhooks_helper import verify_signature

    return verify_signature(
        request_body=request.text,
        signature_header=request.header("x-square-hmacsha256-signature"),
        signature_key=secret,
        notification_url=request.url,
    )


def _paddle_verifies(request: Request, secret: str) -> bool:
    from paddle_billing.Notifications import Secret, Verifier

    return Verifier().verify(request, Secret(secret))


def _adyen_item_verifies(request: Request, secret: str) -> bool:
    from Adyen.util import is_valid_hmac_notification

    items = request.document["notificationItems"]
    return all(is_valid_hmac_notification({"notificationItems": [it]}, secret) for it in items)


def _adyen_item_signs(request: Request, secret: str) -> Request:
    from Adyen.util import generate_notification_sig

    document = request.document
    for holder in document["notificationItems"]:
        item = holder["NotificationRequestItem"]
        signature = generate_notification_sig(item, secret).decode()
        item["additionalData"] = {"hmacSignature": signature}
    return replace(request, body=of_json(document).body)


def _adyen_header_verifies(request: Request, secret: str) -> bool:
    from Adyen.util import is_valid_hmac_payload

    return is_valid_hmac_payload(request.header("hmacsignature"), secret, request.body)


def _adyen_header_signs(request: Request, secret: str) -> Request:
    from Adyen.util import generate_payload_sig

    return request.adding(HmacSignature=generate_payload_sig(request.body, secret).decode())


def _mollie_verifies(request: Request, secret: str) -> bool:
    from mollie.utils.webhooks import SignatureValidator

    signature = request.header("X-Mollie-Signature")
    return SignatureValidator.validate(request.text, secret, signature)


def _mollie_signs(request: Request, secret: str) -> Request:
    from mollie.utils.webhooks import SignatureValidator

    signature = SignatureValidator.create_signature(request.text, secret)
    return request.adding(X_Mollie_Signature=f"sha256={signature}")


def _razorpay_verifies(request: Request, secret: str) -> bool:
    import razorpay

    signature = request.header("X-Razorpay-Signature")
    return razorpay.Utility().verify_webhook_signature(request.text, signature, secret)


def _paystack_verifies(request: Request, secret: str) -> bool:
    from pypaystack2 import PaystackClient

    client = PaystackClient(secret_key=secret)
    signature = request.header("x-paystack-signature")
    return client.is_verified_webhook_payload(request.body, signature)


def _paystack_key() -> Keys:
    key = f"sk_test_{text().private}"
    return Keys(key, key)


def _coinbase_verifies(request: Request, secret: str) -> bool:
    from coinbase_commerce.webhook import Webhook

    Webhook.construct_event(request.text, request.header("X-CC-Webhook-Signature"), secret)
    return True


def _coinbase_signs(request: Request, secret: str) -> Request:
    from coinbase_commerce.webhook import WebhookSignature

    signature = WebhookSignature._compute_signature(request.text, secret)
    return request.adding(X_CC_Webhook_Signature=signature)


def _gocardless_verifies(request: Request, secret: str) -> bool:
    from gocardless_pro import webhooks

    webhooks.parse(request.text, secret, request.header("Webhook-Signature"))
    return True


def _braintree(secret: str) -> Any:
    import braintree

    public_key, private_key = secret.split(":")
    return braintree.BraintreeGateway(
        braintree.Configuration(
            braintree.Environment.Sandbox, "a_merchant", public_key, private_key
        )
    )


def _braintree_verifies(request: Request, secret: str) -> bool:
    form = dict(parse_qsl(request.text))
    _braintree(secret).webhook_notification.parse(form["bt_signature"], form["bt_payload"])
    return True


def _braintree_signs(request: Request, secret: str) -> Request:
    from braintree import WebhookNotification

    kind = WebhookNotification.Kind.SubscriptionWentPastDue
    form = _braintree(secret).webhook_testing.sample_notification(kind, "sub_31")
    return replace(request, body=urlencode(form).encode())


_NOTICE: Final = base64.encodebytes(
    b"<notification><kind>check</kind>"
    b'<timestamp type="datetime">2026-03-14T09:26:53Z</timestamp>'
    b'<subject><check type="boolean">true</check></subject></notification>'
)


def _mercadopago_verifies(request: Request, secret: str) -> bool:
    from mercadopago.webhook.validator import WebhookSignatureValidator

    WebhookSignatureValidator.validate(
        request.header("x-signature"),
        request.lower.get("x-request-id"),
        parse_qs(urlsplit(request.url).query).get("data.id", [None])[0],
        secret,
    )
    return True


PAYMENT: Final = replace(
    of_json({"action": "payment.updated", "data": {"id": "123456"}}),
    url="https://inbox.example/webhooks/mercadopago?data.id=123456&type=payment",
).adding(x_request_id="bb56a2f1-6aae-46ac-982e-9dcd3581d08e")


def another_payment(request: Request) -> Request:
    """The request with another id in its URL."""
    return replace(request, url=request.url.replace("data.id=123", "data.id=124"))


def _paypal_verifies(request: Request, secret: str) -> bool:
    """The library says what is signed; its own check needs a function that OpenSSL's lost."""
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509 import load_pem_x509_certificate
    from paypalrestsdk import WebhookEvent

    webhook_id, certificate = secret.split(":", 1)
    content = WebhookEvent._get_expected_sig(
        request.header("PAYPAL-TRANSMISSION-ID"),
        request.header("PAYPAL-TRANSMISSION-TIME"),
        webhook_id,
        request.text,
    )
    signature = base64.b64decode(request.header("PAYPAL-TRANSMISSION-SIG"))
    key = load_pem_x509_certificate(certificate.encode()).public_key()
    key.verify(signature, content.encode(), PKCS1v15(), SHA256())
    return True


def _plaid_verifies(request: Request, secret: str) -> bool:
    return checked_token(
        request.header("Plaid-Verification"), secret, request, "ES256", "request_body_sha256"
    )


def _plaid_signs(request: Request, secret: str) -> Request:
    token = token_for(request, secret, "ES256", "request_body_sha256")
    return request.adding(Plaid_Verification=token)


@cache
def _modern_treasury() -> Any:
    from modern_treasury import ModernTreasury

    return ModernTreasury(organization_id="none", api_key="none").webhooks


def _modern_treasury_verifies(request: Request, secret: str) -> bool:
    return _modern_treasury().validate_signature(request.text, request.headers, key=secret)


def _modern_treasury_signs(request: Request, secret: str) -> Request:
    return request.adding(X_Signature=_modern_treasury().get_signature(request.text, key=secret))


@cache
def _orb() -> Any:
    from orb import Orb

    return Orb(api_key="none").webhooks


def _orb_verifies(request: Request, secret: str) -> bool:
    _orb().verify_signature(request.body, request.headers, secret=secret)
    return True


def _quickbooks_verifies(request: Request, secret: str) -> bool:
    from quickbooks import QuickBooks

    signature = request.header("intuit-signature")
    client = QuickBooks(minorversion=75)
    return client.validate_webhook_signature(request.text, signature, secret)


def _onfido_verifies(request: Request, secret: str) -> bool:
    from onfido import WebhookEventVerifier

    WebhookEventVerifier(secret).read_payload(request.text, request.header("X-SHA2-Signature"))
    return True


_ITEM: Final = {
    "pspReference": "QFQTPCQ8HXSKGK82",
    "originalReference": "7914073381342284",
    "merchantAccountCode": "Café_ECOM",
    "merchantReference": "order:31\\b",
    "amount": {"value": 1130, "currency": "EUR"},
    "eventCode": "AUTHORISATION",
    "success": "true",
}
_ITEMS: Final = of_json(
    {"live": "false", "notificationItems": [{"NotificationRequestItem": _ITEM}]}
)

ORACLES: Final = (
    Oracle(
        preset="stripe",
        package="stripe",
        verifies=_stripe_verifies,
        signs=_stripe_signs,
        stale_seconds=360,
    ),
    Oracle(preset="square", package="squareup", module="square", verifies=_square_verifies),
    Oracle(
        preset="paddle",
        package="paddle-python-sdk",
        module="paddle_billing",
        verifies=_paddle_verifies,
        stale_seconds=10,
    ),
    Oracle(
        preset="adyen",
        scheme="items",
        package="Adyen",
        verifies=_adyen_item_verifies,
        signs=_adyen_item_signs,
        keys=hexadecimal,
        request=_ITEMS,
        altered=swapping("1130", "9130"),
    ),
    Oracle(
        preset="adyen",
        scheme="header",
        package="Adyen",
        verifies=_adyen_header_verifies,
        signs=_adyen_header_signs,
        keys=hexadecimal,
    ),
    Oracle(
        preset="mollie",
        package="mollie-api-py",
        module="mollie",
        verifies=_mollie_verifies,
        signs=_mollie_signs,
    ),
    Oracle(preset="razorpay", package="razorpay", verifies=_razorpay_verifies),
    Oracle(
        preset="paystack",
        package="pypaystack2",
        verifies=_paystack_verifies,
        keys=_paystack_key,
    ),
    Oracle(
        preset="coinbase-commerce",
        package="coinbase-commerce",
        module="coinbase_commerce",
        verifies=_coinbase_verifies,
        signs=_coinbase_signs,
        request=of_json({"event": {"id": "24934862", "type": "charge:confirmed", "data": {}}}),
    ),
    Oracle(
        preset="gocardless",
        package="gocardless_pro",
        verifies=_gocardless_verifies,
        request=of_json({"events": [{"id": "EV01", "action": "paid", "details": {"note": "Zoë"}}]}),
    ),
    Oracle(
        preset="braintree",
        package="braintree",
        verifies=_braintree_verifies,
        signs=_braintree_signs,
        keys=user_and_password,
        request=Request(
            headers={"Content-Type": FORM},
            body=urlencode({"bt_payload": _NOTICE}).encode(),
        ),
        altered=swapping("bt_payload=P", "bt_payload=Q"),
    ),
    Oracle(
        preset="mercadopago",
        package="mercadopago",
        verifies=_mercadopago_verifies,
        request=PAYMENT,
        altered=another_payment,
    ),
    Oracle(
        preset="paypal",
        package="paypalrestsdk",
        only="what is signed",
        verifies=_paypal_verifies,
        keys=named_certificate,
    ),
    Oracle(
        preset="plaid",
        package="PyJWT",
        module="jwt",
        verifies=_plaid_verifies,
        signs=_plaid_signs,
        keys=p256_pem,
        stale_seconds=600,
    ),
    Oracle(
        preset="modern-treasury",
        package="modern-treasury",
        module="modern_treasury",
        verifies=_modern_treasury_verifies,
        signs=_modern_treasury_signs,
    ),
    Oracle(
        preset="orb", package="orb-billing", module="orb", verifies=_orb_verifies, stale_seconds=360
    ),
    Oracle(
        preset="quickbooks",
        package="python-quickbooks",
        module="quickbooks",
        verifies=_quickbooks_verifies,
    ),
    Oracle(
        preset="onfido",
        package="onfido-python",
        module="onfido",
        verifies=_onfido_verifies,
        request=of_json(
            {
                "payload": {
                    "resource_type": "workflow_run",
                    "action": "workflow_run.completed",
                    "object": {"id": "6f7c", "status": "approved", "href": "https://a.example/"},
                }
            }
        ),
    ),
)
