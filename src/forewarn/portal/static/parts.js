// Parts that several pages use.

import { part } from "./api.js";
import { h } from "./render.js";
import { clockTime, fullTime } from "./time.js";

export const vmLink = (name) => h("a", { href: `/portal/vms/${part(name)}`, class: "name" }, name);
export const hostLink = (name) => h("a", { href: `/portal/hosts/${part(name)}`, class: "name" }, name);
export const groupLink = (name) => h("a", { href: `/portal/groups/${part(name)}`, class: "name" }, name);
export const eventLink = (id, text) =>
  h("a", { href: `/portal/events/${id}`, class: text ? "" : "id" }, text ?? id.slice(0, 8));
export const rolloutLink = (id) => h("a", { href: `/portal/rollouts/${id}`, class: "id" }, id.slice(0, 8));

/** Links with commas between them. The rest is counted. */
export function links(names, link, most = 6) {
  const shown = names.slice(0, most).flatMap((name, index) => [index ? ", " : "", link(name)]);
  return names.length > most ? [...shown, ` and ${names.length - most} more`] : shown;
}

/** A time of the service; its full form is in the tooltip. */
export const time = (text) => (text ? h("time", { datetime: text, title: fullTime(text) }, clockTime(text)) : "–");
export const left = (text) => h("fw-countdown", { to: text, title: fullTime(text) });
export const since = (text) => h("fw-countdown", { to: text, mode: "since", title: fullTime(text) });

export const tag = (text, style = "") => h("span", { class: `tag ${style}` }, text);
export const eventType = (type) =>
  h("span", { class: `type type-${type}` }, type === "SpotRebalanceRecommendation" ? "Rebalance" : type);

const activeEvents = ({ events }) => events.filter((event) => event.status !== "cancelled");

/** How many of the events of an operation are approved. */
export function approvals(operation) {
  const events = activeEvents(operation);
  return events.length ? `${events.filter((event) => event.approved_at).length} of ${events.length}` : "–";
}

/** Links to the events of an operation. */
export function operationEvents(operation) {
  const events = activeEvents(operation);
  return events.length ? links(events, (event) => eventLink(event.id, `${event.type} of ${event.scope}`), 3) : "none";
}

/** Names and values. */
export function facts(rows) {
  return h(
    "dl",
    { class: "facts" },
    rows.filter(Boolean).map(([name, ...value]) => h("div", null, h("dt", null, name), h("dd", null, value))),
  );
}

/** A table. `rows`: `{key, cells, class}`; on a narrow screen, each row becomes a block of named values. With the style
    "flow", the block is a text without names. */
export function table(label, columns, rows, empty = "Nothing to show.", style = "") {
  if (!rows.length) return h("p", { class: "muted" }, empty);
  return h(
    "div",
    { class: `table ${style}`, role: "region", "aria-label": label, tabindex: 0 },
    h(
      "table",
      { role: "table", "aria-label": label || null },
      h(
        "thead",
        { role: "rowgroup" },
        h(
          "tr",
          { role: "row" },
          columns.map((name) =>
            h("th", { role: "columnheader", scope: "col" }, name || h("span", { class: "hidden-text" }, "Actions")),
          ),
        ),
      ),
      h(
        "tbody",
        { role: "rowgroup" },
        rows.map(({ key, cells, ...props }) =>
          h(
            "tr",
            { role: "row", key, ...props },
            cells.map((cell, index) =>
              h("td", { role: "cell", "data-name": columns[index] || null }, h("div", null, cell)),
            ),
          ),
        ),
      ),
    ),
  );
}

export const button = (text, onclick, { style = "", label, disabled } = {}) =>
  h("button", { type: "button", class: style, onclick, disabled, "aria-label": label || null }, text);

/** What an event or a rollout waits for, in one sentence for each condition. */
function waitText(wait) {
  const until = wait.until ? [", until ", time(wait.until)] : [];
  const of = wait.scope ?? wait.group;
  if (wait.kind === "approval") {
    if (wait.done)
      return ["Approved", of && ` for ${of}`, wait.by && ` by ${wait.by}`, wait.time && [" at ", time(wait.time)]];
    return ["Approval", of && ` of ${of}`, until];
  }
  const names = {
    window: "Maintenance window",
    deletion: "Other deletions",
    arrival: "Arrival of a VM",
    fabric: "Work of the fabric",
    gate: "Health check",
    settling: "Settle time",
    resume: "An operator resumes it",
    operation: "Work in progress",
    pause: "Pause between waves",
    host: "Host in use",
    rollout: "Update domain in use",
  };
  const text = [names[wait.kind], wait.group && `of ${wait.group}`].filter(Boolean).join(" ");
  return [text, text && wait.text && ": ", wait.text, until];
}

/** All conditions of an event or a rollout, and what happens then. */
export function conditions({ waits: list, next }) {
  return [
    h(
      "ul",
      { class: "checks" },
      list.map((wait) =>
        h(
          "li",
          { class: wait.done ? "done" : "open" },
          h("span", { class: "hidden-text" }, wait.done ? "Done: " : "Open: "),
          waitText(wait),
        ),
      ),
    ),
    h("p", null, next),
  ];
}

/** The open conditions of an event. */
export function waits(list) {
  const open = list.filter((wait) => !wait.done);
  if (!open.length) return h("span", { class: "muted" }, "nothing");
  return h(
    "ul",
    { class: "waits" },
    open.slice(0, 3).map((wait) => h("li", null, waitText(wait))),
    open.length > 3 && h("li", null, `and ${open.length - 3} more`),
  );
}

/** Rows of history, as a table. */
export function historyTable(rows, { isTenant, label = "History" } = {}) {
  return table(
    label,
    ["Time", "Kind", "Event", "VMs", ...(isTenant ? [] : ["Host"]), "By", "Details"],
    rows.map((row) => ({
      key: row.sequence,
      id: `row-${row.sequence}`,
      cells: [
        h(
          "a",
          { href: `/portal/history?row=${row.sequence}`, title: `Row ${row.sequence}`, class: "quiet" },
          time(row.time),
        ),
        h("span", { class: `kind kind-${row.kind}` }, row.kind),
        row.event ? eventLink(row.event, row.type) : row.type,
        row.vms.length || !row.group ? links(row.vms, vmLink, 3) : groupLink(row.group),
        ...(isTenant ? [] : [row.host ? hostLink(row.host) : ""]),
        row.by,
        row.reason ?? row.cause ?? "",
      ],
    })),
    "No rows.",
    "flow",
  );
}
