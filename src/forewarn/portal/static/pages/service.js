// The service: health, metrics, webhooks, tokens, settings.

import { Problem, get, part, post, request } from "../api.js";
import { button, facts, since, table, tag, time } from "../parts.js";
import { h } from "../render.js";

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const number = (value) => NUMBER.format(value);
const SECONDS = "forewarn_store_commit_duration_seconds";
const CURRENT = [
  ["Active events", ({ sum }) => number(sum("forewarn_active_events"))],
  ["Polls", ({ sum }) => number(sum("forewarn_polls_total"))],
  ["Approvals", ({ sum }) => number(sum("forewarn_approvals_total"))],
  ["Commits", ({ sum }) => number(sum(`${SECONDS}_count`))],
  [
    "Mean time of a commit",
    ({ sum }) => `${number((sum(`${SECONDS}_sum`) / Math.max(sum(`${SECONDS}_count`), 1)) * 1000)} ms`,
  ],
  ["Open connections", ({ sum }) => number(sum("forewarn_connections"))],
  ["Feed readers", ({ sum }) => number(sum("forewarn_feed_readers"))],
  ["CPU time", ({ sum }) => `${number(sum("process_cpu_seconds_total"))} s`],
  ["Memory", ({ sum }) => `${number(sum("process_resident_memory_bytes") / 1_048_576)} MB`],
  ["Webhook backlog", ({ sum }) => number(sum("forewarn_webhook_undelivered_rows"))],
];

export default {
  title: () => "Service",
  topics: ["webhooks"],

  /** Replaces a webhook, without loading the page again. */
  topic(name, data, _, shown) {
    const webhook = name === "webhook" && shown?.webhooks.find((each) => each.name === data.name);
    if (webhook) Object.assign(webhook, { pending: data.backlog, failed: data.failed, last_error: data.last_error });
  },

  concerns: (row) => /^(token|session|webhook|clock)-/.test(row.kind),

  async load(context) {
    const { signal } = context.controller;
    const [ready, metrics, webhooks, settings, tokens] = await Promise.all([
      readiness(signal),
      metricSums(signal),
      get("webhooks", { limit: 1000 }, signal),
      get("settings", {}, signal),
      context.can("admin") ? get("tokens", { limit: 1000, sessions: true }, signal) : null,
    ]);
    return { ready, metrics, webhooks: webhooks.webhooks, settings: settings.settings, tokens: tokens?.tokens };
  },

  view({ ready, metrics, webhooks, settings, tokens }, context) {
    return [
      facts([
        ["Name", context.session.service],
        ["Version", context.session.version],
        [
          "Health",
          tag(ready.status, ready.status === "ready" ? "state-approved" : "state-unhealthy"),
          ready.problems.map((text) => h("p", { class: "problem-text" }, text)),
        ],
        ["Clock", context.session.clock],
        ["Fabric", context.session.fabric],
      ]),
      h("h2", null, "Metrics since the start"),
      facts(CURRENT.map(([name, text]) => [name, text(metrics)])),
      h("h2", null, "Webhooks"),
      table(
        "Webhooks",
        ["Name", "Sends to", "Backlog", "Failed", "Last error", ...(context.can("operator") ? [""] : [])],
        webhooks.map((webhook) => ({
          key: webhook.name,
          cells: [
            webhook.name,
            h("span", { class: "break" }, webhook.url),
            number(webhook.pending),
            number(webhook.failed),
            webhook.last_error ?? "none",
            ...(context.can("operator") ? [webhookActions(webhook, context)] : []),
          ],
        })),
        "There are no webhooks.",
      ),
      tokens && [
        h("h2", null, "Tokens"),
        table(
          "Tokens",
          ["Name", "Role", "Created", "Expires", ""],
          tokens.map((token) => ({
            key: token.name,
            cells: [
              [token.name, token.parent && h("span", { class: "sub" }, `session of ${token.parent}`)],
              [token.role, token.group && ` of ${token.group}`],
              ["by ", token.created_by, ", ", since(token.created_at)],
              token.expires_at ? time(token.expires_at) : "never",
              h(
                "span",
                { class: "buttons" },
                button("Revoke", () => revoke(token, context), { label: `Revoke ${token.name}` }),
              ),
            ],
          })),
        ),
      ],
      h("h2", null, "Settings"),
      table(
        "Settings",
        ["Setting", "Value", "From"],
        settings.map((setting) => ({
          key: setting.name,
          class: setting.origin === "default" ? "default" : "",
          cells: [
            [h("code", null, setting.name), h("span", { class: "sub" }, setting.help)],
            h("code", { class: "break" }, String(setting.value ?? "").replaceAll(",", ", ")),
            setting.origin,
          ],
        })),
      ),
    ];
  },
};

/** The service also describes its problems when it is not ready. */
async function readiness(signal) {
  const response = await fetch("/readyz", { signal, cache: "no-store" }).catch(() => null);
  if (!response) throw new Problem(0, { detail: "The service cannot be reached." });
  return response.json();
}

/** Reads the metrics in the text format of Prometheus. `sum(name)` adds all samples of a metric. */
async function metricSums(signal) {
  const response = await fetch("/metrics", { signal, cache: "no-store" });
  const sums = new Map();
  for (const line of response.ok ? (await response.text()).split("\n") : []) {
    const [, name, value] = /^(\w+)(?:\{.*\})? (\S+)$/.exec(line) ?? [];
    if (name) sums.set(name, (sums.get(name) ?? 0) + Number(value));
  }
  return { sum: (name) => sums.get(name) ?? 0 };
}

function webhookActions(webhook, context) {
  const path = `webhooks/${part(webhook.name)}`;
  return h(
    "span",
    { class: "buttons" },
    button(
      "Test",
      () =>
        context.act(
          () => post(`${path}/test`),
          (result) => (result.delivered ? `Delivered: status ${result.status}.` : `Not delivered: ${result.error}`),
        ),
      { label: `Send a test event to ${webhook.name}` },
    ),
    webhook.failed + webhook.pending > 0 &&
      button("Retry", () => context.act(() => post(`${path}/retry`), "Sending the undelivered rows again."), {
        label: `Send undelivered rows of ${webhook.name} again`,
      }),
  );
}

function revoke(token, context) {
  context.open({
    title: `Revoke ${token.name}?`,
    view: () => h("p", null, "It stops working at once. Sessions that were started with it end too."),
    confirm: "Revoke",
    danger: true,
    run: () => request("DELETE", `tokens/${part(token.name)}`),
    done: `Revoked ${token.name}.`,
  });
}
