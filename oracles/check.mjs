// Runs the verifiers from npm. Each line on stdin is a call, each line on stdout its result, as JSON:
// {name, action, secret, request: {method, url, headers, body}} → {accepted}, {headers} or {error}.
import crypto from "node:crypto";
import https from "node:https";
import { createRequire, register } from "node:module";
import { createInterface } from "node:readline";
import { Readable } from "node:stream";

const require = createRequire(import.meta.url);
const lowerHeaders = ({ headers }) =>
  Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
const toFetchRequest = ({ method, url, headers, body }) => new Request(url, { method, headers, body });

// Nuxt's validators read their settings from the framework. This import hook provides them.
const settings = {};
globalThis.oraclesSettings = settings;
const IMPORTS = "export const useRuntimeConfig = () => ({ webhook: globalThis.oraclesSettings });";
const HOOK = `export const resolve = (name, context, next) => name === "#imports"
  ? { url: "data:text/javascript,${encodeURIComponent(IMPORTS)}", shortCircuit: true }
  : next(name, context);`;
register(`data:text/javascript,${encodeURIComponent(HOOK)}`);

const VALIDATORS = "./node_modules/nuxt-webhook-validators/dist/runtime/server/lib/validators";

const nuxt = (name, validator, key) => ({
  verify: async (request, secret) => {
    const validators = await import(`${VALIDATORS}/${name}.js`);
    settings[name] = { [key]: secret };
    const node = { req: { method: request.method, headers: lowerHeaders(request) } };
    return validators[validator]({ node, method: request.method, _requestBody: request.body });
  },
});

const tern = (platform) => ({
  verify: async (request, secret) => {
    const { WebhookVerificationService } = await import("@hookflo/tern");
    const config = { platform, secret, toleranceInSeconds: 300 };
    return (await WebhookVerificationService.verify(toFetchRequest(request), config)).isValid;
  },
});

const shopify = {
  verify: async ({ headers, body, ...request }, secret) => {
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
    const rawRequest = toFetchRequest({ headers, body, ...request });
    return (await api.webhooks.validate({ rawBody: body, rawRequest })).valid;
  },
};

const contentful = {
  verify: async ({ method, url, headers, body }, secret) => {
    const { verifyRequest } = await import("@contentful/node-apps-toolkit");
    const { pathname, search } = new URL(url);
    return verifyRequest(secret, { method, path: pathname + search, headers, body });
  },
  sign: async ({ method, url, headers, body }, secret) => {
    const { signRequest } = await import("@contentful/node-apps-toolkit");
    const { pathname, search } = new URL(url);
    return signRequest(secret, { method, path: pathname + search, headers, body });
  },
};

const github = {
  verify: async ({ headers, body }, secret) => {
    const { verify } = await import("@octokit/webhooks-methods");
    return verify(secret, body, lowerHeaders({ headers })["x-hub-signature-256"]);
  },
  sign: async ({ body }, secret) => {
    const { sign } = await import("@octokit/webhooks-methods");
    return { "X-Hub-Signature-256": await sign(secret, body) };
  },
};

const notion = {
  verify: async ({ headers, body }, verificationToken) => {
    const { verifyWebhookSignature } = await import("@notionhq/client");
    const signature = lowerHeaders({ headers })["x-notion-signature"];
    return verifyWebhookSignature({ body, signature, verificationToken });
  },
  sign: async ({ body }, verificationToken) => {
    const { signWebhookPayload } = await import("@notionhq/client");
    return { "X-Notion-Signature": await signWebhookPayload({ body, verificationToken }) };
  },
};

const clerk = {
  verify: async (request, signingSecret) => {
    const { verifyWebhook } = await import("@clerk/backend/webhooks");
    await verifyWebhook(toFetchRequest(request), { signingSecret });
    return true;
  },
};

const linear = {
  verify: async ({ headers, body }, secret) => {
    const { LinearWebhookClient } = await import("@linear/sdk/webhooks");
    const signature = lowerHeaders({ headers })["linear-signature"];
    return new LinearWebhookClient(secret).verify(Buffer.from(body), signature);
  },
};

