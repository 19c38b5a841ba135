// Fleet: groups as grids of update domain and fault domain, with a square for each VM; hosts beside them.

import { get, part } from "../api.js";
import { groupLink, hostLink, tag } from "../parts.js";
import { h } from "../render.js";

export const STATES = {
  quiet: ["quiet", "no event", ""],
  notified: ["notified", "an event is scheduled", "!"],
  started: ["started", "an event has started", "▶"],
  silent: ["not polling", "its scope does not poll, and gets no notices", "?"],
  unhealthy: ["unhealthy", "its host is degraded or has failed", "×"],
  deallocated: ["deallocated", "it does not run", "–"],
};
const ZOOMS = [
  ["counts", "Counts"],
  ["squares", "Squares"],
  ["names", "Names"],
];
const BLOCK = 250; // VMs per block: a browser skips blocks that are not visible.
const MOST_NAMES = 300;
const MOST_HOSTS = 200;

export default {
  title: () => "Fleet",

  async load(context) {
    const { signal } = context.controller;
    const [map, overview] = await Promise.all([get("map", {}, signal), get("overview", {}, signal)]);
    return model(map, overview);
  },

  concerns: (row) => !/^(token|session|webhook|fault)-/.test(row.kind),

  view(data, context) {
    const { query } = context;
    const filter = { text: query.get("q") ?? "", state: query.get("state") ?? "", host: query.get("host") ?? "" };
    const zoom = query.get("zoom") ?? (data.total > MOST_NAMES ? "squares" : "names");
    const set = (name) => (happening) => {
      context.setQuery({ [name]: happening.target.value });
      context.update();
    };
    const groups = data.groups.map((group) => filtered(group, filter)).filter((group) => group.vms.length);
    const found = groups.reduce((sum, group) => sum + group.vms.length, 0);
    return [
      h(
        "div",
        { class: "filters", role: "search" },
        h(
          "p",
          { class: "field" },
          h("label", { for: "search" }, "VM, group or host"),
          h("input", {
            id: "search",
            type: "search",
            value: filter.text,
            oninput: set("q"),
            autocomplete: "off",
            spellcheck: "false",
          }),
        ),
        h(
          "p",
          { class: "field" },
          h("label", { for: "state" }, "State"),
          h(
            "select",
            { id: "state", value: filter.state, onchange: set("state") },
            h("option", { value: "" }, `all (${data.total})`),
            Object.entries(STATES).map(([state, [name]]) =>
              h("option", { value: state }, `${name} (${data.counts[state]})`),
            ),
          ),
        ),
        h(
          "div",
          { class: "choices", role: "group", "aria-label": "Zoom" },
          ZOOMS.map(([name, text]) =>
            h(
              "button",
              { type: "button", value: name, "aria-pressed": String(name === zoom), onclick: set("zoom") },
              text,
            ),
          ),
        ),
      ),
      h(
        "p",
        { class: "legend" },
        Object.entries(STATES).map(([state, [name, meaning, mark]]) =>
          h(
            "span",
            { title: meaning },
            h("i", { class: `vm ${state}`, "aria-hidden": "true" }, mark),
            `${name} `,
            h("strong", null, data.counts[state]),
          ),
        ),
      ),
      found < data.total && h("p", { role: "status" }, `${found} of ${data.total} VMs match.`),
      h(
        "div",
        { class: data.hosts.length ? "with-hosts" : "" },
        h(
          "div",
          { class: "groups", onkeydown: moveFocus },
          groups.map((group) => card(group, zoom)),
          !groups.length && h("p", { class: "muted" }, "No VM matches."),
        ),
        data.hosts.length > 0 && hosts(data, filter),
      ),
    ];
  },
};

