// A VM: the document that it sees, its polls, its placement, its history, and what can happen to it.

import "../timeline.js";
import { causes, get, part } from "../api.js";
import { operationForm } from "../operation_form.js";
import { eventLink, eventType, facts, groupLink, historyTable, hostLink, left, links, since, tag } from "../parts.js";
import { h } from "../render.js";
import { duration, now } from "../time.js";

export default {
  title: (_, { params }) => `VM ${params.name}`,

  async load(context) {
    const { params, state, controller, session } = context;
    const { signal } = controller;
    const path = `vms/${part(params.name)}`;
    state.version ??= session.default_api_version;
    const [vm, document, events, history] = await Promise.all([
      get(path, {}, signal),
      get(`${path}/document`, { "api-version": state.version }, signal),
      get("events", { vm: params.name, all: true, limit: 100 }, signal),
      get("history", { vm: params.name, order: "newest", limit: 50 }, signal),
    ]);
    state.form?.check();
    const known = context.can("operator") ? await causes() : [];
    return { vm, document, events: events.events, history: history.history, causes: known };
  },

  concerns: (row, { params }) =>
    row.vms.includes(params.name) ||
    ["enabled", "disabled", "fleet-applied", "policy-changed"].includes(row.kind) ||
    Boolean(row.host),

  view({ vm, document, events, history, causes }, context) {
    const { session, state } = context;
    const live = events.filter((event) => !event.ended_at);
    return [
      facts([
        ["State", tag(vm.state)],
        [
          "Active events",
          live.length
            ? links(live, (event) =>
                eventLink(event.id, [
                  eventType(event.type),
                  event.status === "scheduled" ? [" in ", left(event.not_before)] : ` ${event.status}`,
                ]),
              )
            : "none",
        ],
        [
          "Group",
          vm.group === vm.name ? "none (standalone)" : groupLink(vm.group),
          vm.scope !== vm.group && `, scope ${vm.scope}`,
        ],
        vm.host && ["Host", hostLink(vm.host)],
        ["Domains", `update domain ${vm.update_domain}, fault domain ${vm.fault_domain}`],
        [
          "Notices",
          vm.events_enabled
            ? `enabled, incarnation ${vm.incarnation}`
            : tag("not polling: gets no notices", "state-silent"),
        ],
        ["Last poll", polls(vm)],
        ["Polls from", vm.listen ?? vm.address ?? "–"],
        ["Priority", vm.priority, vm.eviction_policy && `, eviction: ${vm.eviction_policy}`],
        (vm.size || vm.zone) && ["Size and zone", [vm.size, vm.zone].filter(Boolean).join(", ")],
        Object.keys(vm.tags).length > 0 && [
          "Tags",
          Object.entries(vm.tags)
            .map(([name, value]) => `${name}=${value}`)
            .join(", "),
        ],
      ]),
      h(
        "div",
        { class: "columns" },
        h(
          "section",
          { class: "card", "aria-label": "Document" },
          h("h2", null, "Document"),
          h(
            "p",
            { class: "field" },
            h("label", { for: "version" }, "api-version"),
            h(
              "select",
              {
                id: "version",
                value: state.version,
                onchange: (happening) => {
                  state.version = happening.target.value;
                  context.reload();
                },
              },
              session.api_versions.map((version) => h("option", { value: version, key: version }, version)),
            ),
          ),
          h(
            "pre",
            { tabindex: 0, "aria-label": `The document at api-version ${state.version}` },
            JSON.stringify(document, null, 2),
          ),
        ),
        causes.length > 0 &&
          h(
            "section",
            { class: "card", "aria-label": "Request an operation" },
            h("h2", null, "Request an operation"),
            operationForm(context, causes, { vms: [vm.name] }, vm),
          ),
      ),
      h("h2", null, "Events"),
      events.length
        ? h(
            "section",
            { class: "card", "aria-label": "Timeline" },
            h("fw-timeline", { ".data": { events, ...period(events), lane: (event) => event.type } }),
          )
        : h("p", { class: "muted" }, "This VM has had no events."),
      h("h2", null, "History"),
      historyTable(history, context),
      h("p", null, h("a", { href: `/portal/history?vm=${part(vm.name)}` }, "All history of this VM")),
    ];
  },
};

function polls(vm) {
  const { count, last_at: last, interval_seconds: interval } = vm.polls;
  if (!last) return vm.last_seen_at ? ["another VM of the scope polled ", since(vm.last_seen_at)] : "never";
  return [
    since(last),
    `, ${count} poll${count === 1 ? "" : "s"} since the start of the service`,
    interval ? `, one every ${duration(interval * 1000)}` : "",
  ];
}

/** From the oldest event of the last day to the last NotBefore. */
function period(events) {
  const time = now();
  const begin = Math.max(Math.min(...events.map((event) => Date.parse(event.created_at))), time - 86_400_000);
  const end = Math.max(...events.map((event) => Date.parse(event.ended_at ?? event.not_before)), time);
  const margin = Math.max((end - begin) / 10, 300_000);
  return { past: time - begin + margin, future: end - time + margin };
}