const webflow = {
  verify: async ({ headers, body }, secret) => {
    const { WebflowClient } = require("webflow-api");
    const { webhooks } = new WebflowClient({ accessToken: "none" });
    return webhooks.verifySignature({ headers: lowerHeaders({ headers }), body, secret });
  },
};

const hookdeck = {
  verify: async ({ headers, body }, signingSecret) => {
    const { verifyWebhookSignature } = require("@hookdeck/sdk/webhooks/helpers");
    const sent = { headers: lowerHeaders({ headers }), rawBody: body, signingSecret };
    return (await verifyWebhookSignature(sent)).isValidSignature;
  },
};

const lemonsqueezy = {
  verify: async (request, secret) => {
    const { whatwgWebhooksHandler } = require("lemonsqueezy-webhooks");
    const quiet = { onData: async () => {}, onError: () => {} };
    const options = { secret, request: toFetchRequest(request), ...quiet };
    return (await whatwgWebhooksHandler(options)).ok;
  },
};

const mailersend = {
  verify: async ({ headers, body }, secret) => {
    const { MailerSendUtils } = require("mailersend/lib/services/mailersend.utils");
    const signature = lowerHeaders({ headers }).signature;
    return MailerSendUtils.verifyWebHook(Buffer.from(body), signature, secret);
  },
};

const mercadopago = {
  verify: async ({ url, headers }, secret) => {
    const { WebhookSignatureValidator } = require("mercadopago");
    const { "x-signature": xSignature, "x-request-id": xRequestId } = lowerHeaders({ headers });
    const dataId = new URL(url).searchParams.get("data.id");
    WebhookSignatureValidator.validate({ xSignature, xRequestId, dataId, secret });
    return true;
  },
};

const hook0 = {
  verify: async ({ headers, body }, secret) => {
    const { verifyWebhookSignature } = require("hook0-client");
    const { "x-hook0-signature": signature, ...others } = lowerHeaders({ headers });
    return verifyWebhookSignature(signature, Buffer.from(body), new Headers(others), secret, 300);
  },
};

const messagebird = {
  verify: async ({ url, headers, body }, secret) => {
    const jwt = require("messagebird/lib/webhook-signature-jwt");
    const token = lowerHeaders({ headers })["messagebird-signature-jwt"];
    await jwt.verify(url, Buffer.from(body), token, crypto.createSecretKey(Buffer.from(secret)));
    return true;
  },
};

const discord = {
  verify: async ({ headers, body }, publicKey) => {
    const { verifyKey } = require("discord-interactions");
    const sent = lowerHeaders({ headers });
    const proof = [sent["x-signature-ed25519"], sent["x-signature-timestamp"]];
    return verifyKey(Buffer.from(body), ...proof, publicKey);
  },
};

// Passes the certificate to the library, which would download it. The URL is new each time, because
// the library caches certificates by URL.
const sns = {
  verify: async ({ body }, secret) => {
    const certificate = secret.slice(secret.indexOf("-----BEGIN"));
    https.get = (_, onResponse) => {
      const response = Object.assign(Readable.from([certificate]), { statusCode: 200 });
      onResponse(response);
      return response;
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
  verify: async ({ headers, body }, webhooksSecretToken) => {
    const { AwsLambdaReceiver } = await import("@zoom/rivet/meetings");
    const receive = new AwsLambdaReceiver({ webhooksSecretToken }).start();
    return (await receive({ headers, body, isBase64Encoded: false }, {})).statusCode === 200;
  },
};

const LIBRARIES = {
  "aws-sns": sns,
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
  "vercel": nuxt("vercel", "isValidVercelWebhook", "secretKey"),
  "webflow": webflow,
  "woocommerce": tern("woocommerce"),
  "zoom": zoom,
};

async function run({ name, action, secret, request }) {
  try {
    const result = await LIBRARIES[name][action](request, secret);
    return action === "sign" ? { headers: result } : { accepted: result === true };
  } catch (error) {
    return { error: String(error) };
  }
}

console.log = console.info = console.debug = () => {};
for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await run(JSON.parse(line)))}\n`);
}
