// A rollout: progress, current health gate, remaining waves; pause, resume and cancel.

import { get, post } from "../api.js";
import {
  approvals,
  button,
  conditions,
  facts,
  groupLink,
  historyTable,
  hostLink,
  links,
  operationEvents,
  table,
  tag,
  time,
} from "../parts.js";
import { h } from "../render.js";
import { seconds } from "../time.js";
import { progress } from "./rollouts.js";

const MOST_WAVES = 50;

export default {
  title: (_, { params }) => `Rollout ${params.id.slice(0, 8)}`,

  async load({ params, controller: { signal } }) {
    const path = `rollouts/${params.id}`;
    const [rollout, explanation, history] = await Promise.all([
      get(path, {}, signal),
      get(`${path}/explain`, {}, signal),
      get("history", { rollout: params.id, limit: 200 }, signal),
    ]);
    const plan = rollout.ended_at ? null : await get(`${path}/plan`, {}, signal);
    const operations = await Promise.all(
      rollout.in_progress.slice(0, 50).map((each) => get(`operations/${each.operation}`, {}, signal)),
    );
    return { rollout, explanation, plan, operations, history: history.history, map: await get("map", {}, signal) };
  },

  concerns: (row) => Boolean(row.operation),

  view({ rollout, explanation, plan, operations, history, map }, context) {
    const change = (what, done) => () => context.act(() => post(`rollouts/${rollout.id}/${what}`), done);
    return [
      context.can("operator") &&
        !rollout.ended_at &&
        h(
          "p",
          { class: "buttons" },
          rollout.status === "paused"
            ? button("Resume", change("resume", "The rollout continues."), { style: "primary" })
            : button("Pause", change("pause", "The rollout starts no new wave.")),
          button("Cancel", () =>
            context.open({
              title: "Cancel this rollout?",
              view: () => h("p", null, "Hosts that it is updating now are finished. It starts no other host."),
              confirm: "Cancel the rollout",
              danger: true,
              run: () => post(`rollouts/${rollout.id}/cancel`),
              done: "Cancelled the rollout.",
            }),
          ),
        ),
      facts([
        ["Status", tag(rollout.status, `state-${rollout.status}`), rollout.reason && ` ${rollout.reason}`],
        ["Progress", progress(rollout.counts), `, wave ${rollout.wave}`],
        ["Hosts", rollout.hosts.join(", ")],
        ["Event", rollout.type || "Freeze"],
        ["At most at once", String(rollout.max_unavailable)],
        rollout.pause_seconds !== null && ["Pause between waves", seconds(rollout.pause_seconds)],
        rollout.health_timeout_seconds !== null && ["Health timeout", seconds(rollout.health_timeout_seconds)],
        rollout.next_wave_at && ["Next wave", time(rollout.next_wave_at)],
        ["Requested", "by ", rollout.requested_by, " at ", time(rollout.requested_at)],
        rollout.ended_at && ["Ended", time(rollout.ended_at)],
        plan?.waves.length > 0 && ["Expected end", time(plan.expected_end), ", at the latest ", time(plan.latest_end)],
        ["Id", h("code", null, rollout.id)],
      ]),
      !rollout.ended_at && [h("h2", null, "Health gate"), conditions(explanation)],
      operations.length > 0 && [
        h("h2", null, "In progress"),
        table(
          "Hosts in progress",
          ["Host", "Status", "Health", "Started", "Approvals", "Events"],
          operations.map((operation) => ({
            key: operation.id,
            cells: [
              hostLink(operation.host),
              tag(operation.status, `state-${operation.status}`),
              operation.health ?? "not checked yet",
              time(operation.started_at),
              approvals(operation),
              operationEvents(operation),
            ],
          })),
        ),
      ],
      domains(rollout, map),
      plan?.waves.length > 0 && [h("h2", null, "Remaining waves"), waves(plan.waves, rollout.wave)],
      h("h2", null, "Hosts"),
      facts([
        ["Done", rollout.done.length ? links(rollout.done, hostLink, 40) : "none"],
        ["Pending", rollout.pending.length ? links(rollout.pending, hostLink, 40) : "none"],
        rollout.skipped.length > 0 && [
          "Skipped",
          links(rollout.skipped, (each) => [hostLink(each.host), ` (${each.reason})`], 40),
        ],
      ]),
      h("h2", null, "History"),
      historyTable(history, context),
    ];
  },
};

/** The hosts of each update domain of each group, by their progress. */
function domains(rollout, map) {
  const states = new Map();
  const put = (names, state) => names.forEach((name) => states.set(name, state));
  put(rollout.pending, "pending");
  put(rollout.done, "done");
  put(
    rollout.in_progress.map((each) => each.host),
    "active",
  );
  const groups = new Map();
  for (const group of map.groups.filter((each) => each.declared)) {
    for (const [, domain, , , index] of group.vms) {
      const host = map.hosts[index]?.name;
      if (!states.has(host)) continue;
      if (!groups.has(group.name)) groups.set(group.name, new Map());
      const found = groups.get(group.name);
      if (!found.has(domain)) found.set(domain, new Set());
      found.get(domain).add(host);
    }
  }
  if (!groups.size) return null;
  const numbers = [...new Set([...groups.values()].flatMap((found) => [...found.keys()]))].sort((a, b) => a - b);
  const cell = (hosts) => {
    if (!hosts) return "";
    const count = (state) => [...hosts].filter((host) => states.get(host) === state).length;
    const [done, active] = [count("done"), count("active")];
    const [name, style] =
      done === hosts.size ? ["done", "state-done"] : active ? ["in progress", "state-started"] : ["pending", ""];
    return [tag(name, style), h("span", { class: "sub" }, `${done} of ${hosts.size} hosts`)];
  };
  return [
    h("h2", null, "Update domains"),
    table(
      "Update domains",
      ["Group", ...numbers.map((number) => `UD ${number}`)],
      [...groups].map(([name, found]) => ({
        key: name,
        cells: [groupLink(name), ...numbers.map((number) => cell(found.get(number)))],
      })),
    ),
  ];
}

/** The waves of a plan, with the update domain of each group. `before`: how many waves came before them. */
export function waves(list, before = 0) {
  return [
    table(
      "Waves",
      ["Wave", "Hosts", "Update domains", "VMs", "Notice", "Start", "End"],
      list.slice(0, MOST_WAVES).map((wave, index) => ({
        key: index,
        cells: [
          String(before + index + 1),
          links(wave.hosts, hostLink, 4),
          links(wave.groups, (each) => `${each.group}: ${each.update_domain}`, 4),
          String(wave.vms),
          time(wave.scheduled_at),
          time(wave.starts_at),
          time(wave.ends_at),
        ],
      })),
    ),
    list.length > MOST_WAVES && h("p", { class: "muted" }, `and ${list.length - MOST_WAVES} more waves`),
  ];
}
