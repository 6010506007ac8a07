"""Email, messages, calls, meetings."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from onceward.sources.body_kind import BodyKind
from onceward.sources.challenge import Reply
from onceward.sources.presets import challenges
from onceward.sources.presets.preset import Preset
from onceward.sources.presets.vendor_schemes.sinch import SINCH
from onceward.sources.presets.vendor_schemes.twilio import UrlAndForm
from onceward.sources.schemes import ECDSA_P256, ED25519, Hmac, Jwt, Signature, Token
from onceward.sources.schemes.jwt import JwtAlgorithm
from onceward.sources.schemes.times import DAY_SECONDS

MESSAGEBIRD: Final = Jwt(
    at="header:MessageBird-Signature-JWT",
    body_claim="payload_hash",
    url_claim="url_hash",
    issuer="MessageBird",
    must_expire=True,
    empty_has_no_claim=True,
)
MORE_ALGORITHMS: Final[tuple[JwtAlgorithm, ...]] = ("HS384", "HS512")

PRESETS: Final = (
    Preset(
        name="slack",
        title="Slack",
        schemes=Signature(
            at="header:X-Slack-Signature",
            prefix="v0=",
            timestamp="header:X-Slack-Request-Timestamp",
            content="v0:{timestamp}:{body}",
            tolerance_seconds=300,
        ),
        id="json:event_id|form:trigger_id|body:sha256",
        type="json:event.type|json:type|form:command",
        reference="json:event.channel",
        keep_headers=("X-Slack-Retry-Num", "X-Slack-Retry-Reason"),
        challenge=challenges.SLACK,
        other_uses="challenges: told apart by the signed body",
    ),
    Preset(
        name="discord",
        title="Discord",
        schemes=Signature(
            at="header:X-Signature-Ed25519",
            timestamp="header:X-Signature-Timestamp",
            content="{timestamp}{body}",
            algorithm=ED25519,
            tolerance_seconds=900,
        ),
        id="json:id|body:sha256",
        type="json:event.type|json:type",
        auto_retry_hours=0.17,
        challenge=challenges.DISCORD,
        success_response=Reply(204),
        other_uses="pings: told apart by the signed body",
    ),
    Preset(
        name="telegram",
        title="Telegram",
        schemes=Token(at="header:X-Telegram-Bot-Api-Secret-Token"),
        id="json:update_id",
        reference="json:message.message_id",
        auto_retry_hours=24,
        note="The token proves who sends, not what is sent.",
    ),
    Preset(
        name="line",
        title="LINE",
        schemes=Signature(at="header:x-line-signature", encoding="base64"),
        events="json:events[]",
        id="json:webhookEventId",
        type="json:type",
        reference="json:message.id",
        success_response=200,
    ),
    Preset(
        name="meta",
        title="Meta: WhatsApp, Messenger, Instagram",
        schemes={
            "sha256": Signature(at="header:X-Hub-Signature-256", prefix="sha256="),
            "sha1": Signature(at="header:X-Hub-Signature", prefix="sha1=", algorithm=Hmac("sha1")),
        },
        auto_retry_hours=36,
        body_kind=BodyKind.JSON_OBJECT,
        events="json:entry[]",
        id="body:sha256",
        reference="json:id",
        challenge=challenges.META,
        success_response=200,
        other_uses="`signed_request` and `appsecret_proof` of Facebook Login: no JSON object",
        note="Each entry is an event. Entries have no id and are identified by their bytes.",
    ),
    Preset(
        name="viber",
        title="Viber",
        schemes=Signature(at="header:X-Viber-Content-Signature"),
        id=("json:event", "json:message_token", "json:user_id"),
        type="json:event",
    ),
    Preset(
        name="sendgrid",
        title="SendGrid",
        schemes=Signature(
            at="header:X-Twilio-Email-Event-Webhook-Signature",
            encoding="base64",
            timestamp="header:X-Twilio-Email-Event-Webhook-Timestamp",
            content="{timestamp}{body}",
            algorithm=ECDSA_P256,
            tolerance_seconds=30 * DAY_SECONDS,
        ),
        time_of="event",
        events="json:[]",
        id="json:sg_event_id",
        type="json:event",
        reference="json:sg_message_id",
    ),
    Preset(
        name="twilio",
        title="Twilio",
        schemes={
            "sha1": UrlAndForm(at="header:X-Twilio-Signature", has_body_hash=True),
            "sha256": UrlAndForm(
                at="header:X-Twilio-Signature", digest="sha256", has_body_hash=True
            ),
        },
        id="header:I-Twilio-Idempotency-Token|body:sha256",
        type="form:MessageStatus|form:SmsStatus|form:CallStatus|form:EventType|json:type",
        reference="form:MessageSid|form:CallSid",
        other_uses="requests to all URLs of the account: the URL is signed and checked",
        note="sha1 takes the account's auth token, sha256 a shared key. Fields are signed without "
        "separators: who sends a captured request before the original can cut them elsewhere, also "
        "within the text of a message. A second event of it is flagged.",
    ),
    Preset(
        name="mandrill",
        title="Mandrill",
        schemes=UrlAndForm(at="header:X-Mandrill-Signature", only_field="mandrill_events"),
        form_field="form:mandrill_events",
        events="json:[]",
        id=("json:event", "json:_id", "json:ts"),
        type="json:event",
        reference="json:_id",
        challenge=challenges.HEAD_PROBE,
    ),
    Preset(
        name="sinch",
        title="Sinch",
        schemes=SINCH,
        time_of="event",
        id=("json:event", "json:callid|json:id", "json:timestamp"),
        type="json:event",
        reference="json:callid|json:id",
        other_uses="API requests of the app: their paths differ",
    ),
    Preset(
        name="mailgun",
        title="Mailgun",
        schemes=Signature(
            at="json:signature.signature",
            timestamp="json:signature.timestamp",
            content="{timestamp}{json:signature.token}",
            tolerance_seconds=900,
        ),
        id="json:event-data.id",
        type="json:event-data.event",
        reference="json:event-data.message.headers.message-id",
        success_response=200,
        volatile_fields=("signature", "timestamp", "token"),
        note="A timestamp and a token are signed, not the event: a captured signature is valid for "
        "any body until it expires.",
    ),
    Preset(
        name="mailersend",
        title="MailerSend",
        schemes=Signature(at="header:Signature"),
        id="json:data.id|body:sha256",
        type="json:type",
        reference="json:data.email.message.id",
    ),
    Preset(
        name="postmark",
        title="Postmark",
        schemes=Token(at="header:Authorization", is_basic=True),
        id=(
            "json:RecordType",
            "json:MessageID",
            "json:Recipient|json:Email",
            "json:DeliveredAt|json:BouncedAt|json:ReceivedAt|json:ChangedAt",
        ),
        type="json:RecordType",
        reference="json:MessageID",
        success_response=200,
        note="The secret is user:password, as in the URL that you register with Postmark.",
    ),
    Preset(
        name="telnyx",
        title="Telnyx",
        schemes=Signature(
            at="header:telnyx-signature-ed25519",
            encoding="base64",
            timestamp="header:telnyx-timestamp",
            content="{timestamp}|{body}",
            algorithm=ED25519,
            tolerance_seconds=300,
        ),
        id="json:data.id",
        type="json:data.event_type",
        reference="json:data.payload.id",
    ),
    Preset(
        name="messagebird",
        title="MessageBird",
        schemes={"hs256": MESSAGEBIRD}
        | {name.lower(): replace(MESSAGEBIRD, algorithm=name) for name in MORE_ALGORITHMS},
        id=("json:id|query:id", "json:status|query:status"),
    ),
    Preset(
        name="vonage",
        title="Vonage",
        schemes=Jwt(
            at="header:Authorization",
            prefix="Bearer ",
            body_claim="payload_hash",
            tolerance_seconds=300,
        ),
        id=("json:message_uuid", "json:status|json:channel"),
        type="json:status|json:channel",
        reference="json:message_uuid",
        other_uses="API requests of the account: they are in another format",
    ),
    Preset(
        name="pusher",
        title="Pusher",
        schemes=Signature(
            at="header:X-Pusher-Signature",
            timestamp="json:time_ms",
            time_format="milliseconds",
            tolerance_seconds=300,
        ),
        body_kind=BodyKind.JSON_OBJECT,
        id="body:sha256",
        auto_retry_hours=0.09,
        other_uses="channel authorizations and API requests: no JSON object",
        note="A request may hold several events and is recorded as one.",
    ),
    Preset(
        name="zoom",
        title="Zoom",
        schemes=Signature(
            at="header:x-zm-signature",
            prefix="v0=",
            timestamp="header:x-zm-request-timestamp",
            content="v0:{timestamp}:{body}",
            tolerance_seconds=10_800,
        ),
        auto_retry_hours=2.1,
        id=("json:event", "json:event_ts", "json:payload.object.uuid"),
        type="json:event",
        reference="json:payload.object.id",
        challenge=challenges.ZOOM,
        success_response=200,
        other_uses="challenges, told apart by the signed body, and the answers: they have no time",
    ),
    Preset(
        name="twitch",
        title="Twitch EventSub",
        schemes=Signature(
            at="header:Twitch-Eventsub-Message-Signature",
            prefix="sha256=",
            timestamp="header:Twitch-Eventsub-Message-Timestamp",
            time_format="iso",
            content="{header:Twitch-Eventsub-Message-Id}{timestamp}{body}",
            tolerance_seconds=600,
        ),
        id="header:Twitch-Eventsub-Message-Id",
        type=("json:subscription.type", "json:subscription.status"),
        reference="json:subscription.id",
        keep_headers=("Twitch-Eventsub-Message-Type",),
        challenge=challenges.TWITCH,
        other_uses="challenges: told apart by the signed body",
        note="A type ends with the subscription's status: channel.follow.enabled is an event, and "
        "channel.follow.authorization_revoked the end of the subscription.",
    ),
    Preset(
        name="x-twitter",
        title="X (Twitter)",
        schemes=Signature(
            at="header:x-twitter-webhooks-signature", prefix="sha256=", encoding="base64"
        ),
        body_kind=BodyKind.JSON_OBJECT,
        id="body:sha256",
        challenge=challenges.X,
        other_uses="challenge answers: no JSON object",
    ),
)
