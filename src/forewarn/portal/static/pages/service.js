// The service: health, metrics, webhooks, tokens, settings.

import "../chart.js";
import { Problem, get, part, post, request } from "../api.js";
import { button, facts, since, table, tag, time } from "../parts.js";
import { h } from "../render.js";

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const number = (value) => NUMBER.format(value);
const CHARTS = [
  ["polls_per_second", "Polls per second", number],
  ["approvals_per_second", "Approvals per second", number],
  ["commits_per_second", "Commits per second", number],
  ["commit_seconds", "Time of a commit", (value) => `${number(value * 1000)} ms`],
  ["active_events", "Active events", number],
  ["feed_readers", "Feed readers", number],
  ["connections", "Open connections", number],
  ["cpu_share", "CPU", (value) => `${number(value * 100)} %`],
  ["resident_bytes", "Memory", (value) => `${number(value / 1_048_576)} MB`],
  ["webhook_backlog", "Webhook backlog", number],
];
const MOST_SAMPLES = 360;

export default {
  title: () => "Service",
  topics: ["metrics", "webhooks"],

  /** Adds a sample to the charts, or replaces a webhook, without loading the page again. */
  topic(name, data, _, shown) {
    if (!shown) return;
    const { samples, webhooks } = shown;
    if (name === "metrics" && data.time !== samples.time.at(-1)) {
      for (const column of Object.keys(data)) samples[column] = [...samples[column], data[column]].slice(-MOST_SAMPLES);
    }
    const webhook = name === "webhook" && webhooks.find((each) => each.name === data.name);
    if (webhook) Object.assign(webhook, { pending: data.backlog, failed: data.failed, last_error: data.last_error });
  },

  concerns: (row) => /^(token|session|webhook|clock)-/.test(row.kind),

  async load(context) {
    const { signal } = context.controller;
    const [ready, samples, webhooks, settings, tokens] = await Promise.all([
      readiness(signal),
      get("metrics/recent", {}, signal),
      get("webhooks", { limit: 1000 }, signal),
      get("settings", {}, signal),
      context.can("admin") ? get("tokens", { limit: 1000, sessions: true }, signal) : null,
    ]);
    return { ready, samples, webhooks: webhooks.webhooks, settings: settings.settings, tokens: tokens?.tokens };
  },

  view({ ready, samples, webhooks, settings, tokens }, context) {
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
      h("h2", null, "The last hour"),
      h(
        "div",
        { class: "charts" },
        CHARTS.filter(([column]) => samples[column]).map(([column, name, format]) =>
          h("fw-chart", { key: column, ".data": { name, times: samples.time, values: samples[column], format } }),
        ),
      ),
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
