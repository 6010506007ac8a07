"""Code, builds, errors, hosting, identity, AI models."""

from __future__ import annotations

from typing import Final

from onceward.sources.presets import challenges
from onceward.sources.presets.preset import Preset
from onceward.sources.presets.vendor_schemes.graph import ClientState
from onceward.sources.presets.vendor_schemes.signed_headers import CONTENTFUL, HOOK0, HOOK0_V0
from onceward.sources.presets.vendor_schemes.sns import Sns
from onceward.sources.schemes import Hmac, Jwt, Signature, Token

PRESETS: Final = (
    Preset(
        name="github",
        title="GitHub",
        schemes={
            "sha256": Signature(at="header:X-Hub-Signature-256", prefix="sha256="),
            "sha1": Signature(at="header:X-Hub-Signature", prefix="sha1=", algorithm=Hmac("sha1")),
        },
        id="header:X-GitHub-Delivery",
        type=("header:X-GitHub-Event", "json:action"),
        reference="json:repository.full_name",
        keep_headers=(
            "X-GitHub-Delivery",
            "X-GitHub-Event",
            "X-GitHub-Hook-ID",
            "X-GitHub-Hook-Installation-Target-ID",
            "X-GitHub-Hook-Installation-Target-Type",
        ),
        auto_retry_hours=0,
        manual_resend_days=7,
    ),
    Preset(
        name="bitbucket",
        title="Bitbucket",
        schemes=Signature(at="header:X-Hub-Signature", prefix="sha256="),
        id="header:X-Request-UUID|header:X-Request-Id",
        type="header:X-Event-Key",
        reference="json:repository.full_name",
        keep_headers=("X-Attempt-Number", "X-Event-Key", "X-Hook-UUID"),
        note="The id may differ for each request, so a retry may be recorded as a new event.",
    ),
    Preset(
        name="jira",
        title="Jira",
        schemes=Signature(at="header:X-Hub-Signature", prefix="sha256="),
        id="header:X-Atlassian-Webhook-Identifier|body:sha256",
        type="json:webhookEvent",
        reference="json:issue.id",
        keep_headers=("X-Atlassian-Webhook-Retry",),
    ),
    Preset(
        name="linear",
        title="Linear",
        schemes=Signature(
            at="header:Linear-Signature",
            timestamp="json:webhookTimestamp",
            time_format="milliseconds",
            tolerance_seconds=60,
        ),
        id="header:Linear-Delivery",
        type=("json:type", "json:action"),
        reference="json:data.id",
        success_response=200,
        volatile_fields=("webhookTimestamp",),
    ),
    Preset(
        name="circleci",
        title="CircleCI",
        schemes=Signature(at="header:circleci-signature", separator=",", prefix="v1="),
        id="json:id",
        type="json:type",
        reference="json:workflow.id",
    ),
    Preset(
        name="sentry",
        title="Sentry",
        schemes=Signature(at="header:Sentry-Hook-Signature"),
        id="header:Request-ID",
        type=("header:Sentry-Hook-Resource", "json:action"),
        reference="json:data.issue.id|json:data.issue_id|json:data.event.issue_id|json:data.metric_alert.id",
    ),
    Preset(
        name="pagerduty",
        title="PagerDuty",
        schemes=Signature(at="header:X-PagerDuty-Signature", separator=",", prefix="v1="),
        id="json:event.id|header:X-Webhook-Id",
        type="json:event.event_type",
        reference="json:event.data.id",
        auto_retry_hours=0.34,
    ),
    Preset(
        name="vercel",
        title="Vercel",
        schemes=Signature(at="header:x-vercel-signature", algorithm=Hmac("sha1")),
        id="json:id",
        type="json:type",
        reference="json:payload.deployment.id",
    ),
    Preset(
        name="netlify",
        title="Netlify",
        schemes=Jwt(
            at="header:X-Webhook-Signature", body_claim="sha256", issuer="netlify", has_time=False
        ),
        id=("json:id", "json:state", "json:updated_at"),
        type="header:X-Netlify-Event|json:state",
        reference="json:id",
    ),
    Preset(
        name="elevenlabs",
        title="ElevenLabs",
        schemes=Signature(
            at="header:ElevenLabs-Signature",
            separator=",",
            prefix="v0=",
            timestamp="list:t=",
            content="{timestamp}.{body}",
            tolerance_seconds=1800,
        ),
        id=("json:type", "json:data.conversation_id", "json:event_timestamp"),
        type="json:type",
        reference="json:data.conversation_id",
    ),
    Preset(
        name="retell",
        title="Retell AI",
        schemes=Signature(
            at="header:X-Retell-Signature",
            separator=",",
            prefix="d=",
            timestamp="list:v=",
            time_format="milliseconds",
            content="{body}{timestamp}",
            tolerance_seconds=300,
        ),
        id="body:sha256",
        type="json:event",
        reference="json:call.call_id",
    ),
    Preset(
        name="livekit",
        title="LiveKit",
        schemes=Jwt(
            at="header:Authorization",
            body_claim="sha256",
            body_encoding="base64",
            named="iss",
            must_expire=True,
        ),
        id="json:id",
        type="json:event",
        reference="json:room.sid|json:egressInfo.egressId",
        other_uses="access tokens of rooms: they contain no hash of a body",
        note="The secret is API_KEY:API_SECRET.",
    ),
    Preset(
        name="workos",
        title="WorkOS",
        schemes=Signature(
            at="header:WorkOS-Signature",
            separator=", ",
            prefix="v1=",
            timestamp="list:t=",
            time_format="milliseconds",
            content="{timestamp}.{body}",
            tolerance_seconds=180,
        ),
        id="json:id",
        type="json:event",
        reference="json:data.id",
    ),
    Preset(
        name="notion",
        title="Notion",
        schemes=Signature(at="header:X-Notion-Signature", prefix="sha256="),
        id="json:id",
        type="json:type",
        reference="json:entity.id",
        challenge=challenges.NOTION,
        volatile_fields=("attempt_number",),
        note="Notion sends the secret itself: add ?verify_token=… to the URL. `onceward secrets` "
        "shows the secret, which you then confirm in Notion.",
    ),
    Preset(
        name="trello",
        title="Trello",
        schemes=Signature(
            at="header:X-Trello-Webhook",
            encoding="base64",
            content="{body}{url}",
            algorithm=Hmac("sha1"),
        ),
        id="json:action.id",
        type="json:action.type",
        reference="json:model.id",
        challenge=challenges.HEAD_PROBE,
    ),
    Preset(
        name="asana",
        title="Asana",
        schemes=Signature(at="header:X-Hook-Signature"),
        events="json:events[]",
        id="body:sha256",
        type=("json:resource.resource_type", "json:action"),
        reference="json:resource.gid",
        challenge=challenges.ASANA,
        auto_retry_hours=24,
        note="Asana sends the secret itself: add ?verify_token=… to the URL. Events have no id and "
        "are identified by their bytes, which include the time.",
    ),
    Preset(
        name="contentful",
        title="Contentful",
        schemes=CONTENTFUL,
        id=(
            "header:X-Contentful-Topic",
            "json:sys.environment.sys.id",
            "json:sys.id",
            "json:sys.version|json:sys.revision",
        ),
        type="header:X-Contentful-Topic",
        reference="json:sys.id",
        note="Each request lists the headers that it signs; the topic counts as unsigned.",
        other_uses="requests that an app's frontend has signed: their paths differ",
    ),
    Preset(
        name="hook0",
        title="Hook0",
        schemes={
            "v1": HOOK0,
            "v0": HOOK0_V0,
        },
        id="header:X-Event-Id|body:sha256",
        type="header:X-Event-Type",
        other_uses="its other version: listed headers before the body are refused",
        note="v1 signs headers too, and is refused unless X-Event-Id and X-Event-Type are among "
        "them. Dots separate them, so no other signed header may contain one: if you add such a "
        "header to a subscription, use scheme='v0', which does not sign the id.",
    ),
    Preset(
        name="aws-sns",
        title="Amazon SNS",
        schemes={"version-1": Sns(), "version-2": Sns(version="2")},
        time_of="event",
        id="json:MessageId",
        type="json:Type",
        reference="json:TopicArn",
        keep_headers=("x-amz-sns-message-type", "x-amz-sns-topic-arn"),
        builtin_handlers={"SubscriptionConfirmation": "confirm_subscription"},
        other_uses="messages of all customers' topics: the topic is signed and checked",
        note="The secret is TOPIC_ARN:certificate, with Amazon's signing certificate in PEM. The "
        "certificate signs every customer's topics, so the topic is checked too. A built-in "
        "handler confirms subscriptions to the topic. MessageAttributes, UnsubscribeURL and "
        "SigningCertURL are not signed: decide nothing by them.",
    ),
    Preset(
        name="microsoft-graph",
        title="Microsoft Graph",
        schemes=ClientState(),
        auto_retry_hours=4,
        events="json:value[]",
        id="json:id|body:sha256",
        type="json:changeType",
        reference="json:resource",
        challenge=challenges.GRAPH,
        note="The client state proves nothing about the rest of the body. A notification without "
        "an id is identified by its bytes.",
    ),
    Preset(
        name="azure-event-grid",
        title="Azure Event Grid",
        schemes=Token(at="query:code"),
        auto_retry_hours=24,
        events="json:[]",
        id="json:id",
        type="json:eventType|json:type",
        reference="json:subject",
        challenge=challenges.EVENT_GRID,
        note="The secret is the value of code in the URL that you register with Event Grid.",
    ),
    Preset(
        name="google-pubsub",
        title="Google Cloud Pub/Sub",
        schemes={
            "token": Token(at="query:token"),
            "oidc": Jwt(
                at="header:Authorization",
                algorithm="RS256",
                prefix="Bearer ",
                issuer=("https://accounts.google.com", "accounts.google.com"),
                named="email",
                audience_is_url=True,
                must_expire=True,
            ),
        },
        id="json:message.messageId|json:message.message_id",
        type="json:message.attributes.type|json:message.attributes.eventType",
        reference="json:subscription",
        other_uses="other tokens of the service account (oidc): the audience is checked",
        note="For token, the secret is a parameter of the push URL. For oidc, it is "
        "SERVICE_ACCOUNT_EMAIL:key, with Google's public keys as a JWKS or one of them in PEM; "
        "Google rotates its keys, and url= is required. Neither scheme covers the body.",
    ),
    Preset(
        name="cloudevents",
        title="CloudEvents",
        schemes={
            "bearer": Token(at="header:Authorization", prefix="Bearer "),
            "access-token": Token(at="query:access_token"),
        },
        id=("header:ce-source|json:source", "header:ce-id|json:id"),
        type="header:ce-type|json:type",
        reference="header:ce-subject|json:subject",
        keep_headers=("ce-id", "ce-source", "ce-specversion", "ce-subject", "ce-time", "ce-type"),
        challenge=challenges.CLOUDEVENTS,
        note="CloudEvents defines no signature: the token proves who sends, not what is sent.",
    ),
    Preset(
        name="hookdeck",
        title="Hookdeck Event Gateway",
        schemes=Signature(
            at="header:x-hookdeck-signature|header:x-hookdeck-signature-2", encoding="base64"
        ),
        id="header:x-hookdeck-eventid|body:sha256",
    ),
)
