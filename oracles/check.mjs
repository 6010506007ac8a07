// Asks the libraries from npm. A line of JSON on stdin is a question, a line on stdout its answer:
// {name, action, secret, request: {method, url, headers, body}} has {accepted}, {headers} or {error}.
import crypto from "node:crypto";
import https from "node:https";
import { createRequire, register } from "node:module";
import { createInterface } from "node:readline";
import { Readable } from "node:stream";

const require = createRequire(import.meta.url);
const lower = ({ headers }) =>
  Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
const fetched = ({ method, url, headers, body }) => new Request(url, { method, headers, body });

// Nuxt's validators ask the framework for their settings: it is these.
const settings = {};
globalThis.oraclesSettings = settings;
const IMPORTS = "export const useRuntimeConfig = () => ({ webhook: globalThis.oraclesSettings });";
const HOOK = `export const resolve = (name, context, next) => name === "#imports"
  ? { url: "data:text/javascript,${encodeURIComponent(IMPORTS)}", shortCircuit: true }
  : next(name, context);`;
register(`data:text/javascript,${encodeURIComponent(HOOK)}`);

const VALIDATORS = "./node_modules/nuxt-webhook-validators/dist/runtime/server/lib/validators";

const nuxt = (name, validator, key) => ({
  verifies: async (request, secret) => {
    const validators = await import(`${VALIDATORS}/${name}.js`);
    settings[name] = { [key]: secret };
    const node = { req: { method: request.method, headers: lower(request) } };
    return validators[validator]({ node, method: request.method, _requestBody: request.body });
  },
});

const tern = (platform) => ({
  verifies: async (request, secret) => {
    const { WebhookVerificationService } = await import("@hookflo/tern");
    const config = { platform, secret, toleranceInSeconds: 300 };
    return (await WebhookVerificationService.verify(fetched(request), config)).isValid;
  },
});

const shopify = {
  verifies: async ({ headers, body, ...request }, secret) => {
    await import("@shopify/shopify-api/adapters/web-api");
    const { shopifyApi, LogSeverity } = await import("@shopify/shopify-api");
    const api = shopifyApi({
      apiKey: "none",
      apiSecretKey: secret,
      hostName: "inbox.example",
      apiVersion: "2026-01",
      isEmbeddedApp: false,
      logger: { level: LogSeverity.Error },
    });
    const rawRequest = fetched({ headers, body, ...request });
    return (await api.webhooks.validate({ rawBody: body, rawRequest })).valid;
  },
};

const contentful = {
  verifies: async ({ method, url, headers, body }, secret) => {
    const { verifyRequest } = await import("@contentful/node-apps-toolkit");
    const { pathname, search } = new URL(url);
    return verifyRequest(secret, { method, path: pathname + search, headers, body });
  },
  signs: async ({ method, url, headers, body }, secret) => {
    const { signRequest } = await import("@contentful/node-apps-toolkit");
    const { pathname, search } = new URL(url);
    return signRequest(secret, { method, path: pathname + search, headers, body });
  },
};

const github = {
  verifies: async ({ headers, body }, secret) => {
    const { verify } = await import("@octokit/webhooks-methods");
    return verify(secret, body, lower({ headers })["x-hub-signature-256"]);
  },
  signs: async ({ body }, secret) => {
    const { sign } = await import("@octokit/webhooks-methods");
    return { "X-Hub-Signature-256": await sign(secret, body) };
  },
};

const notion = {
  verifies: async ({ headers, body }, verificationToken) => {
    const { verifyWebhookSignature } = await import("@notionhq/client");
    const signature = lower({ headers })["x-notion-signature"];
    return verifyWebhookSignature({ body, signature, verificationToken });
  },
  signs: async ({ body }, verificationToken) => {
    const { signWebhookPayload } = await import("@notionhq/client");
    return { "X-Notion-Signature": await signWebhookPayload({ body, verificationToken }) };
  },
};

const clerk = {
  verifies: async (request, signingSecret) => {
    const { verifyWebhook } = await import("@clerk/backend/webhooks");
    await verifyWebhook(fetched(request), { signingSecret });
    return true;
  },
};

const linear = {
  verifies: async ({ headers, body }, secret) => {
    const { LinearWebhookClient } = await import("@linear/sdk/webhooks");
    const signature = lower({ headers })["linear-signature"];
    return new LinearWebhookClient(secret).verify(Buffer.from(body), signature);
  },
};

const webflow = {
  verifies: async ({ headers, body }, secret) => {
    const { WebflowClient } = require("webflow-api");
    const { webhooks } = new WebflowClient({ accessToken: "none" });
    return webhooks.verifySignature({ headers: lower({ headers }), body, secret });
  },
};