/** Combines the structure of the fleet with the current events. */
export function model(map, overview) {
  const states = new Map();
  for (const event of overview.events) {
    for (const vm of event.vms)
      if (states.get(vm) !== "started") states.set(vm, event.status === "started" ? "started" : "notified");
  }
  const silent = new Set(overview.not_enabled);
  const counts = Object.fromEntries(Object.keys(STATES).map((state) => [state, 0]));
  const onHost = map.hosts.map(() => []);
  const single = {
    name: "Standalone VMs",
    kind: "standalone",
    declared: false,
    update_domains: 1,
    fault_domains: 1,
    vms: [],
  };
  const groups = [];
  for (const group of map.groups) {
    const vms = group.vms.map(([name, update, fault, scope, host, deallocated, spot]) => {
      const bad = host >= 0 && map.hosts[host].state !== "in-service";
      const state = deallocated
        ? "deallocated"
        : (states.get(name) ?? (bad ? "unhealthy" : silent.has(group.scopes[scope]) ? "silent" : "quiet"));
      counts[state] += 1;
      const vm = { name, update, fault, state, spot, host: host >= 0 ? map.hosts[host].name : "", group: group.name };
      if (host >= 0) onHost[host].push(vm);
      return vm;
    });
    if (group.declared) groups.push({ ...group, vms });
    else single.vms.push(...vms);
  }
  if (single.vms.length) groups.push(single);
  const hosts = map.hosts.map((host, index) => ({ ...host, vms: onHost[index] }));
  return { groups, hosts, counts, total: Object.values(counts).reduce((sum, count) => sum + count, 0) };
}

function filtered(group, { text, state, host }) {
  if (!text && !state && !host) return group;
  const wanted = text.trim().toLowerCase();
  const whole = group.declared && group.name.toLowerCase().includes(wanted);
  const vms = group.vms.filter(
    (vm) =>
      (!state || vm.state === state) &&
      (!host || vm.host === host) &&
      (whole || vm.name.toLowerCase().includes(wanted) || vm.host.toLowerCase().includes(wanted)),
  );
  return { ...group, vms };
}

/** A group. The description of an unchanged group is used again, so that nothing is compared. */
function card(group, zoom) {
  const signature = `${zoom} ${group.vms.map((vm) => vm.name + vm.state[0] + vm.state.length).join()}`;
  const last = cards.get(group.name);
  if (last?.signature === signature) return last.node;
  const node = h(
    "section",
    { class: `card group zoom-${zoom}${group.vms.length > BLOCK ? " large" : ""}`, key: group.name, "aria-label": group.name },
    h(
      "h2",
      null,
      group.declared ? groupLink(group.name) : group.name,
      " ",
      h(
        "span",
        { class: "muted" },
        `${group.declared ? `${group.kind}, ` : ""}${group.vms.length} VM${group.vms.length === 1 ? "" : "s"}`,
      ),
    ),
    group.declared ? domains(group, zoom) : blocks(group.vms, zoom, group.vms[0]),
  );
  cards.set(group.name, { signature, node });
  return node;
}

const cards = new Map();

function domains(group, zoom) {
  const cells = new Map();
  for (const vm of group.vms) {
    const key = `${vm.update} ${vm.fault}`;
    if (!cells.has(key)) cells.set(key, []);
    cells.get(key).push(vm);
  }
  const unique = (name) => [...new Set(group.vms.map((vm) => vm[name]))].sort((a, b) => a - b);
  const [updates, faults] = [unique("update"), unique("fault")];
  return h(
    "div",
    { class: "table", role: "region", tabindex: 0, "aria-label": `Domains of ${group.name}` },
    h(
      "table",
      { class: "domains" },
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          h("td", null),
          faults.map((fault) => h("th", { scope: "col", title: `Fault domain ${fault}` }, `FD ${fault}`)),
        ),
      ),
      h(
        "tbody",
        null,
        updates.map((update) =>
          h(
            "tr",
            null,
            h("th", { scope: "row", title: `Update domain ${update}` }, `UD ${update}`),
            faults.map((fault) => h("td", null, blocks(cells.get(`${update} ${fault}`) ?? [], zoom, group.vms[0]))),
          ),
        ),
      ),
    ),
  );
}

