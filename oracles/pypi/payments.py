"""Payments, banking, invoices."""

from __future__ import annotations

import base64
from dataclasses import replace
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from oracles.keys import (
    Keys,
    hex_secret,
    named_certificate,
    p256_pem,
    plain_secret,
    user_and_password,
)
from oracles.pypi.tokens import is_valid_token, make_token
from oracles.verifier import FORM, Request, Verifier, json_request, replacing


def _verify_stripe(request: Request, secret: str) -> bool:
    import stripe

    header = request.header("Stripe-Signature")
    return stripe.WebhookSignature.verify_header(request.body, header, secret, tolerance=300)


def _sign_stripe(request: Request, secret: str) -> Request:
    import stripe

    header = stripe.WebhookSignature.generate_signature_header(request.text, secret)
    return request.with_headers(Stripe_Signature=header)


def _verify_square(request: Request, secret: str) -> bool:
    from square.utils.webhooks_helper import verify_signature

    return verify_signature(
        request_body=request.text,
        signature_header=request.header("x-square-hmacsha256-signature"),
        signature_key=secret,
        notification_url=request.url,
    )


def _verify_paddle(request: Request, secret: str) -> bool:
    from paddle_billing.Notifications import Secret, Verifier

    return Verifier().verify(request, Secret(secret))


def _verify_adyen_item(request: Request, secret: str) -> bool:
    from Adyen.util import is_valid_hmac_notification

    items = request.document["notificationItems"]
    return all(is_valid_hmac_notification({"notificationItems": [item]}, secret) for item in items)


def _sign_adyen_item(request: Request, secret: str) -> Request:
    from Adyen.util import generate_notification_sig

    document = request.document
    for holder in document["notificationItems"]:
        item = holder["NotificationRequestItem"]
        signature = generate_notification_sig(item, secret).decode()
        item["additionalData"] = {"hmacSignature": signature}
    return replace(request, body=json_request(document).body)


def _verify_adyen_header(request: Request, secret: str) -> bool:
    from Adyen.util import is_valid_hmac_payload

    return is_valid_hmac_payload(request.header("hmacsignature"), secret, request.body)


def _sign_adyen_header(request: Request, secret: str) -> Request:
    from Adyen.util import generate_payload_sig

    return request.with_headers(HmacSignature=generate_payload_sig(request.body, secret).decode())


def _verify_mollie(request: Request, secret: str) -> bool:
    from mollie.utils.webhooks import SignatureValidator

    signature = request.header("X-Mollie-Signature")
    return SignatureValidator.validate(request.text, secret, signature)


def _sign_mollie(request: Request, secret: str) -> Request:
    from mollie.utils.webhooks import SignatureValidator

    signature = SignatureValidator.create_signature(request.text, secret)
    return request.with_headers(X_Mollie_Signature=f"sha256={signature}")


def _verify_razorpay(request: Request, secret: str) -> bool:
    import razorpay

    signature = request.header("X-Razorpay-Signature")
    return razorpay.Utility().verify_webhook_signature(request.text, signature, secret)


def _verify_paystack(request: Request, secret: str) -> bool:
    from pypaystack2 import PaystackClient

    client = PaystackClient(secret_key=secret)
    signature = request.header("x-paystack-signature")
    return client.is_verified_webhook_payload(request.body, signature)


def _paystack_secret() -> Keys:
    key = f"sk_test_{plain_secret().private}"
    return Keys(key, key)


def _verify_coinbase(request: Request, secret: str) -> bool:
    from coinbase_commerce.webhook import Webhook

    Webhook.construct_event(request.text, request.header("X-CC-Webhook-Signature"), secret)
    return True


def _sign_coinbase(request: Request, secret: str) -> Request:
    from coinbase_commerce.webhook import WebhookSignature

    signature = WebhookSignature._compute_signature(request.text, secret)
    return request.with_headers(X_CC_Webhook_Signature=signature)


def _verify_gocardless(request: Request, secret: str) -> bool:
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


def _verify_braintree(request: Request, secret: str) -> bool:
    form = dict(parse_qsl(request.text))
    _braintree(secret).webhook_notification.parse(form["bt_signature"], form["bt_payload"])
    return True


def _sign_braintree(request: Request, secret: str) -> Request:
    from braintree import WebhookNotification

    kind = WebhookNotification.Kind.SubscriptionWentPastDue
    form = _braintree(secret).webhook_testing.sample_notification(kind, "sub_31")
    return replace(request, body=urlencode(form).encode())


_NOTIFICATION: Final = base64.encodebytes(
    b"<notification><kind>check</kind>"
    b'<timestamp type="datetime">2026-03-14T09:26:53Z</timestamp>'
    b'<subject><check type="boolean">true</check></subject></notification>'
)


def _verify_mercadopago(request: Request, secret: str) -> bool:
    from mercadopago.webhook.validator import WebhookSignatureValidator

    WebhookSignatureValidator.validate(
        request.header("x-signature"),
        request.lower_headers.get("x-request-id"),
        parse_qs(urlsplit(request.url).query).get("data.id", [None])[0],
        secret,
    )
    return True


PAYMENT: Final = replace(
    json_request({"action": "payment.updated", "data": {"id": "123456"}}),
    url="https://inbox.example/webhooks/mercadopago?data.id=123456&type=payment",
).with_headers(x_request_id="bb56a2f1-6aae-46ac-982e-9dcd3581d08e")