const hookdeck = {
  verifies: async ({ headers, body }, signingSecret) => {
    const { verifyWebhookSignature } = require("@hookdeck/sdk/webhooks/helpers");
    const sent = { headers: lower({ headers }), rawBody: body, signingSecret };
    return (await verifyWebhookSignature(sent)).isValidSignature;
  },
};

const lemonsqueezy = {
  verifies: async (request, secret) => {
    const { whatwgWebhooksHandler } = require("lemonsqueezy-webhooks");
    const quiet = { onData: async () => {}, onError: () => {} };
    const answer = await whatwgWebhooksHandler({ secret, request: fetched(request), ...quiet });
    return answer.ok;
  },
};

const mailersend = {
  verifies: async ({ headers, body }, secret) => {
    const { MailerSendUtils } = require("mailersend/lib/services/mailersend.utils");
    const signature = lower({ headers }).signature;
    return MailerSendUtils.verifyWebHook(Buffer.from(body), signature, secret);
  },
};

const mercadopago = {
  verifies: async ({ url, headers }, secret) => {
    const { WebhookSignatureValidator } = require("mercadopago");
    const { "x-signature": xSignature, "x-request-id": xRequestId } = lower({ headers });
    const dataId = new URL(url).searchParams.get("data.id");
    WebhookSignatureValidator.validate({ xSignature, xRequestId, dataId, secret });
    return true;
  },
};

const hook0 = {
  verifies: async ({ headers, body }, secret) => {
    const { verifyWebhookSignature } = require("hook0-client");
    const { "x-hook0-signature": signature, ...others } = lower({ headers });
    return verifyWebhookSignature(signature, Buffer.from(body), new Headers(others), secret, 300);
  },
};

const messagebird = {
  verifies: async ({ url, headers, body }, secret) => {
    const jwt = require("messagebird/lib/webhook-signature-jwt");
    const token = lower({ headers })["messagebird-signature-jwt"];
    await jwt.verify(url, Buffer.from(body), token, crypto.createSecretKey(Buffer.from(secret)));
    return true;
  },
};

const discord = {
  verifies: async ({ headers, body }, publicKey) => {
    const { verifyKey } = require("discord-interactions");
    const sent = lower({ headers });
    const proof = [sent["x-signature-ed25519"], sent["x-signature-timestamp"]];
    return verifyKey(Buffer.from(body), ...proof, publicKey);
  },
};

// The certificate is at hand, where the library would fetch it: each time from somewhere else, for
// it remembers what it fetched.
const sns = {
  verifies: async ({ body }, secret) => {
    const certificate = secret.slice(secret.indexOf("-----BEGIN"));
    https.get = (_, answer) => {
      const found = Object.assign(Readable.from([certificate]), { statusCode: 200 });
      answer(found);
      return found;
    };
    const MessageValidator = require("sns-validator");
    const message = JSON.parse(body);
    message.SigningCertURL = message.SigningCertURL.replace("-1.pem", `-${crypto.randomUUID()}.pem`);
    return new Promise((resolve) => {
      new MessageValidator().validate(message, (error) => resolve(!error));
    });
  },
};

const zoom = {
  verifies: async ({ headers, body }, webhooksSecretToken) => {
    const { AwsLambdaReceiver } = await import("@zoom/rivet/meetings");
    const receive = new AwsLambdaReceiver({ webhooksSecretToken }).start();
    return (await receive({ headers, body, isBase64Encoded: false }, {})).statusCode === 200;
  },
};

const LIBRARIES = {
  "bitbucket": nuxt("bitbucket", "isValidBitbucketWebhook", "secretKey"),
  "clerk": clerk,
  "contentful": contentful,
  "discord": discord,
  "docusign": nuxt("docusign", "isValidDocusignWebhook", "secretKey"),
  "github": github,
  "gitlab": nuxt("gitlab", "isValidGitLabWebhook", "secretToken"),
  "hook0": hook0,
  "hookdeck": hookdeck,
  "lemonsqueezy": lemonsqueezy,
  "linear": linear,
  "mailersend": mailersend,
  "mercadopago": mercadopago,
  "messagebird": messagebird,
  "notion": notion,
  "sentry": tern("sentry"),
  "shopify": shopify,
  "sns": sns,
  "vercel": nuxt("vercel", "isValidVercelWebhook", "secretKey"),
  "webflow": webflow,
  "woocommerce": tern("woocommerce"),
  "zoom": zoom,
};

async function answered({ name, action, secret, request }) {
  const library = LIBRARIES[name];
  try {
    const found = await library[action](request, secret);
    return action === "signs" ? { headers: found } : { accepted: found === true };
  } catch (error) {
    return { error: String(error) };
  }
}

console.log = console.info = console.debug = () => {};
for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await answered(JSON.parse(line)))}\n`);
}