/** Only the first square of a group is a tab stop. Arrow keys reach the others. */
function blocks(vms, zoom, first) {
  if (zoom === "counts") return count(vms);
  const found = [];
  for (let start = 0; start < vms.length; start += BLOCK)
    found.push(
      h(
        "div",
        { class: "vms" },
        vms.slice(start, start + BLOCK).map((vm) => square(vm, zoom, vm === first)),
      ),
    );
  return found;
}

function count(vms) {
  const states = Object.keys(STATES).filter((state) => state !== "quiet");
  return h(
    "span",
    { class: "count" },
    String(vms.length),
    states.map((state) => stateCount(state, vms)),
  );
}

/** The number of VMs in a state, with its mark; nothing if there are none. */
function stateCount(state, vms) {
  const number = vms.reduce((sum, vm) => sum + (vm.state === state), 0);
  if (!number) return null;
  const [name, , mark] = STATES[state];
  return h(
    "span",
    { class: "count" },
    h("i", { class: `vm ${state}`, "aria-hidden": "true" }, mark),
    h("span", { class: "hidden-text" }, name),
    ` ${number}`,
  );
}

function square(vm, zoom, isFirst) {
  const [name, , mark] = STATES[vm.state];
  const label = `${vm.name}: ${name}${vm.host ? `, on ${vm.host}` : ""}${vm.spot ? ", Spot" : ""}`;
  return h(
    "a",
    {
      class: `vm ${vm.state}`,
      href: `/portal/vms/${part(vm.name)}`,
      "aria-label": label,
      title: label,
      tabindex: isFirst ? null : -1,
      key: vm.name,
    },
    zoom === "names" ? [mark && h("b", null, mark), vm.name] : mark,
  );
}

/** Hosts with something to see come first. */
function hosts(data, filter) {
  const text = filter.text.trim().toLowerCase();
  const matches = data.hosts.filter(
    (host) => host.name.toLowerCase().includes(text) || host.vms.some((vm) => vm.name.toLowerCase().includes(text)),
  );
  const isBusy = (host) =>
    host.state !== "in-service" || host.vms.some((vm) => ["notified", "started"].includes(vm.state));
  const [busy, quiet] = [matches.filter(isBusy), matches.filter((host) => !isBusy(host))];
  const shown = [...busy, ...quiet].slice(0, MOST_HOSTS);
  return h(
    "aside",
    { class: "card hosts", "aria-label": "Hosts" },
    h("h2", null, "Hosts ", h("span", { class: "muted" }, matches.length)),
    h(
      "ul",
      null,
      shown.map((host) =>
        h(
          "li",
          { key: host.name },
          hostLink(host.name),
          " ",
          host.state !== "in-service" && tag(host.state, "state-unhealthy"),
          host.spare && tag("spare"),
          " ",
          h("span", { class: "muted" }, `${host.vms.length} VM${host.vms.length === 1 ? "" : "s"}`),
          ["started", "notified"].map((state) => stateCount(state, host.vms)),
        ),
      ),
    ),
    matches.length > shown.length &&
      h("p", { class: "muted" }, `${matches.length - shown.length} more hosts. Search to find them.`),
  );
}

/** Arrow keys move between the squares. */
function moveFocus(happening) {
  const here = happening.target.closest("a.vm");
  const step = { ArrowRight: 1, ArrowLeft: -1 }[happening.key];
  const row = { ArrowDown: 1, ArrowUp: -1 }[happening.key];
  if (!here || (!step && !row)) return;
  happening.preventDefault();
  const all = [...happening.currentTarget.querySelectorAll("a.vm")];
  let index = all.indexOf(here);
  if (step) index += step;
  else {
    const { top, left } = here.getBoundingClientRect();
    for (index += row; all[index]; index += row) {
      const box = all[index].getBoundingClientRect();
      if (box.top !== top && Math.abs(box.left - left) < box.width / 2 + 2) break;
    }
  }
  all[index]?.focus();
}