def change_payment_id(request: Request) -> Request:
    """Return the request with another payment id in its URL."""
    return replace(request, url=request.url.replace("data.id=123", "data.id=124"))


def _verify_paypal(request: Request, secret: str) -> bool:
    """Verify the content that the library builds.

    The library's own check calls a function that pyOpenSSL has removed.
    """
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


def _verify_plaid(request: Request, secret: str) -> bool:
    return is_valid_token(
        request.header("Plaid-Verification"), secret, request, "ES256", "request_body_sha256"
    )


def _sign_plaid(request: Request, secret: str) -> Request:
    token = make_token(request, secret, "ES256", "request_body_sha256")
    return request.with_headers(Plaid_Verification=token)


@cache
def _modern_treasury() -> Any:
    from modern_treasury import ModernTreasury

    return ModernTreasury(organization_id="none", api_key="none").webhooks


def _verify_modern_treasury(request: Request, secret: str) -> bool:
    return _modern_treasury().validate_signature(request.text, request.headers, key=secret)


def _sign_modern_treasury(request: Request, secret: str) -> Request:
    return request.with_headers(
        X_Signature=_modern_treasury().get_signature(request.text, key=secret)
    )


@cache
def _orb() -> Any:
    from orb import Orb

    return Orb(api_key="none").webhooks


def _verify_orb(request: Request, secret: str) -> bool:
    _orb().verify_signature(request.body, request.headers, secret=secret)
    return True


def _verify_quickbooks(request: Request, secret: str) -> bool:
    from quickbooks import QuickBooks

    signature = request.header("intuit-signature")
    client = QuickBooks(minorversion=75)
    return client.validate_webhook_signature(request.text, signature, secret)


def _verify_onfido(request: Request, secret: str) -> bool:
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
_ITEMS: Final = json_request(
    {"live": "false", "notificationItems": [{"NotificationRequestItem": _ITEM}]}
)

VERIFIERS: Final = (
    Verifier(
        preset="stripe",
        package="stripe",
        verify=_verify_stripe,
        sign=_sign_stripe,
        stale_seconds=360,
    ),
    Verifier(preset="square", package="squareup", module="square", verify=_verify_square),
    Verifier(
        preset="paddle",
        package="paddle-python-sdk",
        module="paddle_billing",
        verify=_verify_paddle,
        stale_seconds=10,
    ),
    Verifier(
        preset="adyen",
        scheme="items",
        package="Adyen",
        verify=_verify_adyen_item,
        sign=_sign_adyen_item,
        make_keys=hex_secret,
        request=_ITEMS,
        tamper=replacing("1130", "9130"),
    ),
    Verifier(
        preset="adyen",
        scheme="header",
        package="Adyen",
        verify=_verify_adyen_header,
        sign=_sign_adyen_header,
        make_keys=hex_secret,
    ),
    Verifier(
        preset="mollie",
        package="mollie-api-py",
        module="mollie",
        verify=_verify_mollie,
        sign=_sign_mollie,
    ),
    Verifier(preset="razorpay", package="razorpay", verify=_verify_razorpay),
    Verifier(
        preset="paystack",
        package="pypaystack2",
        verify=_verify_paystack,
        make_keys=_paystack_secret,
    ),
    Verifier(
        preset="coinbase-commerce",
        package="coinbase-commerce",
        module="coinbase_commerce",
        verify=_verify_coinbase,
        sign=_sign_coinbase,
        request=json_request({"event": {"id": "24934862", "type": "charge:confirmed", "data": {}}}),
    ),
    Verifier(
        preset="gocardless",
        package="gocardless_pro",
        verify=_verify_gocardless,
        request=json_request(
            {"events": [{"id": "EV01", "action": "paid", "details": {"note": "Zoë"}}]}
        ),
    ),
    Verifier(
        preset="braintree",
        package="braintree",
        verify=_verify_braintree,
        sign=_sign_braintree,
        make_keys=user_and_password,
        request=Request(
            headers={"Content-Type": FORM},
            body=urlencode({"bt_payload": _NOTIFICATION}).encode(),
        ),
        tamper=replacing("bt_payload=P", "bt_payload=Q"),
    ),
    Verifier(
        preset="mercadopago",
        package="mercadopago",
        verify=_verify_mercadopago,
        request=PAYMENT,
        tamper=change_payment_id,
    ),
    Verifier(
        preset="paypal",
        package="paypalrestsdk",
        scope="the signed content",
        verify=_verify_paypal,
        make_keys=named_certificate,
    ),
    Verifier(
        preset="plaid",
        package="PyJWT",
        module="jwt",
        verify=_verify_plaid,
        sign=_sign_plaid,
        make_keys=p256_pem,
        stale_seconds=600,
    ),
    Verifier(
        preset="modern-treasury",
        package="modern-treasury",
        module="modern_treasury",
        verify=_verify_modern_treasury,
        sign=_sign_modern_treasury,
    ),
    Verifier(
        preset="orb", package="orb-billing", module="orb", verify=_verify_orb, stale_seconds=360
    ),
    Verifier(
        preset="quickbooks",
        package="python-quickbooks",
        module="quickbooks",
        verify=_verify_quickbooks,
    ),
    Verifier(
        preset="onfido",
        package="onfido-python",
        module="onfido",
        verify=_verify_onfido,
        request=json_request(
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
